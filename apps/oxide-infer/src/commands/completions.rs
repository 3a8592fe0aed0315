//! `oxide-infer completions`.

use crate::cli::{Cli, options::CompletionsArgs};
use crate::terminal;
use clap::CommandFactory;
use std::process::ExitCode;

pub(crate) fn run(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "oxide-infer", &mut script);
    terminal::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

//! `oxide-infer pull`.

use crate::cli::options::PullArgs;
use crate::hub::{Hub, HubId};
use crate::terminal;
use std::process::ExitCode;

pub(crate) fn run(args: &PullArgs) -> anyhow::Result<ExitCode> {
    terminal::start_logging(&args.log)?;
    let id: HubId = args.repo.parse()?;
    let hub = Hub::from_environment()?;
    let files = super::runtime()?.block_on(hub.fetch(&id))?;
    terminal::print(&format!("{}\n", files.path().display()))?;
    Ok(ExitCode::SUCCESS)
}

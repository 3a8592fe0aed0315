//! The `oxide-infer` command: parses the command line, composes engine and server, and prints errors. Everything else
//! lives in the crates.

mod bench;
mod cli;
mod commands;
mod device;
mod generate;
mod generation_config;
mod hub;
mod load;
mod model;
mod terminal;

use cli::Command;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            terminal::print_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    match cli::parse()?.command {
        Command::Serve(args) => commands::serve::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Pull(args) => commands::pull::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Artifacts(args) => commands::artifacts::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
    }
}

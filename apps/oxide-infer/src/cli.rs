//! The command line. Options are declared here once; the environment and the configuration file are derived from these
//! declarations ([`config`]).

pub(crate) mod config;
pub(crate) mod options;
pub(crate) mod values;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use config::ConfigFile;
use options::{
    ArtifactsArgs, BenchArgs, ChatArgs, CompletionsArgs, DoctorArgs, PullArgs, RunArgs, ServeArgs,
};
use std::ffi::OsString;
use std::path::PathBuf;

const CONFIGURATION_HELP: &str = "\
Configuration:
  Every option is also read from the environment, as OXIDE_INFER_ and its name in capitals with underscores
  (--max-model-len: OXIDE_INFER_MAX_MODEL_LEN), and from a TOML file: --config FILE, OXIDE_INFER_CONFIG, or
  ~/.config/oxide-infer/config.toml. A flag goes before the environment, the environment before the file. Example:

    model = \"models/SmolLM2-135M-Instruct.Q4_1.gguf\"
    [serve]
    port = 8080
    api-key = [\"first\", \"second\"]";

const EXAMPLES: &str = "\
Examples:
  oxide-infer serve --model models/SmolLM2-135M-Instruct.Q4_1.gguf
  oxide-infer run --model Qwen/Qwen2.5-0.5B-Instruct \"Why is the sky blue?\"
  oxide-infer chat --model ./my-model
  oxide-infer doctor";

/// LLM inference: an OpenAI-compatible server, one-shot answers, chat and benchmarks in one binary.
#[derive(Debug, Parser)]
#[command(name = "oxide-infer", version, max_term_width = 110, propagate_version = true)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{CONFIGURATION_HELP}"))]
pub(crate) struct Cli {
    /// TOML file with values for options [default: ~/.config/oxide-infer/config.toml if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(ServeArgs),
    Run(RunArgs),
    Chat(ChatArgs),
    Bench(BenchArgs),
    Pull(PullArgs),
    Doctor(DoctorArgs),
    Artifacts(ArtifactsArgs),
    Completions(CompletionsArgs),
}

/// Parses the arguments of this process with the environment and the configuration file. Prints and exits on `--help`
/// and on errors of usage (code 2).
pub(crate) fn parse() -> anyhow::Result<Cli> {
    let args: Vec<OsString> = std::env::args_os().collect();
    let declared = Cli::command();
    let file = match config::config_path(&args, |name| std::env::var_os(name)) {
        Some(path) => ConfigFile::read(&path, &declared)?,
        None => ConfigFile::default(),
    };
    let command = config::with_environment(file.apply(declared));
    let matches = command.try_get_matches_from(args.iter().cloned());
    let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.or_else(|error| {
        if let Some(note) = note_of_source(&error, &file, &args) {
            error.print().ok();
            eprintln!("{note}");
            std::process::exit(2)
        }
        error.exit()
    })
}

/// Says so if a value that was refused comes from the configuration file and not from the arguments.
fn note_of_source(error: &clap::Error, file: &ConfigFile, args: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return None };
    let option = argument.strip_prefix("--")?.split([' ', '=', '[']).next()?;
    let command = args.iter().find_map(|arg| {
        let name = arg.to_str()?;
        Cli::command().find_subcommand(name).map(|_| name.to_owned())
    })?;
    let on_command_line = args
        .iter()
        .filter_map(|arg| arg.to_str())
        .any(|arg| arg.strip_prefix("--").is_some_and(|arg| arg.split('=').next() == Some(option)));
    if on_command_line || std::env::var_os(config::variable(option)).is_some() {
        return None;
    }
    let path = file.source_of(&command, option, value)?;
    Some(format!("The value comes from the configuration file {}.", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_declaration_is_consistent() {
        config::with_environment(Cli::command()).debug_assert();
    }

    #[test]
    fn every_command_has_help_and_examples() {
        let mut command = Cli::command();
        command.build();
        for subcommand in command.get_subcommands_mut().filter(|c| c.get_name() != "help") {
            let name = subcommand.get_name().to_owned();
            let help = subcommand.render_long_help().to_string();
            assert!(help.contains("Examples:"), "`{name}` has no examples");
            assert!(subcommand.get_about().is_some(), "`{name}` has no description");
            for arg in subcommand.get_arguments() {
                assert!(arg.get_help().is_some(), "`{name}` does not describe `{}`", arg.get_id());
            }
        }
    }

    #[test]
    fn every_option_has_a_variable() {
        let command = config::with_environment(Cli::command());
        for subcommand in command.get_subcommands() {
            for (arg, long) in subcommand.get_arguments().filter_map(|arg| Some((arg, arg.get_long()?))) {
                let expected = config::variable(long);
                let name = subcommand.get_name();
                assert_eq!(arg.get_env(), Some(expected.as_ref()), "`{name} --{long}`");
            }
        }
        assert_eq!(config::variable("max-model-len"), "OXIDE_INFER_MAX_MODEL_LEN");
    }

    #[test]
    fn flags_can_be_given_and_taken_back() {
        let raw = |args: &[&str]| {
            let args = [&["oxide-infer", "run", "--model", "m"], args, &["prompt"]].concat();
            match Cli::try_parse_from(args).unwrap().command {
                Command::Run(args) => args.raw,
                other => panic!("{other:?}"),
            }
        };
        assert!(!raw(&[]));
        assert!(raw(&["--raw"]));
        assert!(!raw(&["--raw=false"]));
    }

    #[test]
    fn the_help_states_the_engines_defaults() {
        let command = <Cli as clap::CommandFactory>::command();
        let run = command.find_subcommand("run").unwrap();
        let help = |name: &str| {
            let argument = run.get_arguments().find(|argument| argument.get_id() == name).unwrap();
            argument.get_help().unwrap().to_string()
        };
        let (cpu, cuda) = (
            oxide_infer_engine::cpu::CpuOptions::default(),
            oxide_infer_engine::cuda::CudaOptions::default(),
        );
        let both = |cpu: usize, gpu: usize| format!("[default: {cpu} on the CPU, {gpu} on a GPU]");
        assert!(
            help("max_batch_tokens").ends_with(&both(cpu.max_batch_tokens, cuda.max_batch_tokens)),
            "{}",
            help("max_batch_tokens")
        );
        assert!(help("max_sequences").ends_with(&both(cpu.max_sequences, cuda.max_sequences)));
        assert_eq!(cpu.kv_memory.0, 1 << 30);
        let share = oxide_infer_engine::cuda::CudaOptions::KV_SHARE;
        assert!(
            help("kv_memory").contains("1GiB on the CPU") && help("kv_memory").contains(&format!("{share}%"))
        );
    }
}

//! The options of every command: shared groups and the small commands here, the others in modules of their own.

mod bench;
mod generate;
mod serve;

pub(crate) use bench::{BenchArgs, BenchEndpoint, OnlineBenchOptions};
pub(crate) use generate::{ChatArgs, RunArgs, SamplingOptions};
pub(crate) use serve::{PoolingChoice, ReasoningParser, ServeArgs, ToolParser};

use super::values::{ByteSize, DeviceArg, WeightsArg};
use clap::{Arg, ArgAction, Args, ValueEnum, ValueHint};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// How options that are on or off are declared.
trait SwitchArg {
    /// Off unless given as `--name` or `--name=true`; `--name=false` takes back what the environment or the file says.
    fn switch(self) -> Self;
}

impl SwitchArg for Arg {
    fn switch(self) -> Self {
        self.action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .default_value("false")
            .value_name("BOOL")
    }
}

/// The model and where it runs; common to every command that computes.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelOptions {
    /// Model: a directory with safetensors, a .gguf file, or a Hugging Face id
    ///
    /// An id is ORG/REPO, ORG/REPO@REVISION, or for a repository of GGUF files ORG/REPO:NAME, where NAME is a file or a
    /// part of one file's name (such as Q4_K_M). What is not in the cache is downloaded; with HF_HUB_OFFLINE=1 only the
    /// cache is used.
    #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub(crate) model: String,

    /// Where to run: cpu, cuda, or cuda:N [default: a GPU if there is one that can run the model, else the CPU]
    #[arg(long, value_name = "DEVICE", value_parser = str::parse::<DeviceArg>)]
    pub(crate) device: Option<DeviceArg>,

    /// Jinja file that replaces the model's chat template
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) chat_template: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) engine: EngineOptions,

    #[command(flatten)]
    pub(crate) log: LogOptions,
}

/// What the engine computes with, and its limits.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineOptions {
    /// Make weights from a seed instead of reading the model's: random:SEED
    ///
    /// For benchmarks and parity runs. --model is then a directory that needs no weights: config.json, and where text is
    /// needed (serve, run, chat) the tokenizer's files. The same seed gives the same bits everywhere.
    #[arg(long, value_name = "WEIGHTS", value_parser = str::parse::<WeightsArg>)]
    pub(crate) weights: Option<WeightsArg>,

    /// Longest sequence in tokens, prompt and answer together [default: the model's own, or what fits --kv-memory]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_model_len: Option<usize>,

    /// Tokens computed in one step; longer prompts are computed in chunks of this [default: 512 on the CPU, 2048 on a GPU]
    ///
    /// Whoever waits for a next token waits for the prompts in the same step: fewer tokens keep that wait short, more
    /// tokens read many prompts at once faster.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_batch_tokens: Option<usize>,

    /// Sequences that run at once [default: 64 on the CPU, 256 on a GPU]
    #[arg(long, value_name = "N")]
    pub(crate) max_sequences: Option<usize>,

    /// Memory for keys and values, such as 512MiB or 2GiB [default: 1GiB on the CPU, 92% of what is left on a GPU]
    #[arg(long, value_name = "SIZE", value_parser = str::parse::<ByteSize>)]
    pub(crate) kv_memory: Option<ByteSize>,

    /// Give a request the same tokens and log-probabilities, bit for bit, whatever else runs
    ///
    /// Alone, in any batch, with its prompt in chunks, after a preemption and with a warm prefix cache, as long as the
    /// other options are the same. On a GPU this costs speed (docs/performance.md) and takes at most 256 --max-sequences;
    /// the CPU always computes so.
    #[arg(long, switch())]
    pub(crate) deterministic: bool,

    /// CPU threads that compute [default: the number of cores]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,

    /// Take the GPU kernels from this folder of artifacts instead of from the binary
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) artifacts: Option<PathBuf>,
}

/// What is logged to standard error.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub(crate) struct LogOptions {
    /// Form of log lines
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// Least severe level logged: error, warn, info, debug, trace, or a filter such as oxide_infer_engine=debug
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Download a model from the Hugging Face Hub into its cache
#[derive(Args, Debug)]
#[command(after_help = "\
Only what the engine needs is downloaded: safetensors and their index, configuration, tokenizer and chat template; or one
.gguf file. HF_TOKEN (or the token that `hf auth login` saved), HF_HOME, HF_HUB_CACHE, HF_ENDPOINT and HF_HUB_OFFLINE mean
what they mean to Hugging Face's own tools. What is already there is not downloaded again.

Examples:
  oxide-infer pull HuggingFaceTB/SmolLM2-135M-Instruct
  oxide-infer pull Qwen/Qwen2.5-0.5B-Instruct@main
  oxide-infer pull bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M
  HF_TOKEN=hf_… oxide-infer pull meta-llama/Llama-3.2-1B-Instruct")]
pub(crate) struct PullArgs {
    /// ORG/REPO, ORG/REPO@REVISION, or with :NAME the one .gguf file that is called so or has it in its name
    #[arg(value_name = "ORG/REPO[@REVISION][:NAME]")]
    pub(crate) repo: String,

    #[command(flatten)]
    pub(crate) log: LogOptions,
}

/// Report devices, driver and cached models, and what would run here and why not
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oxide-infer doctor
  oxide-infer doctor --model Qwen/Qwen2.5-0.5B-Instruct

Exit code 1 if a --model was given that would run on no device here.")]
pub(crate) struct DoctorArgs {
    /// Also check this model, without downloading anything
    #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub(crate) model: Option<String>,
}

/// List, verify and show the GPU kernels that this binary carries
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oxide-infer artifacts list
  oxide-infer artifacts verify
  oxide-infer artifacts show rms_norm.bf16.up_to_2k
  oxide-infer artifacts --artifacts ./build verify")]
pub(crate) struct ArtifactsArgs {
    /// Use the artifacts in this folder instead of those in the binary
    #[arg(long, alias = "directory", value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) artifacts: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: ArtifactsCommand,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ArtifactsCommand {
    /// List the kernels with their contract, algorithm and architecture
    List,
    /// Check every manifest and the hash of every kernel
    Verify,
    /// Print the manifest of one kernel
    Show {
        /// Name of the kernel, as `list` prints it
        name: String,
    },
}

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oxide-infer completions bash > ~/.local/share/bash-completion/completions/oxide-infer
  oxide-infer completions zsh > ~/.zfunc/_oxide-infer
  oxide-infer completions fish > ~/.config/fish/completions/oxide-infer.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

//! Options of `run` and `chat`.

use super::{ModelOptions, SwitchArg};
use clap::Args;

/// Answer one prompt and print the answer as it comes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oxide-infer run --model models/SmolLM2-135M-Instruct.Q4_1.gguf \"What is the capital of France?\"
  oxide-infer run --model Qwen/Qwen2.5-0.5B-Instruct --system \"Answer in one word.\" \"Is 7 prime?\"
  oxide-infer run --model ./base-model --raw --max-tokens 64 \"Once upon a time\"
  git diff | oxide-infer run --model ./my-model -

Exit codes: 0 answered, 1 failed, 2 wrong usage, 130 interrupted.")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelOptions,

    /// The prompt; `-` reads it from standard input
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: String,

    /// System message before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,

    /// Continue the prompt as it is, without the chat template
    #[arg(long, switch())]
    pub(crate) raw: bool,

    #[command(flatten)]
    pub(crate) sampling: SamplingOptions,
}

/// Chat with a model in the terminal
#[derive(Args, Debug)]
#[command(after_help = "\
In the chat: /reset forgets the conversation, /system TEXT sets the system message, /help lists the commands, /quit or
Ctrl-D leaves. Ctrl-C stops the answer, not the chat.

Examples:
  oxide-infer chat --model models/SmolLM2-135M-Instruct.Q4_1.gguf
  oxide-infer chat --model Qwen/Qwen2.5-0.5B-Instruct --system \"You are a pirate.\" --temperature 0.7")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelOptions,

    /// System message of the conversation
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    #[command(flatten)]
    pub(crate) sampling: SamplingOptions,
}

/// How an answer is sampled.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingOptions {
    /// Most tokens of an answer
    #[arg(short = 'n', long, value_name = "TOKENS", default_value = "512")]
    pub(crate) max_tokens: u32,

    /// Temperature; 0 always takes the most probable token [default: the model's own, else 1]
    #[arg(short, long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,

    /// Sample among the K most probable tokens [default: the model's own, else all]
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,

    /// Sample among the most probable tokens whose probabilities reach P [default: the model's own, else 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,

    /// Sample among tokens with at least P times the probability of the most probable one [default: the model's own, else 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,

    /// Penalty on tokens that prompt or answer already have; 1 does nothing [default: the model's own, else 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,

    /// Subtracted from the logits of tokens that the answer already has
    #[arg(long, value_name = "X", default_value = "0", allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,

    /// Subtracted from a token's logit for every time that the answer already has it
    #[arg(long, value_name = "X", default_value = "0", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,

    /// Seed: the same seed gives the same answer [default: a random one]
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,

    /// Text that ends the answer and is not printed; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

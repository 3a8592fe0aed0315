//! Options of `serve`.

use super::{ModelOptions, SwitchArg};
use crate::cli::values::{ByteSize, duration};
use clap::builder::ValueParser;
use clap::{Args, ValueEnum};
use std::time::Duration;

/// Serve a model over HTTP with the OpenAI API
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  oxide-infer serve --model models/SmolLM2-135M-Instruct.Q4_1.gguf
  oxide-infer serve --model Qwen/Qwen2.5-0.5B-Instruct --host 0.0.0.0 --port 8080 --api-key \"$KEY\"
  oxide-infer serve --model ./my-model --device cpu --threads 8 --kv-memory 4GiB --max-model-len 8192

  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"SmolLM2-135M-Instruct.Q4_1\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'

Exit codes:
  0    ended by SIGTERM or SIGINT, after draining
  1    could not start: the model, the device, the address or an option is wrong
  2    the command line is wrong
  70   the engine failed or hangs; a supervisor should start the server again
  130  ended by a second signal while draining")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelOptions,

    /// Name or address to listen on
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", help_heading = "Server")]
    pub(crate) host: String,

    /// Port to listen on; 0 takes a free one and prints it
    #[arg(long, value_name = "PORT", default_value = "8000", help_heading = "Server")]
    pub(crate) port: u16,

    /// Name of the model in the API; may be given several times [default: from --model]
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Server")]
    pub(crate) served_model_name: Vec<String>,

    /// Key that clients must send as `Authorization: Bearer KEY`; may be given several times [default: none is asked for]
    #[arg(
        long,
        value_name = "KEY",
        value_delimiter = ',',
        hide_env_values = true,
        hide_default_value = true,
        help_heading = "Server"
    )]
    pub(crate) api_key: Vec<String>,

    /// Requests that may wait for the engine; past it a request gets 429
    #[arg(long, value_name = "N", default_value = "256", help_heading = "Server")]
    pub(crate) max_waiting: usize,

    /// Largest request body
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = str::parse::<ByteSize>, help_heading = "Server")]
    pub(crate) max_body: ByteSize,

    /// Most answers (`n`) that one request may ask for
    #[arg(long, value_name = "N", default_value = "128", help_heading = "Server")]
    pub(crate) max_choices: u32,

    /// On SIGTERM: how long requests in flight may take to finish
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = ValueParser::from(duration), help_heading = "Server")]
    pub(crate) drain_timeout: Duration,

    /// Keep text of special tokens in users' messages from becoming special
    #[arg(long, switch(), help_heading = "Server")]
    pub(crate) escape_special_tokens: bool,

    /// How the model writes tool calls
    #[arg(long, value_name = "NOTATION", value_enum, default_value_t = ToolParser::Auto, help_heading = "Server")]
    pub(crate) tool_parser: ToolParser,

    /// How the model marks its reasoning
    #[arg(long, value_name = "TAGS", value_enum, default_value_t = ReasoningParser::Auto, help_heading = "Server")]
    pub(crate) reasoning_parser: ReasoningParser,

    /// How embeddings are made of a text's hidden states, where a request does not say
    #[arg(long, value_name = "HOW", value_enum, default_value_t = PoolingChoice::Last, help_heading = "Server")]
    pub(crate) pooling: PoolingChoice,

    /// Serve no page to talk to the model at `/`
    #[arg(long, switch(), help_heading = "Server")]
    pub(crate) no_ui: bool,

    /// Prefix of metric names; `vllm:` gives vLLM's names
    #[arg(long, value_name = "PREFIX", default_value = "oxide_infer_", help_heading = "Server")]
    pub(crate) metrics_prefix: String,

    /// Web origin that may call the API from a browser, or `*`; may be given several times [default: none]
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', help_heading = "Server")]
    pub(crate) cors_origin: Vec<String>,
}

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ToolParser {
    /// As the chat template shows it; `hermes` if the template knows no tools
    Auto,
    /// <tool_call>{"name": …, "arguments": …}</tool_call>: Hermes, Qwen
    Hermes,
    /// {"name": …, "parameters": …}: Llama 3
    #[value(alias = "llama3_json")]
    Llama3,
    /// Behind [TOOL_CALLS]: Mistral
    Mistral,
}

/// How hidden states become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PoolingChoice {
    /// That of the last token
    Last,
    /// Their mean
    Mean,
}

/// How a model marks its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReasoningParser {
    /// As the chat template has it
    Auto,
    /// <think>…</think>
    #[value(alias = "qwen3", alias = "deepseek_r1")]
    Think,
    /// [THINK]…[/THINK]
    Mistral,
    /// Not at all: all text is content
    Off,
}

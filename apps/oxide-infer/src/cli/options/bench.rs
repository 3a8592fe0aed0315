//! Options of `bench`.

use super::{EngineOptions, LogOptions};
use crate::cli::values::{DeviceArg, RequestCount, duration, some_requests};
use clap::builder::ValueParser;
use clap::{Args, ValueEnum, ValueHint};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Measure a server over HTTP, or the engine in this process
#[derive(Args, Debug)]
#[command(after_help = "\
With --url it sends streamed requests to any server that speaks the OpenAI API: in a closed loop (--concurrency), or in an
open loop at a mean rate with random arrivals (--request-rate). --against gives the same requests to a second server, the two
in turns (A B B A), and prints medians, ranges and ratios, and whether both did the same work. Without --url it loads --model here and measures the
engine alone: tokens per second of prompts and of answers, the time to the first token and of a decode step.

Examples:
  oxide-infer bench --url http://127.0.0.1:8000 --concurrency 8 --num-requests 100
  oxide-infer bench --url http://127.0.0.1:8000 --request-rate 4 --endpoint chat --json result.json
  oxide-infer bench --url http://127.0.0.1:8000 --against http://127.0.0.1:8001 --concurrency 1,16,64 --num-requests 4x
  oxide-infer bench --model models/SmolLM2-135M-Instruct.Q4_1.gguf --input-len 512 --output-len 128 --threads 2
  oxide-infer bench --model ./only-a-config --weights random:1 --input-len 512 --output-len 128 --batch 32

TTFT is the time to the first token, ITL the time between two pieces of the stream, TPOT the time per token after the
first, E2E the time of the whole request. The first wave are the requests that a closed loop sends at once at its start. Exit code 1 if a request failed.")]
pub(crate) struct BenchArgs {
    /// Base URL of the server, with or without /v1; without it the engine is measured in this process
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: Option<String>,

    /// With --url the model's name in the API [default: the first that the server lists]; else the model to load
    #[arg(short, long, value_name = "MODEL", required_unless_present = "url", value_hint = ValueHint::AnyPath)]
    pub(crate) model: Option<String>,

    /// Tokens in each prompt
    #[arg(long, value_name = "TOKENS", default_value = "256")]
    pub(crate) input_len: NonZeroUsize,

    /// Tokens in each answer; end-of-sequence is ignored so that every answer has as many
    #[arg(long, value_name = "TOKENS", default_value = "64")]
    pub(crate) output_len: NonZeroUsize,

    /// Seed of prompts and arrivals
    #[arg(long, value_name = "SEED", default_value = "0")]
    pub(crate) seed: u64,

    /// Times to repeat each measurement, over HTTP with new prompts each time [default: 5, or 1 with --url and 3 with --against]
    #[arg(long, value_name = "N")]
    pub(crate) repeat: Option<NonZeroUsize>,

    /// Write the results as JSON to this file; `-` is standard output
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) online: OnlineBenchOptions,

    #[command(flatten)]
    pub(crate) offline: OfflineBenchOptions,

    #[command(flatten)]
    pub(crate) log: LogOptions,
}

/// Options of a benchmark over HTTP.
#[derive(Args, Debug)]
#[command(next_help_heading = "Over HTTP (--url)")]
pub(crate) struct OnlineBenchOptions {
    /// API to call
    #[arg(long, value_name = "ENDPOINT", value_enum, default_value = "completions")]
    pub(crate) endpoint: BenchEndpoint,

    /// A second server of the API, which gets the same requests in turns with the first; needs --url
    #[arg(long, value_name = "URL", requires = "url", value_hint = ValueHint::Url)]
    pub(crate) against: Option<String>,

    /// The model's name in the second server's API [default: the first that it lists]
    #[arg(long, value_name = "MODEL")]
    pub(crate) against_model: Option<String>,

    /// The second server's key; that of --api-key is not sent to it
    #[arg(long, value_name = "KEY", hide_env_values = true, hide_default_value = true)]
    pub(crate) against_api_key: Option<String>,

    /// Requests to send, as a number or as a multiple of --concurrency, such as 4x
    #[arg(long, value_name = "N", default_value = "100", value_parser = some_requests)]
    pub(crate) num_requests: RequestCount,

    /// Closed loop: requests in flight, or several numbers to measure one after another, such as 1,16,64 [default: 1,
    /// or without bound with --request-rate]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) concurrency: Vec<NonZeroUsize>,

    /// Open loop: mean requests per second, arriving at random (Poisson)
    #[arg(long, value_name = "RATE")]
    pub(crate) request_rate: Option<f64>,

    /// Requests answered before the first measurement at each concurrency and not measured, as --num-requests counts
    /// [default: 1, or 1x with --against]
    #[arg(long, value_name = "N", value_parser = str::parse::<RequestCount>)]
    pub(crate) warmup: Option<RequestCount>,

    /// File of prompts instead of random ones: a prompt a line, or with .jsonl a {"prompt": "…"} a line
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) prompts: Option<PathBuf>,

    /// Random prompts take token ids below this
    #[arg(long, value_name = "N", default_value = "30000")]
    pub(crate) vocab_size: u32,

    /// Key sent as `Authorization: Bearer KEY`
    #[arg(long, value_name = "KEY", hide_env_values = true, hide_default_value = true)]
    pub(crate) api_key: Option<String>,

    /// Longest time of one request
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = ValueParser::from(duration))]
    pub(crate) timeout: Duration,
}

/// Options of a benchmark in this process.
#[derive(Args, Debug)]
#[command(next_help_heading = "In this process (--model)")]
pub(crate) struct OfflineBenchOptions {
    /// Prompts sent at once; the decode step is timed where all of them have begun and none has ended
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) batch: NonZeroUsize,

    /// Where to run: cpu, cuda, or cuda:N
    #[arg(long, value_name = "DEVICE", value_parser = str::parse::<DeviceArg>)]
    pub(crate) device: Option<DeviceArg>,

    #[command(flatten)]
    pub(crate) engine: EngineOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchEndpoint {
    /// /v1/completions with prompts of exact token ids
    Completions,
    /// /v1/chat/completions with prompts of random words
    Chat,
}

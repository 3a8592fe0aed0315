//! What the server is told when it starts.

use axum::http::HeaderValue;
use oxide_infer_engine::request::Pooling;
use std::time::Duration;

/// Everything about one server. [`ServerConfig::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Name or address to listen on.
    pub host: String,
    /// Port to listen on; 0 takes a free one, which the log names.
    pub port: u16,
    /// Names that requests may use for the model. The first is the one that responses and metrics carry.
    pub served_model_names: Vec<String>,
    /// Where the model came from (directory, file or hub id); `root` in `/v1/models`.
    pub model_source: String,
    /// Keys that open the API; with none it is open to everyone who can reach the port.
    pub api_keys: Vec<ApiKey>,
    /// Which browser origins may call the API.
    pub cors: Cors,
    /// Bounds on what one client may ask for.
    pub limits: Limits,
    /// How long requests in flight may go on after the shutdown signal.
    pub drain_timeout: Duration,
    /// What every metric's name starts with: `oxide_infer_`, or `vllm:` for vLLM's very names.
    pub metrics_prefix: String,
    /// What a request that names no value samples with; from the model's `generation_config.json`.
    pub sampling_defaults: SamplingDefaults,
    /// How the model writes tool calls.
    pub tool_style: ToolStyle,
    /// How the model marks its reasoning.
    pub reasoning_style: ReasoningStyle,
    /// How embeddings are pooled where a request does not say.
    pub pooling: Pooling,
    /// Whether there is a page to talk to the model.
    pub page: Page,
    /// Where the model runs, in words for people.
    pub device: String,
}

impl ServerConfig {
    /// A server for one model on `127.0.0.1:8000` with the default limits, no API key and no CORS.
    pub fn new(served_model_name: impl Into<String>) -> Self {
        let name = served_model_name.into();
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8000,
            model_source: name.clone(),
            served_model_names: vec![name],
            api_keys: Vec::new(),
            cors: Cors::Off,
            limits: Limits::default(),
            drain_timeout: Duration::from_secs(30),
            metrics_prefix: "oxide_infer_".to_owned(),
            sampling_defaults: SamplingDefaults::default(),
            tool_style: ToolStyle::default(),
            reasoning_style: ReasoningStyle::default(),
            pooling: Pooling::default(),
            page: Page::default(),
            device: "unknown".to_owned(),
        }
    }
}

/// A key that opens the API. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// A key as clients send it after `Authorization: Bearer `.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolStyle {
    /// As its chat template shows it; as Hermes where the template knows no tools.
    #[default]
    Auto,
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen2.5, Qwen3.
    Hermes,
    /// `{"name": …, "parameters": …}` as the whole answer: Llama 3.
    Llama3,
    /// Behind `[TOOL_CALLS]`: Mistral.
    Mistral,
}

/// How a model marks its reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningStyle {
    /// As its chat template has it.
    #[default]
    Auto,
    /// `<think>…</think>`.
    Think,
    /// `[THINK]…[/THINK]`: Magistral.
    Mistral,
    /// Not at all: all text is content.
    Off,
}

/// Whether `GET /` serves a page to talk to the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    /// Yes, with its files and its numbers under `/page/`.
    #[default]
    Served,
    /// No: those routes do not exist.
    Off,
}

/// Which browser origins may call the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cors {
    /// None: no CORS header is sent.
    Off,
    /// All of them.
    AnyOrigin,
    /// These, as browsers write them: `https://chat.example.com`.
    Origins(Vec<HeaderValue>),
}

/// Sampling parameters of requests that do not name them; `None` leaves the API's own default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// `temperature` (API default 1).
    pub temperature: Option<f32>,
    /// `top_p` (API default 1).
    pub top_p: Option<f32>,
    /// `top_k` (API default: off).
    pub top_k: Option<u32>,
    /// `min_p` (API default 0).
    pub min_p: Option<f32>,
    /// `repetition_penalty` (API default 1).
    pub repetition_penalty: Option<f32>,
}

/// Bounds on what one client may ask for or hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// How long a client may take to send its body.
    pub body_timeout: Duration,
    /// How long a client may read nothing of its response before it is cut off and its request cancelled.
    pub write_timeout: Duration,
    /// Generation requests that are waiting, computed or still being read by their clients.
    pub max_requests_in_flight: usize,
    /// Prompts in one completion request.
    pub max_prompts: usize,
    /// Inputs in one request for embeddings.
    pub max_inputs: usize,
    /// Messages in one chat request.
    pub max_messages: usize,
    /// Tools in one chat request.
    pub max_tools: usize,
    /// `n`.
    pub max_choices: u32,
    /// Bytes of one stop string.
    pub max_stop_bytes: usize,
    /// `stop_token_ids`.
    pub max_stop_token_ids: usize,
    /// Entries of `logit_bias`.
    pub max_logit_bias: usize,
    /// `top_logprobs` of chat and `logprobs` of completions.
    pub max_logprobs: u32,
    /// Bytes of a JSON schema, regular expression, grammar, or all texts of a choice.
    pub max_grammar_bytes: usize,
    /// Schemas that lie in each other.
    pub max_schema_depth: usize,
    /// How long a grammar may take to compile.
    pub grammar_timeout: Duration,
    /// Silence on a stream after which a comment is sent, so that proxies keep it open.
    pub keep_alive: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 16 << 20,
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            max_requests_in_flight: 1024,
            max_prompts: 1024,
            max_inputs: 2048,
            max_messages: 4096,
            max_tools: 512,
            max_choices: 128,
            max_stop_bytes: 1024,
            max_stop_token_ids: 256,
            max_logit_bias: 1024,
            max_logprobs: 20,
            max_grammar_bytes: 128 << 10,
            max_schema_depth: 48,
            grammar_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(15),
        }
    }
}

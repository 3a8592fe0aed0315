//! The JSON that goes back to clients. Field order is that of OpenAI's documentation; fields beyond it are vLLM's.

use oxide_infer::TokenId;
use serde::Serialize;
use serde::ser::Serializer;
use std::sync::Arc;

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    /// Tokens of all prompts.
    pub(crate) prompt_tokens: u64,
    /// Tokens of all answers, the ones that ended them included.
    pub(crate) completion_tokens: u64,
    /// Both.
    pub(crate) total_tokens: u64,
    /// More about the prompts.
    pub(crate) prompt_tokens_details: PromptTokensDetails,
}

impl Usage {
    /// The usage of one prompt.
    pub(crate) fn new(prompt_tokens: u64, completion_tokens: u64, cached_tokens: u64) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }
}

impl std::ops::Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::new(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.prompt_tokens_details.cached_tokens + other.prompt_tokens_details.cached_tokens,
        )
    }
}

/// What became of the prompt's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PromptTokensDetails {
    /// Those that the prefix cache had.
    pub(crate) cached_tokens: u64,
}

/// What stopped an answer: a stop string or a stop token; null for everything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum StopReason {
    /// One of `stop`.
    Text(String),
    /// One of `stop_token_ids`.
    Token(TokenId),
}

/// Why an answer ended, in OpenAI's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FinishWord {
    /// An end-of-sequence token, a stop token or a stop string.
    Stop,
    /// The limit on the answer, or the model's length.
    Length,
    /// A `stop` after tool calls.
    ToolCalls,
}

/// What every response and chunk starts with.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Head {
    /// The response's id.
    pub(crate) id: Arc<str>,
    /// What it is.
    pub(crate) object: &'static str,
    /// When the request came, in seconds since 1970.
    pub(crate) created: u64,
    /// The model's name.
    pub(crate) model: Arc<str>,
}

/// Changes when the same request may be answered differently.
const FINGERPRINT: &str = concat!("oxide-infer-", env!("CARGO_PKG_VERSION"));

/// What every chunk of one stream, or a whole response, begins with.
#[derive(Debug, Serialize)]
pub(crate) struct Beginning {
    #[serde(flatten)]
    head: Head,
    system_fingerprint: &'static str,
}

impl Beginning {
    pub(crate) fn new(head: Head) -> Self {
        Self { head, system_fingerprint: FINGERPRINT }
    }
}

/// A whole response.
#[derive(Debug, Serialize)]
pub(crate) struct Response<L> {
    /// What it begins with.
    #[serde(flatten)]
    pub(crate) beginning: Beginning,
    /// What follows.
    #[serde(flatten)]
    pub(crate) rest: Rest<L>,
}

/// What a response, or one chunk of a stream, has after its beginning.
#[derive(Debug, Serialize)]
pub(crate) struct Rest<L> {
    /// The answers, or pieces of them: a list.
    pub(crate) choices: L,
    /// What it took; in a stream whose client asked for it null until the end, else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
    /// The prompt of a chat, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Arc<[TokenId]>>,
    /// Log-probabilities of the prompt of a chat, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<Vec<Option<PromptTokenLogprobs>>>,
}

impl<L> Rest<L> {
    /// Nothing but answers and usage.
    pub(crate) fn new(choices: L, usage: Option<Option<Usage>>) -> Self {
        Self { choices, usage, prompt_token_ids: None, prompt_logprobs: None }
    }
}

/// An answer of `/v1/chat/completions`.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: ChatMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: FinishWord,
    pub(crate) stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<TokenId>>,
}

/// The message of an answer.
#[derive(Debug, Serialize)]
pub(crate) struct ChatMessage {
    pub(crate) role: &'static str,
    /// Null where there are only calls or reasoning.
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

/// A call of a function.
#[derive(Debug, Serialize)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: CalledFunction,
}

/// The function of a call.
#[derive(Debug, Serialize)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    /// A JSON text.
    pub(crate) arguments: String,
}

/// A piece of a call. The first has everything but what is to come of the arguments.
#[derive(Debug, Serialize)]
pub(crate) struct ToolCallDelta {
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: CalledFunctionDelta,
}

/// A piece of a call's function.
#[derive(Debug, Serialize)]
pub(crate) struct CalledFunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}

/// A piece of an answer of `/v1/chat/completions`.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: ChatDelta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<FinishWord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<TokenId>>,
}

/// What a piece adds to the message.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCallDelta>,
}

/// Log-probabilities of a chat answer.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ChatTokenLogprob>,
    pub(crate) refusal: Option<Vec<ChatTokenLogprob>>,
}

/// One token of a chat answer.
#[derive(Debug, Serialize)]
pub(crate) struct ChatTokenLogprob {
    #[serde(flatten)]
    pub(crate) token: ChatTopLogprob,
    pub(crate) top_logprobs: Vec<ChatTopLogprob>,
}

/// A token and its log-probability.
#[derive(Debug, Serialize)]
pub(crate) struct ChatTopLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    /// What the token stands for; need not be whole characters.
    pub(crate) bytes: Vec<u8>,
}

/// An answer of `/v1/completions`, or a piece of one.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<CompletionLogprobs>,
    pub(crate) finish_reason: Option<FinishWord>,
    pub(crate) stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Arc<[TokenId]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<Vec<Option<PromptTokenLogprobs>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<TokenId>>,
}

/// Log-probabilities of a completion, one entry for each token in every list.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    /// Characters (Unicode code points) of the text before the token's.
    pub(crate) text_offset: Vec<usize>,
    /// Null for the first token of an echoed prompt, which nothing precedes.
    pub(crate) token_logprobs: Vec<Option<f32>>,
    /// The tokens' texts.
    pub(crate) tokens: Vec<String>,
    /// The best tokens, and the token itself.
    pub(crate) top_logprobs: Vec<Option<TopTokens>>,
}

/// Tokens with their log-probabilities, as a JSON object in this order.
#[derive(Debug, Default)]
pub(crate) struct TopTokens(pub(crate) Vec<(String, f32)>);

impl Serialize for TopTokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

/// A prompt's token and the best tokens in its place, as a JSON object by token id in this order.
#[derive(Debug, Default)]
pub(crate) struct PromptTokenLogprobs(pub(crate) Vec<(TokenId, PromptLogprob)>);

/// One token in a place of the prompt.
#[derive(Debug, Serialize)]
pub(crate) struct PromptLogprob {
    pub(crate) logprob: f32,
    /// 1 for the most probable token.
    pub(crate) rank: u32,
    pub(crate) decoded_token: String,
}

impl Serialize for PromptTokenLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token.0, logprob)))
    }
}

/// `/tokenize`.
#[derive(Debug, Serialize)]
pub(crate) struct TokenizeResponse {
    pub(crate) count: usize,
    pub(crate) max_model_len: usize,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) token_strs: Option<Vec<String>>,
}

/// `/detokenize`.
#[derive(Debug, Serialize)]
pub(crate) struct DetokenizeResponse {
    pub(crate) prompt: String,
}

/// `/v1/models`.
#[derive(Debug, Serialize)]
pub(crate) struct ModelList {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<ModelCard>,
}

/// One name of the model.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ModelCard {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) owned_by: &'static str,
    pub(crate) root: String,
    pub(crate) parent: Option<String>,
    pub(crate) max_model_len: usize,
}

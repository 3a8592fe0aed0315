//! The JSON of Anthropic's API: messages, and the events of a stream of one.

use crate::error::ApiError;
use crate::protocol::response::Usage;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value};
use std::sync::Arc;

/// An answer of `/v1/messages`; in a stream's first event one without content.
#[derive(Debug, Serialize)]
pub(crate) struct Message {
    pub(crate) id: Arc<str>,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) role: &'static str,
    pub(crate) model: Arc<str>,
    pub(crate) content: Vec<Block>,
    pub(crate) stop_reason: Option<StopReason>,
    pub(crate) stop_sequence: Option<String>,
    pub(crate) usage: MessageUsage,
}

/// A part of an answer.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Block {
    /// Text.
    Text { text: String },
    /// Reasoning. The signature, with which others check that they have written it, is empty.
    Thinking { thinking: String, signature: &'static str },
    /// A call.
    ToolUse { id: String, name: String, input: Map<String, Value> },
}

/// What an answer's part gains.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum BlockDelta {
    /// More text.
    #[serde(rename = "text_delta")]
    Text { text: String },
    /// More reasoning.
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    /// More of the JSON text of a call's arguments.
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// Why an answer ended, in Anthropic's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StopReason {
    /// By itself.
    EndTurn,
    /// At `max_tokens`.
    MaxTokens,
    /// At one of `stop_sequences`.
    StopSequence,
    /// After calls.
    ToolUse,
}

/// Tokens that a request took. All of the prompt's are the sum of the three input counts.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct MessageUsage {
    /// Prompt tokens that were computed.
    pub(crate) input_tokens: u64,
    /// Always 0: nothing is charged for what the prefix cache takes in.
    pub(crate) cache_creation_input_tokens: u64,
    /// Prompt tokens that the prefix cache had.
    pub(crate) cache_read_input_tokens: u64,
    /// Tokens of the answer.
    pub(crate) output_tokens: u64,
}

impl From<Usage> for MessageUsage {
    fn from(usage: Usage) -> Self {
        let cached = usage.prompt_tokens_details.cached_tokens;
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: usage.completion_tokens,
        }
    }
}

/// An event of a stream.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum MessageEvent {
    /// The message begins.
    MessageStart { message: Message },
    /// A part begins.
    ContentBlockStart { index: usize, content_block: Block },
    /// It gains something.
    ContentBlockDelta { index: usize, delta: BlockDelta },
    /// It ends.
    ContentBlockStop { index: usize },
    /// Why the message ended, and what it took.
    MessageDelta { delta: MessageEnd, usage: MessageUsage },
    /// The message ends.
    MessageStop,
}

impl MessageEvent {
    /// The event's name, which is its `type`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }
}

/// Why a message ended.
#[derive(Debug, Serialize)]
pub(crate) struct MessageEnd {
    pub(crate) stop_reason: Option<StopReason>,
    pub(crate) stop_sequence: Option<String>,
}

/// `/v1/messages/count_tokens`.
#[derive(Debug, Serialize)]
pub(crate) struct TokenCount {
    pub(crate) input_tokens: usize,
}

/// `{"type": "error", "error": {…}}`.
#[derive(Debug, Serialize)]
pub(crate) struct MessageError {
    #[serde(rename = "type")]
    kind: &'static str,
    error: MessageErrorObject,
    request_id: Option<String>,
}

#[derive(Debug, Serialize)]
struct MessageErrorObject {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
}

impl MessageError {
    /// An error in Anthropic's form.
    pub(crate) fn new(error: &ApiError, request_id: Option<String>) -> Self {
        let kind = match error.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::INTERNAL_SERVER_ERROR => "api_error",
            _ => "invalid_request_error",
        };
        Self { kind: "error", error: MessageErrorObject { kind, message: error.to_string() }, request_id }
    }
}

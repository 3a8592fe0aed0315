//! The JSON of OpenAI's Responses API: responses, and the events of a stream of one.

use crate::error::ApiError;
use crate::protocol::response::Usage;
use serde::Serialize;
use serde_json::{Map, Value};
use std::sync::Arc;

/// What a response repeats of its request.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Echo {
    pub(crate) instructions: Option<String>,
    pub(crate) max_output_tokens: Option<u32>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) temperature: f32,
    pub(crate) text: Value,
    pub(crate) tool_choice: Value,
    pub(crate) tools: Vec<Value>,
    pub(crate) top_p: f32,
}

/// An answer of `/v1/responses`, or its state within a stream.
#[derive(Debug, Serialize)]
pub(crate) struct ResponseObject {
    pub(crate) id: Arc<str>,
    pub(crate) object: &'static str,
    pub(crate) created_at: u64,
    pub(crate) status: Status,
    pub(crate) completed_at: Option<u64>,
    pub(crate) error: Option<ResponseError>,
    pub(crate) incomplete_details: Option<IncompleteDetails>,
    pub(crate) model: Arc<str>,
    pub(crate) output: Vec<Item>,
    #[serde(flatten)]
    pub(crate) echo: Echo,
    #[serde(flatten)]
    pub(crate) fixed: Fixed,
    pub(crate) usage: Option<ResponseUsage>,
}

/// What is the same in every response of a server that stores nothing.
#[derive(Debug, Serialize)]
pub(crate) struct Fixed {
    background: bool,
    previous_response_id: Option<String>,
    reasoning: ReasoningShown,
    store: bool,
    top_logprobs: u32,
    truncation: &'static str,
}

#[derive(Debug, Serialize)]
struct ReasoningShown {
    effort: Option<String>,
    summary: Option<String>,
}

impl Fixed {
    /// The values.
    pub(crate) const VALUES: Self = Self {
        background: false,
        previous_response_id: None,
        reasoning: ReasoningShown { effort: None, summary: None },
        store: false,
        top_logprobs: 0,
        truncation: "disabled",
    };
}

/// How far a response or an item of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// It is being made.
    InProgress,
    /// It is complete.
    Completed,
    /// It was cut off at the limit of tokens.
    Incomplete,
    /// It could not be made.
    Failed,
}

/// Why a response failed.
#[derive(Debug, Serialize)]
pub(crate) struct ResponseError {
    code: &'static str,
    message: String,
}

impl From<&ApiError> for ResponseError {
    fn from(error: &ApiError) -> Self {
        Self { code: error.code(), message: error.to_string() }
    }
}

/// Why a response is incomplete.
#[derive(Debug, Serialize)]
pub(crate) struct IncompleteDetails {
    pub(crate) reason: &'static str,
}

/// A part of a response.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Item {
    /// Text.
    Message { id: String, status: Status, role: &'static str, content: Vec<Content> },
    /// Reasoning, as it is; there is no summary.
    Reasoning { id: String, status: Status, summary: [String; 0], content: Vec<Content> },
    /// A call; the arguments are a JSON text.
    FunctionCall { id: String, status: Status, call_id: String, name: String, arguments: String },
}

/// What a message or reasoning is made of.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Content {
    /// Text.
    OutputText { text: String, annotations: [String; 0], logprobs: [String; 0] },
    /// Reasoning.
    ReasoningText { text: String },
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ResponseUsage {
    input_tokens: u64,
    input_tokens_details: InputTokensDetails,
    output_tokens: u64,
    output_tokens_details: OutputTokensDetails,
    total_tokens: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct InputTokensDetails {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct OutputTokensDetails {
    reasoning_tokens: u64,
}

impl ResponseUsage {
    /// The usage of a request whose answer has this many tokens of reasoning.
    pub(crate) fn new(usage: Usage, reasoning_tokens: u32) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: usage.prompt_tokens_details.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: reasoning_tokens.into() },
            total_tokens: usage.total_tokens,
        }
    }
}

/// An event of a stream.
#[derive(Debug, Serialize)]
pub(crate) struct ResponseEvent {
    /// What it is, and its name.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// Its place in the stream, from 0.
    pub(crate) sequence_number: u64,
    #[serde(flatten)]
    pub(crate) body: EventBody,
}

/// What an event tells.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum EventBody {
    /// The response as it is.
    Response { response: Box<ResponseObject> },
    /// An item as it is.
    Item { output_index: usize, item: Item },
    /// A piece of an item's content as it is.
    Part {
        #[serde(flatten)]
        place: Place,
        part: Content,
    },
    /// More of an item's text.
    Delta {
        #[serde(flatten)]
        place: Place,
        delta: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<[String; 0]>,
    },
    /// All of an item's text.
    Text {
        #[serde(flatten)]
        place: Place,
        text: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<[String; 0]>,
    },
    /// All of a call's arguments.
    Arguments {
        #[serde(flatten)]
        place: Place,
        name: String,
        arguments: String,
    },
}

/// Where something is in a response.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Place {
    pub(crate) item_id: String,
    pub(crate) output_index: usize,
    /// Of messages and reasoning, whose content has one piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_index: Option<usize>,
}

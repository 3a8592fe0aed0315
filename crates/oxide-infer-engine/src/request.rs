//! What goes into the engine and what comes out.

use oxide_infer::TokenId;
use oxide_infer::sampling::{LogProbs, SamplingError, SamplingParams, SamplingParamsError};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names a request from its submission to its last event. Unique for the life of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One of the `n` answers to a request, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChoiceIndex(pub u32);

/// A prompt to continue.
#[derive(Clone, Debug)]
pub struct EngineRequest {
    /// The tokens to continue; at least one.
    pub prompt: Arc<[TokenId]>,
    /// How many answers to sample from the one prompt (which is computed once).
    pub choices: NonZeroU32,
    /// How each answer samples; the choice index is part of the generator's key.
    pub sampling: Arc<SamplingParams>,
    /// When an answer ends.
    pub stop: StopConditions,
    /// With every generated token: its log-probability and those of this many best tokens.
    pub logprobs: Option<u32>,
    /// Before the first token: for every prompt token its log-probability and those of this many best tokens.
    pub prompt_logprobs: Option<u32>,
    /// Whether each token waits for a mask from the host.
    pub masking: Masking,
    /// Make one vector of the prompt's final hidden states. No token is sampled then, whatever `stop` says.
    pub pooling: Option<Pooling>,
}

/// How the final hidden states of a prompt, those that the model's last norm gives, become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// That of the last token.
    #[default]
    Last,
    /// Their mean, summed in the order of the tokens in `f64` and rounded once.
    Mean,
}

/// When an answer ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StopConditions {
    /// At most this many tokens; the engine also stops at the model's length. 0 computes the prompt only.
    pub max_tokens: u32,
    /// No end-of-sequence or stop token is sampled before this many tokens.
    pub min_tokens: u32,
    /// The model's end-of-sequence ids; ending with one is `FinishReason::EndOfSequence`.
    pub eos_token_ids: Arc<[TokenId]>,
    /// Further ids that end the answer.
    pub stop_token_ids: Arc<[TokenId]>,
    /// Go on past end-of-sequence ids.
    pub eos: EosPolicy,
}

/// What an end-of-sequence token does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EosPolicy {
    /// It ends the answer.
    #[default]
    Stop,
    /// It is a token like any other.
    Ignore,
}

/// Where the token masks of a request come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Masking {
    /// There are none.
    #[default]
    None,
    /// The host supplies one for every token of every choice; the row is held out of steps until it has arrived.
    PerToken,
}

/// Why a mask was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// It is made for another vocabulary.
    #[error("the mask covers {got} tokens; the model's vocabulary has {expected}")]
    VocabSize {
        /// Tokens that it covers.
        got: usize,
        /// Tokens of the vocabulary.
        expected: usize,
    },
    /// It admits no token, so none can be sampled.
    #[error("the mask admits no token")]
    Empty,
}

/// What the engine tells about a request. After the last choice's `Finished`, or after `Failed`, nothing follows.
#[derive(Clone, Debug)]
pub enum EngineEvent {
    /// The prompt has been computed; comes once, before the first token.
    PromptDone {
        /// Prompt tokens that the prefix cache already had.
        cached_tokens: u32,
        /// One entry for every prompt token but the first, if asked for.
        logprobs: Option<Vec<LogProbs>>,
        /// The pooled hidden state `[hidden_size]`, if asked for.
        pooled: Option<Vec<f32>>,
    },
    /// A choice has its next token.
    Token {
        /// Which answer.
        choice: ChoiceIndex,
        /// The token; the one that ended the answer, too.
        token: TokenId,
        /// If asked for.
        logprobs: Option<LogProbs>,
        /// When its step was collected.
        at: Instant,
    },
    /// A choice has ended.
    Finished {
        /// Which answer.
        choice: ChoiceIndex,
        /// Why.
        reason: FinishReason,
        /// When things happened to it.
        timings: Timings,
    },
    /// The request could not be finished.
    Failed(RequestError),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token.
    EndOfSequence,
    /// One of the request's stop tokens.
    StopToken(TokenId),
    /// `max_tokens`, or the model's length.
    Length,
    /// The host ended it, because it found a stop string.
    Host,
    /// The prompt's hidden states have been pooled.
    Pooled,
}

/// When things happened to a request.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// Submitted.
    pub arrived: Instant,
    /// First put into a step.
    pub scheduled: Instant,
    /// Its first token was sampled (the end of the prompt for `max_tokens` 0).
    pub first_token: Instant,
    /// Ended.
    pub finished: Instant,
}

/// Why a request that was admitted could not be finished.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// The executor failed; the engine takes no further work.
    #[error("the executor failed: {0}")]
    Executor(String),
    /// No token could be sampled, or no log-probability be found, for a reason that only this request has.
    #[error("cannot sample: {0}")]
    Sampling(SamplingError),
    /// The engine was stopped before the request ended.
    #[error("the engine was shut down before the request ended")]
    ShutDown,
}

/// Why a request was not admitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// Too many requests wait.
    #[error("{waiting} requests wait already, the limit is {limit}")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// The limit.
        limit: usize,
        /// When a place is expected to be free, from the pace at which waiting requests have been started lately.
        retry_after: Duration,
    },
    /// The engine drains or has stopped.
    #[error("the engine takes no new requests: it is shutting down")]
    ShuttingDown,
    /// The engine has failed.
    #[error("the engine has failed: {0}")]
    Failed(String),
    /// The prompt is empty.
    #[error("the prompt is empty; at least one token is needed")]
    EmptyPrompt,
    /// The prompt and what it must still generate do not fit the model.
    #[error(
        "the prompt has {prompt} tokens; the model's length is {max_model_len} tokens, prompt and answer together"
    )]
    TooLong {
        /// Tokens in the prompt.
        prompt: usize,
        /// The model's length.
        max_model_len: usize,
    },
    /// The request can never fit the KV memory, even alone.
    #[error("the request needs {needed} KV pages and the pool has {available}")]
    TooManyPages {
        /// Pages at its longest.
        needed: usize,
        /// Pages in the pool.
        available: usize,
    },
    /// A prompt token is past the vocabulary.
    #[error("token id {token} is not in the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The token.
        token: TokenId,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// More choices than sequences that may run at once.
    #[error("{choices} choices asked for; at most {limit} sequences can run")]
    TooManyChoices {
        /// Choices.
        choices: u32,
        /// The limit.
        limit: usize,
    },
    /// More of the best tokens than the executor lists.
    #[error("{field} asks for the {wanted} best tokens; at most {limit} are listed")]
    TooManyLogprobs {
        /// The field of [`EngineRequest`].
        field: &'static str,
        /// Tokens asked for.
        wanted: u32,
        /// The limit.
        limit: u32,
    },
    /// Hidden states are asked for and the executor hands out none.
    #[error("hidden states cannot be pooled: the device that the model runs on does not hand them out")]
    NoHiddenStates,
    /// A sampling parameter is out of its range.
    #[error(transparent)]
    Sampling(#[from] SamplingParamsError),
}

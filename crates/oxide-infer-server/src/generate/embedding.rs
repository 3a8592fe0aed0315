//! From checked inputs to the engine and back: prompts in, one vector of each out.

use super::events::request_error;
use super::submit_error;
use crate::app::{App, InFlight};
use crate::error::ApiError;
use crate::metrics::FinishedChoice;
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use oxide_infer_engine::request::{Masking, Pooling, StopConditions};
use oxide_infer_engine::{EngineEvent, EngineRequest, EventStream, SubmitError};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

/// Inputs of one request that the engine has at once, so that a long list does not fill the queue.
const AT_ONCE: usize = 32;

/// An input that is ready for the engine.
#[derive(Clone, Debug)]
pub(crate) struct EmbeddingPrompt {
    /// Its tokens.
    pub(crate) tokens: Arc<[TokenId]>,
    /// The field it came in.
    pub(crate) param: String,
}

/// A request for vectors that is ready for the engine.
#[derive(Debug)]
pub(crate) struct EmbeddingJob {
    /// The inputs; at least one.
    pub(crate) prompts: Vec<EmbeddingPrompt>,
    /// How hidden states become one vector.
    pub(crate) pooling: Pooling,
    /// When the request reached the server.
    pub(crate) arrived: Instant,
    /// Its place among the requests in flight.
    pub(crate) _in_flight: InFlight,
}

impl EmbeddingJob {
    /// The vector of every input, `[hidden_size]`, in their order. Dropping the future (the client went away) cancels them.
    ///
    /// # Errors
    /// An input is refused, or the engine failed or was stopped.
    pub(crate) async fn vectors(self, app: &App) -> Result<Vec<Vec<f32>>, ApiError> {
        let mut vectors = Vec::with_capacity(self.prompts.len());
        let mut computing = FuturesOrdered::new();
        let read = async |stream, prompt| vector(app, stream, prompt, self.arrived).await;
        for prompt in &self.prompts {
            let stream = loop {
                if computing.len() < AT_ONCE {
                    match app.engine().submit(self.request(prompt)) {
                        Ok(stream) => break stream,
                        // One of this request's own inputs makes room soon.
                        Err(SubmitError::QueueFull { .. }) if !computing.is_empty() => {}
                        Err(error) => return Err(submit_error(error, &prompt.param, 1)),
                    }
                }
                vectors.extend(computing.next().await.transpose()?);
            };
            computing.push_back(read(stream, prompt));
        }
        while let Some(vector) = computing.next().await {
            vectors.push(vector?);
        }
        Ok(vectors)
    }

    fn request(&self, prompt: &EmbeddingPrompt) -> EngineRequest {
        EngineRequest {
            prompt: prompt.tokens.clone(),
            choices: NonZeroU32::MIN,
            sampling: Arc::new(SamplingParams::default()),
            stop: StopConditions::default(),
            logprobs: None,
            prompt_logprobs: None,
            masking: Masking::None,
            pooling: Some(self.pooling),
        }
    }
}

async fn vector(
    app: &App,
    mut stream: EventStream,
    prompt: &EmbeddingPrompt,
    arrived: Instant,
) -> Result<Vec<f32>, ApiError> {
    let (mut vector, mut cached) = (None, 0);
    let prompt_tokens = prompt.tokens.len();
    while let Some(event) = stream.next().await {
        match event {
            EngineEvent::PromptDone { cached_tokens, pooled, .. } => {
                (vector, cached) = (pooled, cached_tokens);
                app.metrics().requests.prompt_done(prompt_tokens, cached_tokens);
            }
            EngineEvent::Finished { timings, .. } => {
                app.metrics().requests.choice_finished(FinishedChoice {
                    arrived,
                    timings,
                    prompt_tokens,
                    cached_tokens: cached,
                    generated: 0,
                    max_tokens: 0,
                });
                app.metrics().requests.prompt_finished(1, 0);
            }
            EngineEvent::Failed(error) => return Err(request_error(error)),
            EngineEvent::Token { .. } => {}
        }
    }
    let vector: Option<Vec<f32>> = vector;
    match vector {
        Some(vector) if vector.iter().all(|element| element.is_finite()) => Ok(vector),
        Some(_) => Err(ApiError::Internal(format!("the vector of '{}' is not finite", prompt.param))),
        None => Err(ApiError::Internal(format!("'{}' got no vector", prompt.param))),
    }
}

//! From checked inputs to the engine and back: prompts in, one vector of each out.

use super::events::request_error;
use super::submit_error;
use crate::app::App;
use crate::error::ApiError;
use crate::metrics::FinishedChoice;
use futures::{StreamExt, TryStreamExt, stream};
use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use oxide_infer_engine::request::{Masking, Pooling, StopConditions};
use oxide_infer_engine::{EngineEvent, EngineHandle, EngineRequest, EventStream, SubmitError};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Inputs of one request that are looked after at once.
const AT_ONCE: usize = 32;
/// Inputs of all requests that the engine has at once, and no more than a quarter of its queue: the rest is for those who
/// generate.
const IN_ENGINE: usize = 32;
/// The longest wait before the engine is asked again for a place.
const PATIENCE: Duration = Duration::from_secs(1);

/// The places that inputs take on their way into an engine.
pub(crate) fn places(engine: &EngineHandle) -> Arc<Semaphore> {
    Arc::new(Semaphore::new((engine.max_waiting() / 4).clamp(1, IN_ENGINE)))
}

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
}

impl EmbeddingJob {
    /// The vector of every input, `[hidden_size]`, in their order. Dropping the future (the client went away) cancels them.
    ///
    /// # Errors
    /// An input is refused, or the engine failed or was stopped.
    pub(crate) async fn vectors(&self, app: &App) -> Result<Vec<Vec<f32>>, ApiError> {
        let indices = stream::iter(0..self.prompts.len());
        indices.map(|index| self.vector(app, index)).buffered(AT_ONCE).try_collect().await
    }

    async fn vector(&self, app: &App, index: usize) -> Result<Vec<f32>, ApiError> {
        let prompt = &self.prompts[index];
        // The semaphore is never closed; if it were, there would be no limit.
        let _place = app.embedding_places().acquire().await.ok();
        loop {
            match app.engine().submit(self.request(prompt)) {
                Ok(stream) => return vector(app, stream, prompt, self.arrived).await,
                // A request that has begun is not given up for want of a place.
                Err(SubmitError::QueueFull { retry_after, .. }) if index > 0 => {
                    tokio::time::sleep(retry_after.min(PATIENCE)).await;
                }
                Err(error) => return Err(submit_error(error, &prompt.param, 1)),
            }
        }
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

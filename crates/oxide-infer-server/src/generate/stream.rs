//! An answer as server-sent events.
//!
//! The stream is pulled: while a client does not read, nothing is formatted for it. What the engine makes meanwhile
//! waits as token ids (no more than the request's `max_tokens`) and goes out as one chunk for each answer when the
//! client reads again.

use super::choice::Delta;
use super::{Generation, PromptRun};
use crate::error::ApiError;
use crate::protocol::params::UsageReports;
use crate::protocol::response::{Head, PromptTokenLogprobs, Response, Usage};
use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::IntoResponse;
use futures::stream;
use oxide_infer::TokenId;
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The form of one route's answers.
pub(crate) trait Format: Send + 'static {
    /// `object` of a whole response.
    const WHOLE: &'static str;
    /// `object` of a chunk.
    const CHUNK: &'static str;
    /// An answer.
    type Choice: Serialize;
    /// A piece of an answer.
    type Chunk: Serialize;

    /// A whole answer; `delta` has all of it.
    fn choice(&self, generation: &Generation, run: &PromptRun, index: usize, delta: Delta) -> Self::Choice;

    /// What is sent before an answer's first piece.
    fn opening(&self, generation: &Generation, run: &PromptRun, index: usize) -> Option<Self::Chunk>;

    /// A piece of an answer; `None` if there is nothing to show.
    fn chunk(
        &self,
        generation: &Generation,
        run: &PromptRun,
        index: usize,
        delta: Delta,
    ) -> Option<Self::Chunk>;

    /// The prompt's tokens, where the response and not each answer has them.
    fn prompt_token_ids(&self, generation: &Generation) -> Option<Arc<[TokenId]>>;

    /// The prompt's log-probabilities, where the response and not each answer has them.
    fn prompt_logprobs(&self, generation: &Generation) -> Option<Vec<Option<PromptTokenLogprobs>>>;
}

/// All answers as (number, prompt, choice of the prompt), in order.
pub(super) fn answers(generation: &Generation) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
    let (prompts, choices) = (generation.prompts().len(), generation.params().choices.get() as usize);
    (0..prompts * choices).map(move |index| (index, index / choices, index % choices))
}

/// Sends the answers piece by piece. Dropping the body (the client went away) cancels them.
pub(crate) fn respond_streaming<F: Format>(
    generation: Generation,
    format: F,
    head: Head,
    usage: UsageReports,
    keep_alive: Duration,
) -> axum::response::Response {
    let opened = vec![false; answers(&generation).count()];
    let source = EventSource { generation, format, head, usage, keep_alive, opened, ended: false };
    let frames = stream::unfold(source, |mut source| async move {
        let frame = source.next_frame().await?;
        Some((Ok::<_, Infallible>(frame), source))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // nginx would otherwise collect the stream before it passes it on.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

struct EventSource<F> {
    generation: Generation,
    format: F,
    head: Head,
    usage: UsageReports,
    keep_alive: Duration,
    /// Which answers have had their opening.
    opened: Vec<bool>,
    ended: bool,
}

impl<F: Format> EventSource<F> {
    /// Everything that is new, as one write; `None` after the end.
    async fn next_frame(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let silence_ends = Instant::now() + self.keep_alive;
        let mut frame = Vec::new();
        while frame.is_empty() && !self.ended {
            let Ok(advanced) = timeout_at(silence_ends, self.generation.advance()).await else {
                return Some(Bytes::from_static(b": keep-alive\n\n"));
            };
            let written = match advanced {
                Ok(()) => self.write_news(&mut frame),
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                write_event(&mut frame, &error.body()).ok();
                self.ended = true;
            }
            self.ended |= self.generation.is_done();
        }
        if self.ended {
            frame.extend_from_slice(b"data: [DONE]\n\n");
        }
        Some(frame.into())
    }

    fn write_news(&mut self, frame: &mut Vec<u8>) -> Result<(), ApiError> {
        for (index, prompt, choice) in answers(&self.generation) {
            let delta = self.generation.take_delta(prompt, choice);
            let run = &self.generation.prompts()[prompt];
            if run.cached_tokens.is_none() {
                continue;
            }
            let usage = self.chunk_usage(run.usage_of(choice));
            if !std::mem::replace(&mut self.opened[index], true) {
                let prompt_ids = self.format.prompt_token_ids(&self.generation).filter(|_| index == 0);
                let opening = self.format.opening(&self.generation, run, index);
                self.write_chunk(frame, opening, usage, prompt_ids)?;
            }
            let chunk = self.format.chunk(&self.generation, run, index, delta);
            self.write_chunk(frame, chunk, usage, None)?;
        }
        if self.generation.is_done() && self.usage != UsageReports::None {
            let chunk = self.response(Vec::new(), Some(Some(self.generation.usage())), None);
            write_event(frame, &chunk)?;
        }
        Ok(())
    }

    /// `usage` of a chunk that is not the last: null says that the last will have it.
    fn chunk_usage(&self, so_far: Usage) -> Option<Option<Usage>> {
        match self.usage {
            UsageReports::None => None,
            UsageReports::AtEnd => Some(None),
            UsageReports::Always => Some(Some(so_far)),
        }
    }

    fn write_chunk(
        &self,
        frame: &mut Vec<u8>,
        chunk: Option<F::Chunk>,
        usage: Option<Option<Usage>>,
        prompt_token_ids: Option<Arc<[TokenId]>>,
    ) -> Result<(), ApiError> {
        match chunk {
            Some(chunk) => write_event(frame, &self.response(vec![chunk], usage, prompt_token_ids)),
            None => Ok(()),
        }
    }

    fn response(
        &self,
        choices: Vec<F::Chunk>,
        usage: Option<Option<Usage>>,
        prompt_token_ids: Option<Arc<[TokenId]>>,
    ) -> Response<F::Chunk> {
        let mut response = Response::new(self.head.clone(), choices, usage);
        response.prompt_token_ids = prompt_token_ids;
        response
    }
}

fn write_event<T: Serialize>(frame: &mut Vec<u8>, event: &T) -> Result<(), ApiError> {
    frame.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *frame, event).map_err(|error| ApiError::Internal(error.to_string()))?;
    frame.extend_from_slice(b"\n\n");
    Ok(())
}

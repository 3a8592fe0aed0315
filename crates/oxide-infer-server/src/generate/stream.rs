//! Answers as server-sent events.
//!
//! The stream is pulled: while a client does not read, nothing is formatted for it. What the engine makes meanwhile
//! waits as token ids (no more than the request's `max_tokens`) and goes out as one piece for each answer when the
//! client reads again.

use super::Generation;
use crate::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::IntoResponse;
use futures::stream;
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The form of one API's streams.
pub(crate) trait EventWriter: Send + 'static {
    /// What is sent at the end, whatever it is.
    const END: &'static [u8];

    /// Writes what is new in a generation, which may be nothing, and the end once it is done.
    ///
    /// # Errors
    /// The stream cannot go on.
    fn news(&mut self, generation: &mut Generation, frame: &mut Frame) -> Result<(), ApiError>;

    /// Writes that the request has failed.
    ///
    /// # Errors
    /// Not even that can be written.
    fn failure(&mut self, error: &ApiError, frame: &mut Frame) -> Result<(), ApiError>;
}

/// Events that go out in one write.
#[derive(Debug, Default)]
pub(crate) struct Frame(Vec<u8>);

impl Frame {
    /// Adds an event with this JSON as its data.
    ///
    /// # Errors
    /// [`ApiError::Internal`] if it cannot be written as JSON.
    pub(crate) fn event<T: Serialize>(&mut self, name: Option<&str>, data: &T) -> Result<(), ApiError> {
        if let Some(name) = name {
            self.0.extend_from_slice(b"event: ");
            self.0.extend_from_slice(name.as_bytes());
            self.0.push(b'\n');
        }
        self.0.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut self.0, data).map_err(|error| ApiError::Internal(error.to_string()))?;
        self.0.extend_from_slice(b"\n\n");
        Ok(())
    }
}

/// Sends the answers piece by piece. Dropping the body (the client went away) cancels them.
pub(crate) fn respond_streaming<W: EventWriter>(
    generation: Generation,
    writer: W,
    keep_alive: Duration,
) -> axum::response::Response {
    let source = EventSource { generation, writer, keep_alive, ended: false };
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

struct EventSource<W> {
    generation: Generation,
    writer: W,
    keep_alive: Duration,
    ended: bool,
}

impl<W: EventWriter> EventSource<W> {
    /// Everything that is new, as one write; `None` after the end.
    async fn next_frame(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let silence_ends = Instant::now() + self.keep_alive;
        let mut frame = Frame::default();
        while frame.0.is_empty() && !self.ended {
            let Ok(advanced) = timeout_at(silence_ends, self.generation.advance()).await else {
                return Some(Bytes::from_static(b": keep-alive\n\n"));
            };
            let written = match advanced {
                Ok(()) => self.writer.news(&mut self.generation, &mut frame),
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                self.writer.failure(&error, &mut frame).ok();
                self.ended = true;
            }
            self.ended |= self.generation.is_done();
        }
        if self.ended {
            frame.0.extend_from_slice(W::END);
        }
        Some(frame.0.into())
    }
}

//! Answers as server-sent events.
//!
//! The stream is pulled: while a client does not read, nothing is formatted for it. What the engine makes meanwhile
//! waits as token ids (no more than the request's `max_tokens`) and goes out as one piece for each answer when the
//! client reads again.

use super::Generation;
use crate::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, BytesMut};
use futures::{StreamExt, stream};
use serde::Serialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

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
#[derive(Debug)]
pub(crate) struct Frame(BytesMut);

/// A dozen events of one token each.
const FRAME_BYTES: usize = 4 << 10;

impl Frame {
    fn new() -> Self {
        Self(BytesMut::with_capacity(FRAME_BYTES))
    }

    /// What has been added. Its memory is used again once it has been written.
    fn take(&mut self) -> Bytes {
        self.0.split().freeze()
    }

    /// Adds an event with this JSON as its data.
    ///
    /// # Errors
    /// [`ApiError::Internal`] if it cannot be written as JSON.
    pub(crate) fn event<T: Serialize>(&mut self, name: Option<&str>, data: &T) -> Result<(), ApiError> {
        if let Some(name) = name {
            self.0.extend_from_slice(b"event: ");
            self.0.extend_from_slice(name.as_bytes());
            self.0.put_u8(b'\n');
        }
        self.0.extend_from_slice(b"data: ");
        self.json(data)?;
        self.0.extend_from_slice(b"\n\n");
        Ok(())
    }

    /// Adds an event whose data is one object: the fields that are written already, then those of `rest`, an object that
    /// has some.
    ///
    /// # Errors
    /// [`ApiError::Internal`] if it cannot be written as JSON.
    pub(crate) fn event_after<T: Serialize>(
        &mut self,
        fields: &WrittenFields,
        rest: &T,
    ) -> Result<(), ApiError> {
        self.0.extend_from_slice(b"data: ");
        self.0.extend_from_slice(&fields.0);
        let brace = self.0.len();
        self.json(rest)?;
        self.0[brace] = b',';
        self.0.extend_from_slice(b"\n\n");
        Ok(())
    }

    fn json<T: Serialize>(&mut self, data: &T) -> Result<(), ApiError> {
        serde_json::to_writer((&mut self.0).writer(), data).map_err(unwritable)
    }
}

/// The first fields of JSON objects, written once for all of them.
#[derive(Debug)]
pub(crate) struct WrittenFields(Vec<u8>);

impl WrittenFields {
    /// The fields of an object that has some.
    ///
    /// # Errors
    /// [`ApiError::Internal`] if they cannot be written as JSON.
    pub(crate) fn of<T: Serialize>(object: &T) -> Result<Self, ApiError> {
        let mut json = serde_json::to_vec(object).map_err(unwritable)?;
        json.pop(); // its closing brace
        Ok(Self(json))
    }
}

fn unwritable(error: serde_json::Error) -> ApiError {
    ApiError::Internal(error.to_string())
}

/// Sends the answers piece by piece. Dropping the body (the client went away) cancels them.
///
/// The response begins with its first event, or with the first comment if that takes long: until then a router can
/// still ask another server.
///
/// # Errors
/// The request failed before there was anything to send.
pub(crate) async fn respond_streaming<W: EventWriter>(
    generation: Generation,
    writer: W,
    keep_alive: Duration,
) -> Result<Response, ApiError> {
    let mut source = EventSource {
        generation,
        writer,
        frame: Frame::new(),
        keep_alive,
        silence: Box::pin(sleep(keep_alive)),
        ended: false,
    };
    let first = source.first_frame().await?;
    let others = stream::unfold(source, |mut source| async move {
        let frame = source.next_frame().await?;
        Some((Ok::<_, Infallible>(frame), source))
    });
    let frames = stream::iter([Ok(first)]).chain(others);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // nginx would otherwise collect the stream before it passes it on.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(frames)).into_response())
}

struct EventSource<W> {
    generation: Generation,
    writer: W,
    frame: Frame,
    keep_alive: Duration,
    silence: Pin<Box<Sleep>>,
    ended: bool,
}

impl<W: EventWriter> EventSource<W> {
    /// What the response begins with.
    async fn first_frame(&mut self) -> Result<Bytes, ApiError> {
        match self.fill().await {
            Err(error) if self.frame.0.is_empty() => Err(error),
            filled => Ok(self.finish(filled)),
        }
    }

    /// Everything that is new, as one write; `None` after the end.
    async fn next_frame(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let filled = self.fill().await;
        Some(self.finish(filled))
    }

    /// Waits for news and writes them, or a comment if there are none for too long.
    async fn fill(&mut self) -> Result<(), ApiError> {
        let silence_ends = Instant::now() + self.keep_alive;
        while self.frame.0.is_empty() && !self.ended {
            tokio::select! {
                biased;
                advanced = self.generation.advance() => advanced?,
                () = reached(self.silence.as_mut(), silence_ends) => {
                    self.frame.0.extend_from_slice(b": keep-alive\n\n");
                    return Ok(());
                }
            }
            self.writer.news(&mut self.generation, &mut self.frame)?;
            self.ended = self.generation.is_done();
        }
        Ok(())
    }

    fn finish(&mut self, filled: Result<(), ApiError>) -> Bytes {
        if let Err(error) = filled {
            self.writer.failure(&error, &mut self.frame).ok();
            self.ended = true;
        }
        if self.ended {
            self.frame.0.extend_from_slice(W::END);
        }
        self.frame.take()
    }
}

/// Waits until a time. The timer is set anew only when it goes off, and not whenever the time moves: that is at every token.
async fn reached(mut timer: Pin<&mut Sleep>, end: Instant) {
    loop {
        timer.as_mut().await;
        if Instant::now() >= end {
            return;
        }
        timer.as_mut().reset(end);
    }
}

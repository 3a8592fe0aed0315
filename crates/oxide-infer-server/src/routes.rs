//! The handlers of all routes.

pub(crate) mod embeddings;
pub(crate) mod generation;
pub(crate) mod load;
pub(crate) mod models;
mod output;
pub(crate) mod status;
pub(crate) mod tokenize;

use crate::app::App;
use crate::body;
use crate::error::ApiError;
use axum::body::Bytes;
use axum::extract::Request;
use std::sync::Arc;

/// Bytes of a body that is worked on alone: far beyond a chat's, and still tokenized in a fraction of a second.
const LARGE_BODY: usize = 256 << 10;

/// Reads a request's body and works on it where long work does not hold up other requests.
async fn with_body<T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    work: impl FnOnce(&App, Bytes) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (head, body) = request.into_parts();
    let body = body::read_json(&head.headers, body, &app.config().limits).await?;
    // Tokenizing takes memory and time in proportion: one large body at a time, so that many cannot take all of both.
    // The place is the work's and not the client's, who may be gone before it is done.
    let turn = match body.len() > LARGE_BODY {
        true => app.large_bodies().acquire_owned().await.ok(),
        false => None,
    };
    let app = app.clone();
    let span = tracing::Span::current();
    let worked = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        span.in_scope(|| work(&app, body))
    })
    .await;
    worked.unwrap_or_else(|error| Err(ApiError::Internal(error.to_string())))
}

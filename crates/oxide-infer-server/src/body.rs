//! Reads the body of a request, within bounds.

use crate::config::Limits;
use crate::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use futures::StreamExt;

/// The whole body of a request that says it is JSON.
pub(crate) async fn read_json(headers: &HeaderMap, body: Body, limits: &Limits) -> Result<Bytes, ApiError> {
    check_content_type(headers)?;
    let limit = limits.max_body_bytes;
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(ApiError::BodyTooLarge { limit });
    }
    let read = read_within(body, limit);
    match tokio::time::timeout(limits.body_timeout, read).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::BodyTimeout { seconds: limits.body_timeout.as_secs() }),
    }
}

async fn read_within(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut stream = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| ApiError::BodyBroken(error.to_string()))?;
        if whole.len() + chunk.len() > limit {
            return Err(ApiError::BodyTooLarge { limit });
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.into())
}

/// Other types are refused because browsers send some of them to any server without asking it first.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let value = headers.get(header::CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = value.as_deref().unwrap_or("").split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let got = value.map_or_else(|| "none".to_owned(), |value| format!("'{value}'"));
    Err(ApiError::UnsupportedMediaType { got })
}

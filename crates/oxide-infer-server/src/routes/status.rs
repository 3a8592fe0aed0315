//! `/health`, `/ready`, `/metrics`, `/version` and `/openapi.json`: for machines that look after the server, open to all.

use crate::app::App;
use crate::error::ApiError;
use crate::metrics::Format;
use crate::openapi;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use oxide_infer_engine::Health;
use serde_json::{Value, json};
use std::sync::Arc;

/// `GET /health`: whether the process should be left alive.
pub(crate) async fn health(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    match app.engine().health() {
        Health::Running | Health::Draining | Health::Stopped => {
            (StatusCode::OK, Json(json!({"status": "ok"})))
        }
        Health::Failed(message) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "failed", "message": message})))
        }
    }
}

/// `GET /ready`: whether new requests should be sent here.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let (status, word) = readiness(&app);
    (status, Json(json!({"status": word})))
}

/// Whether new requests should be sent here, as a status and as a word.
pub(crate) fn readiness(app: &App) -> (StatusCode, &'static str) {
    match app.engine().health() {
        Health::Failed(_) => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        Health::Draining | Health::Stopped => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        Health::Running if app.is_draining() => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        Health::Running => (StatusCode::OK, "ready"),
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let format = Format::negotiate(&headers);
    let text = app.metrics().encode(format).map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}

/// `GET /openapi.json`.
pub(crate) async fn openapi(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    openapi::document(&app).map(Json).map_err(|error| ApiError::Internal(error.to_string()))
}

/// `GET /version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

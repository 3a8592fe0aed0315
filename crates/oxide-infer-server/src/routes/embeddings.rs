//! `/v1/embeddings`.

use super::generation::prompt_error;
use super::with_body;
use crate::app::{App, InFlight};
use crate::error::ApiError;
use crate::generate::{EmbeddingJob, EmbeddingPrompt};
use crate::observe::Arrival;
use crate::protocol::completion::{PromptInput, prompt_param};
use crate::protocol::embedding::{EmbeddingRequest, EmbeddingResponse, VectorForm};
use axum::extract::{Request, State};
use axum::{Extension, Json};
use std::sync::Arc;
use std::time::Instant;

/// `POST /v1/embeddings`.
pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Json<EmbeddingResponse>, ApiError> {
    let read = with_body(&app, request, move |app, body| prepare(app, &body, arrival.at));
    let (job, form, _in_flight) = read.await?;
    let tokens = job.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let vectors = job.vectors(&app).await?;
    Ok(Json(EmbeddingResponse::new(vectors, form, app.model_name().clone(), tokens)))
}

fn prepare(
    app: &App,
    body: &[u8],
    arrived: Instant,
) -> Result<(EmbeddingJob, VectorForm, InFlight), ApiError> {
    let bounds = app.bounds();
    let request = EmbeddingRequest::parse(body, bounds, app.engine().limits().hidden_size)?;
    let in_flight = app.admit()?;
    app.check_model(request.model.as_deref())?;
    let count = request.inputs.len();
    let mut prompts = Vec::with_capacity(count);
    for (index, input) in request.inputs.into_iter().enumerate() {
        let param = prompt_param("input", index, count);
        let tokens = match input {
            PromptInput::Text(text) => app
                .text()
                .encode(&text, request.add_special_tokens)
                .map_err(|error| prompt_error(error, &param))?,
            PromptInput::Tokens(tokens) => tokens,
        };
        let kept = request.truncation.kept(&tokens, bounds.max_model_len);
        if kept.len() > bounds.max_model_len {
            let message = format!(
                "the model's context is {} tokens; '{param}' has {}",
                bounds.max_model_len,
                kept.len()
            );
            return Err(ApiError::ContextLength { param, message });
        }
        if kept.is_empty() {
            return Err(ApiError::InvalidValue { param, reason: "must give at least one token".to_owned() });
        }
        prompts.push(EmbeddingPrompt { tokens: kept.into(), param });
    }
    let pooling = request.pooling.unwrap_or(app.config().pooling);
    Ok((EmbeddingJob { prompts, pooling, arrived }, request.form, in_flight))
}

//! An answer in one JSON body.

use super::Generation;
use super::stream::{Format, answers};
use crate::error::ApiError;
use crate::protocol::response::{Head, Response};
use axum::Json;
use axum::response::IntoResponse;

/// Waits for all answers and returns them. Dropping the future (the client went away) cancels them.
pub(crate) async fn respond_whole<F: Format>(
    mut generation: Generation,
    format: F,
    head: Head,
) -> Result<axum::response::Response, ApiError> {
    while !generation.is_done() {
        generation.advance().await?;
    }
    let mut choices = Vec::new();
    for (index, prompt, choice) in answers(&generation) {
        let delta = generation.take_delta(prompt, choice);
        choices.push(format.choice(&generation, &generation.prompts()[prompt], index, delta));
    }
    let mut response = Response::new(head, choices, Some(Some(generation.usage())));
    response.prompt_token_ids = format.prompt_token_ids(&generation);
    response.prompt_logprobs = format.prompt_logprobs(&generation);
    Ok(Json(response).into_response())
}

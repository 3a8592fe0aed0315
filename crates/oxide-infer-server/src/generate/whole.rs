//! An answer in one JSON body.

use super::Generation;
use super::chunks::{Format, answers};
use crate::protocol::response::{Beginning, Head, Response, Rest};
use axum::Json;
use axum::response::IntoResponse;

/// The response of a generation that is complete.
pub(crate) fn respond_whole<F: Format>(
    mut generation: Generation,
    format: F,
    head: Head,
) -> axum::response::Response {
    let mut choices = Vec::new();
    for (index, prompt, choice) in answers(&generation) {
        let delta = generation.take_delta(prompt, choice);
        choices.push(format.choice(&generation, &generation.prompts()[prompt], index, delta));
    }
    let mut rest = Rest::new(choices, Some(Some(generation.usage())));
    rest.prompt_token_ids = format.prompt_token_ids(&generation);
    rest.prompt_logprobs = format.prompt_logprobs(&generation);
    Json(Response { beginning: Beginning::new(head), rest }).into_response()
}

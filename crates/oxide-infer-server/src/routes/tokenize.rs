//! `/tokenize`, `/detokenize` and `/v1/messages/count_tokens`.

use super::generation::prompt_error;
use super::with_body;
use crate::app::App;
use crate::error::ApiError;
use crate::protocol::chat::ChatPrompt;
use crate::protocol::messages::{self, response::TokenCount};
use crate::protocol::response::{DetokenizeResponse, TokenizeResponse};
use crate::protocol::tokenize::{DetokenizeRequest, TokenStrs, TokenizeRequest, TokenizeSource};
use crate::text::SpecialInOutput;
use axum::Json;
use axum::extract::{Request, State};
use oxide_infer::TokenId;
use std::sync::Arc;

/// `POST /tokenize`.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<TokenizeResponse>, ApiError> {
    with_body(&app, request, |app, body| {
        let request = TokenizeRequest::parse(&body, app.bounds())?;
        app.check_model(request.model.as_deref())?;
        let tokens = match &request.source {
            TokenizeSource::Text(text, add) => {
                app.text().encode(text, *add).map_err(|error| prompt_error(error, "prompt"))?
            }
            TokenizeSource::Chat(chat) => chat_tokens(app, chat)?.1,
        };
        let token_strs = (request.token_strs == TokenStrs::Return).then(|| token_strs(app, &tokens));
        let max_model_len = app.bounds().max_model_len;
        Ok(Json(TokenizeResponse { count: tokens.len(), max_model_len, tokens, token_strs }))
    })
    .await
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<DetokenizeResponse>, ApiError> {
    with_body(&app, request, |app, body| {
        let request = DetokenizeRequest::parse(&body, app.bounds())?;
        app.check_model(request.model.as_deref())?;
        Ok(Json(DetokenizeResponse { prompt: app.text().decode(&request.tokens, SpecialInOutput::Keep) }))
    })
    .await
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<TokenCount>, ApiError> {
    with_body(&app, request, |app, body| {
        let (model, chat) = messages::parse_count(&body, app.bounds())?;
        app.check_model(model.as_deref())?;
        Ok(Json(TokenCount { input_tokens: chat_tokens(app, &chat)?.1.len() }))
    })
    .await
}

/// A conversation as text and as token ids.
pub(super) fn chat_tokens(app: &App, chat: &ChatPrompt) -> Result<(String, Vec<TokenId>), ApiError> {
    let text = app.text();
    let prompt = text.render_chat(&chat.input).map_err(|error| prompt_error(error, chat.param))?;
    let tokens = text.tokenizer().encode_prompt(&prompt, chat.add_special_tokens);
    let tokens = tokens.map_err(|error| prompt_error(error, chat.param))?;
    Ok((prompt.text().to_owned(), tokens))
}

fn token_strs(app: &App, tokens: &[TokenId]) -> Vec<String> {
    tokens.iter().map(|&id| app.text().tokenizer().token_piece(id).unwrap_or_default()).collect()
}

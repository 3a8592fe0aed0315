//! The requests of `/tokenize` and `/detokenize`.

use super::chat::ChatPrompt;
use super::fields::Fields;
use super::params::{Bounds, check_vocabulary, read_add_special_tokens};
use super::rules::Route;
use crate::error::ApiError;
use crate::text::AddSpecialTokens;
use oxide_infer::TokenId;

/// A request to tokenize.
#[derive(Clone, Debug)]
pub(crate) struct TokenizeRequest {
    /// The model asked for.
    pub(crate) model: Option<String>,
    /// What to tokenize.
    pub(crate) source: TokenizeSource,
    /// Whether the tokens' vocabulary entries are returned, too.
    pub(crate) token_strs: TokenStrs,
}

/// What is tokenized.
#[derive(Clone, Debug)]
pub(crate) enum TokenizeSource {
    /// A text.
    Text(String, AddSpecialTokens),
    /// A conversation.
    Chat(ChatPrompt),
}

/// Whether the tokens' vocabulary entries are returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenStrs {
    /// No.
    Omit,
    /// Yes.
    Return,
}

impl TokenizeRequest {
    /// Reads and checks a request's body.
    pub(crate) fn parse(body: &[u8], bounds: Bounds<'_>) -> Result<Self, ApiError> {
        let mut fields = Fields::parse_body(body, Route::TokenizePrompt)?;
        if !fields.has("prompt") && fields.has("messages") {
            fields.reroute(Route::TokenizeChat);
        }
        let model = fields.string("model")?;
        let return_strs = fields.flag("return_token_strs")?.unwrap_or(false);
        let token_strs = if return_strs { TokenStrs::Return } else { TokenStrs::Omit };
        let source = match fields.string("prompt")? {
            Some(text) => {
                let add = read_add_special_tokens(&mut fields, AddSpecialTokens::Add)?;
                TokenizeSource::Text(text, add)
            }
            None if fields.has("messages") => TokenizeSource::Chat(ChatPrompt::read(&mut fields, bounds)?),
            None => return Err(fields.missing("prompt", "a string, or 'messages'")),
        };
        fields.finish()?;
        Ok(Self { model, source, token_strs })
    }
}

/// A request for the text of tokens.
#[derive(Clone, Debug)]
pub(crate) struct DetokenizeRequest {
    /// The model asked for.
    pub(crate) model: Option<String>,
    /// The tokens.
    pub(crate) tokens: Vec<TokenId>,
}

impl DetokenizeRequest {
    /// Reads and checks a request's body.
    pub(crate) fn parse(body: &[u8], bounds: Bounds<'_>) -> Result<Self, ApiError> {
        const EXPECTED: &str = "an array of token ids";
        let mut fields = Fields::parse_body(body, Route::Detokenize)?;
        let model = fields.string("model")?;
        let tokens: Option<Vec<TokenId>> = fields.typed("tokens", EXPECTED)?;
        let tokens = tokens.ok_or_else(|| fields.missing("tokens", EXPECTED))?;
        check_vocabulary(&tokens, bounds.vocab_size).map_err(|reason| fields.invalid("tokens", reason))?;
        fields.finish()?;
        Ok(Self { model, tokens })
    }
}

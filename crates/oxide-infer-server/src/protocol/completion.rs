//! The request of `/v1/completions`.

use super::fields::{Fields, read, wrong_type};
use super::grammar::read_grammar;
use super::params::{Bounds, GenerationParams, MaxTokens, check_vocabulary, read_add_special_tokens};
use super::rules::Route;
use crate::error::ApiError;
use crate::text::AddSpecialTokens;
use oxide_infer::TokenId;
use serde_json::value::RawValue;

/// What OpenAI's API generates when `max_tokens` is absent.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// A completion request.
#[derive(Clone, Debug)]
pub(crate) struct CompletionRequest {
    /// The model asked for.
    pub(crate) model: Option<String>,
    /// The texts to continue; at least one.
    pub(crate) prompts: Vec<PromptInput>,
    /// Whether answers start with the prompt.
    pub(crate) echo: Echo,
    /// Report log-probabilities, and of this many best tokens.
    pub(crate) logprobs: Option<u32>,
    /// Whether text prompts get what the tokenizer puts around a text.
    pub(crate) add_special_tokens: AddSpecialTokens,
    /// The rest.
    pub(crate) params: GenerationParams,
}

/// One prompt of a completion request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PromptInput {
    /// Text, to be tokenized.
    Text(String),
    /// Token ids.
    Tokens(Vec<TokenId>),
}

/// Whether answers start with the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Echo {
    /// No.
    Off,
    /// Yes; with `logprobs` those of the prompt come, too.
    Prompt,
}

impl CompletionRequest {
    /// Reads and checks a request's body.
    pub(crate) fn parse(body: &[u8], bounds: Bounds<'_>) -> Result<Self, ApiError> {
        let mut fields = Fields::parse_body(body, Route::Completion)?;
        let model = fields.string("model")?;
        let prompts = read_prompts(&mut fields, "prompt", bounds.limits.max_prompts, bounds.vocab_size)?;
        let echo = if fields.flag("echo")?.unwrap_or(false) { Echo::Prompt } else { Echo::Off };
        let grammar = read_grammar(&mut fields, bounds.limits)?;
        let mut params = GenerationParams::read(&mut fields, bounds, grammar)?;
        let tokens = fields.count("max_tokens", 0, u32::MAX)?.unwrap_or(DEFAULT_MAX_TOKENS);
        if tokens == 0 && echo == Echo::Off {
            return Err(fields.invalid("max_tokens", "must be at least 1 without 'echo'"));
        }
        params.limit(Some(MaxTokens { tokens, field: "max_tokens" }), &fields)?;
        let request = Self {
            model,
            prompts,
            echo,
            logprobs: fields.count("logprobs", 0, bounds.limits.max_logprobs)?,
            add_special_tokens: read_add_special_tokens(&mut fields, AddSpecialTokens::Add)?,
            params,
        };
        check_best_of(&mut fields, request.params.choices.get())?;
        fields.finish()?;
        Ok(request)
    }
}

fn check_best_of(fields: &mut Fields<'_>, n: u32) -> Result<(), ApiError> {
    match fields.count("best_of", 1, u32::MAX)? {
        Some(best_of) if best_of < n => {
            Err(fields.invalid("best_of", format!("must not be below 'n' = {n}, got {best_of}")))
        }
        Some(best_of) if best_of > n => {
            Err(fields.unsupported("best_of", "answers are not ranked; ask for them all with 'n'"))
        }
        _ => Ok(()),
    }
}

/// How one of several prompts in a field is named.
pub(crate) fn prompt_param(field: &str, index: usize, prompts: usize) -> String {
    if prompts > 1 { format!("{field}[{index}]") } else { field.to_owned() }
}

/// Reads texts and token ids from the field `name`.
pub(super) fn read_prompts(
    fields: &mut Fields<'_>,
    name: &str,
    max: usize,
    vocab_size: usize,
) -> Result<Vec<PromptInput>, ApiError> {
    const EXPECTED: &str = "a string, an array of token ids, or an array of either";
    let param = fields.param(name);
    let Some(raw) = fields.take(name) else { return Err(fields.missing(name, EXPECTED)) };
    let wrong = || wrong_type(&param, EXPECTED, raw);
    let prompts = match FirstElement::of(raw) {
        None => vec![PromptInput::Text(read(raw).ok_or_else(wrong)?)],
        Some(FirstElement::Number) => vec![PromptInput::Tokens(read(raw).ok_or_else(wrong)?)],
        Some(FirstElement::String) => {
            let texts: Vec<String> = read(raw).ok_or_else(wrong)?;
            texts.into_iter().map(PromptInput::Text).collect()
        }
        Some(FirstElement::Array) => {
            let lists: Vec<Vec<TokenId>> = read(raw).ok_or_else(wrong)?;
            lists.into_iter().map(PromptInput::Tokens).collect()
        }
        Some(FirstElement::None) => return Err(fields.invalid(name, "must not be empty")),
        Some(FirstElement::Other) => return Err(wrong()),
    };
    if prompts.len() > max {
        let reason = format!("must have at most {max} elements, got {}", prompts.len());
        return Err(fields.invalid(name, reason));
    }
    for (index, prompt) in prompts.iter().enumerate() {
        if let PromptInput::Tokens(ids) = prompt {
            check_vocabulary(ids, vocab_size).map_err(|reason| {
                let param = prompt_param(&param, index, prompts.len());
                ApiError::InvalidValue { param, reason }
            })?;
        }
    }
    Ok(prompts)
}

/// What a JSON array starts with, and so what all its elements must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FirstElement {
    None,
    Number,
    String,
    Array,
    Other,
}

impl FirstElement {
    /// `None` if `raw` is no array.
    fn of(raw: &RawValue) -> Option<Self> {
        let inside = raw.get().strip_prefix('[')?.trim_start();
        Some(match inside.as_bytes().first() {
            Some(b']') => Self::None,
            Some(b'"') => Self::String,
            Some(b'[') => Self::Array,
            Some(b'-' | b'0'..=b'9') => Self::Number,
            _ => Self::Other,
        })
    }
}

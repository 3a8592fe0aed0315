//! What chat and completion requests have in common: sampling, the end of an answer, and how it is delivered.

use super::fields::{self, Fields};
use crate::config::{Limits, SamplingDefaults};
use crate::error::ApiError;
use crate::grammar::GrammarSpec;
use crate::text::{AddSpecialTokens, MAX_STOP_STRINGS, SpecialInOutput, StopText};
use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use oxide_infer_engine::request::EosPolicy;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

/// What requests are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds<'a> {
    /// The server's limits.
    pub(crate) limits: &'a Limits,
    /// What is taken for a sampling parameter that is absent.
    pub(crate) defaults: &'a SamplingDefaults,
    /// Size of the model's vocabulary.
    pub(crate) vocab_size: usize,
    /// The model's length, prompt and answer together.
    pub(crate) max_model_len: usize,
}

/// How answers are sampled, ended and delivered.
#[derive(Clone, Debug)]
pub(crate) struct GenerationParams {
    /// Answers to every prompt.
    pub(crate) choices: NonZeroU32,
    /// How each answer samples; has its seed.
    pub(crate) sampling: Arc<SamplingParams>,
    /// `max_tokens`; absent means what fits.
    pub(crate) max_tokens: Option<MaxTokens>,
    /// `min_tokens`.
    pub(crate) min_tokens: u32,
    /// Stop strings.
    pub(crate) stop: Vec<String>,
    /// Whether a stop string or stop token is shown.
    pub(crate) stop_text: StopText,
    /// Further tokens that end an answer.
    pub(crate) stop_token_ids: Arc<[TokenId]>,
    /// What an end-of-sequence token does.
    pub(crate) eos: EosPolicy,
    /// What becomes of special tokens in the text.
    pub(crate) special: SpecialInOutput,
    /// How the answer travels.
    pub(crate) delivery: Delivery,
    /// Whether token ids are returned beside the text.
    pub(crate) token_ids: TokenIds,
    /// How log-probabilities name tokens.
    pub(crate) token_names: TokenNames,
    /// `prompt_logprobs`: report the prompt's log-probabilities, and of this many best tokens.
    pub(crate) prompt_logprobs: Option<u32>,
    /// What answers are held to.
    pub(crate) grammar: Option<GrammarSpec>,
    /// `truncate_prompt_tokens`.
    pub(crate) truncation: Truncation,
}

/// How much of a prompt is kept. What is cut off is its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truncation {
    /// All of it.
    None,
    /// What leaves room for the answer in the model's length.
    ToFit,
    /// This many tokens at most.
    To(u32),
}

impl Truncation {
    /// What is kept of a prompt for which there is this much room.
    pub(crate) fn kept(self, prompt: &[TokenId], room: usize) -> &[TokenId] {
        let kept = match self {
            Self::None => return prompt,
            Self::ToFit => room,
            Self::To(tokens) => tokens as usize,
        };
        &prompt[prompt.len().saturating_sub(kept)..]
    }
}

/// A limit on the answer, and the field that set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaxTokens {
    /// The limit.
    pub(crate) tokens: u32,
    /// `max_tokens` or `max_completion_tokens`.
    pub(crate) field: &'static str,
}

/// How an answer travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// In one JSON body.
    Whole,
    /// As server-sent events, with these reports of usage.
    Stream(UsageReports),
}

/// When a stream reports usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageReports {
    /// Never.
    None,
    /// In a chunk of its own at the end.
    AtEnd,
    /// With every chunk, and at the end.
    Always,
}

/// Whether token ids are returned beside the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenIds {
    /// No.
    Omit,
    /// Those of prompt and answer.
    Return,
}

/// How log-probabilities name tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenNames {
    /// By their text.
    Text,
    /// As `token_id:17`.
    Ids,
}

impl GenerationParams {
    /// Reads everything but the limit on the answer, which the routes read differently.
    ///
    /// `grammar` is what the route's own field for that says.
    pub(crate) fn read(
        fields: &mut Fields<'_>,
        bounds: Bounds<'_>,
        grammar: Option<GrammarSpec>,
    ) -> Result<Self, ApiError> {
        let choices = fields.count("n", 1, bounds.limits.max_choices)?.and_then(NonZeroU32::new);
        let include_stop = fields.flag("include_stop_str_in_output")?.unwrap_or(false);
        let ignore_eos = fields.flag("ignore_eos")?.unwrap_or(false);
        let skip_special = fields.flag("skip_special_tokens")?.unwrap_or(true);
        let return_ids = fields.flag("return_token_ids")?.unwrap_or(false);
        let name_by_id = fields.flag("return_tokens_as_token_ids")?.unwrap_or(false);
        let delivery = read_delivery(fields)?;
        if let Some(grammar) = grammar.as_ref().filter(|_| ignore_eos) {
            let reason =
                format!("cannot be true together with '{}', which says where answers end", grammar.param);
            return Err(fields.invalid("ignore_eos", reason));
        }
        Ok(Self {
            choices: choices.unwrap_or(NonZeroU32::MIN),
            sampling: Arc::new(read_sampling(fields, bounds)?),
            max_tokens: None,
            min_tokens: fields.count("min_tokens", 0, u32::MAX)?.unwrap_or(0),
            stop: read_stop(fields, bounds.limits)?,
            stop_text: if include_stop { StopText::Include } else { StopText::Exclude },
            stop_token_ids: read_stop_tokens(fields, bounds)?,
            eos: if ignore_eos { EosPolicy::Ignore } else { EosPolicy::Stop },
            special: if skip_special { SpecialInOutput::Skip } else { SpecialInOutput::Keep },
            delivery,
            token_ids: if return_ids { TokenIds::Return } else { TokenIds::Omit },
            token_names: if name_by_id { TokenNames::Ids } else { TokenNames::Text },
            prompt_logprobs: read_prompt_logprobs(fields, bounds, delivery)?,
            grammar,
            truncation: read_truncation(fields)?,
        })
    }

    /// Sets the limit on the answer once it is read.
    pub(crate) fn limit(&mut self, max: Option<MaxTokens>, fields: &Fields<'_>) -> Result<(), ApiError> {
        self.max_tokens = max;
        match max {
            Some(max) if self.min_tokens > max.tokens => Err(fields.invalid(
                "min_tokens",
                format!("must not be above '{}' = {}, got {}", max.field, max.tokens, self.min_tokens),
            )),
            _ => Ok(()),
        }
    }

    /// Cuts off what `truncate_prompt_tokens` does not keep of a prompt's beginning.
    pub(crate) fn truncate<'t>(&self, prompt: &'t [TokenId], bounds: Bounds<'_>) -> &'t [TokenId] {
        let answer = self.max_tokens.map_or(1, |max| max.tokens as usize);
        self.truncation.kept(prompt, bounds.max_model_len.saturating_sub(answer).max(1))
    }

    /// Tokens that an answer to a prompt of `prompt_tokens` may have; `param` is the field that holds the prompt.
    pub(crate) fn answer_room(
        &self,
        prompt_tokens: usize,
        param: &str,
        bounds: Bounds<'_>,
    ) -> Result<u32, ApiError> {
        let max_model_len = bounds.max_model_len;
        let asked = self.max_tokens.map_or(1, |max| max.tokens as usize);
        if prompt_tokens.saturating_add(asked) <= max_model_len {
            let room = u32::try_from(max_model_len - prompt_tokens).unwrap_or(u32::MAX);
            return Ok(self.max_tokens.map_or(room, |max| max.tokens));
        }
        let (param, answer) = match self.max_tokens {
            Some(max) if prompt_tokens < max_model_len => {
                (max.field, format!(" and '{}' asks for {}", max.field, max.tokens))
            }
            _ => (param, " and an answer needs at least 1".to_owned()),
        };
        let message = format!(
            "the model's context is {max_model_len} tokens, prompt and answer together; \
             the prompt has {prompt_tokens} tokens{answer}"
        );
        Err(ApiError::ContextLength { param: param.to_owned(), message })
    }
}

fn read_sampling(fields: &mut Fields<'_>, bounds: Bounds<'_>) -> Result<SamplingParams, ApiError> {
    let defaults = bounds.defaults;
    let base = SamplingParams::default();
    let sampling = SamplingParams {
        temperature: fields
            .number("temperature", 0.0..=2.0)?
            .or(defaults.temperature)
            .unwrap_or(base.temperature),
        top_k: match fields.integer("top_k", -1..=i64::from(u32::MAX))? {
            // As in vLLM, 0 and -1 turn it off.
            Some(k) => u32::try_from(k).ok().filter(|&k| k > 0),
            None => defaults.top_k.filter(|&k| k > 0),
        },
        top_p: fields.number("top_p", 0.0..=1.0)?.or(defaults.top_p).unwrap_or(base.top_p),
        min_p: fields.number("min_p", 0.0..=1.0)?.or(defaults.min_p).unwrap_or(base.min_p),
        repetition_penalty: fields
            .number("repetition_penalty", f32::MIN_POSITIVE..=f32::MAX)?
            .or(defaults.repetition_penalty)
            .unwrap_or(base.repetition_penalty),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        logit_bias: read_logit_bias(fields, bounds)?,
        seed: fields
            .integer("seed", i64::MIN..=i64::MAX)?
            .map_or_else(|| uuid::Uuid::new_v4().as_u64_pair().1, i64::cast_unsigned),
    };
    if sampling.top_p == 0.0 {
        return Err(fields.invalid("top_p", "must be above 0; for greedy sampling set 'temperature' to 0"));
    }
    Ok(sampling)
}

fn read_logit_bias(fields: &mut Fields<'_>, bounds: Bounds<'_>) -> Result<Arc<[(TokenId, f32)]>, ApiError> {
    const EXPECTED: &str = "an object of token ids and numbers from -100 to 100";
    let biases: HashMap<String, f64> = fields.typed("logit_bias", EXPECTED)?.unwrap_or_default();
    let (count, max) = (biases.len(), bounds.limits.max_logit_bias);
    if count > max {
        return Err(fields.invalid("logit_bias", format!("must have at most {max} entries, got {count}")));
    }
    let mut sorted = Vec::with_capacity(count);
    for (key, bias) in biases {
        let token = key.parse().ok().filter(|&id: &u32| (id as usize) < bounds.vocab_size);
        let Some(token) = token else {
            let reason = format!(
                "must have token ids below {} as keys, got '{}'",
                bounds.vocab_size,
                fields::shorten(&key)
            );
            return Err(fields.invalid("logit_bias", reason));
        };
        if !(-100.0..=100.0).contains(&bias) {
            let reason = format!("must have values from -100 to 100, got {bias} for token {key}");
            return Err(fields.invalid("logit_bias", reason));
        }
        sorted.push((TokenId(token), bias as f32));
    }
    sorted.sort_unstable_by_key(|&(token, _)| token);
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(fields.invalid("logit_bias", format!("must not name token {} twice", pair[0].0)));
    }
    Ok(sorted.into())
}

fn read_stop(fields: &mut Fields<'_>, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let name = if fields.admits("stop_sequences") { "stop_sequences" } else { "stop" };
    let Some(raw) = fields.take(name) else { return Ok(Vec::new()) };
    let stop = match fields::read::<String>(raw) {
        Some(one) => vec![one],
        None => fields::read::<Vec<String>>(raw)
            .ok_or_else(|| fields::wrong_type(&fields.param(name), "a string or an array of strings", raw))?,
    };
    if stop.len() > MAX_STOP_STRINGS {
        let reason = format!("must have at most {MAX_STOP_STRINGS} strings, got {}", stop.len());
        return Err(fields.invalid(name, reason));
    }
    if stop.iter().any(String::is_empty) {
        return Err(fields.invalid(name, "must not have an empty string"));
    }
    if let Some(long) = stop.iter().find(|stop| stop.len() > limits.max_stop_bytes) {
        let reason =
            format!("must have strings of at most {} bytes, got {}", limits.max_stop_bytes, long.len());
        return Err(fields.invalid(name, reason));
    }
    Ok(stop)
}

fn read_stop_tokens(fields: &mut Fields<'_>, bounds: Bounds<'_>) -> Result<Arc<[TokenId]>, ApiError> {
    let name = "stop_token_ids";
    let ids: Vec<TokenId> = fields.typed(name, "an array of token ids")?.unwrap_or_default();
    let max = bounds.limits.max_stop_token_ids;
    if ids.len() > max {
        return Err(fields.invalid(name, format!("must have at most {max} ids, got {}", ids.len())));
    }
    check_vocabulary(&ids, bounds.vocab_size).map_err(|reason| fields.invalid(name, reason))?;
    Ok(ids.into())
}

/// The reason why not all `ids` are tokens of the model.
pub(crate) fn check_vocabulary(ids: &[TokenId], vocab_size: usize) -> Result<(), String> {
    match ids.iter().find(|id| id.index() >= vocab_size) {
        Some(id) => Err(format!("must have token ids below {vocab_size}, got {id}")),
        None => Ok(()),
    }
}

/// Reads `add_special_tokens`.
pub(crate) fn read_add_special_tokens(
    fields: &mut Fields<'_>,
    default: AddSpecialTokens,
) -> Result<AddSpecialTokens, ApiError> {
    Ok(match fields.flag("add_special_tokens")? {
        Some(true) => AddSpecialTokens::Add,
        Some(false) => AddSpecialTokens::Omit,
        None => default,
    })
}

fn read_prompt_logprobs(
    fields: &mut Fields<'_>,
    bounds: Bounds<'_>,
    delivery: Delivery,
) -> Result<Option<u32>, ApiError> {
    let wanted = fields.count("prompt_logprobs", 0, bounds.limits.max_logprobs)?;
    match (wanted, delivery) {
        (Some(_), Delivery::Stream(_)) => {
            Err(fields.invalid("prompt_logprobs", "is only given without 'stream': true"))
        }
        (wanted, _) => Ok(wanted),
    }
}

/// Reads `truncate_prompt_tokens`.
pub(crate) fn read_truncation(fields: &mut Fields<'_>) -> Result<Truncation, ApiError> {
    let name = "truncate_prompt_tokens";
    match fields.integer(name, -1..=i64::from(u32::MAX))? {
        None => Ok(Truncation::None),
        Some(-1) => Ok(Truncation::ToFit),
        Some(kept) => match u32::try_from(kept) {
            Ok(kept) if kept > 0 => Ok(Truncation::To(kept)),
            _ => Err(fields.invalid(name, format!("must be -1 or at least 1, got {kept}"))),
        },
    }
}

fn read_delivery(fields: &mut Fields<'_>) -> Result<Delivery, ApiError> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let options: Option<&RawValue> = fields.take("stream_options");
    match (stream, options) {
        (false, None) => Ok(Delivery::Whole),
        (false, Some(_)) => Err(fields.invalid("stream_options", "is only allowed with 'stream': true")),
        (true, None) => Ok(Delivery::Stream(UsageReports::None)),
        (true, Some(raw)) => {
            let mut options = Fields::parse_at(raw, "stream_options")?;
            let at_end = options.flag("include_usage")?.unwrap_or(false);
            let always = options.flag("continuous_usage_stats")?.unwrap_or(false);
            // Padding against traffic analysis; this server sends none.
            options.flag("include_obfuscation")?;
            options.finish()?;
            Ok(Delivery::Stream(match (at_end, always) {
                (false, _) => UsageReports::None,
                (true, false) => UsageReports::AtEnd,
                (true, true) => UsageReports::Always,
            }))
        }
    }
}

//! Sampling: how a row of logits becomes a token.
//!
//! Order of the steps, the same for every provider (vLLM's order): log-probabilities are taken of the model's raw
//! logits; then logit bias, token mask, repetition, presence and frequency penalties, temperature, min-p, top-k, top-p,
//! draw.

use crate::TokenId;
use std::sync::Arc;

/// How one sequence samples. Validated by [`SamplingParams::validate`]; immutable afterwards.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 means greedy.
    pub temperature: f32,
    /// Keep the `k` most probable tokens; `None` keeps all.
    pub top_k: Option<u32>,
    /// Keep the smallest set of most probable tokens whose probability reaches this, in (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this fraction of the best token's probability, in [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token that the output already has.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for every time that the output already has it.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Arc<[(TokenId, f32)]>,
    /// Keys the counter-based generator, with the choice index, the position and the draw.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Arc::from([]),
            seed: 0,
        }
    }
}

//! Sampling: how a row of logits becomes a token.
//!
//! Order of the steps, the same for every provider (vLLM's order): log-probabilities are taken of the model's raw
//! logits; then logit bias, token mask, repetition, presence and frequency penalties, temperature, min-p, top-k, top-p,
//! draw. [`sample`] is the definition; the exact rules, ties included, are written there.
//!
//! Tokens are ordered by value, greatest first, and equal values by id, lowest first. Argmax, top-k, top-p, ranks and the
//! list of most probable tokens all use that one order, so a row has one answer.

mod history;
mod logprobs;
mod mask;
mod params;
mod philox;
pub(crate) mod reference;
mod spec;

pub use history::{TokenHistory, TokenUse};
pub use logprobs::{LogProbs, TokenLogProb, log_probabilities};
pub use mask::TokenMask;
pub use params::{SamplingParams, SamplingParamsError};
pub use philox::{Draw, philox4x32_10};
pub use reference::{LogitsRow, Sampled, SamplingError, argmax, distribution, sample};
pub use spec::{Config, RowError, Spec, reference};

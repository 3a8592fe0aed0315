use super::SamplingError;
use super::reference::{first, sooner};
use crate::TokenId;

/// A token, its log-probability, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogProb {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm of its probability under the model's raw logits.
    pub logprob: f32,
    /// 1 for the most probable token; see the module for ties.
    pub rank: u32,
}

/// The log-probability of one token and of the most probable ones.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// The token that was sampled, or that the prompt has next.
    pub chosen: TokenLogProb,
    /// The most probable tokens, best first; `chosen` is among them only when it ranks so.
    pub top: Vec<TokenLogProb>,
}

/// Log-softmax of raw logits `[vocab]` at `token` and at the `top_n` most probable tokens:
/// `logprob(t) = l[t] − max − ln Σ exp(l[i] − max)`, in `f64`.
///
/// `top_n` past the vocabulary gives the whole vocabulary.
///
/// # Errors
/// [`SamplingError`] when the row is empty, `token` is not in it, or a logit is NaN or +∞.
pub fn log_probabilities(logits: &[f32], token: TokenId, top_n: usize) -> Result<LogProbs, SamplingError> {
    let Some(&chosen) = logits.get(token.index()) else {
        return Err(SamplingError::Token { token, vocab_size: logits.len() });
    };
    super::reference::check_logits(logits)?;
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Err(SamplingError::NoCandidate);
    }
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - f64::from(max)).exp()).sum();
    let normalizer = f64::from(max) + sum.ln();
    let at = |token: TokenId, logit: f32, rank: usize| TokenLogProb {
        token,
        logprob: (f64::from(logit) - normalizer) as f32,
        rank: rank as u32,
    };

    let tokens = || (0u32..).map(TokenId).zip(logits.iter().copied());
    let ahead = tokens().filter(|other| sooner(other, &(token, chosen)).is_lt()).count();
    let top = first(tokens().collect(), top_n);
    Ok(LogProbs {
        chosen: at(token, chosen, ahead + 1),
        top: top.iter().zip(1..).map(|(&(token, logit), rank)| at(token, logit, rank)).collect(),
    })
}

use super::{
    Draw, LogProbs, SamplingParams, SamplingParamsError, TokenHistory, TokenMask, log_probabilities,
};
use crate::TokenId;
use std::cmp::Ordering;
use thiserror::Error;

/// Everything that decides one token.
#[derive(Clone, Copy, Debug)]
pub struct LogitsRow<'a> {
    /// The model's raw logits, `[vocab]`. −∞ is admitted; NaN and +∞ are errors.
    pub logits: &'a [f32],
    /// How the sequence samples.
    pub params: &'a SamplingParams,
    /// What the sequence has used; read when [`SamplingParams::reads_history`].
    pub history: &'a TokenHistory,
    /// The tokens that may be sampled; `None` allows all.
    pub mask: Option<&'a TokenMask>,
    /// Which of the request's choices, for [`Draw`].
    pub choice: u32,
    /// Position of the token that is sampled, for [`Draw`].
    pub position: u64,
    /// How many of the most probable tokens to report; `None` reports no log-probabilities at all.
    pub top_logprobs: Option<usize>,
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// Log-probabilities under the raw logits, when they were asked for.
    pub logprobs: Option<LogProbs>,
}

/// A row from which no token can be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum SamplingError {
    /// A sampling parameter out of range.
    #[error(transparent)]
    Params(#[from] SamplingParamsError),
    /// A row of another vocabulary than the spec's.
    #[error("a row must have {expected} logits, got {got}")]
    RowSize {
        /// The spec's vocabulary.
        expected: usize,
        /// Logits in the row.
        got: usize,
    },
    /// A mask of another vocabulary.
    #[error("the token mask must cover {expected} tokens, got {got}")]
    MaskSize {
        /// Logits in the row.
        expected: usize,
        /// Tokens that the mask covers.
        got: usize,
    },
    /// A token that the row has no logit for.
    #[error("tokens must be in 0..{vocab_size}, got {token}")]
    Token {
        /// The token.
        token: TokenId,
        /// Logits in the row.
        vocab_size: usize,
    },
    /// A logit that no probability can be made of, in the row or after bias and penalties.
    #[error("the logit of token {token} must be finite or −∞, got {value}")]
    Logit {
        /// The token.
        token: TokenId,
        /// The logit.
        value: f32,
    },
    /// Every token is masked out or has a logit of −∞ (or the row is empty).
    #[error("no token may be sampled: every logit is masked or −∞")]
    NoCandidate,
}

/// Samples one token. The definition that every provider is held to:
///
/// 1. Log-probabilities, when asked for, by [`log_probabilities`] of the raw logits.
/// 2. `l[t] += bias` for each logit bias; `l[t] = −∞` where the mask forbids `t`.
/// 3. For each token used in prompt or output: `l[t] = l[t] > 0 ? l[t] / repetition : l[t] · repetition`. For each used in
///    the output: `l[t] −= frequency · count`, then `l[t] −= presence`.
/// 4. Greedy: the argmax. Otherwise `w[t] = exp((l[t] − max) / temperature)`.
/// 5. min-p keeps `w[t] ≥ min_p`. Top-k keeps the first `k` of those. Top-p keeps the shortest run of the first of those
///    whose sum is at least `top_p` of their sum.
/// 6. With `u` = [`Draw::uniform`] of draw 0, the token is the one with the lowest id at which the running sum of kept
///    weights, in order of id, exceeds `u · Σ w`.
///
/// Steps 2 and 3 are in `f32` in this order; the rest is in `f64` here, and a provider may use `f32`.
///
/// # Errors
/// [`SamplingError`].
pub fn sample(row: &LogitsRow<'_>) -> Result<Sampled, SamplingError> {
    let token = if row.params.is_greedy() {
        argmax(&adjusted(row)?).ok_or(SamplingError::NoCandidate)?
    } else {
        let draw = Draw { seed: row.params.seed, choice: row.choice, position: row.position, draw: 0 };
        pick(&distribution(row)?, draw.uniform()).ok_or(SamplingError::NoCandidate)?
    };
    let logprobs = row.top_logprobs.map(|top_n| log_probabilities(row.logits, token, top_n)).transpose()?;
    Ok(Sampled { token, logprobs })
}

/// The token with the greatest logit, the lowest id among equals; `None` when every logit is −∞ or there is none.
pub fn argmax(logits: &[f32]) -> Option<TokenId> {
    let mut best = None;
    let mut max = f32::NEG_INFINITY;
    for (token, &logit) in (0u32..).zip(logits) {
        if logit > max {
            (best, max) = (Some(TokenId(token)), logit);
        }
    }
    best
}

/// The tokens that step 5 of [`sample`] keeps, in order of id, with their probabilities (they sum to 1). Greedy rows keep
/// their one token.
///
/// # Errors
/// [`SamplingError`].
pub fn distribution(row: &LogitsRow<'_>) -> Result<Vec<(TokenId, f64)>, SamplingError> {
    let logits = adjusted(row)?;
    let best = argmax(&logits).ok_or(SamplingError::NoCandidate)?;
    let params = row.params;
    if params.is_greedy() {
        return Ok(vec![(best, 1.0)]);
    }
    let max = f64::from(logits[best.index()]);
    let weight = |logit: f32| ((f64::from(logit) - max) / f64::from(params.temperature)).exp();

    let weights = (0u32..).map(TokenId).zip(logits.iter().map(|&logit| weight(logit)));
    let mut kept: Vec<_> = weights.filter(|&(_, w)| w > 0.0 && w >= f64::from(params.min_p)).collect();
    if let Some(k) = params.top_k {
        kept = first(kept, k as usize);
    }
    if params.top_p < 1.0 {
        kept.sort_unstable_by(sooner);
        let target = f64::from(params.top_p) * total(&kept);
        let mut sum = 0.0;
        let run = kept.iter().take_while(|&&(_, w)| {
            let open = sum < target;
            sum += w;
            open
        });
        kept.truncate(run.count());
    }
    kept.sort_unstable_by_key(|&(token, _)| token);
    let sum = total(&kept);
    Ok(kept.into_iter().map(|(token, w)| (token, w / sum)).collect())
}

/// Step 6 of [`sample`]: the first token at which the running sum exceeds `uniform` of the whole.
fn pick(distribution: &[(TokenId, f64)], uniform: f64) -> Option<TokenId> {
    let target = uniform * total(distribution);
    let mut sum = 0.0;
    for &(token, probability) in distribution {
        sum += probability;
        if sum > target {
            return Some(token);
        }
    }
    None
}

/// Steps 2 and 3 of [`sample`].
pub(crate) fn adjusted(row: &LogitsRow<'_>) -> Result<Vec<f32>, SamplingError> {
    let (params, vocab_size) = (row.params, row.logits.len());
    params.validate(vocab_size)?;
    let mut logits = row.logits.to_vec();
    for &(token, bias) in params.logit_bias.iter() {
        logits[token.index()] += bias;
    }
    if let Some(mask) = row.mask {
        if mask.vocab_size() != vocab_size {
            return Err(SamplingError::MaskSize { expected: vocab_size, got: mask.vocab_size() });
        }
        for (token, logit) in (0u32..).zip(&mut logits) {
            if !mask.allows(TokenId(token)) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    if params.reads_history() {
        penalize(&mut logits, row)?;
    }
    check_logits(&logits)?;
    Ok(logits)
}

fn penalize(logits: &mut [f32], row: &LogitsRow<'_>) -> Result<(), SamplingError> {
    let (params, vocab_size) = (row.params, logits.len());
    for (token, used) in row.history.used() {
        let logit = logits.get_mut(token.index()).ok_or(SamplingError::Token { token, vocab_size })?;
        if *logit > 0.0 {
            *logit /= params.repetition_penalty;
        } else {
            *logit *= params.repetition_penalty;
        }
        if used.output > 0 {
            *logit -= params.frequency_penalty * used.output as f32;
            *logit -= params.presence_penalty;
        }
    }
    Ok(())
}

/// Refuses NaN and +∞.
pub(super) fn check_logits(logits: &[f32]) -> Result<(), SamplingError> {
    for (token, &value) in (0u32..).zip(logits) {
        if value.is_nan() || value == f32::INFINITY {
            return Err(SamplingError::Logit { token: TokenId(token), value });
        }
    }
    Ok(())
}

/// The one order of tokens: greatest value first, then lowest id.
pub(crate) fn sooner<V: PartialOrd>(a: &(TokenId, V), b: &(TokenId, V)) -> Ordering {
    // Values are never NaN here: `check_logits` has refused those.
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// The first `n` tokens of that order, sorted.
pub(crate) fn first<V: PartialOrd + Copy>(mut tokens: Vec<(TokenId, V)>, n: usize) -> Vec<(TokenId, V)> {
    if n == 0 {
        return Vec::new();
    }
    if n < tokens.len() {
        tokens.select_nth_unstable_by(n - 1, sooner);
        tokens.truncate(n);
    }
    tokens.sort_unstable_by(sooner);
    tokens
}

pub(crate) fn total(weights: &[(TokenId, f64)]) -> f64 {
    weights.iter().map(|&(_, w)| w).sum()
}

//! `sampling`: the reference's tokens without its sorts.
//!
//! Weights are in `f64`, as the reference has them, with an `exp` that is as exact; only sums are taken in another order.
//! A token could differ from the reference's where a draw falls within some 1e-13 of the border between two tokens.
//! Top-p sorts only tokens that can be in the run: those whose weight is at least `(1 − top_p) / n` of the whole, for the
//! others together do not reach `1 − top_p`.

mod passes;

use crate::simd::Level;
use crate::{Operator, Team};
use oxide_infer::sampling::{
    Draw, LogProbs, LogitsRow, RowError, Sampled, SamplingError, SamplingParams, Spec, TokenLogProb,
};
use oxide_infer::{Spec as _, TokenId};
use passes::{Scan, SumExp, Weigh, ahead_of, first_equal};
use std::cell::RefCell;
use std::cmp::Ordering;

/// Reported tokens up to which a short sorted list is kept while passing over the row.
const SHORT_LIST: usize = 64;

impl Operator for Spec {
    type Operands<'a> = &'a [LogitsRow<'a>];
    type Prepared = ();
    type Output = Vec<Sampled>;
    type Error = RowError;
    const ALGORITHM: &'static str = "row_by_row";

    fn prepare(&self) {}

    fn run(&self, (): &(), team: &Team<'_>, rows: &[LogitsRow<'_>]) -> Result<Vec<Sampled>, RowError> {
        let expected = self.config().vocab_size;
        let mut results: Vec<Option<Result<Sampled, SamplingError>>> = vec![None; rows.len()];
        let level = team.level();
        team.for_each(&mut results, &|index, result| {
            let row = &rows[index];
            let got = row.logits.len();
            *result = Some(if got == expected {
                SCRATCH.with_borrow_mut(|scratch| sample(level, row, scratch))
            } else {
                Err(SamplingError::RowSize { expected, got })
            });
        });
        // Every row has a result, for every task has run.
        let results = results.into_iter().flatten().enumerate();
        results.map(|(row, result)| result.map_err(|error| RowError { row, error })).collect()
    }
}

/// Buffers that a thread keeps from row to row.
#[derive(Default)]
struct Scratch {
    logits: Vec<f32>,
    weights: Vec<f64>,
    kept: Vec<(TokenId, f64)>,
}

thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());

fn sample(level: Level, row: &LogitsRow<'_>, scratch: &mut Scratch) -> Result<Sampled, SamplingError> {
    let params = row.params;
    params.validate(row.logits.len())?;
    let mut logits = row.logits;
    if row.mask.is_some() || !params.logit_bias.is_empty() || params.reads_history() {
        adjust(row, &mut scratch.logits)?;
        logits = &scratch.logits;
    }
    let max = checked_max(level, logits)?;
    let token = if params.is_greedy() {
        TokenId(first_equal(logits, max) as u32)
    } else {
        level.run(Weigh { logits, max, temperature: params.temperature, weights: &mut scratch.weights });
        let draw = Draw { seed: params.seed, choice: row.choice, position: row.position, draw: 0 };
        choose(params, &scratch.weights, &mut scratch.kept, draw.uniform())
    };
    let logprobs =
        row.top_logprobs.map(|top_n| row_log_probabilities(level, row.logits, token, top_n)).transpose()?;
    Ok(Sampled { token, logprobs })
}

/// The greatest logit, after refusing NaN and +∞, and rows of −∞ alone.
fn checked_max(level: Level, logits: &[f32]) -> Result<f32, SamplingError> {
    let scan = level.run(Scan { logits });
    if scan.any_bad {
        let bad = logits.iter().zip(0..).find(|(logit, _)| logit.is_nan() || **logit == f32::INFINITY);
        if let Some((&value, token)) = bad {
            return Err(SamplingError::Logit { token: TokenId(token), value });
        }
    }
    if scan.max == f32::NEG_INFINITY { Err(SamplingError::NoCandidate) } else { Ok(scan.max) }
}

/// Bias, mask and penalties.
fn adjust(row: &LogitsRow<'_>, logits: &mut Vec<f32>) -> Result<(), SamplingError> {
    let (params, vocab_size) = (row.params, row.logits.len());
    logits.clear();
    logits.extend_from_slice(row.logits);
    for &(token, bias) in params.logit_bias.iter() {
        logits[token.index()] += bias;
    }
    if let Some(mask) = row.mask {
        if mask.vocab_size() != vocab_size {
            return Err(SamplingError::MaskSize { expected: vocab_size, got: mask.vocab_size() });
        }
        for (logits, word) in logits.chunks_mut(32).zip(mask.words()) {
            for (bit, logit) in logits.iter_mut().enumerate() {
                *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
            }
        }
    }
    if !params.reads_history() {
        return Ok(());
    }
    for (token, used) in row.history.used() {
        let logit = logits.get_mut(token.index()).ok_or(SamplingError::Token { token, vocab_size })?;
        *logit = if *logit > 0.0 {
            *logit / params.repetition_penalty
        } else {
            *logit * params.repetition_penalty
        };
        if used.output > 0 {
            *logit -= params.frequency_penalty * used.output as f32;
            *logit -= params.presence_penalty;
        }
    }
    Ok(())
}

/// Min-p, top-k, top-p and the draw.
fn choose(params: &SamplingParams, weights: &[f64], kept: &mut Vec<(TokenId, f64)>, uniform: f64) -> TokenId {
    let min_p = f64::from(params.min_p);
    if params.min_p == 0.0 && params.top_k.is_none() && params.top_p == 1.0 {
        return draw((0..).map(TokenId).zip(weights.iter().copied()), weights.iter().sum(), uniform);
    }
    kept.clear();
    kept.extend((0..).map(TokenId).zip(weights.iter().copied()).filter(|&(_, w)| w > 0.0 && w >= min_p));
    if let Some(k) = params.top_k.map(|k| k as usize)
        && k < kept.len()
    {
        kept.select_nth_unstable_by(k - 1, sooner);
        kept.truncate(k);
    }
    if params.top_p < 1.0 {
        let top_p = f64::from(params.top_p);
        let whole = total(kept);
        let least = (1.0 - top_p) * whole / kept.len() as f64;
        // Rounding must not drop a token that the run needs.
        kept.retain(|&(_, w)| w >= least * (1.0 - 1e-9));
        kept.sort_unstable_by(sooner);
        let mut sum = 0.0;
        let run = kept.iter().take_while(|&&(_, w)| {
            let open = sum < top_p * whole;
            sum += w;
            open
        });
        kept.truncate(run.count());
    }
    kept.sort_unstable_by_key(|&(token, _)| token);
    draw(kept.iter().copied(), total(kept), uniform)
}

/// The first token at which the running sum exceeds `uniform` of the whole.
fn draw(tokens: impl Iterator<Item = (TokenId, f64)>, whole: f64, uniform: f64) -> TokenId {
    let mut sum = 0.0;
    let mut last = TokenId(0);
    for (token, weight) in tokens.filter(|&(_, weight)| weight > 0.0) {
        sum += weight;
        last = token;
        if sum > uniform * whole {
            break;
        }
    }
    last
}

fn total(weights: &[(TokenId, f64)]) -> f64 {
    weights.iter().map(|&(_, w)| w).sum()
}

/// Greatest value first, then lowest id.
fn sooner<V: PartialOrd>(a: &(TokenId, V), b: &(TokenId, V)) -> Ordering {
    // Values are never NaN here: such logits have been refused.
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// A row of logits whose token is given, as in a prompt.
#[derive(Clone, Copy, Debug)]
pub struct GivenToken<'a> {
    /// The model's raw logits, `[vocab]`.
    pub logits: &'a [f32],
    /// The token whose log-probability is asked for.
    pub token: TokenId,
    /// How many of the most probable tokens to report.
    pub top_n: usize,
}

/// `oxide_infer::sampling::log_probabilities` of every row.
pub fn log_probabilities(team: &Team<'_>, rows: &[GivenToken<'_>]) -> Vec<Result<LogProbs, SamplingError>> {
    let mut results = vec![Err(SamplingError::NoCandidate); rows.len()];
    let level = team.level();
    team.for_each(&mut results, &|index, result| {
        let GivenToken { logits, token, top_n } = rows[index];
        *result = row_log_probabilities(level, logits, token, top_n);
    });
    results
}

fn row_log_probabilities(
    level: Level,
    logits: &[f32],
    token: TokenId,
    top_n: usize,
) -> Result<LogProbs, SamplingError> {
    let Some(&chosen) = logits.get(token.index()) else {
        return Err(SamplingError::Token { token, vocab_size: logits.len() });
    };
    let max = checked_max(level, logits)?;
    let normalizer = f64::from(max) + level.run(SumExp { logits, max }).ln();
    let at = |(token, logit): (TokenId, f32), rank: usize| TokenLogProb {
        token,
        logprob: (f64::from(logit) - normalizer) as f32,
        rank: rank as u32,
    };
    let top = most_probable(logits, top_n);
    Ok(LogProbs {
        chosen: at((token, chosen), 1 + ahead_of(logits, token.index())),
        top: top.into_iter().zip(1..).map(|(token, rank)| at(token, rank)).collect(),
    })
}

/// The first `n` tokens, in order.
fn most_probable(logits: &[f32], n: usize) -> Vec<(TokenId, f32)> {
    let tokens = (0..).map(TokenId).zip(logits.iter().copied());
    if n > SHORT_LIST {
        let mut tokens: Vec<_> = tokens.collect();
        if n < tokens.len() {
            tokens.select_nth_unstable_by(n - 1, sooner);
            tokens.truncate(n);
        }
        tokens.sort_unstable_by(sooner);
        return tokens;
    }
    let mut list: Vec<(TokenId, f32)> = Vec::with_capacity(n + 1);
    for (token, logit) in tokens.take(if n == 0 { 0 } else { logits.len() }) {
        // Ids rise, so an equal value goes after those that are there.
        if list.len() == n && list.last().is_some_and(|&(_, least)| logit <= least) {
            continue;
        }
        let at = list.partition_point(|&(_, other)| other >= logit);
        list.insert(at, (token, logit));
        list.truncate(n);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuProvider;
    use std::num::NonZeroUsize;

    #[test]
    fn given_tokens_have_the_log_probabilities_of_the_reference_and_bad_rows_fail_alone() {
        let good: Vec<f32> = (0..100).map(|i| (i * 37 % 100) as f32 * 0.11 - 3.0).collect();
        let mut bad = good.clone();
        bad[7] = f32::NAN;
        let given = |logits, token| GivenToken { logits, token: TokenId(token), top_n: 3 };
        let rows = [given(&good, 5), given(&bad, 5), given(&good, 99), given(&good, 100)];
        let mut cpu = CpuProvider::new(NonZeroUsize::MIN).unwrap();
        let found = cpu.step(|team| log_probabilities(team, &rows));
        for (row, found) in rows.iter().zip(found) {
            match (oxide_infer::sampling::log_probabilities(row.logits, row.token, row.top_n), found) {
                (Ok(expected), Ok(found)) => {
                    assert_eq!(found.chosen.rank, expected.chosen.rank);
                    assert!((found.chosen.logprob - expected.chosen.logprob).abs() < 1e-6);
                    let ids = |probs: &LogProbs| probs.top.iter().map(|top| top.token).collect::<Vec<_>>();
                    assert_eq!(ids(&found), ids(&expected));
                }
                // NaN is not equal to itself, so the errors are compared as text.
                (expected, found) => {
                    assert_eq!(found.unwrap_err().to_string(), expected.unwrap_err().to_string());
                }
            }
        }
    }
}

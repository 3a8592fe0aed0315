//! Whether a token that differs from the reference's may: providers may weigh tokens in less than `f64`.

use crate::TokenId;
use crate::sampling::reference::{adjusted, first, sooner, total};
use crate::sampling::{Draw, LogitsRow, SamplingError, argmax};

/// How near to a threshold rounding may decide, relative to the whole: weights have at least 22 significant bits, and their
/// exponents the rounding of `f32`.
const NEAR: f64 = 1e-6;
const SHIFTS: [f64; 3] = [0.0, -NEAR, NEAR];

/// How a drawn token stands to the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// It is the reference's.
    Same,
    /// It is what the reference gives when min-p, the sum that top-p asks for, or the number drawn is moved by a
    /// millionth of the whole.
    Near,
    /// It is wrong.
    Other,
}

/// Compares a row's token with the reference's.
///
/// # Errors
/// [`SamplingError`] when the row has no token.
pub fn compare_drawn(row: &LogitsRow<'_>, want: TokenId, got: TokenId) -> Result<Drawn, SamplingError> {
    if want == got {
        return Ok(Drawn::Same);
    }
    if row.params.is_greedy() {
        return Ok(Drawn::Other);
    }
    let logits = adjusted(row)?;
    let best = argmax(&logits).ok_or(SamplingError::NoCandidate)?;
    let moved = SHIFTS
        .into_iter()
        .flat_map(|min_p| SHIFTS.into_iter().flat_map(move |top_p| SHIFTS.map(|draw| [min_p, top_p, draw])));
    let near = moved.into_iter().any(|moved| token(row, &logits, best, moved) == got);
    Ok(if near { Drawn::Near } else { Drawn::Other })
}

/// Steps 4 to 6 of [`crate::sampling::sample`] with the three thresholds moved.
fn token(
    row: &LogitsRow<'_>,
    logits: &[f32],
    best: TokenId,
    [min_shift, top_shift, draw_shift]: [f64; 3],
) -> TokenId {
    let params = row.params;
    let max = f64::from(logits[best.index()]);
    let weight = |logit: f32| ((f64::from(logit) - max) / f64::from(params.temperature)).exp();
    let least = f64::from(params.min_p) * (1.0 + min_shift);
    let weights = (0u32..).map(TokenId).zip(logits.iter().map(|&logit| weight(logit)));
    // The best token stays, whatever rounding does to a min-p of 1.
    let mut kept: Vec<_> = weights.filter(|&(token, w)| w > 0.0 && w >= least || token == best).collect();
    if let Some(k) = params.top_k {
        kept = first(kept, k as usize);
    }
    if params.top_p < 1.0 {
        kept.sort_unstable_by(sooner);
        let target = (f64::from(params.top_p) + top_shift) * total(&kept);
        let mut sum = 0.0;
        let run = kept.iter().take_while(|&&(_, w)| {
            let open = sum < target;
            sum += w;
            open
        });
        kept.truncate(run.count().max(1));
    }
    kept.sort_unstable_by_key(|&(token, _)| token);
    let draw = Draw { seed: row.params.seed, choice: row.choice, position: row.position, draw: 0 };
    let target = (draw.uniform() + draw_shift) * total(&kept);
    let mut sum = 0.0;
    let past = kept.iter().find(|&&(_, w)| {
        sum += w;
        sum > target
    });
    past.or(kept.last()).map_or(best, |&(token, _)| token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{SamplingParams, TokenHistory};

    fn compare(logits: &[f32], params: &SamplingParams, want: u32, got: u32) -> Drawn {
        let history = TokenHistory::default();
        let (mask, choice, position, top_logprobs) = (None, 0, 0, None);
        let row = LogitsRow { logits, params, history: &history, mask, choice, position, top_logprobs };
        compare_drawn(&row, TokenId(want), TokenId(got)).unwrap()
    }

    /// The draw of seed 0, choice 0 and position 0 is 0.399: of 10 equal tokens it takes number 3, a thousandth from the next.
    #[test]
    fn a_draw_far_from_a_threshold_admits_one_token() {
        let params = SamplingParams::default();
        let answers = [3, 2, 4, 9].map(|got| compare(&[0.0; 10], &params, 3, got));
        assert_eq!(answers, [Drawn::Same, Drawn::Other, Drawn::Other, Drawn::Other]);
    }

    /// Two tokens share what the draw needs at the border between them: 0.39904… and the rest, to eight digits.
    #[test]
    fn a_draw_on_a_threshold_admits_both_sides_of_it() {
        let params = SamplingParams::default();
        let uniform = Draw { seed: 0, choice: 0, position: 0, draw: 0 }.uniform();
        let logits = [uniform.ln() as f32, (1.0 - uniform).ln() as f32];
        let (one, other) = (compare(&logits, &params, 0, 1), compare(&logits, &params, 1, 0));
        assert_eq!([one, other], [Drawn::Near, Drawn::Near]);
    }

    /// Greedy rows have no threshold.
    #[test]
    fn another_token_than_the_best_is_wrong() {
        let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        assert_eq!(compare(&[1.0, 1.0 - 1e-7], &params, 0, 1), Drawn::Other);
    }
}

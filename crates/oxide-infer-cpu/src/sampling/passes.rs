//! Passes over a row of logits.

use crate::math::maximum;
use crate::simd::{Isa, Kernel, LANES};

/// The greatest logit, and whether any is NaN or +∞.
pub(super) struct Scan<'a> {
    pub(super) logits: &'a [f32],
}

pub(super) struct Scanned {
    pub(super) max: f32,
    pub(super) any_bad: bool,
}

impl Kernel for Scan<'_> {
    type Output = Scanned;

    #[inline(always)]
    fn run<I: Isa>(self) -> Scanned {
        let mut max = I::splat(f32::NEG_INFINITY);
        let mut bad = I::splat(0.0);
        let (whole, rest) = self.logits.as_chunks::<LANES>();
        for lanes in whole {
            let logit = I::load(lanes);
            max = I::max(logit, max);
            // Neither NaN nor +∞ is less than +∞.
            bad = I::select_less(logit, I::splat(f32::INFINITY), bad, I::splat(1.0));
        }
        let mut scanned = Scanned { max: maximum::<I>(max), any_bad: maximum::<I>(bad) > 0.0 };
        for &logit in rest {
            scanned.max = if logit > scanned.max { logit } else { scanned.max };
            scanned.any_bad |= logit.is_nan() || logit == f32::INFINITY;
        }
        scanned
    }
}

/// The first place of a value that is there.
pub(super) fn first_equal(logits: &[f32], value: f32) -> usize {
    const CHUNK: usize = 64;
    for (chunk, logits) in logits.chunks(CHUNK).enumerate() {
        // No early exit: the compiler makes vector code of this.
        if logits.iter().fold(false, |found, &logit| found | (logit == value)) {
            return chunk * CHUNK + logits.iter().position(|&logit| logit == value).unwrap_or(0);
        }
    }
    0
}

/// Tokens that come before one: greater logits, and equal ones with lower ids.
pub(super) fn ahead_of(logits: &[f32], token: usize) -> usize {
    let chosen = logits[token];
    let (before, after) = logits.split_at(token);
    let count = |logits: &[f32], ahead: fn(f32, f32) -> bool| {
        logits.iter().map(|&logit| u32::from(ahead(logit, chosen))).sum::<u32>() as usize
    };
    count(before, |logit, chosen| logit >= chosen) + count(after, |logit, chosen| logit > chosen)
}

const WIDTH: usize = 8;
type Wide = [f64; WIDTH];

/// `weights[t] = exp((logits[t] − max) / temperature)`.
pub(super) struct Weigh<'a> {
    pub(super) logits: &'a [f32],
    pub(super) max: f32,
    pub(super) temperature: f32,
    pub(super) weights: &'a mut Vec<f64>,
}

impl Kernel for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let (max, temperature) = (f64::from(self.max), f64::from(self.temperature));
        self.weights.resize(self.logits.len(), 0.0);
        let (whole, rest) = self.logits.as_chunks::<WIDTH>();
        let (weights, rest_weights) = self.weights.as_chunks_mut::<WIDTH>();
        for (logits, weights) in whole.iter().zip(weights) {
            *weights = exp(relative(logits, max, temperature));
        }
        let weights = exp(relative(&padded(rest), max, temperature));
        rest_weights.copy_from_slice(&weights[..rest.len()]);
    }
}

/// `Σ exp(logits[t] − max)`.
pub(super) struct SumExp<'a> {
    pub(super) logits: &'a [f32],
    pub(super) max: f32,
}

impl Kernel for SumExp<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<I: Isa>(self) -> f64 {
        let max = f64::from(self.max);
        let (whole, rest) = self.logits.as_chunks::<WIDTH>();
        let mut sums = exp(relative(&padded(rest), max, 1.0));
        for logits in whole {
            let weights = exp(relative(logits, max, 1.0));
            for i in 0..WIDTH {
                sums[i] += weights[i];
            }
        }
        sums.iter().sum()
    }
}

/// A short row with −∞ after it.
#[inline(always)]
fn padded(logits: &[f32]) -> [f32; WIDTH] {
    let mut row = [f32::NEG_INFINITY; WIDTH];
    row[..logits.len()].copy_from_slice(logits);
    row
}

#[inline(always)]
fn relative(logits: &[f32; WIDTH], max: f64, temperature: f64) -> Wide {
    let mut x = [0.0; WIDTH];
    for i in 0..WIDTH {
        x[i] = (f64::from(logits[i]) - max) / temperature;
    }
    x
}

/// `exp` of numbers up to 0, to about one unit in the last place; 0 below −708. As in [`crate::math::exp`], with the
/// Taylor series up to `r¹³ / 13!`, whose rest is below 1e-17 for `|r| ≤ ln 2 / 2`.
#[inline(always)]
fn exp(x: Wide) -> Wide {
    const LEAST: f64 = -708.0;
    const ROUND: f64 = 6_755_399_441_055_744.0;
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let mut result = [0.0; WIDTH];
    for i in 0..WIDTH {
        let clamped = if x[i] > LEAST { x[i] } else { LEAST };
        let shifted = clamped.mul_add(std::f64::consts::LOG2_E, ROUND);
        let n = shifted - ROUND;
        let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, clamped));
        let mut p = 1.0 / 6_227_020_800.0;
        for factorial in [479_001_600.0, 39_916_800.0, 3_628_800.0, 362_880.0, 40_320.0, 5_040.0] {
            p = r.mul_add(p, 1.0 / factorial);
        }
        for factorial in [720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
            p = r.mul_add(p, 1.0 / factorial);
        }
        let scaled = f64::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 52));
        result[i] = if x[i] > LEAST { scaled } else { 0.0 };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Level;

    #[test]
    fn exp_agrees_with_the_standard_library_to_the_last_places() {
        let logits: Vec<f32> = (0..7000).map(|i| -(i as f32) / 10.0).chain([f32::NEG_INFINITY]).collect();
        let mut weights = Vec::new();
        Level::detect().run(Weigh { logits: &logits, max: 0.0, temperature: 1.0, weights: &mut weights });
        for (logit, weight) in logits.iter().zip(&weights) {
            let want = f64::from(*logit).exp();
            assert!((weight - want).abs() <= 4e-16 * want, "exp({logit}) = {want}, got {weight}");
        }
    }

    #[test]
    fn places_and_ranks_of_ties_go_by_id() {
        let mut logits = vec![0.0; 200];
        logits[130] = 5.0;
        logits[199] = 5.0;
        assert_eq!(first_equal(&logits, 5.0), 130);
        assert_eq!((ahead_of(&logits, 130), ahead_of(&logits, 199), ahead_of(&logits, 2)), (0, 1, 4));
    }
}

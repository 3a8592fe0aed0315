use crate::{Contract, SpecError, check};
use std::f64::consts::PI;
use std::sync::Arc;

/// How the frequencies `f[i] = theta^(−2i / rotary_dim)` are changed for long contexts.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Scaling {
    /// `f[i]`.
    #[default]
    None,
    /// `f[i] / factor` (Chen et al., "Extending Context Window via Positional Interpolation", 2023).
    Linear {
        /// Over 0.
        factor: f64,
    },
    /// Llama 3.1's: low frequencies are divided by `factor`, high ones kept, and those between blended. With
    /// `turns = original_max_position · f[i] / 2π`, the full turns of the first training's context:
    ///
    /// ```text
    /// smooth = clamp((turns − low_freq_factor) / (high_freq_factor − low_freq_factor), 0, 1)
    /// f'[i] = (1 − smooth) · f[i] / factor + smooth · f[i]
    /// ```
    Llama3 {
        /// Over 0.
        factor: f64,
        /// Over 0.
        low_freq_factor: f64,
        /// Over `low_freq_factor`.
        high_freq_factor: f64,
        /// Context of the first training, at least 1.
        original_max_position: usize,
    },
    /// YaRN (Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023), as Hugging Face
    /// transformers computes it:
    ///
    /// ```text
    /// dim(turns) = rotary_dim · ln(original_max_position / (turns · 2π)) / (2 · ln theta)
    /// low, high = max(floor(dim(beta_fast)), 0), min(ceil(dim(beta_slow)), rotary_dim − 1)
    /// ramp = clamp((i − low) / (high − low), 0, 1)        high − low taken as 0.001 when 0
    /// f'[i] = ramp · f[i] / factor + (1 − ramp) · f[i]
    /// ```
    Yarn {
        /// Over 0.
        factor: f64,
        /// Context of the first training, at least 1.
        original_max_position: usize,
        /// Pairs with more full turns than this keep their frequency (usually 32); over 0.
        beta_fast: f64,
        /// Pairs with fewer full turns than this are divided by `factor` (usually 1); over 0.
        beta_slow: f64,
        /// What cosines and sines are multiplied by; `None` is the paper's `0.1 · ln(factor) + 1`, or 1 if `factor ≤ 1`.
        attention_factor: Option<f64>,
    },
    /// `f[i] / divisors[i]`: how GGUF files store Llama 3.1's scaling (`rope_freqs.weight`).
    Divided {
        /// `[rotary_dim / 2]`, each over 0.
        divisors: Arc<[f32]>,
    },
}

impl Scaling {
    pub(super) fn check(&self, contract: Contract, rotary_dim: usize) -> Result<(), SpecError> {
        let positive = |field, got| check::positive(contract, field, got);
        match *self {
            Self::None => Ok(()),
            Self::Linear { factor } => positive("scaling.factor", factor),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                positive("scaling.factor", factor)?;
                positive("scaling.low_freq_factor", low_freq_factor)?;
                positive("scaling.high_freq_factor", high_freq_factor)?;
                if high_freq_factor <= low_freq_factor {
                    let (field, expected) = ("scaling.high_freq_factor", "over scaling.low_freq_factor");
                    return Err(SpecError::Number { contract, field, expected, got: high_freq_factor });
                }
                check::at_least_one(contract, "scaling.original_max_position", original_max_position)
            }
            Self::Yarn { factor, original_max_position, beta_fast, beta_slow, attention_factor } => {
                positive("scaling.factor", factor)?;
                positive("scaling.beta_fast", beta_fast)?;
                positive("scaling.beta_slow", beta_slow)?;
                if beta_fast < beta_slow {
                    let (field, expected) = ("scaling.beta_fast", "at least scaling.beta_slow");
                    return Err(SpecError::Number { contract, field, expected, got: beta_fast });
                }
                positive("scaling.attention_factor", attention_factor.unwrap_or(1.0))?;
                check::at_least_one(contract, "scaling.original_max_position", original_max_position)
            }
            Self::Divided { ref divisors } => {
                if divisors.len() != rotary_dim / 2 {
                    let (field, expected) = ("number of scaling.divisors", "rotary_dim / 2");
                    return Err(SpecError::Size { contract, field, expected, got: divisors.len() });
                }
                divisors.iter().try_for_each(|&divisor| positive("scaling.divisors", divisor.into()))
            }
        }
    }

    /// `[rotary_dim / 2]`.
    pub(super) fn inv_freq(&self, theta: f64, rotary_dim: usize) -> Arc<[f32]> {
        let base = |i: usize| theta.powf(-2.0 * i as f64 / rotary_dim as f64);
        let scaled = |i: usize| match *self {
            Self::None => base(i),
            Self::Linear { factor } => base(i) / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                let turns = original_max_position as f64 * base(i) / (2.0 * PI);
                let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                blend(base(i) / factor, base(i), smooth)
            }
            Self::Yarn { factor, original_max_position, beta_fast, beta_slow, .. } => {
                let dim = |turns: f64| {
                    let ratio = original_max_position as f64 / (turns * 2.0 * PI);
                    rotary_dim as f64 * ratio.ln() / (2.0 * theta.ln())
                };
                let low = dim(beta_fast).floor().max(0.0);
                let high = dim(beta_slow).ceil().min((rotary_dim - 1) as f64);
                let width = if high == low { 0.001 } else { high - low };
                blend(base(i), base(i) / factor, (i as f64 - low) / width)
            }
            Self::Divided { ref divisors } => base(i) / f64::from(divisors[i]),
        };
        (0..rotary_dim / 2).map(|i| scaled(i) as f32).collect()
    }

    pub(super) fn attention_factor(&self) -> f32 {
        match *self {
            Self::Yarn { attention_factor: Some(given), .. } => given as f32,
            Self::Yarn { factor, .. } if factor > 1.0 => (0.1 * factor.ln() + 1.0) as f32,
            _ => 1.0,
        }
    }
}

/// From `zero` at 0 to `one` at 1, constant outside.
fn blend(zero: f64, one: f64, at: f64) -> f64 {
    let at = at.clamp(0.0, 1.0);
    (1.0 - at) * zero + at * one
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3.2's scaling as llama.cpp's converter writes it into a GGUF file, worked by hand for `theta` 10000 and
    /// four pairs: frequencies 1, 0.1, 0.01, 0.001 turn 1303.8, 130.38, 13.038 and 1.3038 times in 8192 positions, so
    /// that the first three are kept and the last is blended with smooth = 0.3038 / 3.
    #[test]
    fn divisors_of_a_gguf_file_mean_what_llama3_means() {
        let smooth = (8192.0 * 0.001 / (2.0 * PI) - 1.0) / 3.0;
        let divisors = [1.0, 1.0, 1.0, (1.0 / ((1.0 - smooth) / 32.0 + smooth)) as f32].into();
        let llama3 = Scaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192,
        };
        let divided = Scaling::Divided { divisors }.inv_freq(10_000.0, 8);
        for (a, b) in divided.iter().zip(llama3.inv_freq(10_000.0, 8).iter()) {
            assert!((a / b - 1.0).abs() < 2e-7, "{a} {b}");
        }
    }

    #[test]
    fn divisors_must_be_one_for_every_pair_and_over_zero() {
        let check =
            |divisors: &[f32]| Scaling::Divided { divisors: divisors.into() }.check(Contract::ROPE, 8);
        assert_eq!(check(&[1.0; 4]), Ok(()));
        assert_eq!(
            check(&[1.0; 3]).unwrap_err().to_string(),
            "position.rope v1: number of scaling.divisors must be rotary_dim / 2, got 3"
        );
        assert!(check(&[1.0, 1.0, 0.0, 1.0]).is_err());
        assert!(check(&[1.0, 1.0, f32::NAN, 1.0]).is_err());
    }
}

use super::ConfigError;
use std::fmt;

/// Rotary positions of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// How the frequencies are changed for sequences longer than the model was first trained on.
    pub scaling: RopeScaling,
}

/// A change of the frequencies `theta^(−2i / head_dim)`, `i` from 0 to `head_dim / 2`.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// As they are.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divides.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// Divides the low frequencies.
        factor: f64,
        /// Wavelengths over `original_max_position / low_freq_factor` are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths under `original_max_position / high_freq_factor` are high frequencies.
        high_freq_factor: f64,
        /// Tokens in the longest sequence of the first training.
        original_max_position: f64,
    },
    /// YaRN (<https://arxiv.org/abs/2309.00071>): a ramp by number of rotations, and a longer query and key.
    Yarn {
        /// Divides the low frequencies.
        factor: f64,
        /// Tokens in the longest sequence of the first training.
        original_max_position: f64,
        /// Frequencies with more rotations than this over the first training's length are kept.
        beta_fast: f64,
        /// Frequencies with fewer rotations than this are divided by `factor`.
        beta_slow: f64,
        /// Multiplies the rotated query and key.
        attention_factor: f64,
        /// Whether the ramp begins and ends at whole dimensions.
        ramp: YarnRamp,
    },
    /// Frequency `i` divided by entry `i`: how a GGUF file stores Llama 3.1's scaling.
    Factors(Vec<f32>),
}

/// The ends of YaRN's ramp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YarnRamp {
    /// Rounded outwards to whole dimensions, as the paper's code does.
    Truncated,
    /// As computed.
    Exact,
}

/// YaRN's default: `0.1 · ln(factor) + 1`.
pub(super) fn yarn_magnitude(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

impl RopeConfig {
    pub(super) fn validate(&self, head_dim: usize) -> Result<(), ConfigError> {
        positive("rope_theta", self.theta)?;
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("rope scaling factor", *factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                positive("rope scaling factor", *factor)?;
                positive("rope scaling low_freq_factor", *low_freq_factor)?;
                positive("rope scaling high_freq_factor", *high_freq_factor)?;
                positive("rope scaling original_max_position_embeddings", *original_max_position)?;
                if high_freq_factor <= low_freq_factor {
                    let expected = format!("a number over low_freq_factor, {low_freq_factor}");
                    return Err(ConfigError::invalid(
                        "rope scaling high_freq_factor",
                        high_freq_factor,
                        expected,
                    ));
                }
                Ok(())
            }
            RopeScaling::Yarn {
                factor,
                original_max_position,
                beta_fast,
                beta_slow,
                attention_factor,
                ..
            } => {
                positive("rope scaling factor", *factor)?;
                positive("rope scaling original_max_position_embeddings", *original_max_position)?;
                positive("rope scaling beta_fast", *beta_fast)?;
                positive("rope scaling beta_slow", *beta_slow)?;
                positive("rope scaling attention_factor", *attention_factor)?;
                if beta_fast < beta_slow {
                    let expected = format!("a number not under beta_slow, {beta_slow}");
                    return Err(ConfigError::invalid("rope scaling beta_fast", beta_fast, expected));
                }
                Ok(())
            }
            RopeScaling::Factors(factors) => {
                if factors.len() != head_dim / 2 {
                    let expected = format!("head_dim / 2 = {} numbers", head_dim / 2);
                    let got = format!("{} numbers", factors.len());
                    return Err(ConfigError::invalid("rope_freqs.weight", got, expected));
                }
                factors.iter().try_for_each(|&factor| positive("rope_freqs.weight", factor.into()))
            }
        }
    }
}

fn positive(field: &str, value: f64) -> Result<(), ConfigError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(ConfigError::invalid(field, value, "a positive number"))
}

impl fmt::Display for RopeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rope theta {}", self.theta)?;
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => write!(f, " linear ×{factor}"),
            RopeScaling::Llama3 { factor, .. } => write!(f, " llama3 ×{factor}"),
            RopeScaling::Yarn { factor, .. } => write!(f, " yarn ×{factor}"),
            RopeScaling::Factors(_) => f.write_str(" with frequency factors"),
        }
    }
}

use oxide_infer::DType;
use oxide_infer::SpecError;
use oxide_infer::position::rope::{Config, Pairing, Scaling, Spec};
use std::fmt;

/// Rotary positions of a model: whole heads turn, pairs are `(i, i + head_dim / 2)`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// How the frequencies are changed for sequences longer than the model was first trained on.
    pub scaling: Scaling,
}

impl RopeConfig {
    /// The contract's fields for heads of this width.
    pub fn contract(&self, dtype: DType, head_dim: usize) -> Config {
        Config {
            dtype,
            head_dim,
            rotary_dim: head_dim,
            pairing: Pairing::NeoX,
            theta: self.theta,
            scaling: self.scaling.clone(),
        }
    }

    /// Positions that a model can use which was trained on so many: with YaRN also what the scaling adds to the first
    /// training's, as published models leave `max_position_embeddings` at that.
    pub(super) fn positions(&self, trained: usize) -> usize {
        match self.scaling {
            Scaling::Yarn { factor, original_max_position, .. } => {
                // Validation refuses what the cast saturates to.
                trained.max((original_max_position as f64 * factor) as usize)
            }
            _ => trained,
        }
    }

    pub(super) fn validate(&self, head_dim: usize) -> Result<(), SpecError> {
        Spec::new(self.contract(DType::F32, head_dim)).map(drop)
    }
}

impl fmt::Display for RopeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rope theta {}", self.theta)?;
        match &self.scaling {
            Scaling::None => Ok(()),
            Scaling::Linear { factor } => write!(f, " linear ×{factor}"),
            Scaling::Llama3 { factor, .. } => write!(f, " llama3 ×{factor}"),
            Scaling::Yarn { factor, .. } => write!(f, " yarn ×{factor}"),
            Scaling::Divided { .. } => f.write_str(" with frequency divisors"),
        }
    }
}

use super::{Architecture, RopeConfig};
use crate::gguf::GgufError;
use oxide_infer::{SpecError, TokenId};
use std::fmt;
use std::num::NonZeroU32;

/// Sizes past this are taken for damage, so that no product of sizes here or in a plan overflows 64 bits.
const MAX_SIZE: usize = 1 << 24;
/// Layers past this are taken for damage.
pub(super) const MAX_LAYERS: usize = 4096;

/// The configuration of a dense decoder, validated.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Decoder layers.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the feed-forward network.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Entries of the vocabulary, as many as the embedding has rows.
    pub vocab_size: usize,
    /// Tokens in the longest sequence that the model was made for.
    pub max_position_embeddings: usize,
    /// Added to the mean square in every normalization.
    pub rms_norm_eps: f32,
    /// Rotary positions.
    pub rope: RopeConfig,
    /// Where the output matrix comes from.
    pub output_head: OutputHead,
    /// Which matrices have biases.
    pub biases: Biases,
    /// Whether query and key heads are normalized before they are rotated.
    pub qk_norm: QkNorm,
    /// Of every layer: how many tokens back a token sees, itself included; `None` sees all.
    pub sliding_windows: Vec<Option<NonZeroU32>>,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<TokenId>,
    /// The token that begins a sequence, if there is one.
    pub bos_token_id: Option<TokenId>,
}

/// Where the output matrix comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputHead {
    /// It is the embedding.
    Tied,
    /// It has its own weights.
    Separate,
}

/// Which matrices have biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Query, key and value projections.
    pub qkv: bool,
    /// The attention's output projection.
    pub output: bool,
    /// Gate, up and down projections.
    pub feed_forward: bool,
}

/// Whether query and key heads are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// They are not.
    None,
    /// Every head on its own, with one weight `[head_dim]` for all query heads and one for all key heads.
    PerHead,
}

impl ModelConfig {
    /// `num_heads · head_dim`, the width of all query heads.
    pub fn query_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// `num_kv_heads · head_dim`, the width of all key heads, and of all value heads.
    pub fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Checks everything that can be checked without weights.
    pub(super) fn validated(self) -> Result<Self, ConfigError> {
        for (field, value) in [
            ("num_layers", self.num_layers),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_heads", self.num_heads),
            ("num_kv_heads", self.num_kv_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_position_embeddings),
        ] {
            if value == 0 || value > MAX_SIZE {
                return Err(ConfigError::invalid(field, value, format!("a size from 1 to {MAX_SIZE}")));
            }
        }
        if self.query_size() > MAX_SIZE {
            let product = format!("{} · {}", self.num_heads, self.head_dim);
            return Err(ConfigError::invalid("num_heads · head_dim", product, format!("at most {MAX_SIZE}")));
        }
        if self.num_layers > MAX_LAYERS {
            return Err(ConfigError::invalid("num_layers", self.num_layers, format!("at most {MAX_LAYERS}")));
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            let expected = format!("a divisor of the {} query heads", self.num_heads);
            return Err(ConfigError::invalid("num_kv_heads", self.num_kv_heads, expected));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(ConfigError::invalid("head_dim", self.head_dim, "an even number"));
        }
        if !(self.rms_norm_eps.is_finite() && self.rms_norm_eps > 0.0) {
            return Err(ConfigError::invalid("rms_norm_eps", self.rms_norm_eps, "a positive number"));
        }
        self.rope.validate(self.head_dim)?;
        for id in self.eos_token_ids.iter().chain(&self.bos_token_id) {
            if id.index() >= self.vocab_size {
                let expected = format!("an id below the vocabulary's size, {}", self.vocab_size);
                return Err(ConfigError::invalid("eos_token_id or bos_token_id", id, expected));
            }
        }
        Ok(self)
    }
}

impl fmt::Display for ModelConfig {
    /// One line, as logs and `doctor` show it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} layers, hidden {}, {} heads of {}, {} KV heads, feed-forward {}, vocabulary {}, {} positions, {}",
            self.architecture,
            self.num_layers,
            self.hidden_size,
            self.num_heads,
            self.head_dim,
            self.num_kv_heads,
            self.intermediate_size,
            self.vocab_size,
            self.max_position_embeddings,
            self.rope,
        )
    }
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not a JSON object.
    #[error("not a JSON object: {0}")]
    Json(String),
    /// A family that there are no operators for.
    #[error("architecture {found:?} is not supported; supported are {supported}")]
    UnknownArchitecture {
        /// What the model says it is.
        found: String,
        /// What can be run.
        supported: String,
    },
    /// A field without which the model cannot be built.
    #[error("{field} is missing")]
    Missing {
        /// The field.
        field: String,
    },
    /// A value that cannot be.
    #[error("{field} is {value}; {expected} is expected")]
    Invalid {
        /// The field.
        field: String,
        /// Its value.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// A value that means something, but nothing that can be run.
    #[error("{field} is {value}, which is not supported; {supported} is")]
    Unsupported {
        /// The field.
        field: String,
        /// Its value.
        value: String,
        /// What can be run.
        supported: String,
    },
    /// Rotary positions that cannot be.
    #[error(transparent)]
    Rope(#[from] SpecError),
    /// A metadata value of the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

impl ConfigError {
    pub(super) fn invalid(
        field: impl Into<String>,
        value: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Invalid { field: field.into(), value: value.to_string(), expected: expected.into() }
    }

    pub(super) fn unsupported(
        field: impl Into<String>,
        value: impl ToString,
        supported: impl Into<String>,
    ) -> Self {
        Self::Unsupported { field: field.into(), value: value.to_string(), supported: supported.into() }
    }
}

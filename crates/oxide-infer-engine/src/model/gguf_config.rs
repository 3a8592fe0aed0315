//! Configuration from the metadata of a GGUF file.

use super::Architecture;
use super::config::{Biases, ConfigError, MAX_LAYERS, ModelConfig, OutputHead, QkNorm};
use super::rope::RopeConfig;
use crate::gguf::{Gguf, MetadataValue, TensorType};
use oxide_infer::TokenId;
use oxide_infer::position::rope::Scaling;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Keys under the architecture that change what a model computes and that no operator here follows. Zero is off.
const UNSUPPORTED: [&str; 9] = [
    "expert_count",
    "attention.scale",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "use_parallel_residual",
];

impl ModelConfig {
    /// Reads the metadata of a GGUF file. What the metadata do not say (biases, a tied output matrix) is taken from
    /// which tensors the file has.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key and its value.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let name = gguf
            .string("general.architecture")?
            .ok_or_else(|| ConfigError::Missing { field: "general.architecture".to_owned() })?;
        let architecture = Architecture::from_gguf_name(name)?;
        let keys = Keys { gguf, architecture: name };
        keys.refuse_unsupported()?;

        let hidden_size = keys.size("embedding_length")?;
        let num_heads = keys.size("attention.head_count")?;
        let num_layers = keys.size("block_count")?;
        let head_dim = keys.head_dim(hidden_size, num_heads)?;
        let has = |tensor: &str| gguf.tensor(tensor).is_some();
        Self {
            architecture,
            num_layers,
            hidden_size,
            intermediate_size: keys.size("feed_forward_length")?,
            num_heads,
            num_kv_heads: keys.optional_size("attention.head_count_kv")?.unwrap_or(num_heads),
            head_dim,
            vocab_size: vocab_size(&keys)?,
            max_position_embeddings: keys.size("context_length")?,
            rms_norm_eps: keys
                .float("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))?
                as f32,
            rope: RopeConfig {
                theta: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
                scaling: keys.rope_scaling()?,
            },
            output_head: if has("output.weight") { OutputHead::Separate } else { OutputHead::Tied },
            biases: Biases {
                qkv: architecture == Architecture::Qwen2 || has("blk.0.attn_q.bias"),
                output: has("blk.0.attn_output.bias"),
                feed_forward: has("blk.0.ffn_gate.bias"),
            },
            qk_norm: match architecture {
                Architecture::Qwen3 => QkNorm::PerHead,
                Architecture::Llama | Architecture::Mistral | Architecture::Qwen2 => QkNorm::None,
            },
            sliding_windows: vec![
                keys.optional_u32("attention.sliding_window")?.and_then(NonZeroU32::new);
                num_layers.min(MAX_LAYERS)
            ],
            eos_token_ids: eos_token_ids(gguf)?,
            bos_token_id: gguf.u32("tokenizer.ggml.bos_token_id")?.map(TokenId),
        }
        .validated()
    }
}

/// The rows of the embedding, which may be more than the tokenizer's entries.
fn vocab_size(keys: &Keys<'_>) -> Result<usize, ConfigError> {
    let rows = keys.gguf.tensor("token_embd.weight").and_then(|tensor| match tensor.shape[..] {
        [rows, _] => usize::try_from(rows).ok(),
        _ => None,
    });
    match rows {
        Some(rows) => Ok(rows),
        None => keys.size("vocab_size"),
    }
}

/// End of sequence, of turn and of message: each ends an answer.
fn eos_token_ids(gguf: &Gguf) -> Result<Vec<TokenId>, ConfigError> {
    let mut ids = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ids.extend(gguf.u32(key)?.map(TokenId).filter(|id| !ids.contains(id)));
    }
    Ok(ids)
}

/// The keys of one architecture.
struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn missing(&self, name: &str) -> ConfigError {
        ConfigError::Missing { field: self.key(name) }
    }

    fn optional_u32(&self, name: &str) -> Result<Option<u32>, ConfigError> {
        Ok(self.gguf.u32(&self.key(name))?)
    }

    fn optional_size(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        Ok(self.optional_u32(name)?.map(|value| value as usize))
    }

    fn size(&self, name: &str) -> Result<usize, ConfigError> {
        self.optional_size(name)?.ok_or_else(|| self.missing(name))
    }

    fn float(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        Ok(self.gguf.float(&self.key(name))?)
    }

    fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        for name in UNSUPPORTED {
            let key = self.key(name);
            let Some(value) = self.gguf.get(&key)? else { continue };
            let off = value.as_int() == Some(0)
                || value.as_float() == Some(0.0)
                || matches!(value, MetadataValue::Bool(false));
            if !off {
                return Err(ConfigError::unsupported(key, value, "a model without it"));
            }
        }
        Ok(())
    }

    fn head_dim(&self, hidden_size: usize, num_heads: usize) -> Result<usize, ConfigError> {
        let head_dim = match self.optional_size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None if num_heads == 0 || !hidden_size.is_multiple_of(num_heads) => {
                let expected = format!("a divisor of {hidden_size}, as there is no attention.key_length");
                return Err(ConfigError::invalid(self.key("attention.head_count"), num_heads, expected));
            }
            None => hidden_size / num_heads,
        };
        for name in ["attention.value_length", "rope.dimension_count"] {
            match self.optional_size(name)? {
                Some(other) if other != head_dim => {
                    let supported = format!("the width of a key head, {head_dim},");
                    return Err(ConfigError::unsupported(self.key(name), other, supported));
                }
                _ => {}
            }
        }
        Ok(head_dim)
    }

    fn rope_scaling(&self) -> Result<Scaling, ConfigError> {
        let divisors = self.rope_divisors()?;
        let key = self.key("rope.scaling.type");
        let kind = self.gguf.string(&key)?;
        let factor = match self.float("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.float("rope.scale_linear")?,
        };
        // A factor of 0 or 1 is how writers say that there is no scaling.
        let factor = factor.filter(|&factor| factor != 0.0 && factor != 1.0);
        let scaling = match (kind, factor) {
            (Some("none"), _) | (None | Some("linear"), None) => Scaling::None,
            (None | Some("linear"), Some(factor)) => Scaling::Linear { factor },
            (Some("yarn"), factor) => self.yarn(factor.unwrap_or(1.0))?,
            (Some(other), _) => {
                return Err(ConfigError::unsupported(
                    key,
                    format!("{other:?}"),
                    "\"none\", \"linear\" or \"yarn\"",
                ));
            }
        };
        match (divisors, scaling) {
            (None, scaling) => Ok(scaling),
            (Some(divisors), Scaling::None) => Ok(Scaling::Divided { divisors }),
            (Some(_), _) => {
                let supported = "either it or rope_freqs.weight";
                Err(ConfigError::unsupported(
                    key,
                    format!("{:?} beside rope_freqs.weight", kind.unwrap_or("linear")),
                    supported,
                ))
            }
        }
    }

    /// llama.cpp multiplies query and key by `attn_factor · (1 + 0.1 · ln(factor))`.
    fn yarn(&self, factor: f64) -> Result<Scaling, ConfigError> {
        let original = match self.optional_u32("rope.scaling.original_context_length")? {
            Some(original) => original,
            None => self.optional_u32("context_length")?.ok_or_else(|| self.missing("context_length"))?,
        };
        let attention = match self.float("rope.scaling.yarn_attn_factor")? {
            Some(factor) => factor,
            None => self.float("rope.scaling.attn_factor")?.unwrap_or(1.0),
        };
        for (name, only) in [("rope.scaling.yarn_ext_factor", 1.0), ("rope.scaling.yarn_log_multiplier", 0.0)]
        {
            match self.float(name)? {
                Some(other) if other != only => {
                    return Err(ConfigError::unsupported(self.key(name), other, only.to_string()));
                }
                _ => {}
            }
        }
        Ok(Scaling::Yarn {
            factor,
            original_max_position: original as usize,
            beta_fast: self.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: self.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            attention_factor: (attention != 1.0).then(|| attention * (0.1 * factor.ln() + 1.0)),
        })
    }

    fn rope_divisors(&self) -> Result<Option<Arc<[f32]>>, ConfigError> {
        let Some(tensor) = self.gguf.tensor("rope_freqs.weight") else { return Ok(None) };
        let bytes = match (tensor.tensor_type, self.gguf.data(tensor)) {
            (TensorType::F32, Some(bytes)) => bytes,
            (other, _) => return Err(ConfigError::unsupported("rope_freqs.weight", other, "F32")),
        };
        Ok(Some(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
    }
}

#[cfg(test)]
mod tests;

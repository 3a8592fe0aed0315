//! `config.json` and `generation_config.json`, as transformers 4 and 5 write them.

use super::Architecture;
use super::config::{Biases, ConfigError, MAX_LAYERS, ModelConfig, OutputHead, QkNorm};
use super::rope::RopeConfig;
use oxide_infer::TokenId;
use oxide_infer::position::rope::Scaling;
use serde_json::{Map, Value};
use std::num::NonZeroU32;

/// transformers' default for Mistral when the field is absent (`null` means none).
const MISTRAL_SLIDING_WINDOW: u32 = 4096;
/// transformers' default for Qwen2 and Qwen3.
const MAX_WINDOW_LAYERS: usize = 28;
/// transformers' default for Qwen3, whatever the hidden size.
const QWEN3_HEAD_DIM: usize = 128;

impl ModelConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`], naming the field and its value.
    pub fn from_json(config: &str) -> Result<Self, ConfigError> {
        let root = parse(config)?;
        let fields = Fields { object: &root, prefix: "" };
        let architecture = architecture(&fields)?;
        refuse_unsupported(&fields)?;

        let hidden_size = fields.size("hidden_size")?;
        let num_heads = fields.size("num_attention_heads")?;
        let num_layers = fields.size("num_hidden_layers")?;
        let trained_positions = fields.size("max_position_embeddings")?;
        let rope = rope(&fields, trained_positions)?;
        Self {
            architecture,
            num_layers,
            hidden_size,
            intermediate_size: fields.size("intermediate_size")?,
            num_heads,
            num_kv_heads: fields.optional_size("num_key_value_heads")?.unwrap_or(num_heads),
            head_dim: head_dim(&fields, architecture, hidden_size, num_heads)?,
            vocab_size: fields.size("vocab_size")?,
            max_position_embeddings: rope.positions(trained_positions),
            rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope,
            output_head: match fields.boolean("tie_word_embeddings")?.unwrap_or(false) {
                true => OutputHead::Tied,
                false => OutputHead::Separate,
            },
            biases: biases(&fields, architecture)?,
            qk_norm: match architecture {
                Architecture::Qwen3 => QkNorm::PerHead,
                Architecture::Llama | Architecture::Mistral | Architecture::Qwen2 => QkNorm::None,
            },
            sliding_windows: sliding_windows(&fields, architecture, num_layers)?,
            eos_token_ids: fields.token_ids("eos_token_id")?,
            bos_token_id: fields.token_ids("bos_token_id")?.first().copied(),
        }
        .validated()
    }

    /// Adds the end-of-sequence ids of a `generation_config.json`.
    ///
    /// # Errors
    /// [`ConfigError`], naming the field and its value.
    pub fn with_generation_config(mut self, generation_config: &str) -> Result<Self, ConfigError> {
        let root = parse(generation_config)?;
        for id in (Fields { object: &root, prefix: "" }).token_ids("eos_token_id")? {
            if !self.eos_token_ids.contains(&id) {
                self.eos_token_ids.push(id);
            }
        }
        self.validated()
    }
}

fn parse(text: &str) -> Result<Map<String, Value>, ConfigError> {
    serde_json::from_str(text).map_err(|error| ConfigError::Json(error.to_string()))
}

fn architecture(fields: &Fields<'_>) -> Result<Architecture, ConfigError> {
    let Some(names) = fields.get("architectures") else {
        return Err(fields.missing("architectures"));
    };
    match names.as_array().map(Vec::as_slice) {
        Some([Value::String(name)]) => Architecture::from_json_name(name),
        _ => Err(fields.invalid("architectures", names, "a list with one name")),
    }
}

/// Settings that change what a model computes and that no operator here follows.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ConfigError> {
    match fields.get("hidden_act") {
        None => {}
        Some(Value::String(name)) if name == "silu" => {}
        Some(other) => return Err(ConfigError::unsupported("hidden_act", other, "\"silu\"")),
    }
    if let Some(quantization) = fields.get("quantization_config") {
        let method = quantization.get("quant_method").unwrap_or(quantization);
        let supported = "a checkpoint in bf16, f16 or f32, or a GGUF file,";
        return Err(ConfigError::unsupported("quantization_config", method, supported));
    }
    match fields.number("partial_rotary_factor")? {
        None | Some(1.0) => Ok(()),
        Some(other) => Err(ConfigError::unsupported("partial_rotary_factor", other, "1")),
    }
}

fn head_dim(
    fields: &Fields<'_>,
    architecture: Architecture,
    hidden_size: usize,
    num_heads: usize,
) -> Result<usize, ConfigError> {
    if let Some(head_dim) = fields.optional_size("head_dim")? {
        return Ok(head_dim);
    }
    if architecture == Architecture::Qwen3 {
        return Ok(QWEN3_HEAD_DIM);
    }
    if num_heads == 0 || !hidden_size.is_multiple_of(num_heads) {
        let expected = format!("a divisor of hidden_size, {hidden_size}, as there is no head_dim");
        return Err(ConfigError::invalid("num_attention_heads", num_heads, expected));
    }
    Ok(hidden_size / num_heads)
}

fn biases(fields: &Fields<'_>, architecture: Architecture) -> Result<Biases, ConfigError> {
    Ok(match architecture {
        Architecture::Llama => {
            let attention = fields.boolean("attention_bias")?.unwrap_or(false);
            let feed_forward = fields.boolean("mlp_bias")?.unwrap_or(false);
            Biases { qkv: attention, output: attention, feed_forward }
        }
        Architecture::Mistral => Biases::default(),
        Architecture::Qwen2 => Biases { qkv: true, ..Biases::default() },
        Architecture::Qwen3 => {
            let attention = fields.boolean("attention_bias")?.unwrap_or(false);
            Biases { qkv: attention, output: attention, feed_forward: false }
        }
    })
}

fn sliding_windows(
    fields: &Fields<'_>,
    architecture: Architecture,
    num_layers: usize,
) -> Result<Vec<Option<NonZeroU32>>, ConfigError> {
    let layers = num_layers.min(MAX_LAYERS);
    match architecture {
        Architecture::Llama => Ok(vec![None; layers]),
        Architecture::Mistral => {
            let window = match fields.object.get("sliding_window") {
                None => NonZeroU32::new(MISTRAL_SLIDING_WINDOW),
                Some(_) => window(fields)?,
            };
            Ok(vec![window; layers])
        }
        Architecture::Qwen2 | Architecture::Qwen3 => {
            let window = match fields.boolean("use_sliding_window")? {
                Some(true) => window(fields)?,
                _ => None,
            };
            let full_layers = fields.optional_size("max_window_layers")?.unwrap_or(MAX_WINDOW_LAYERS);
            let Some(types) = fields.get("layer_types") else {
                return Ok((0..layers).map(|layer| window.filter(|_| layer >= full_layers)).collect());
            };
            let windows: Option<Vec<_>> = types.as_array().and_then(|types| {
                types
                    .iter()
                    .map(|name| match name.as_str()? {
                        "full_attention" => Some(None),
                        "sliding_attention" => Some(window),
                        _ => None,
                    })
                    .collect()
            });
            windows.filter(|windows| windows.len() == layers).ok_or_else(|| {
                fields.invalid(
                    "layer_types",
                    types,
                    &format!("{layers} times \"full_attention\" or \"sliding_attention\""),
                )
            })
        }
    }
}

fn window(fields: &Fields<'_>) -> Result<Option<NonZeroU32>, ConfigError> {
    let Some(window) = fields.optional_size("sliding_window")? else { return Ok(None) };
    let valid = u32::try_from(window).ok().and_then(NonZeroU32::new);
    valid
        .map(Some)
        .ok_or_else(|| ConfigError::invalid("sliding_window", window, "a positive number of 32 bits"))
}

/// `rope_theta` and `rope_scaling`, or both in `rope_parameters` as transformers 5 writes them.
fn rope(fields: &Fields<'_>, max_position_embeddings: usize) -> Result<RopeConfig, ConfigError> {
    let (name, parameters) = match fields.get("rope_parameters") {
        Some(parameters) => ("rope_parameters.", Some(parameters)),
        None => ("rope_scaling.", fields.get("rope_scaling")),
    };
    let empty = Map::new();
    let object = match parameters {
        None => &empty,
        Some(Value::Object(object)) => object,
        Some(other) => return Err(fields.invalid(name.trim_end_matches('.'), other, "an object")),
    };
    let parameters = Fields { object, prefix: name };
    let theta = match parameters.number("rope_theta")? {
        Some(theta) => theta,
        None => fields.number("rope_theta")?.unwrap_or(10_000.0),
    };
    Ok(RopeConfig { theta, scaling: rope_scaling(&parameters, max_position_embeddings)? })
}

fn rope_scaling(fields: &Fields<'_>, max_position_embeddings: usize) -> Result<Scaling, ConfigError> {
    match fields.number("partial_rotary_factor")? {
        None | Some(1.0) => {}
        Some(other) => return Err(ConfigError::unsupported("partial_rotary_factor", other, "1")),
    }
    let Some(kind) = fields.get("rope_type").or_else(|| fields.get("type")) else {
        return Ok(Scaling::None);
    };
    let original = || -> Result<usize, ConfigError> {
        let original = fields.optional_size("original_max_position_embeddings")?;
        Ok(original.unwrap_or(max_position_embeddings))
    };
    let required = |name: &str| fields.number(name)?.ok_or_else(|| fields.missing(name));
    match kind.as_str() {
        Some("default") => Ok(Scaling::None),
        Some("linear") => Ok(Scaling::Linear { factor: required("factor")? }),
        Some("llama3") => Ok(Scaling::Llama3 {
            factor: required("factor")?,
            low_freq_factor: required("low_freq_factor")?,
            high_freq_factor: required("high_freq_factor")?,
            original_max_position: original()?,
        }),
        Some("yarn") => {
            if fields.boolean("truncate")? == Some(false) {
                let field = format!("{}truncate", fields.prefix);
                return Err(ConfigError::unsupported(field, false, "true"));
            }
            let factor = match fields.number("factor")? {
                Some(factor) => factor,
                None => max_position_embeddings as f64 / original()?.max(1) as f64,
            };
            Ok(Scaling::Yarn {
                factor,
                original_max_position: original()?,
                beta_fast: fields.number("beta_fast")?.unwrap_or(32.0),
                beta_slow: fields.number("beta_slow")?.unwrap_or(1.0),
                attention_factor: yarn_attention_factor(fields, factor)?,
            })
        }
        _ => {
            let field = format!("{}rope_type", fields.prefix);
            Err(ConfigError::unsupported(field, kind, "\"default\", \"linear\", \"llama3\" or \"yarn\""))
        }
    }
}

/// What transformers multiplies cosines and sines by, when it is not the contract's default.
fn yarn_attention_factor(fields: &Fields<'_>, factor: f64) -> Result<Option<f64>, ConfigError> {
    if let Some(given) = fields.number("attention_factor")? {
        return Ok(Some(given));
    }
    let magnitude = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    let scale = fields.number("mscale")?.filter(|&scale| scale != 0.0);
    let scale_all = fields.number("mscale_all_dim")?.filter(|&scale| scale != 0.0);
    Ok(scale.zip(scale_all).map(|(scale, all)| magnitude(scale) / magnitude(all)))
}

/// A JSON object whose fields are read with errors that name them. `null` counts as absent.
struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Before the names in errors.
    prefix: &'static str,
}

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    fn missing(&self, name: &str) -> ConfigError {
        ConfigError::Missing { field: format!("{}{name}", self.prefix) }
    }

    fn invalid(&self, name: &str, value: &Value, expected: &str) -> ConfigError {
        ConfigError::invalid(format!("{}{name}", self.prefix), value, expected)
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        cast: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        cast(value).map(Some).ok_or_else(|| self.invalid(name, value, expected))
    }

    fn size(&self, name: &str) -> Result<usize, ConfigError> {
        self.optional_size(name)?.ok_or_else(|| self.missing(name))
    }

    fn optional_size(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        self.typed(name, "a whole number", |value| usize::try_from(value.as_u64()?).ok())
    }

    fn number(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(name, "a number", Value::as_f64)
    }

    fn boolean(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A token id, or a list of them.
    fn token_ids(&self, name: &str) -> Result<Vec<TokenId>, ConfigError> {
        let id = |value: &Value| Some(TokenId(u32::try_from(value.as_u64()?).ok()?));
        let ids = self.typed(name, "a token id or a list of token ids", |value| match value {
            Value::Array(values) => values.iter().map(id).collect(),
            value => Some(vec![id(value)?]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;

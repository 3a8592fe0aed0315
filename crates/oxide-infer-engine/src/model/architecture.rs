use super::ConfigError;
use std::fmt;

/// A family of dense decoders. Families differ in configuration only: all lower to the same operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 2 and 3, SmolLM2 and everything else that is published as Llama.
    Llama,
    /// Mistral: Llama with a sliding window.
    Mistral,
    /// Qwen2 and Qwen2.5: biases on query, key and value.
    Qwen2,
    /// Qwen3: query and key heads are normalized.
    Qwen3,
}

impl Architecture {
    /// Every architecture, in the order that messages list them.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// The name in `architectures` of a `config.json`.
    pub fn json_name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The name in `general.architecture` of a GGUF file. Mistral models are written as `llama`.
    pub fn gguf_name(self) -> &'static str {
        match self {
            Self::Llama | Self::Mistral => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    pub(super) fn from_json_name(name: &str) -> Result<Self, ConfigError> {
        Self::ALL.into_iter().find(|architecture| architecture.json_name() == name).ok_or_else(|| {
            ConfigError::UnknownArchitecture {
                found: name.to_owned(),
                supported: Self::ALL.map(Self::json_name).join(", "),
            }
        })
    }

    pub(super) fn from_gguf_name(name: &str) -> Result<Self, ConfigError> {
        Self::ALL.into_iter().find(|architecture| architecture.gguf_name() == name).ok_or_else(|| {
            ConfigError::UnknownArchitecture {
                found: name.to_owned(),
                supported: "llama, qwen2, qwen3".to_owned(),
            }
        })
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Llama => "Llama",
            Self::Mistral => "Mistral",
            Self::Qwen2 => "Qwen2",
            Self::Qwen3 => "Qwen3",
        })
    }
}

//! How a model's author says it should sample: `generation_config.json`, as vLLM reads it.

use anyhow::Context;
use oxide_infer_server::SamplingDefaults;
use serde::Deserialize;
use std::path::Path;

/// The sampling parameters of a `generation_config.json`. Absent ones leave the API's defaults.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
pub(crate) struct GenerationConfig {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Of a model directory; nothing if it has no such file, as GGUF files have none.
    pub(crate) fn of(model: &Path) -> anyhow::Result<Self> {
        let path = model.join("generation_config.json");
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                serde_json::from_str(&text).with_context(|| format!("{} is not valid", path.display()))
            }
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(Self::default())
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

impl From<GenerationConfig> for SamplingDefaults {
    fn from(config: GenerationConfig) -> Self {
        Self {
            temperature: config.temperature,
            top_p: config.top_p,
            top_k: config.top_k,
            min_p: config.min_p,
            repetition_penalty: config.repetition_penalty,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_where_a_directory_has_it() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(GenerationConfig::of(folder.path()).unwrap(), GenerationConfig::default());
        let path = folder.path().join("generation_config.json");
        std::fs::write(&path, r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "eos_token_id": [2]}"#)
            .unwrap();
        let config = GenerationConfig::of(folder.path()).unwrap();
        assert_eq!((config.temperature, config.top_k, config.top_p), (Some(0.7), Some(20), None));
        std::fs::write(&path, r#"{"top_k": "many"}"#).unwrap();
        let error = format!("{:#}", GenerationConfig::of(folder.path()).unwrap_err());
        assert!(error.contains("generation_config.json is not valid"), "{error}");
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        assert_eq!(GenerationConfig::of(file.path()).unwrap(), GenerationConfig::default());
    }
}

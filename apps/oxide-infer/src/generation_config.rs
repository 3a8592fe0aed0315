//! How a model's author says it should sample: `generation_config.json`, as vLLM reads it.

use anyhow::Context;
use oxide_infer::sampling::{SamplingParams, SamplingParamsError};
use oxide_infer_server::SamplingDefaults;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::path::Path;

/// The sampling parameters of a `generation_config.json`. Absent ones leave the API's defaults.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
pub(crate) struct GenerationConfig {
    pub(crate) temperature: Option<f32>,
    #[serde(default, deserialize_with = "top_k")]
    pub(crate) top_k: Option<u32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Of a model directory; nothing if it has no such file, as GGUF files have none.
    pub(crate) fn of(model: &Path) -> anyhow::Result<Self> {
        let path = model.join("generation_config.json");
        let is_wrong = || format!("{} is not valid", path.display());
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let config: Self = serde_json::from_str(&text).with_context(is_wrong)?;
                config.check().with_context(is_wrong)?;
                Ok(config)
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

    /// Values that no request could be answered with should not wait for one.
    fn check(&self) -> Result<(), SamplingParamsError> {
        let base = SamplingParams::default();
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            ..base
        };
        params.validate(0)
    }
}

/// Reads `top_k`, of which 0 and -1 are off.
fn top_k<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let Some(k) = Option::<i64>::deserialize(deserializer)? else { return Ok(None) };
    match u32::try_from(k) {
        Ok(k) => Ok(Some(k)),
        Err(_) if k == -1 => Ok(Some(0)),
        Err(_) => Err(D::Error::custom(format!("top_k must be from -1 to {}, got {k}", u32::MAX))),
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
        let error = || format!("{:#}", GenerationConfig::of(folder.path()).unwrap_err());
        assert!(error().contains("generation_config.json is not valid"), "{}", error());
        std::fs::write(&path, r#"{"temperature": -1}"#).unwrap();
        assert!(error().contains("is not valid: temperature must be a finite number"), "{}", error());
        std::fs::write(&path, r#"{"top_k": -2}"#).unwrap();
        assert!(error().contains("got -2"), "{}", error());
        for (text, expected) in [(r#"{"top_k": -1}"#, Some(0)), (r#"{"top_k": null}"#, None)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(GenerationConfig::of(folder.path()).unwrap().top_k, expected, "{text}");
        }
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        assert_eq!(GenerationConfig::of(file.path()).unwrap(), GenerationConfig::default());
    }
}

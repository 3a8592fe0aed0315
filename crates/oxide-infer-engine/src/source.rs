use crate::gguf::{Gguf, GgufError};
use crate::model::{ConfigError, ModelConfig};
use crate::weights::{Checkpoint, SafetensorsError};
use std::io;
use std::path::{Path, PathBuf};

/// A model on disk: its configuration is read and its files are open, its weights are not loaded.
///
/// A directory has `config.json`, safetensors files, and possibly `generation_config.json`; a GGUF file has everything
/// in it.
#[derive(Debug)]
pub struct ModelSource {
    path: PathBuf,
    config: ModelConfig,
    checkpoint: Checkpoint,
}

impl ModelSource {
    /// Opens a directory or a GGUF file.
    ///
    /// # Errors
    /// [`SourceError`], naming the file and what was expected of it.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Self::open_dir(path),
            Ok(_) => Self::open_gguf(path),
            Err(source) => Err(SourceError::Io { path: path.to_owned(), source }),
        }
    }

    /// Opens the `config.json` of a directory, and makes the weights from a seed: see [`Checkpoint::random`].
    ///
    /// # Errors
    /// [`SourceError`]; weights that the directory has are not looked at.
    pub fn open_random(dir: &Path, seed: u64) -> Result<Self, SourceError> {
        let metadata =
            std::fs::metadata(dir).map_err(|source| SourceError::Io { path: dir.to_owned(), source })?;
        if !metadata.is_dir() {
            return Err(SourceError::NoDirectory { path: dir.to_owned() });
        }
        let config = read_config(dir)?;
        let checkpoint = Checkpoint::random(&config, seed);
        Ok(Self { path: dir.to_owned(), config, checkpoint })
    }

    /// The configuration of a directory or a GGUF file. Of a directory nothing but `config.json` is looked at, so that a
    /// model can be asked about before its weights are there.
    ///
    /// # Errors
    /// [`SourceError`], naming the file and what was expected of it.
    pub fn config_of(path: &Path) -> Result<ModelConfig, SourceError> {
        if path.is_dir() { read_config(path) } else { Ok(Self::open(path)?.config) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the model is.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The GGUF file, if it is one; its metadata have the tokenizer and the chat template.
    pub fn gguf(&self) -> Option<&Gguf> {
        self.checkpoint.gguf()
    }

    /// The directory, if it is one; beside the weights it has the tokenizer and the chat template.
    pub fn dir(&self) -> Option<&Path> {
        match self.gguf() {
            Some(_) => None,
            None => Some(&self.path),
        }
    }

    fn open_dir(dir: &Path) -> Result<Self, SourceError> {
        let config = read_config(dir)?;
        let checkpoint = Checkpoint::from_safetensors(dir)?;
        Ok(Self { path: dir.to_owned(), config, checkpoint })
    }

    fn open_gguf(path: &Path) -> Result<Self, SourceError> {
        let gguf_error = |source| SourceError::Gguf { path: path.to_owned(), source };
        let gguf = Gguf::open(path).map_err(gguf_error)?;
        if let Some(parts @ 2..) = gguf.u32("split.count").map_err(gguf_error)? {
            return Err(SourceError::SplitGguf { path: path.to_owned(), parts });
        }
        let config = ModelConfig::from_gguf(&gguf)
            .map_err(|source| SourceError::Config { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), config, checkpoint: Checkpoint::from_gguf(gguf) })
    }
}

/// Why a path could not be opened as a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The path, or a file under it, cannot be read.
    #[error("{path} cannot be read: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A directory without a model.
    #[error(
        "{path} has no config.json; a model is a directory with config.json and safetensors files, or a .gguf file{hint}"
    )]
    NotAModel {
        /// The directory.
        path: PathBuf,
        /// What it has instead.
        hint: String,
    },
    /// A file where random weights need a directory.
    #[error("{path} is a file; random weights are made for a directory with config.json")]
    NoDirectory {
        /// The file.
        path: PathBuf,
    },
    /// One part of a model in several GGUF files.
    #[error("{path} is one of {parts} parts; join them with llama.cpp's `llama-gguf-split --merge`")]
    SplitGguf {
        /// The file.
        path: PathBuf,
        /// How many parts there are.
        parts: u32,
    },
    /// A damaged GGUF file, or a file of another kind.
    #[error("{path}: {source}")]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: GgufError,
    },
    /// A configuration that cannot be, or that cannot be run.
    #[error("{path}: {source}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ConfigError,
    },
    /// Damaged safetensors files, or none.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
}

fn read_config(dir: &Path) -> Result<ModelConfig, SourceError> {
    let path = dir.join("config.json");
    let Some(config) = read_optional(&path)? else {
        return Err(SourceError::NotAModel { path: dir.to_owned(), hint: gguf_hint(dir) });
    };
    let config = ModelConfig::from_json(&config).map_err(|source| SourceError::Config { path, source })?;
    let path = dir.join("generation_config.json");
    match read_optional(&path)? {
        Some(generation) => {
            config.with_generation_config(&generation).map_err(|source| SourceError::Config { path, source })
        }
        None => Ok(config),
    }
}

fn read_optional(path: &Path) -> Result<Option<String>, SourceError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SourceError::Io { path: path.to_owned(), source }),
    }
}

/// Names the GGUF files of a directory that is no model itself.
fn gguf_hint(dir: &Path) -> String {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = names.filter(|path| path.extension().is_some_and(|ext| ext == "gguf")).collect();
    files.sort();
    match files.first() {
        None => String::new(),
        Some(first) => format!(" (it has {} GGUF files: name one, such as {})", files.len(), first.display()),
    }
}

#[cfg(test)]
mod tests;

//! What `--model` names: a directory, a `.gguf` file, or a model on the hub.

use crate::hub::{Hub, HubError, HubId, ModelFiles};
use std::path::{Path, PathBuf};

/// Why `--model` names nothing that can be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModelError {
    #[error("the model {path} does not exist")]
    NoSuchPath { path: PathBuf },
    #[error("the model {path} is neither a directory nor a .gguf file")]
    WrongKind { path: PathBuf },
    #[error(
        "the model {text:?} is neither a file or directory here nor a hub id; expected a directory, a .gguf file, ORG/REPO"
    )]
    Neither { text: String },
    #[error(
        "the model {name} is not a directory here; random weights are made for a directory with config.json"
    )]
    NoDirectory { name: String },
    #[error(transparent)]
    Hub(#[from] HubError),
}

/// A model that was named, not yet looked for on the hub.
#[derive(Debug, PartialEq)]
pub(crate) enum ModelName {
    Local(ModelFiles),
    Hub(HubId),
}

impl ModelName {
    /// What exists here is taken as a path; what looks like a path and does not exist is an error; the rest is a hub id.
    pub(crate) fn parse(text: &str) -> Result<Self, ModelError> {
        let path = Path::new(text);
        if path.is_dir() {
            return Ok(Self::Local(ModelFiles::Directory(path.to_owned())));
        }
        let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        if path.is_file() {
            return match is_gguf {
                true => Ok(Self::Local(ModelFiles::Gguf(path.to_owned()))),
                false => Err(ModelError::WrongKind { path: path.to_owned() }),
            };
        }
        let is_path = path.is_absolute() || ["./", "../", "~"].iter().any(|start| text.starts_with(start));
        if is_path || (is_gguf && !text.contains(':')) {
            return Err(ModelError::NoSuchPath { path: path.to_owned() });
        }
        match text.parse() {
            Ok(id) => Ok(Self::Hub(id)),
            Err(_) => Err(ModelError::Neither { text: text.to_owned() }),
        }
    }

    /// The files, downloaded if they are on the hub and not in the cache.
    pub(crate) async fn fetch(&self) -> Result<ModelFiles, ModelError> {
        match self {
            Self::Local(files) => Ok(files.clone()),
            Self::Hub(id) => Ok(Hub::from_environment()?.fetch(id).await?),
        }
    }

    /// The files, without the network.
    pub(crate) fn find(&self) -> Result<ModelFiles, ModelError> {
        match self {
            Self::Local(files) => Ok(files.clone()),
            Self::Hub(id) => Ok(Hub::from_environment()?.cached(id)?),
        }
    }

    /// The directory that is named, without a look into it.
    pub(crate) fn directory(&self) -> Result<&Path, ModelError> {
        match self {
            Self::Local(ModelFiles::Directory(path)) => Ok(path),
            Self::Local(files) => Err(ModelError::NoDirectory { name: files.path().display().to_string() }),
            Self::Hub(id) => Err(ModelError::NoDirectory { name: format!("{}/{}", id.owner(), id.name()) }),
        }
    }

    /// The name that the API gives the model if none is chosen: the hub's id, or the name of the directory or file.
    pub(crate) fn served_name(&self) -> String {
        match self {
            Self::Hub(id) => format!("{}/{}", id.owner(), id.name()),
            Self::Local(files) => {
                let path = files.path().canonicalize().unwrap_or_else(|_| files.path().to_owned());
                let name = match files {
                    ModelFiles::Directory(_) => path.file_name(),
                    ModelFiles::Gguf(_) => path.file_stem(),
                };
                name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_before_hub_ids() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tiny.gguf");
        std::fs::write(&file, "").unwrap();
        let local = ModelName::parse(file.to_str().unwrap()).unwrap();
        assert_eq!(local, ModelName::Local(ModelFiles::Gguf(file)));
        assert_eq!(local.served_name(), "tiny");
        let local = ModelName::parse(folder.path().to_str().unwrap()).unwrap();
        assert!(matches!(local, ModelName::Local(ModelFiles::Directory(_))));
        let hub = ModelName::parse("no-such-org/no-such-repo@v1").unwrap();
        assert!(matches!(hub, ModelName::Hub(_)));
        assert_eq!(hub.served_name(), "no-such-org/no-such-repo");
    }

    #[test]
    fn what_names_nothing_says_why() {
        let error = |text: &str| ModelName::parse(text).unwrap_err().to_string();
        assert!(error("./missing").contains("./missing does not exist"));
        assert!(error("models/missing.gguf").contains("does not exist"));
        assert!(error("/missing/model").contains("does not exist"));
        assert!(error("just-a-name").contains("nor a hub id"));
        let file = tempfile::NamedTempFile::with_suffix(".bin").unwrap();
        assert!(error(file.path().to_str().unwrap()).contains("neither a directory nor a .gguf"));
    }
}

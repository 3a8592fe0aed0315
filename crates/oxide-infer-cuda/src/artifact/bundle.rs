//! The files of a set of artifacts, from the binary itself or from a directory.

use super::manifest::{Architecture, MAX_CUBIN_SIZE};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Name of the file that lists the others.
pub(super) const INDEX: &str = "index.json";

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/embedded_artifacts.rs"));
}

/// Files of artifacts by name, unverified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    files: BTreeMap<String, Cow<'static, [u8]>>,
}

/// Why a directory of artifacts could not be read.
#[derive(Debug, Error)]
pub enum BundleError {
    /// The directory or a file in it could not be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// What could not be read.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is larger than any artifact's.
    #[error("{path} has {size} bytes, more than the {MAX_CUBIN_SIZE} that an artifact may have")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
}

impl Bundle {
    /// The artifacts of [`oxide_infer::Provider::OxideTile`] that this binary carries for an architecture.
    pub fn embedded(architecture: Architecture) -> Self {
        Self::of_folder(architecture.name())
    }

    /// The artifacts of [`oxide_infer::Provider::OxideNative`] that this binary carries for an architecture. They have a folder
    /// of their own, so that no one who asks for the others gets them.
    pub fn embedded_native(architecture: Architecture) -> Self {
        Self::of_folder(&format!("{architecture}_native"))
    }

    fn of_folder(folder: &str) -> Self {
        let files = embedded::FILES.iter().filter(|(of, ..)| *of == folder);
        files.map(|&(_, name, data)| (name.to_owned(), Cow::Borrowed(data))).collect()
    }

    /// The artifacts in a directory: every `.json` and `.cubin.zst` file.
    pub fn from_directory(directory: &Path) -> Result<Self, BundleError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| BundleError::Io { path, source }
        };
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(directory).map_err(io(directory))? {
            let path = entry.map_err(io(directory))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if !(name.ends_with(".json") || name.ends_with(".cubin.zst")) {
                continue;
            }
            let size = std::fs::metadata(&path).map_err(io(&path))?.len();
            if size > MAX_CUBIN_SIZE as u64 {
                return Err(BundleError::TooLarge { path, size });
            }
            files.insert(name.to_owned(), Cow::Owned(std::fs::read(&path).map_err(io(&path))?));
        }
        Ok(Self { files })
    }

    /// The content of a file.
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(AsRef::as_ref)
    }

    /// Names and contents of all files, in the order of names.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(name, data)| (name.as_str(), data.as_ref()))
    }
}

impl FromIterator<(String, Cow<'static, [u8]>)> for Bundle {
    fn from_iter<I: IntoIterator<Item = (String, Cow<'static, [u8]>)>>(files: I) -> Self {
        Self { files: files.into_iter().collect() }
    }
}

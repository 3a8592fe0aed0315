//! The files of a set of artifacts, from the binary itself or from a directory.

use super::manifest::{Architecture, MAX_CUBIN_SIZE};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
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
    /// It has the name of an artifact's file and is a folder, a device, a pipe or a socket.
    #[error("{path} is not a regular file")]
    NotAFile {
        /// What is there.
        path: PathBuf,
    },
    /// It has no index, and folders in it have one.
    #[error("no {INDEX} in {directory}; there is one in {}", folders.join(" and in "))]
    Parent {
        /// The directory.
        directory: PathBuf,
        /// Their names, in order.
        folders: Vec<String>,
    },
    /// A file is larger than any artifact's.
    #[error("{path} has more than the {MAX_CUBIN_SIZE} bytes that an artifact may have")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

impl Bundle {
    /// The artifacts of [`oxide_infer::Provider::OxideTile`] that this binary carries for an architecture.
    pub fn embedded(architecture: Architecture) -> Self {
        Self::of_folder(&architecture.to_string())
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
        let (mut files, mut folders) = (BTreeMap::new(), Vec::new());
        for entry in std::fs::read_dir(directory).map_err(io_error(directory))? {
            let path = entry.map_err(io_error(directory))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.ends_with(".json") || name.ends_with(".cubin.zst") {
                files.insert(name.to_owned(), Cow::Owned(read_file(&path)?));
            } else if path.join(INDEX).is_file() {
                folders.push(name.to_owned());
            }
        }
        if !files.contains_key(INDEX) && !folders.is_empty() {
            folders.sort();
            return Err(BundleError::Parent { directory: directory.to_owned(), folders });
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

fn read_file(path: &Path) -> Result<Vec<u8>, BundleError> {
    // Before it is opened: opening a pipe waits for a writer.
    if !std::fs::metadata(path).map_err(io_error(path))?.is_file() {
        return Err(BundleError::NotAFile { path: path.to_owned() });
    }
    let mut data = Vec::new();
    let file = File::open(path).map_err(io_error(path))?;
    // Of one that grows, no more than what shows that it is too large.
    file.take(MAX_CUBIN_SIZE as u64 + 1).read_to_end(&mut data).map_err(io_error(path))?;
    if data.len() > MAX_CUBIN_SIZE {
        return Err(BundleError::TooLarge { path: path.to_owned() });
    }
    Ok(data)
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> BundleError {
    let path = path.to_owned();
    move |source| BundleError::Io { path, source }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_folder_of_folders_of_artifacts_names_those_that_have_an_index() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["b", "a", "none"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let index = |folder: &str| std::fs::write(dir.path().join(folder).join(INDEX), "{}").unwrap();
        assert_eq!(Bundle::from_directory(dir.path()).unwrap(), Bundle::default());
        index("b");
        index("a");
        let told = Bundle::from_directory(dir.path()).unwrap_err().to_string();
        assert_eq!(told, format!("no index.json in {}; there is one in a and in b", dir.path().display()));
        // Of what has an index itself, no folder matters.
        index("");
        assert!(Bundle::from_directory(dir.path()).unwrap().file(INDEX).is_some());
    }

    #[test]
    fn only_regular_files_of_an_artifacts_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        let refused = || {
            let error = Bundle::from_directory(dir.path()).unwrap_err();
            std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path)).unwrap();
            error
        };
        let not_a_file =
            |error: BundleError| matches!(error, BundleError::NotAFile { path: found } if found == path);
        symlink("/dev/zero", &path).unwrap();
        assert!(not_a_file(refused()));
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success() && not_a_file(refused()));
        std::fs::create_dir(&path).unwrap();
        assert!(not_a_file(refused()));
        let _socket = UnixListener::bind(&path).unwrap();
        assert!(not_a_file(refused()));
        // A hole of the file system, which takes no space.
        File::create(&path).unwrap().set_len(MAX_CUBIN_SIZE as u64 + 1).unwrap();
        assert!(matches!(refused(), BundleError::TooLarge { path: found } if found == path));
        symlink(dir.path().join("nowhere"), &path).unwrap();
        assert!(matches!(refused(), BundleError::Io { path: found, .. } if found == path));
        // Files of other names are nobody's.
        symlink("/dev/zero", dir.path().join("notes.txt")).unwrap();
        assert_eq!(Bundle::from_directory(dir.path()).unwrap(), Bundle::default());
    }
}

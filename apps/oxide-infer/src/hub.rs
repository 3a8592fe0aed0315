//! Models on the Hugging Face Hub and in its local cache, laid out as Hugging Face's own tools lay it out.
//!
//! [`HubId`] names a model, [`Hub::fetch`] brings what the engine needs of it into the cache, [`Hub::cached`] finds it
//! there without the network. The crate `hf-hub` transfers; what is here chooses the files, verifies them, works offline
//! and says clearly what went wrong.

mod error;
mod files;
mod progress;

pub(crate) use error::HubError;
pub(crate) use files::{HubId, ModelFiles};

use files::{INDEX, Listing};
use futures::{StreamExt, TryStreamExt};
use hf_hub::{HFClient, HFError, HFRepository, RepoTypeModel, repository::RepoTreeEntry};
use progress::DownloadProgress;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files that are transferred at once.
const PARALLEL_FILES: usize = 4;

/// The hub and its cache, as the environment configures them.
pub(crate) struct Hub {
    client: HFClient,
    network: Network,
}

/// Whether the hub may be asked, or only the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    On,
    Off,
}

impl Hub {
    /// Reads `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN` and the token file (by `hf-hub`) and `HF_HUB_OFFLINE`.
    pub(crate) fn from_environment() -> Result<Self, HubError> {
        let offline = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
            .iter()
            .filter_map(|name| std::env::var(name).ok())
            .any(|value| is_true(&value));
        let agent = concat!("oxide-infer/", env!("CARGO_PKG_VERSION"));
        let client = HFClient::builder().user_agent(agent).build().map_err(HubError::Client)?;
        Ok(Self { client, network: if offline { Network::Off } else { Network::On } })
    }

    /// Where the cache is.
    pub(crate) fn cache_dir(&self) -> &Path {
        self.client.cache_dir()
    }

    /// Whether more than the cache may be used.
    pub(crate) fn network(&self) -> Network {
        self.network
    }

    /// Brings what the engine needs of a model into the cache and says where it lies. Offline, or when the hub cannot be
    /// reached, what is already in the cache counts if it is complete.
    pub(crate) async fn fetch(&self, id: &HubId) -> Result<ModelFiles, HubError> {
        if self.network == Network::Off {
            return self.cached(id);
        }
        match self.download(id).await {
            Err(HubError::Unreachable { source, .. }) if self.cached(id).is_ok() => {
                tracing::warn!(
                    "{} cannot be reached ({source}); using the cached {id}",
                    self.client.endpoint()
                );
                self.cached(id)
            }
            result => result,
        }
    }

    /// Finds a model in the cache, complete.
    pub(crate) fn cached(&self, id: &HubId) -> Result<ModelFiles, HubError> {
        let snapshot = self.cached_snapshot(id).ok_or_else(|| self.not_cached(id, None))?;
        let names = names_below(&snapshot);
        let listing = Listing::new(names.iter().map(String::as_str));
        let chosen = listing.choose(id, || std::fs::read_to_string(snapshot.join(INDEX)).ok());
        let wanted = chosen.map_err(|error| match error {
            // The repository may well have what a half-finished download has not.
            HubError::NoWeights { .. } => self.not_cached(id, Some("the weights file".to_owned())),
            HubError::Incomplete { file, .. } => self.not_cached(id, Some(file.to_owned())),
            other => other,
        })?;
        match wanted.iter().find(|name| !snapshot.join(name).is_file()) {
            Some(missing) => Err(self.not_cached(id, Some(missing.clone()))),
            None => Ok(listing.model_files(id, &snapshot, &wanted)),
        }
    }

    /// Every model in the cache, at each branch or tag under which it was fetched.
    pub(crate) fn cached_models(&self) -> Vec<CachedModel> {
        let mut found = Vec::new();
        for folder in std::fs::read_dir(self.cache_dir()).into_iter().flatten().flatten() {
            let name = folder.file_name().to_string_lossy().into_owned();
            let Some((owner, repo)) = name.strip_prefix("models--").and_then(|name| name.split_once("--"))
            else {
                continue;
            };
            for revision in names_below(&folder.path().join("refs")) {
                let Ok(id) = format!("{owner}/{repo}@{revision}").parse::<HubId>() else { continue };
                let snapshot = self.cached_snapshot(&id);
                let bytes = snapshot
                    .iter()
                    .flat_map(|snapshot| names_below(snapshot).into_iter().map(|name| snapshot.join(name)));
                let bytes = bytes.filter_map(|path| Some(std::fs::metadata(path).ok()?.len())).sum();
                let problem = self.cached(&id).err().map(|error| error.to_string());
                found.push(CachedModel { id: id.to_string(), bytes, problem });
            }
        }
        found
    }

    fn cached_snapshot(&self, id: &HubId) -> Option<PathBuf> {
        let folder = self.cache_dir().join(id.cache_folder());
        let named = folder.join("refs").join(id.revision());
        let commit = std::fs::read_to_string(named).map(|text| text.trim().to_owned());
        let snapshot = folder.join("snapshots").join(commit.unwrap_or_else(|_| id.revision().to_owned()));
        snapshot.is_dir().then_some(snapshot)
    }

    fn not_cached(&self, id: &HubId, missing: Option<String>) -> HubError {
        HubError::NotCached {
            id: id.to_string(),
            cache: self.cache_dir().to_owned(),
            missing,
            network: self.network,
        }
    }

    async fn download(&self, id: &HubId) -> Result<ModelFiles, HubError> {
        let repo = self.client.model(id.owner(), id.name());
        let info = repo.info().revision(id.revision()).send().await.map_err(|e| self.explain(id, e))?;
        let commit = info.sha.ok_or_else(|| HubError::NoCommit { id: id.to_string() })?;
        let sizes = self.tree(id, &repo, &commit).await?;
        let listing = Listing::new(sizes.iter().map(|(name, _)| name.as_str()));

        let folder = self.cache_dir().join(id.cache_folder());
        let snapshot = folder.join("snapshots").join(&commit);
        let mut index = None;
        if listing.needs_index(id) {
            let size = size_of(&sizes, INDEX);
            self.download_files(id, &repo, &commit, &[(INDEX.to_owned(), size)]).await?;
            let path = snapshot.join(INDEX);
            index = Some(std::fs::read_to_string(&path).map_err(|source| HubError::Io { path, source })?);
        }
        let wanted = listing.choose(id, || index)?;
        let files: Vec<_> = wanted.iter().map(|name| (name.clone(), size_of(&sizes, name))).collect();
        self.download_files(id, &repo, &commit, &files).await?;
        if id.revision() != commit {
            write_ref(&folder, id.revision(), &commit)?;
        }
        Ok(listing.model_files(id, &snapshot, &wanted))
    }

    async fn tree(
        &self,
        id: &HubId,
        repo: &HFRepository<RepoTypeModel>,
        commit: &str,
    ) -> Result<Vec<(String, u64)>, HubError> {
        let explain = |e| self.explain(id, e);
        let entries = repo.list_tree().revision(commit).recursive(true).send().map_err(explain)?;
        let files = entries.try_filter_map(async |entry| {
            Ok(match entry {
                RepoTreeEntry::File { path, size, .. } => Some((path, size)),
                RepoTreeEntry::Directory { .. } => None,
            })
        });
        files.try_collect().await.map_err(explain)
    }

    /// Downloads those of the files that are not in the cache, and verifies them.
    async fn download_files(
        &self,
        id: &HubId,
        repo: &HFRepository<RepoTypeModel>,
        commit: &str,
        files: &[(String, u64)],
    ) -> Result<(), HubError> {
        let snapshot = self.cache_dir().join(id.cache_folder()).join("snapshots").join(commit);
        let missing: Vec<_> = files.iter().filter(|(name, _)| !snapshot.join(name).is_file()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let bytes = missing.iter().map(|(_, size)| size).sum();
        let progress = Arc::new(DownloadProgress::start(&id.to_string(), missing.len(), bytes));
        let transfers = missing.into_iter().map(|(name, size)| {
            let progress = Arc::clone(&progress);
            async move {
                let request = repo.download_file().filename(name).revision(commit);
                let path = request.progress(progress).send().await.map_err(|e| self.explain(id, e))?;
                let size = *size;
                tokio::task::spawn_blocking(move || verify(&path, size)).await.map_err(HubError::Task)?
            }
        });
        futures::stream::iter(transfers).buffer_unordered(PARALLEL_FILES).try_collect::<Vec<()>>().await?;
        progress.finish();
        Ok(())
    }

    fn explain(&self, id: &HubId, error: HFError) -> HubError {
        HubError::from_hub(id, self.client.endpoint(), error)
    }
}

/// A model in the cache.
pub(crate) struct CachedModel {
    pub(crate) id: String,
    /// Size of its files.
    pub(crate) bytes: u64,
    /// Why it cannot be loaded, if it cannot.
    pub(crate) problem: Option<String>,
}

/// Whether a variable's value switches something on, as Hugging Face's tools read it.
fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
}

fn size_of(sizes: &[(String, u64)], name: &str) -> u64 {
    sizes.iter().find(|(path, _)| path == name).map_or(0, |(_, size)| *size)
}

fn names_below(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
            } else if let Ok(name) = path.strip_prefix(folder) {
                names.push(name.to_string_lossy().into_owned());
            }
        }
    }
    names
}

fn write_ref(folder: &Path, revision: &str, commit: &str) -> Result<(), HubError> {
    let path = folder.join("refs").join(revision);
    let written =
        std::fs::create_dir_all(path.parent().unwrap_or(folder)).and_then(|()| std::fs::write(&path, commit));
    written.map_err(|source| HubError::Io { path, source })
}

/// Checks a file that was just downloaded against its size in the repository and, where the blob is named by its SHA-256
/// (every large file is), against that. A file that differs is removed, so that the next attempt downloads it again.
fn verify(pointer: &Path, size: u64) -> Result<(), HubError> {
    let io = |source| HubError::Io { path: pointer.to_owned(), source };
    let blob = std::fs::canonicalize(pointer).map_err(io)?;
    let found = std::fs::metadata(&blob).map_err(io)?.len();
    let name = blob.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let difference = if found != size {
        Some(format!("{found} bytes instead of {size}"))
    } else if name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()) {
        let sum = sha256(&blob).map_err(io)?;
        (sum != name).then(|| format!("SHA-256 {sum} instead of {name}"))
    } else {
        None
    };
    let Some(difference) = difference else { return Ok(()) };
    std::fs::remove_file(&blob).map_err(io)?;
    std::fs::remove_file(pointer).map_err(io)?;
    Err(HubError::Damaged { file: pointer.to_owned(), difference })
}

fn sha256(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            n => hasher.update(&buffer[..n]),
        }
    }
}

//! What can go wrong with the hub, said so that a user knows what to do.

use super::{HubId, Network};
use hf_hub::HFError;
use std::path::PathBuf;

/// Why a model could not be had from the hub or its cache.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    #[error(
        "{text:?} is not a hub id; expected ORG/REPO, ORG/REPO@REVISION, or ORG/REPO:NAME for one .gguf file"
    )]
    Id { text: String },
    #[error("the hub client cannot be set up")]
    Client(#[source] HFError),
    #[error(
        "the hub refused access to {id} (401 from {endpoint}): there is no such repository, or it is private or gated. \
         Check the spelling; for a private or gated one set HF_TOKEN to a token that may read it"
    )]
    Unauthorized { id: String, endpoint: String },
    #[error(
        "the hub forbids access to {id} (403 from {endpoint}): accept the model's terms on {endpoint}/{repo} with the \
         account whose token is in HF_TOKEN"
    )]
    Forbidden { id: String, repo: String, endpoint: String },
    #[error("there is no repository {id} on {endpoint} (404)")]
    NoRepository { id: String, endpoint: String },
    #[error("{id} has no revision `{revision}` (404 from {endpoint})")]
    NoRevision { id: String, revision: String, endpoint: String },
    #[error("{endpoint} cannot be reached to fetch {id}; HF_HUB_OFFLINE=1 uses what is in the cache only")]
    Unreachable { id: String, endpoint: String, source: HFError },
    #[error("fetching {id} from {endpoint} failed")]
    Transfer { id: String, endpoint: String, source: HFError },
    #[error("the hub names no commit for {id}")]
    NoCommit { id: String },
    #[error("{}", not_cached(id, cache, missing.as_deref(), *network))]
    NotCached { id: String, cache: PathBuf, missing: Option<String>, network: Network },
    #[error(
        "{id} has no weights that can be loaded: expected model.safetensors, {index}, or .gguf files, and found {found}",
        index = super::INDEX, found = list(found)
    )]
    NoWeights { id: String, found: Vec<String> },
    #[error("{id} lacks {file}, which the engine needs")]
    Incomplete { id: String, file: &'static str },
    #[error("{id} has several .gguf files; name one as {id}:NAME. It has {}", list(names))]
    ManyGguf { id: String, names: Vec<String> },
    #[error("`{wanted}` names no single .gguf file of {id}. It has {}", list(names))]
    NoSuchGguf { id: String, wanted: String, names: Vec<String> },
    #[error("{} of {id} is not valid: {message}", super::INDEX)]
    Index { id: String, message: String },
    #[error("the download of {file} is damaged: {difference}; it was removed, try again")]
    Damaged { file: PathBuf, difference: String },
    #[error("cannot use {path}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("verifying a download failed")]
    Task(#[source] tokio::task::JoinError),
}

impl HubError {
    pub(super) fn from_hub(id: &HubId, endpoint: &str, error: HFError) -> Self {
        let (repo, revision) = (format!("{}/{}", id.owner(), id.name()), id.revision().to_owned());
        let (id, endpoint) = (id.to_string(), endpoint.to_owned());
        match error {
            HFError::AuthRequired { .. } => Self::Unauthorized { id, endpoint },
            HFError::Forbidden { .. } => Self::Forbidden { id, repo, endpoint },
            HFError::RevisionNotFound { ref context, .. } => {
                match context.as_ref().and_then(|context| context.error_code.as_deref()) {
                    Some("RevisionNotFound") => Self::NoRevision { id, revision, endpoint },
                    _ => Self::NoRepository { id, endpoint },
                }
            }
            HFError::RepoNotFound { .. } => Self::NoRepository { id, endpoint },
            HFError::Request { ref source, .. } if source.is_connect() || source.is_timeout() => {
                Self::Unreachable { id, endpoint, source: error }
            }
            source => Self::Transfer { id, endpoint, source },
        }
    }
}

fn not_cached(id: &str, cache: &std::path::Path, missing: Option<&str>, network: Network) -> String {
    let what = match missing {
        Some(file) => format!("{file} of {id} is"),
        None => format!("{id} is"),
    };
    let advice = match network {
        Network::Off => "unset HF_HUB_OFFLINE and run",
        Network::On => "run",
    };
    format!("{what} not in the cache {}; {advice} `oxide-infer pull {id}`", cache.display())
}

fn list(names: &[String]) -> String {
    const SHOWN: usize = 20;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "nothing".to_owned(),
        n if n > SHOWN => format!("{shown} and {} more", n - SHOWN),
        _ => shown,
    }
}

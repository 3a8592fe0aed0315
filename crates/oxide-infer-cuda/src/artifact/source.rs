//! The hash of source files that manifests and the index record, computed as `kernels/tilelang/oxide_tile/sources.py` does.

use oxide_infer::Provider;
use sha2::{Digest, Sha256};
use std::io;
use std::path::Path;

use super::manifest::Sha256Hex;

/// The folder of the repository with the sources of a provider's kernels; `None` for one that has no artifacts.
pub const fn folder(provider: Provider) -> Option<&'static str> {
    match provider {
        Provider::OxideTile => Some("kernels/tilelang"),
        Provider::OxideNative => Some("kernels/rust"),
        Provider::CublasLt | Provider::Cpu => None,
    }
}

/// SHA-256 over each file's path, a zero byte, its length as 8 little-endian bytes, and its content.
///
/// `files` are relative to `root`, the provider's [`folder`].
pub fn hash_files<S: AsRef<str>>(root: &Path, files: &[S]) -> io::Result<Sha256Hex> {
    let mut hasher = Sha256::new();
    for file in files {
        let content = std::fs::read(root.join(file.as_ref()))?;
        hasher.update(file.as_ref().as_bytes());
        hasher.update([0]);
        hasher.update((content.len() as u64).to_le_bytes());
        hasher.update(&content);
    }
    Ok(Sha256Hex::from_digest(hasher.finalize().into()))
}

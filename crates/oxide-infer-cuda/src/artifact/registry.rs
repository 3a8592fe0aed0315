//! Verified artifacts.

use super::bundle::{Bundle, BundleError, INDEX};
use super::elf::{self, ElfError};
use super::expr::Expr;
use super::index::{Index, IndexError, Rule};
use super::manifest::{Architecture, MAX_CUBIN_SIZE, Manifest, ManifestError, Sha256Hex};
use oxide_infer::Provider;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread::{available_parallelism, scope};
use thiserror::Error;

/// The device that artifacts must run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Architecture of the machine code.
    pub architecture: Architecture,
    /// `cuDriverGetVersion`: 12000 is CUDA 12.0.
    pub driver: u32,
}

impl Target {
    /// A Hopper GPU with the oldest driver that the artifacts of this version support, to inspect them with no device.
    pub const fn hopper() -> Self {
        Self { architecture: Architecture::SM_90A, driver: 12_000 }
    }

    /// A device by its compute capability, with the driver's version; `None` if no artifacts are made for it.
    pub const fn of(compute_capability: (u32, u32), driver: u32) -> Option<Self> {
        match compute_capability {
            (9, 0) => Some(Self { architecture: Architecture::SM_90A, driver }),
            _ => None,
        }
    }
}

/// An artifact whose machine code is what its manifest says.
#[derive(Debug)]
pub struct Artifact {
    manifest: Manifest,
    cubin: Box<[u8]>,
}

impl Artifact {
    /// How to launch it.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The verified machine code, an ELF file.
    pub fn cubin(&self) -> &[u8] {
        &self.cubin
    }
}

/// The verified artifacts of one provider and architecture, and the rules that choose among them.
#[derive(Debug)]
pub struct Registry {
    provider: Provider,
    artifacts: BTreeMap<String, Arc<Artifact>>,
    rules: Vec<Rule>,
}

/// Why a set of artifacts cannot be used.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// The directory could not be read.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// There is no index.
    #[error("no {INDEX} among the artifacts")]
    NoIndex,
    /// The index is malformed.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The artifacts are for another architecture.
    #[error("the artifacts are for {found}, the device is {expected}")]
    Architecture {
        /// The index's.
        found: Architecture,
        /// The device's.
        expected: Architecture,
    },
    /// A file that the index does not account for.
    #[error("file {name} belongs to no artifact of the index")]
    Stray {
        /// The file.
        name: String,
    },
    /// One artifact is not what it should be.
    #[error("artifact {name}: {source}")]
    Artifact {
        /// The artifact.
        name: String,
        /// What is wrong.
        source: ArtifactError,
    },
    /// A rule names an algorithm that no artifact of its contract and properties has.
    #[error(
        "a selection rule of {contract} names algorithm {algorithm}, which no artifact that it is for has"
    )]
    Rule {
        /// The contract.
        contract: String,
        /// The algorithm.
        algorithm: String,
    },
    /// The cost that a rule gives an algorithm needs a dimension that an artifact of it lacks.
    #[error(
        "a selection rule of {contract} costs algorithm {algorithm} by dimension {dimension}, which {artifact} lacks"
    )]
    RuleDimension {
        /// The contract.
        contract: String,
        /// The algorithm.
        algorithm: String,
        /// The dimension.
        dimension: String,
        /// An artifact that the rule is for.
        artifact: String,
    },
}

/// Why an artifact cannot be used.
#[derive(Debug, Error)]
pub enum ArtifactError {
    /// A file is missing.
    #[error("file {file} is missing")]
    Missing {
        /// The file.
        file: String,
    },
    /// The manifest is not the one that the index lists.
    #[error("the manifest's hash is {found}, the index lists {expected}")]
    ManifestHash {
        /// The index's.
        expected: Sha256Hex,
        /// The file's.
        found: Sha256Hex,
    },
    /// The manifest is malformed.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The manifest is of another artifact.
    #[error("the manifest is of artifact {found}")]
    Name {
        /// The manifest's name.
        found: String,
    },
    /// It is another provider's: models run through those of `oxide_tile` alone.
    #[error("is of {found}, not of {expected}")]
    Provider {
        /// The artifact's.
        found: Provider,
        /// Whose artifacts were asked for.
        expected: Provider,
    },
    /// The machine code is for another architecture.
    #[error("made for {found}, the device is {expected}")]
    Architecture {
        /// The artifact's.
        found: Architecture,
        /// The device's.
        expected: Architecture,
    },
    /// The driver is too old.
    #[error("needs a driver of CUDA {}.{}, this one is of {}.{}", required / 1000, required % 1000 / 10, found / 1000, found % 1000 / 10)]
    Driver {
        /// The least `cuDriverGetVersion`.
        required: u32,
        /// The device's.
        found: u32,
    },
    /// The cubin does not decompress.
    #[error("{file} is not valid zstd: {reason}")]
    Compression {
        /// The file.
        file: String,
        /// What the decompressor says.
        reason: String,
    },
    /// The cubin has another size.
    #[error("the cubin has {}, the manifest says {expected} bytes", counted(*found))]
    Size {
        /// The manifest's.
        expected: usize,
        /// The file's, counted up to one more than [`MAX_CUBIN_SIZE`].
        found: usize,
    },
    /// The cubin has another hash.
    #[error("the cubin's hash is {found}, the manifest says {expected}")]
    Hash {
        /// The manifest's.
        expected: Sha256Hex,
        /// The file's.
        found: Sha256Hex,
    },
    /// The cubin is no cubin.
    #[error("the cubin is malformed: {0}")]
    Elf(#[from] ElfError),
    /// The cubin lacks a kernel that the manifest launches.
    #[error("the cubin has no kernel {symbol}")]
    Symbol {
        /// The entry symbol.
        symbol: String,
    },
    /// A kernel takes other parameters than the manifest passes.
    #[error("{symbol} takes parameters of {found:?} bytes, the manifest passes {expected:?}")]
    Parameters {
        /// The entry symbol.
        symbol: String,
        /// The manifest's sizes.
        expected: Vec<u32>,
        /// The cubin's sizes.
        found: Vec<u32>,
    },
}

/// What [`read_zstd`] counted.
fn counted(bytes: usize) -> String {
    if bytes > MAX_CUBIN_SIZE {
        return format!("more than {} MiB", MAX_CUBIN_SIZE >> 20);
    }
    format!("{bytes} bytes")
}

impl Registry {
    /// Verify the artifacts of [`Provider::OxideTile`] that this binary carries for the target.
    pub fn embedded(target: Target) -> Result<Self, RegistryError> {
        Self::verify(&Bundle::embedded(target.architecture), target)
    }

    /// Verify the artifacts of [`Provider::OxideNative`] that this binary carries for the target.
    pub fn embedded_native(target: Target) -> Result<Self, RegistryError> {
        Self::verify_native(&Bundle::embedded_native(target.architecture), target)
    }

    /// Verify the artifacts in a directory, to be used instead of [`Registry::embedded`].
    pub fn from_directory(directory: &Path, target: Target) -> Result<Self, RegistryError> {
        Self::verify(&Bundle::from_directory(directory)?, target)
    }

    /// Verify a set of artifacts, all of [`Provider::OxideTile`].
    ///
    /// Checks, in this order: the index, its architecture, and of every artifact the hash, form and name of its manifest,
    /// provider, architecture, driver, size and hash of the machine code, and the symbol and parameter sizes of every
    /// kernel launched.
    pub fn verify(bundle: &Bundle, target: Target) -> Result<Self, RegistryError> {
        Self::verify_of(Provider::OxideTile, bundle, target)
    }

    /// As [`Registry::verify`], of a set of artifacts all of [`Provider::OxideNative`].
    pub fn verify_native(bundle: &Bundle, target: Target) -> Result<Self, RegistryError> {
        Self::verify_of(Provider::OxideNative, bundle, target)
    }

    fn verify_of(provider: Provider, bundle: &Bundle, target: Target) -> Result<Self, RegistryError> {
        let index = Index::parse(bundle.file(INDEX).ok_or(RegistryError::NoIndex)?)?;
        if index.architecture != target.architecture {
            return Err(RegistryError::Architecture {
                found: index.architecture,
                expected: target.architecture,
            });
        }
        let is_listed = |stem: Option<&str>| stem.is_some_and(|stem| index.artifacts.contains_key(stem));
        for (name, _) in bundle.files().filter(|(name, _)| *name != INDEX) {
            if !is_listed(name.strip_suffix(".json")) && !is_listed(name.strip_suffix(".cubin.zst")) {
                return Err(RegistryError::Stray { name: name.to_owned() });
            }
        }
        let mut artifacts = BTreeMap::new();
        for (name, verified) in verify_artifacts(&index.artifacts, bundle, provider, target) {
            let artifact =
                verified.map_err(|source| RegistryError::Artifact { name: name.to_owned(), source })?;
            artifacts.insert(name.to_owned(), Arc::new(artifact));
        }
        let registry = Self { provider, artifacts, rules: index.selection };
        registry.check_rules()?;
        Ok(registry)
    }

    /// Whose artifacts they are.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// All artifacts, in the order of their names.
    pub fn artifacts(&self) -> impl Iterator<Item = &Arc<Artifact>> {
        self.artifacts.values()
    }

    /// The artifact of that name.
    pub fn artifact(&self, name: &str) -> Option<&Arc<Artifact>> {
        self.artifacts.get(name)
    }

    /// SHA-256 of all machine code under its names, by which records say what they ran: of a line `NAME HASH\n` for each
    /// artifact, in the order of names, `HASH` being that of its cubin in 64 digits.
    pub fn digest(&self) -> Sha256Hex {
        let mut hasher = Sha256::new();
        for artifact in self.artifacts() {
            let manifest = artifact.manifest();
            hasher.update(format!("{} {}\n", manifest.name, manifest.cubin.sha256));
        }
        Sha256Hex::from_digest(hasher.finalize().into())
    }

    /// The rules that choose among artifacts that admit the same request.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    fn check_rules(&self) -> Result<(), RegistryError> {
        for rule in &self.rules {
            for (algorithm, cost) in rule.choice.algorithms() {
                self.check_algorithm(rule, algorithm, cost)?;
            }
        }
        Ok(())
    }

    /// Hold one algorithm that a rule names against the artifacts that the rule is for.
    fn check_algorithm(
        &self,
        rule: &Rule,
        algorithm: &str,
        cost: Option<&Expr>,
    ) -> Result<(), RegistryError> {
        let (contract, algorithm) = (rule.contract.clone(), algorithm.to_owned());
        let manifests = self.artifacts().map(|artifact| artifact.manifest());
        let mut named = manifests
            .filter(|m| m.algorithm == algorithm && rule.is_of(&m.contract, &m.properties))
            .peekable();
        if named.peek().is_none() {
            return Err(RegistryError::Rule { contract, algorithm });
        }
        let names = cost.map(Expr::names).unwrap_or_default();
        for manifest in named {
            if let Some(name) = names.iter().find(|name| !manifest.dimensions.contains_key(**name)) {
                let (dimension, artifact) = ((*name).to_owned(), manifest.name.clone());
                return Err(RegistryError::RuleDimension { contract, algorithm, dimension, artifact });
            }
        }
        Ok(())
    }
}

/// Threads that verify artifacts: decompressing and hashing them all takes one thread 80 ms.
const MAX_VERIFIERS: usize = 8;

/// Verifies artifacts side by side, and returns them in the order of names.
fn verify_artifacts<'a>(
    listed: &'a BTreeMap<String, Sha256Hex>,
    bundle: &Bundle,
    provider: Provider,
    target: Target,
) -> Vec<(&'a str, Result<Artifact, ArtifactError>)> {
    let listed: Vec<_> = listed.iter().collect();
    let threads = available_parallelism().map_or(1, usize::from).min(MAX_VERIFIERS);
    let verify = |part: &[(&'a String, &Sha256Hex)]| -> Vec<_> {
        let one = |&(name, hash): &(&'a String, &Sha256Hex)| {
            (name.as_str(), verify_artifact(bundle, name, *hash, provider, target))
        };
        part.iter().map(one).collect()
    };
    scope(|scope| {
        let parts = listed.chunks(listed.len().div_ceil(threads).max(1));
        let verifying: Vec<_> = parts.map(|part| scope.spawn(|| verify(part))).collect();
        let verified =
            verifying.into_iter().map(|part| part.join().unwrap_or_else(|panic| resume_unwind(panic)));
        verified.flatten().collect()
    })
}

fn verify_artifact(
    bundle: &Bundle,
    name: &str,
    listed: Sha256Hex,
    provider: Provider,
    target: Target,
) -> Result<Artifact, ArtifactError> {
    let file = |file: String| bundle.file(&file).ok_or(ArtifactError::Missing { file });
    let json = file(format!("{name}.json"))?;
    let found = sha256(json);
    if found != listed {
        return Err(ArtifactError::ManifestHash { expected: listed, found });
    }
    let manifest = Manifest::parse(json)?;
    if manifest.name != name {
        return Err(ArtifactError::Name { found: manifest.name });
    }
    if manifest.provider() != provider {
        return Err(ArtifactError::Provider { found: manifest.provider(), expected: provider });
    }
    if manifest.architecture != target.architecture {
        return Err(ArtifactError::Architecture {
            found: manifest.architecture,
            expected: target.architecture,
        });
    }
    if manifest.minimum_driver > target.driver {
        return Err(ArtifactError::Driver { required: manifest.minimum_driver, found: target.driver });
    }
    let cubin = decompress(&manifest, file(manifest.cubin.file.clone())?)?;
    verify_kernels(&manifest, &cubin)?;
    Ok(Artifact { manifest, cubin: cubin.into() })
}

fn decompress(manifest: &Manifest, compressed: &[u8]) -> Result<Vec<u8>, ArtifactError> {
    let expected = manifest.cubin.size;
    let mut cubin = Vec::with_capacity(expected);
    let found = read_zstd(compressed, expected, &mut cubin).map_err(|error| ArtifactError::Compression {
        file: manifest.cubin.file.clone(),
        reason: error.to_string(),
    })?;
    if found != expected {
        return Err(ArtifactError::Size { expected, found });
    }
    let found = sha256(&cubin);
    if found != manifest.cubin.sha256 {
        return Err(ArtifactError::Hash { expected: manifest.cubin.sha256, found });
    }
    Ok(cubin)
}

/// Decompress no more than `kept` bytes to `out`; returns how many there are, of which it counts [`MAX_CUBIN_SIZE`] and one.
fn read_zstd(compressed: &[u8], kept: usize, out: &mut Vec<u8>) -> io::Result<usize> {
    let mut decoder = zstd::Decoder::with_buffer(compressed)?.take(MAX_CUBIN_SIZE as u64 + 1);
    decoder.by_ref().take(kept as u64).read_to_end(out)?;
    let more = io::copy(&mut decoder, &mut io::sink())?;
    // At most `MAX_CUBIN_SIZE + 1`.
    Ok(out.len() + more as usize)
}

fn verify_kernels(manifest: &Manifest, cubin: &[u8]) -> Result<(), ArtifactError> {
    let kernels = elf::kernel_parameters(cubin)?;
    for launch in &manifest.launches {
        let symbol = launch.symbol.clone();
        let expected: Vec<u32> = launch.parameters.iter().map(|parameter| parameter.size()).collect();
        match kernels.get(&symbol) {
            None => return Err(ArtifactError::Symbol { symbol }),
            Some(found) if *found != expected => {
                return Err(ArtifactError::Parameters { symbol, expected, found: found.clone() });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn sha256(data: &[u8]) -> Sha256Hex {
    Sha256Hex::from_digest(Sha256::digest(data).into())
}

//! The records under `docs/evidence`, as far as the catalogue reads them.

use crate::record::Record;
use anyhow::{Context as _, Result};
use oxide_infer_cuda::artifact::manifest::Sha256Hex;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Every JSON record of a folder, in order of file name, which begins with the date.
#[derive(Debug)]
pub(super) struct Evidence {
    pub(super) files: Vec<File>,
}

#[derive(Debug)]
pub(super) struct File {
    /// With its extension and without its folder.
    pub(super) name: String,
    pub(super) content: Content,
}

/// What a record is of, by its `kind`; those of the lab's gates have `findings` and no kind.
#[derive(Debug)]
pub(super) enum Content {
    Gates(Record),
    Kernels(KernelCheck),
    Parity(Parity),
    Sanitized(Sanitized),
    /// Nothing that the catalogue reads.
    Other,
}

/// A record of `kernels/tilelang/gpu_check.py`.
#[derive(Debug, Deserialize)]
pub(super) struct KernelCheck {
    /// Name of every artifact, and the hash of its machine code.
    pub(super) artifacts: BTreeMap<String, Sha256Hex>,
    /// Values, guards and status words, by artifact.
    pub(super) checks: BTreeMap<String, Check>,
    times: Vec<Timed>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Check {
    pub(super) faults: Vec<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct Timed {
    /// By an artifact's name, after which dimensions may follow: `paged_decode.bf16.128.split.rows16 splits=2`.
    ours: BTreeMap<String, Times>,
}

#[derive(Debug, Deserialize)]
struct Times {
    samples: Vec<f64>,
}

/// A record of `benchmarks/parity/compare.py`.
#[derive(Debug, Deserialize)]
pub(super) struct Parity {
    pub(super) passed: bool,
    pub(super) revision: String,
    /// Older records lack it.
    pub(super) artifacts: Option<Executed>,
    pub(super) reference: Reference,
    pub(super) cases: Cases,
    /// Ways to run the same prompts: alone, batched, in chunks.
    pub(super) modes: BTreeMap<String, IgnoredAny>,
}

/// The artifacts that a model ran through.
#[derive(Debug, Deserialize)]
pub(super) struct Executed {
    /// `Registry::digest` of all that the engine could choose among.
    pub(super) sha256: Sha256Hex,
}

#[derive(Debug, Deserialize)]
pub(super) struct Reference {
    /// Folder of the model.
    pub(super) model: String,
    pub(super) layers: u32,
}

#[derive(Debug, Deserialize)]
pub(super) struct Cases {
    pub(super) count: u32,
}

/// A record of `benchmarks/kernels/sanitize.py`.
#[derive(Debug, Deserialize)]
pub(super) struct Sanitized {
    /// Name of every artifact, and the hash of its machine code.
    pub(super) artifacts: BTreeMap<String, Sha256Hex>,
    /// Each a process: one tool over some artifacts.
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Step {
    pub(super) tool: String,
    /// Exit status; none of a process whose time was up.
    pub(super) status: Option<i32>,
    /// What the tool counted; none if it did not come to that.
    pub(super) errors: Option<u64>,
    /// Cases that ran to their end, by artifact.
    pub(super) ran: BTreeMap<String, usize>,
    /// What the conformance gate found wrong under the tool, each after the artifact's name.
    pub(super) failures: Vec<String>,
    /// What the tool wrote, cut short; a kernel's name is its artifact's with underscores for dots.
    pub(super) reports: Vec<String>,
}

/// What tells records apart.
#[derive(Deserialize)]
struct Header {
    kind: Option<String>,
    findings: Option<IgnoredAny>,
}

impl Evidence {
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let reading = || format!("reading {}", folder.display());
        let mut paths = fs::read_dir(folder)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>())
            .with_context(reading)?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        let files = paths.iter().map(|path| {
            let json = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            let content = Content::parse(&json).with_context(|| format!("record {}", path.display()))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok(File { name, content })
        });
        Ok(Self { files: files.collect::<Result<_>>()? })
    }
}

impl Content {
    pub(super) fn parse(json: &[u8]) -> Result<Self> {
        let header: Header = parse(json, "the kind of record")?;
        Ok(match (header.kind.as_deref(), header.findings) {
            (Some("gpu_check"), _) => Self::Kernels(parse(json, "a record of gpu_check.py")?),
            (Some("model parity"), _) => Self::Parity(parse(json, "a record of model parity")?),
            (Some("sanitize"), _) => Self::Sanitized(parse(json, "a record of sanitize.py")?),
            (None, Some(IgnoredAny)) => Self::Gates(parse(json, "a record of the lab's gates")?),
            _ => Self::Other,
        })
    }
}

impl KernelCheck {
    /// Whether it has times of an artifact.
    pub(super) fn has_timed(&self, artifact: &str) -> bool {
        self.times.iter().flat_map(|timed| &timed.ours).any(|(what, times)| {
            what.split_whitespace().next() == Some(artifact) && !times.samples.is_empty()
        })
    }
}

fn parse<T: DeserializeOwned>(json: &[u8], what: &str) -> Result<T> {
    serde_json::from_slice(json).with_context(|| format!("not {what}"))
}

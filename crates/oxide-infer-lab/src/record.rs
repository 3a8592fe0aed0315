//! What a run found, as JSON.

use anyhow::{Context as _, Result};
use oxide_infer_cuda::artifact::Registry;
use oxide_infer_cuda::artifact::manifest::Sha256Hex;
use oxide_infer_cuda::runtime::Context;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// One run of the lab.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Record {
    /// Version of this format.
    schema: u32,
    /// Source revision of the binary.
    pub(crate) revision: String,
    /// Seconds since 1970.
    time: u64,
    pub(crate) command: Vec<String>,
    device: Device,
    /// Name of every artifact, and the hash of its machine code.
    pub(crate) artifacts: BTreeMap<String, Sha256Hex>,
    pub(crate) findings: Vec<Finding>,
    /// What was timed, where the run was to time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) times: Vec<Times>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Device {
    name: String,
    compute_capability: String,
    multiprocessors: u32,
    total_memory: u64,
    /// CUDA version of the driver, as `cuDriverGetVersion` gives it.
    driver: u32,
}

/// What one gate found.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Finding {
    pub(crate) gate: Cow<'static, str>,
    /// Checks that passed, by what was checked.
    pub(crate) passed: BTreeMap<String, usize>,
    /// Checks that the gated code does not claim to pass, with its reason.
    pub(crate) not_covered: BTreeMap<String, usize>,
    /// Checks that failed.
    pub(crate) failures: Vec<String>,
    /// Numbers measured on the way, with their unit in the name.
    pub(crate) measured: BTreeMap<String, f64>,
}

/// Times of one operator, in microseconds of a call.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Times {
    /// The row of the matrix.
    pub(crate) row: String,
    /// The name of an artifact, or the algorithm of a library.
    pub(crate) implementation: String,
    /// How keys and values lie, where the operator has them: the order of a page's axes and its tokens.
    pub(crate) layout: Option<String>,
    /// Bytes of every operand once.
    pub(crate) bytes: u64,
    /// Calls of one sample of eager times.
    pub(crate) calls: usize,
    /// Sets of operands that a graph goes through when nothing is in the cache.
    pub(crate) sets: usize,
    /// Calls, a scope for each, until the host knows that all have ended.
    pub(crate) eager_us: Vec<f64>,
    /// The same in one scope.
    pub(crate) eager_one_scope_us: Vec<f64>,
    /// A scope for each call, which is the replay of a graph of that call alone. Older records lack it.
    #[serde(default)]
    pub(crate) graph_of_one_us: Option<Vec<f64>>,
    /// Replays of a graph, over the same operands again and again.
    pub(crate) warm_us: Option<Vec<f64>>,
    /// Replays of a graph that takes turns at sets of operands, after the L2 cache was filled with something else.
    pub(crate) flushed_us: Option<Vec<f64>>,
}

impl Record {
    pub(crate) fn new(context: &Context, registry: &Registry, revision: &str) -> Result<Self> {
        let device = context.device();
        let (major, minor) = device.compute_capability;
        let mut record = Self {
            schema: 1,
            revision: revision.to_owned(),
            time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            command: std::env::args().collect(),
            device: Device {
                name: device.name.clone(),
                compute_capability: format!("{major}.{minor}"),
                multiprocessors: device.multiprocessors,
                total_memory: device.total_memory,
                driver: context.driver_version()?,
            },
            artifacts: BTreeMap::new(),
            findings: Vec::new(),
            times: Vec::new(),
        };
        record.list(registry);
        Ok(record)
    }

    /// Lists artifacts as those that may run.
    pub(crate) fn list(&mut self, registry: &Registry) {
        let manifests = registry.artifacts().map(|artifact| artifact.manifest());
        self.artifacts.extend(manifests.map(|manifest| (manifest.name.clone(), manifest.cubin.sha256)));
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    pub(crate) fn passed(&self) -> bool {
        self.findings.iter().all(Finding::is_pass)
    }

    pub(crate) fn verdict(&self) -> String {
        let passed = self.findings.iter().filter(|finding| finding.is_pass()).count();
        format!("{passed} of {} gates passed", self.findings.len())
    }

    /// Whether a record can be written to a file, before a run takes its time. What is there stays as it is.
    pub(crate) fn check_path(path: &Path) -> Result<()> {
        let is_new = !path.try_exists().unwrap_or(false);
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.with_context(|| format!("the record cannot be written to {}", path.display()))?;
        if is_new {
            // Of a link to nothing, what it leads to.
            let made = path.canonicalize().and_then(std::fs::remove_file);
            made.with_context(|| format!("removing {}", path.display()))?;
        }
        Ok(())
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        std::fs::write(path, json + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

impl Finding {
    pub(crate) fn of(gate: &'static str) -> Self {
        Self {
            gate: gate.into(),
            passed: BTreeMap::new(),
            not_covered: BTreeMap::new(),
            failures: Vec::new(),
            measured: BTreeMap::new(),
        }
    }

    /// Counts a check, or keeps why it failed.
    pub(crate) fn check(&mut self, what: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => *self.passed.entry(what.to_owned()).or_default() += 1,
            Err(error) => self.failures.push(format!("{what}: {error:#}")),
        }
    }

    /// A gate that checked nothing has not passed.
    pub(crate) fn is_pass(&self) -> bool {
        self.failures.is_empty() && !self.passed.is_empty()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_pass() { "pass" } else { "FAIL" };
        write!(f, "{verdict} {}", self.gate)?;
        self.passed.iter().try_for_each(|(what, count)| write!(f, "\n  {count:>6} {what}"))?;
        self.not_covered
            .iter()
            .try_for_each(|(why, count)| write!(f, "\n  {count:>6} not covered: {why}"))?;
        self.measured.iter().try_for_each(|(what, value)| write!(f, "\n  {what}: {value:.3}"))?;
        self.failures.iter().take(20).try_for_each(|failure| write!(f, "\n  failed: {failure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_record_can_be_written_is_known_before_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        Record::check_path(&path).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "an older record").unwrap();
        Record::check_path(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "an older record");
        let (link, target) = (dir.path().join("link"), dir.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        Record::check_path(&link).unwrap();
        assert!(link.is_symlink() && !target.exists());
        for bad in [dir.path().to_owned(), dir.path().join("none/record.json"), path.join("record.json")] {
            let error = Record::check_path(&bad).unwrap_err().to_string();
            assert_eq!(error, format!("the record cannot be written to {}", bad.display()));
        }
    }
}

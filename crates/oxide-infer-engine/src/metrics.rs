//! Counters of the engine, written once per step by the engine thread and read by anyone.

use bytemuck::{Pod, Zeroable};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper bounds of the buckets of [`TokenHistogram`], inclusive; the last bucket has none.
pub const ITERATION_TOKEN_BOUNDS: [u64; 15] =
    [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];

/// How many tokens the steps computed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct TokenHistogram {
    /// Steps in each bucket of [`ITERATION_TOKEN_BOUNDS`] (not cumulative), and last those above all bounds.
    pub counts: [u64; ITERATION_TOKEN_BOUNDS.len() + 1],
    /// Tokens of all steps.
    pub sum: u64,
}

impl TokenHistogram {
    pub(crate) fn observe(&mut self, tokens: u64) {
        let bucket = ITERATION_TOKEN_BOUNDS.partition_point(|&bound| bound < tokens);
        self.counts[bucket] += 1;
        self.sum += tokens;
    }

    /// Steps observed.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The counters at one moment. Counters only grow; the others are gauges.
///
/// "Sequences" are answers: a request with `n` choices is `n` sequences. All fields are `u64`, which lets
/// [`EngineMetrics`] publish them without a lock.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct MetricsSnapshot {
    /// Gauge: sequences that have a slot.
    pub running: u64,
    /// Gauge: sequences that wait for one, new or preempted.
    pub waiting: u64,
    /// Gauge: KV pages that a sequence owns. Cached pages that nobody owns are not among them.
    pub kv_pages_used: u64,
    /// Gauge: KV pages in the pool.
    pub kv_pages_total: u64,
    /// Prompt tokens that were looked up in the prefix cache.
    pub prefix_cache_queries: u64,
    /// Prompt tokens that the prefix cache had.
    pub prefix_cache_hits: u64,
    /// Sequences that lost their pages to an older one and were computed again.
    pub preemptions: u64,
    /// Tokens of prompts that have been computed, cached ones included; a prompt counts once for all its choices.
    pub prompt_tokens: u64,
    /// Tokens that have been sampled and sent.
    pub generation_tokens: u64,
    /// Sequences that ended with an end-of-sequence token, a stop token or a stop string.
    pub finished_stop: u64,
    /// Sequences that ended with `max_tokens` or the model's length.
    pub finished_length: u64,
    /// Sequences whose client went away.
    pub finished_cancelled: u64,
    /// Sequences that the engine failed or was stopped under.
    pub finished_failed: u64,
    /// Tokens that each step computed.
    pub iteration_tokens: TokenHistogram,
}

impl MetricsSnapshot {
    /// The part of the KV pool that sequences own, 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        if self.kv_pages_total == 0 { 0.0 } else { self.kv_pages_used as f64 / self.kv_pages_total as f64 }
    }
}

const CELLS: usize = size_of::<MetricsSnapshot>() / size_of::<u64>();

/// The published counters. Each is exact; two of them read together may be a step apart.
#[derive(Debug)]
pub struct EngineMetrics {
    cells: [AtomicU64; CELLS],
}

impl Default for EngineMetrics {
    fn default() -> Self {
        Self { cells: [const { AtomicU64::new(0) }; CELLS] }
    }
}

impl EngineMetrics {
    /// The counters now.
    pub fn snapshot(&self) -> MetricsSnapshot {
        let values: [u64; CELLS] = std::array::from_fn(|cell| self.cells[cell].load(Relaxed));
        bytemuck::cast(values)
    }

    pub(crate) fn publish(&self, snapshot: &MetricsSnapshot) {
        let values: &[u64; CELLS] = bytemuck::cast_ref(snapshot);
        for (cell, value) in self.cells.iter().zip(values) {
            cell.store(*value, Relaxed);
        }
    }
}

/// How often each operator artifact was executed. Written by the executor, read by anyone.
#[derive(Debug, Default)]
pub struct OperatorCounters {
    sha256: Option<String>,
    counters: Vec<(String, AtomicU64)>,
}

/// The artifacts that an executor has computed with, as records of runs name them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArtifactsUsed {
    /// Of the machine code of all that it chose among, [`oxide_infer_cuda::artifact::Registry::digest`].
    pub sha256: String,
    /// Names of those that it has executed, sorted.
    pub executed: Vec<String>,
}

impl OperatorCounters {
    /// Counters of artifacts that are chosen among a set with this hash.
    pub(crate) fn of_artifacts(sha256: String) -> Self {
        Self { sha256: Some(sha256), counters: Vec::new() }
    }

    /// Hash of the artifacts that were chosen among, of an executor that computes with artifacts.
    pub fn sha256(&self) -> Option<&str> {
        self.sha256.as_deref()
    }

    /// What has been executed, of an executor that computes with artifacts.
    pub fn used(&self) -> Option<ArtifactsUsed> {
        let executed = self.snapshot().filter(|(_, count)| *count > 0);
        let mut executed: Vec<_> = executed.map(|(artifact, _)| artifact.to_owned()).collect();
        executed.sort();
        Some(ArtifactsUsed { sha256: self.sha256.clone()?, executed })
    }

    /// Every artifact of the executor's plans with its executions, in the order of the plans.
    pub fn snapshot(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counters.iter().map(|(artifact, count)| (artifact.as_str(), count.load(Relaxed)))
    }

    /// The index of an artifact's counter, which begins at 0 when it is asked for first.
    pub(crate) fn index(&mut self, artifact: &str) -> usize {
        let known = self.counters.iter().position(|(name, _)| name == artifact);
        known.unwrap_or_else(|| {
            self.counters.push((artifact.to_owned(), AtomicU64::new(0)));
            self.counters.len() - 1
        })
    }

    pub(crate) fn add(&self, index: usize, times: u64) {
        self.counters[index].1.fetch_add(times, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_reads_back_what_was_published() {
        let mut written =
            MetricsSnapshot { running: 3, kv_pages_used: 5, kv_pages_total: 20, ..Default::default() };
        written.finished_failed = 7;
        written.iteration_tokens.observe(9);
        let metrics = EngineMetrics::default();
        metrics.publish(&written);
        assert_eq!(metrics.snapshot(), written);
        assert_eq!(metrics.snapshot().kv_usage(), 0.25);
    }

    #[test]
    fn what_was_used_is_the_set_and_those_of_it_that_were_executed() {
        let mut counters = OperatorCounters::of_artifacts("0123".to_owned());
        let indices = ["swiglu", "argmax", "gather"].map(|artifact| counters.index(artifact));
        counters.add(indices[0], 2);
        counters.add(indices[2], 1);
        let executed = vec!["gather".to_owned(), "swiglu".to_owned()];
        assert_eq!(counters.used(), Some(ArtifactsUsed { sha256: "0123".to_owned(), executed }));
        assert_eq!(OperatorCounters::default().used(), None, "the CPU has no artifacts");
    }

    #[test]
    fn a_step_falls_into_the_first_bucket_that_is_not_below_it() {
        let mut histogram = TokenHistogram::default();
        for tokens in [1, 2, 8, 9, 65536, 65537] {
            histogram.observe(tokens);
        }
        assert_eq!(histogram.counts, [1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((histogram.count(), histogram.sum), (6, 131_093));
    }
}

//! `oxide-infer-lab parity`: the logits of a model along given continuations, for `benchmarks/parity/compare.py`.
//!
//! The engine itself runs: its scheduler forms the steps of each `Mode`, and a `Teacher` between it and the executor
//! answers with the reference's tokens and writes down the logits.

mod cases;
mod modes;
mod teacher;

use anyhow::{Context as _, Result};
use cases::Cases;
use clap::{Args, ValueEnum};
use modes::Runner;
pub(crate) use modes::greedy_request;
use oxide_infer_engine::cpu::{CpuOptions, KvMemory};
use oxide_infer_engine::cuda::{CudaOptions, DecodeLaunch, load_cuda};
use oxide_infer_engine::metrics::ArtifactsUsed;
use oxide_infer_engine::{ExecutorLimits, LogitsTap, ModelSource, load_cpu};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use teacher::{SharedExecutor, Sink, SinkCounts};

/// Write the logits of a model along given continuations
///
/// Each case is a prompt and a continuation. The logits that each token of the continuation would be drawn from are written
/// as raw little-endian f32 `[cases, new_tokens, vocab_size]`, and what happened as JSON to the same name with .json added.
#[derive(Args, Debug)]
pub(crate) struct ParityOptions {
    /// Model: a directory with safetensors, or a .gguf file
    #[arg(long)]
    model: PathBuf,
    /// JSON of prompts and continuations, as benchmarks/parity/reference.py writes it
    #[arg(long)]
    cases: PathBuf,
    /// File to write the logits to
    #[arg(long)]
    logits: PathBuf,
    /// In what company the cases are computed
    #[arg(long, value_enum, default_value = "alone")]
    mode: Mode,
    /// Where to run: cpu, cuda or cuda:N
    #[arg(long, default_value = "cuda")]
    device: Device,
    /// Tokens that --mode chunked computes in a step
    #[arg(long, default_value_t = 96)]
    chunk: usize,
    /// Memory for keys and values in MiB; of a GPU most of what is free if it is not given
    #[arg(long)]
    kv_mib: Option<u64>,
}

/// In what company a case is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// One case after the other, each prompt in as few steps as there may be.
    Alone,
    /// All cases at once.
    Batched,
    /// One after the other, each prompt in chunks.
    Chunked,
    /// Beside an older sequence that takes the pages away, so that the case is computed again from its tokens.
    Preempted,
    /// After the prompt has been computed once, so that its pages are in the prefix cache.
    Warm,
    /// As alone, decodes launched operator by operator instead of as graphs. On the CPU the same as alone.
    Eager,
}

#[derive(Clone, Copy, Debug)]
enum Device {
    Cpu,
    Cuda(u32),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", ordinal)) if let Ok(ordinal) = ordinal.parse() => Ok(Self::Cuda(ordinal)),
            _ => Err(format!("`{text}` is not a device; write cpu, cuda or cuda:N")),
        }
    }
}

/// What a run did, beside its logits.
#[derive(Debug, Serialize)]
struct Report {
    mode: Mode,
    model: PathBuf,
    device: String,
    command: Vec<String>,
    cases: usize,
    new_tokens: usize,
    seconds: f64,
    page_size: usize,
    num_pages: usize,
    max_batch_tokens: usize,
    /// Tokens that `--mode chunked` computed in a step.
    chunk: Option<usize>,
    #[serde(flatten)]
    counts: SinkCounts,
    /// Sequences whose pages were taken away.
    preemptions: u64,
    /// Prompt tokens that were found in the prefix cache.
    cached_tokens: u64,
    /// What a GPU computed with.
    artifacts: Option<ArtifactsUsed>,
}

pub(crate) fn run(options: &ParityOptions) -> Result<()> {
    let source = ModelSource::open(&options.model)?;
    let cases = Arc::new(Cases::read(&options.cases)?);
    let executor = load(&source, options)?;
    let report = write_logits(executor, cases, options)?;
    let path = report_path(&options.logits);
    let json = serde_json::to_string_pretty(&report)?;
    std::fs::write(&path, json + "\n").with_context(|| format!("writing {}", path.display()))?;
    println!(
        "{:?}: {} steps of logits in {:.1} s; at most {} rows in a step, {} inner chunks, {} preemptions, {} cached tokens",
        report.mode,
        report.cases * report.new_tokens,
        report.seconds,
        report.counts.most_rows,
        report.counts.inner_chunks,
        report.preemptions,
        report.cached_tokens
    );
    Ok(())
}

fn load(source: &ModelSource, options: &ParityOptions) -> Result<Box<dyn LogitsTap>> {
    match options.device {
        Device::Cpu => {
            let mut cpu = CpuOptions::default();
            if let Some(mib) = options.kv_mib {
                cpu.kv_memory = KvMemory(mib << 20);
            }
            Ok(Box::new(load_cpu(source, &cpu, &mut |_| ())?))
        }
        Device::Cuda(ordinal) => {
            let decode_launch = match options.mode {
                Mode::Eager => DecodeLaunch::Eager,
                _ => DecodeLaunch::Graph,
            };
            let kv_memory = options.kv_mib.map(|mib| mib << 20);
            let cuda = CudaOptions { kv_memory, decode_launch, ..CudaOptions::default() };
            Ok(Box::new(load_cuda(source, ordinal, &cuda, &mut |_| ())?))
        }
    }
}

fn write_logits(
    mut executor: Box<dyn LogitsTap>,
    cases: Arc<Cases>,
    options: &ParityOptions,
) -> Result<Report> {
    executor.keep_logits();
    let limits: ExecutorLimits = executor.limits();
    let operators = executor.operator_counters();
    cases.check(&limits)?;
    let sink = Arc::new(Mutex::new(Sink::create(&options.logits, &cases, limits.vocab_size)?));
    let executor: SharedExecutor = Arc::new(Mutex::new(executor));
    let mut runner = Runner::new(executor, limits, cases.clone(), sink.clone());
    let started = std::time::Instant::now();
    runner.run(options.mode, options.chunk)?;
    let seconds = started.elapsed().as_secs_f64();
    let counts = teacher::lock(&sink).finish()?;
    Ok(Report {
        mode: options.mode,
        model: options.model.clone(),
        device: format!("{:?}", options.device),
        command: std::env::args().collect(),
        cases: cases.len(),
        new_tokens: cases.new_tokens(),
        seconds,
        page_size: limits.page_size,
        num_pages: limits.num_pages,
        max_batch_tokens: limits.max_batch_tokens,
        chunk: (options.mode == Mode::Chunked).then_some(options.chunk),
        counts,
        preemptions: runner.preemptions(),
        cached_tokens: runner.cached_tokens(),
        artifacts: operators.used(),
    })
}

fn report_path(logits: &Path) -> PathBuf {
    let mut name = logits.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

#[cfg(test)]
mod tests;

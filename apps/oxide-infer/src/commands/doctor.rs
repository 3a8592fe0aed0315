//! `oxide-infer doctor`: what this machine has, what would run here, and why not.

use crate::cli::options::DoctorArgs;
use crate::cli::values::ByteSize;
use crate::device;
use crate::hub::Hub;
use crate::model::ModelName;
use crate::terminal;
use oxide_infer_cuda::Probe;
use oxide_infer_cuda::artifact::{Registry, Target};
use oxide_infer_engine::ModelSource;
use oxide_infer_engine::cuda::{CudaOptions, check_coverage};
use oxide_infer_engine::model::{DenseDecoder, ModelConfig};
use oxide_infer_engine::weights::ModelWeights;
use oxide_infer_server::text::{TextModel, TextOptions};
use std::fmt::{self, Write};
use std::process::ExitCode;

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut report = format!("oxide-infer {}\n", env!("CARGO_PKG_VERSION"));
    cpu(&mut report)?;
    gpu(&mut report, &oxide_infer_cuda::probe())?;
    cache(&mut report)?;
    let code = match &args.model {
        Some(name) => model(&mut report, name)?,
        None => ExitCode::SUCCESS,
    };
    terminal::print(&report)?;
    Ok(code)
}

fn cpu(out: &mut String) -> fmt::Result {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    writeln!(out, "\nCPU")?;
    writeln!(out, "  architecture    {}", std::env::consts::ARCH)?;
    writeln!(out, "  threads         {threads}")?;
    writeln!(out, "  features        {}", cpu_features().join(" "))?;
    if let Some((total, available)) = memory() {
        writeln!(out, "  memory          {total}, {available} available")?;
    }
    writeln!(out, "  models          run here")
}

/// Vector extensions that matter to matrix products, of those that this CPU has.
fn cpu_features() -> Vec<&'static str> {
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! push {
            ($($name:tt),*) => { $(if std::is_x86_feature_detected!($name) { found.push($name); })* };
        }
        push!("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vnni", "avxvnni", "avx512bf16");
    }
    #[cfg(target_arch = "aarch64")]
    {
        macro_rules! push {
            ($($name:tt),*) => { $(if std::arch::is_aarch64_feature_detected!($name) { found.push($name); })* };
        }
        push!("neon", "dotprod", "fp16", "i8mm", "bf16");
    }
    if found.is_empty() {
        found.push("none of those that matter");
    }
    found
}

/// Total and available memory, where the system tells.
fn memory() -> Option<(ByteSize, ByteSize)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(ByteSize(kib * 1024))
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

fn gpu(out: &mut String, probe: &Probe) -> fmt::Result {
    writeln!(out, "\nGPU")?;
    match probe {
        Probe::NoDriver => writeln!(out, "  driver          none")?,
        Probe::Unusable(message) => writeln!(out, "  driver          does not start: {message}")?,
        Probe::Driver { cuda_version: (major, minor), devices } => {
            writeln!(out, "  driver          supports CUDA {major}.{minor}")?;
            for found in devices {
                writeln!(out, "  device          {}", device::describe(found))?;
                let kernels = super::artifacts::summary(found.compute_capability, (*major, *minor));
                writeln!(out, "    kernels       {kernels}")?;
            }
        }
    }
    match device::obstacle(0, probe) {
        Some(why) => writeln!(out, "  models          do not run here: {why}"),
        None => writeln!(out, "  models          run here"),
    }
}

fn cache(out: &mut String) -> anyhow::Result<()> {
    let hub = Hub::from_environment()?;
    writeln!(out, "\nModel cache")?;
    writeln!(out, "  folder          {}", hub.cache_dir().display())?;
    writeln!(
        out,
        "  network         {}",
        if hub.is_offline() { "off (HF_HUB_OFFLINE)" } else { "may be used" }
    )?;
    let mut found = hub.cached_models();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    if found.is_empty() {
        writeln!(out, "  models          none; get one with `oxide-infer pull ORG/REPO`")?;
    }
    for entry in found {
        let state = match entry.problem {
            None => "complete".to_owned(),
            Some(problem) => format!("not usable: {problem}"),
        };
        writeln!(out, "  {} ({}): {state}", entry.id, ByteSize(entry.bytes))?;
    }
    Ok(())
}

/// Whether this model would run here: its files, configuration, weights, text and memory.
fn model(out: &mut String, name: &str) -> Result<ExitCode, fmt::Error> {
    writeln!(out, "\nModel {name}")?;
    match inspect(out, name) {
        Ok(config) => {
            writeln!(out, "  would run       on the CPU")?;
            on_gpu(out, &config)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            writeln!(out, "  would not run   {}", terminal::message(&error))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Whether the kernels of this binary cover the model; it needs a device to run there.
fn on_gpu(out: &mut String, config: &ModelConfig) -> fmt::Result {
    let covered =
        Registry::embedded(Target::hopper()).map_err(|error| error.to_string()).and_then(|registry| {
            check_coverage(config, &registry, &CudaOptions::default()).map_err(|error| error.to_string())
        });
    match covered {
        Ok(()) => writeln!(out, "  kernels         cover it on a GPU of compute capability 9.0"),
        Err(reason) => writeln!(out, "  kernels         do not cover it: {reason}"),
    }
}

fn inspect(out: &mut String, name: &str) -> anyhow::Result<ModelConfig> {
    let files = ModelName::parse(name)?.find()?;
    writeln!(out, "  files           {}", files.path().display())?;
    let source = ModelSource::open(files.path())?;
    let config = source.config();
    let bytes = source.checkpoint().file_bytes();
    writeln!(out, "  architecture    {}, {} layers", config.architecture, config.num_layers)?;
    writeln!(out, "  length          {} tokens at most", config.max_position_embeddings)?;
    writeln!(out, "  weights         {}", ByteSize(bytes))?;
    ModelWeights::new(source.checkpoint(), config, &DenseDecoder::new(config))?;
    let text = TextModel::load(files.path(), &TextOptions::default())?;
    let template = if text.chat_template().is_some() {
        "yes"
    } else {
        "none; /v1/chat/completions, run and chat need one"
    };
    writeln!(out, "  chat template   {template}")?;
    if let Some((_, available)) = memory() {
        anyhow::ensure!(
            bytes < available.0,
            "its weights are {} and only {available} are available",
            ByteSize(bytes)
        );
    }
    Ok(config.clone())
}

//! `oxide-infer doctor`: what this machine has, what would run here, and why not.

use crate::cli::options::DoctorArgs;
use crate::cli::values::ByteSize;
use crate::device;
use crate::hub::{Hub, Network};
use crate::model::ModelName;
use crate::terminal;
use oxide_infer_cuda::Probe;
use oxide_infer_cuda::artifact::{Registry, Target};
use oxide_infer_engine::ModelSource;
use oxide_infer_engine::cuda::{CudaOptions, check_coverage, weight_bytes};
use oxide_infer_engine::model::{DenseDecoder, ModelConfig};
use oxide_infer_engine::weights::ModelWeights;
use oxide_infer_server::text::{TextModel, TextOptions};
use std::fmt::{self, Write};
use std::process::ExitCode;

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut report = format!("oxide-infer {}\n", env!("CARGO_PKG_VERSION"));
    cpu(&mut report)?;
    let probe = oxide_infer_cuda::probe();
    gpu(&mut report, &probe)?;
    cache(&mut report)?;
    let code = match &args.model {
        Some(name) => model(&mut report, name, &probe)?,
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
    let network = match hub.network() {
        Network::Off => "off (HF_HUB_OFFLINE)",
        Network::On => "may be used",
    };
    writeln!(out, "  network         {network}")?;
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

/// Whether this model would run here: its files, configuration, weights, text, and each device.
fn model(out: &mut String, name: &str, probe: &Probe) -> Result<ExitCode, fmt::Error> {
    writeln!(out, "\nModel {name}")?;
    let inspected = match inspect(out, name) {
        Ok(inspected) => inspected,
        Err(error) => {
            writeln!(out, "  would not run   {}", terminal::message(&error))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let verdicts = [
        ("on the CPU", on_cpu(inspected.file_bytes, memory().map(|(_, available)| available))),
        ("on the GPU", on_gpu(&inspected.config, probe)),
    ];
    for (place, verdict) in &verdicts {
        match verdict {
            Ok(()) => writeln!(out, "  would run       {place}")?,
            Err(why) => writeln!(out, "  would not run   {place}: {why}")?,
        }
    }
    let runs = verdicts.iter().any(|(_, verdict)| verdict.is_ok());
    Ok(if runs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the weights fit the memory that is available, where the system tells; or why not.
fn on_cpu(file_bytes: u64, available: Option<ByteSize>) -> Result<(), String> {
    match available {
        Some(available) if file_bytes >= available.0 => {
            Err(format!("its weights are {} and only {available} are available", ByteSize(file_bytes)))
        }
        _ => Ok(()),
    }
}

/// Whether the kernels of this binary cover the model and the first GPU can run them and hold its weights; or why not.
fn on_gpu(config: &ModelConfig, probe: &Probe) -> Result<(), String> {
    covered(config).map_err(|_| "operators that it needs are missing, see its kernels above".to_owned())?;
    if let Some(why) = device::obstacle(0, probe) {
        return Err(format!("{why}; the kernels cover the model"));
    }
    let Probe::Driver { devices, .. } = probe else { return Ok(()) };
    let (needed, first) = (weight_bytes(config), devices.iter().find(|device| device.ordinal == 0));
    match first {
        Some(device) if needed >= device.total_memory as u64 => Err(format!(
            "its weights take {} in bf16 and {} has {}",
            ByteSize(needed),
            device.name,
            ByteSize(device.total_memory as u64)
        )),
        _ => Ok(()),
    }
}

/// Whether the kernels of this binary cover the model; or which operators are missing. Needs no device.
fn covered(config: &ModelConfig) -> Result<(), String> {
    let registry = Registry::embedded(Target::hopper()).map_err(|error| error.to_string())?;
    check_coverage(config, &registry, &CudaOptions::default()).map_err(|error| error.to_string())
}

/// What of a model decides where it runs.
struct Inspected {
    config: ModelConfig,
    file_bytes: u64,
}

fn inspect(out: &mut String, name: &str) -> anyhow::Result<Inspected> {
    let files = ModelName::parse(name)?.find()?;
    writeln!(out, "  files           {}", files.path().display())?;
    // Before the weights, which may not be there yet.
    let config = ModelSource::config_of(files.path())?;
    writeln!(out, "  architecture    {}, {} layers", config.architecture, config.num_layers)?;
    writeln!(out, "  length          {} tokens at most", config.max_position_embeddings)?;
    let kernels = covered(&config).map_or_else(|why| why, |()| "cover it".to_owned());
    writeln!(out, "  kernels         {kernels}")?;
    let source = ModelSource::open(files.path())?;
    let bytes = source.checkpoint().file_bytes();
    writeln!(out, "  weights         {}", ByteSize(bytes))?;
    ModelWeights::new(source.checkpoint(), &config, &DenseDecoder::new(&config))?;
    let text = TextModel::load(files.path(), &TextOptions::default())?;
    let template = if text.chat_template().is_some() {
        "yes"
    } else {
        "none; /v1/chat/completions, run and chat need one"
    };
    writeln!(out, "  chat template   {template}")?;
    Ok(Inspected { config, file_bytes: bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxide_infer_cuda::DeviceInfo;

    /// SmolLM2-135M's published shape, with heads of another size on request.
    fn config(num_heads: usize) -> ModelConfig {
        let fields = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": num_heads, "num_key_value_heads": 3,
            "vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "rope_theta": 1e5, "tie_word_embeddings": true
        });
        ModelConfig::from_json(&fields.to_string()).unwrap()
    }

    fn hopper(total_memory: usize) -> Probe {
        let device =
            DeviceInfo { ordinal: 0, name: "H200".to_owned(), compute_capability: (9, 0), total_memory };
        Probe::Driver { cuda_version: (12, 9), devices: vec![device] }
    }

    #[test]
    fn a_model_runs_on_a_gpu_that_holds_its_weights_if_the_kernels_cover_it() {
        assert_eq!(on_gpu(&config(9), &hopper(140 << 30)), Ok(()));
        let refused = |config: &ModelConfig, probe: &Probe| on_gpu(config, probe).unwrap_err();
        // 134,515,008 weights of two bytes are 256.6 MiB.
        let small = refused(&config(9), &hopper(256 << 20));
        assert!(small.contains("256.6 MiB in bf16 and H200 has 256 MiB"), "{small}");
        assert_eq!(on_gpu(&config(9), &hopper(257 << 20)), Ok(()));
        let none = refused(&config(9), &Probe::NoDriver);
        assert!(none.contains("no CUDA driver") && none.ends_with("the kernels cover the model"), "{none}");
        // Heads of 32 have no kernels, whatever the device.
        let uncovered = refused(&config(18), &hopper(140 << 30));
        assert!(uncovered.starts_with("operators that it needs are missing"), "{uncovered}");
        assert!(covered(&config(18)).unwrap_err().contains("head_dim=32"));
    }

    #[test]
    fn a_model_runs_on_the_cpu_if_its_weights_fit_the_available_memory() {
        assert_eq!(on_cpu(99, Some(ByteSize(100))), Ok(()));
        assert_eq!(on_cpu(u64::MAX, None), Ok(()));
        let why = on_cpu(2 << 30, Some(ByteSize(1 << 30))).unwrap_err();
        assert_eq!(why, "its weights are 2 GiB and only 1 GiB are available");
    }
}

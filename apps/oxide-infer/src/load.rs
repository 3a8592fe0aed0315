//! From `--model` and the options to a running engine, with progress and with errors that name the options.

use crate::cli::options::{EngineOptions, ModelOptions};
use crate::cli::values::{ByteSize, DeviceArg, WeightsArg};
use crate::device;
use crate::generate::Generator;
use crate::generation_config::GenerationConfig;
use crate::model::ModelName;
use crate::terminal::Progress;
use anyhow::bail;
use oxide_infer_engine::cpu::{CpuOptions, KvMemory, PlanError};
use oxide_infer_engine::cuda::{ArtifactSource, CudaLoadError, CudaOptions, CudaPlanError, load_cuda};
use oxide_infer_engine::{
    Engine, EngineConfig, EngineHandle, Executor, ExecutorLimits, LoadError, LoadProgress, ModelSource,
    PlanGoal, PrefixCache, load_cpu, trim_heap,
};
use oxide_infer_server::text::{SpecialInContent, TextModel, TextOptions};
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// A model that is ready to answer requests.
pub(crate) struct Loaded {
    pub(crate) text: Arc<TextModel>,
    pub(crate) engine: EngineHandle,
    pub(crate) defaults: GenerationConfig,
    /// What people call the device that it runs on.
    pub(crate) device_name: String,
}

/// Loads a model for one user at a time.
pub(crate) async fn generator(options: &ModelOptions) -> anyhow::Result<Generator> {
    let Loaded { text, engine, defaults, .. } =
        load(options, SpecialInContent::Parse, EngineConfig::default().max_waiting).await?;
    Ok(Generator { text, engine, defaults })
}

/// Loads a model's text and weights and starts an engine that queues at most `max_waiting` requests.
pub(crate) async fn load(
    options: &ModelOptions,
    special_in_content: SpecialInContent,
    max_waiting: usize,
) -> anyhow::Result<Loaded> {
    let (device, device_name) = choose_device(options.device, &options.engine)?;
    let source = open(&options.model, options.engine.weights).await?;
    let text_options = TextOptions { chat_template: options.chat_template.clone(), special_in_content };
    let engine_options = options.engine.clone();
    spawn_blocking(move || {
        let text = match (source.gguf(), source.dir()) {
            (Some(gguf), _) => TextModel::from_gguf(gguf, &text_options)?,
            (None, dir) => TextModel::from_dir(dir.unwrap_or(source.path()), &text_options)?,
        };
        let defaults = GenerationConfig::of(source.path())?;
        let config = EngineConfig { max_waiting, ..EngineConfig::default() };
        let engine = start(&source, device, &engine_options, config)?;
        trim_heap();
        Ok(Loaded { text: Arc::new(text), engine, defaults, device_name })
    })
    .await?
}

/// Loads the weights only and starts an engine without a prefix cache, so that it can be measured.
pub(crate) async fn load_to_measure(
    model: &str,
    device: Option<DeviceArg>,
    options: &EngineOptions,
) -> anyhow::Result<EngineHandle> {
    let (device, _) = choose_device(device, options)?;
    let source = open(model, options.weights).await?;
    let options = options.clone();
    let config = EngineConfig { prefix_cache: PrefixCache::Disabled, ..EngineConfig::default() };
    spawn_blocking(move || start(&source, device, &options, config)).await?
}

/// Says where the model will run and why, before anything else happens, and refuses what only another device could use.
/// Returns the device and its name.
fn choose_device(asked: Option<DeviceArg>, options: &EngineOptions) -> anyhow::Result<(DeviceArg, String)> {
    let probe = oxide_infer_cuda::probe();
    let choice = device::choose(asked, &probe)?;
    if let (DeviceArg::Cpu, Some(folder)) = (choice.device, &options.artifacts) {
        let reason = choice.reason;
        bail!("--artifacts {} are kernels for a GPU; the model runs on the CPU: {reason}", folder.display());
    }
    match choice.device {
        DeviceArg::Cpu => tracing::info!("the model runs on the CPU: {}", choice.reason),
        DeviceArg::Cuda(ordinal) => tracing::info!("the model runs on cuda:{ordinal}: {}", choice.reason),
    }
    let name = device::name(choice.device, &probe);
    Ok((choice.device, name))
}

async fn open(model: &str, weights: Option<WeightsArg>) -> anyhow::Result<ModelSource> {
    let name = ModelName::parse(model)?;
    let source = match weights {
        None => {
            let files = name.fetch().await?;
            spawn_blocking(move || ModelSource::open(files.path())).await?
        }
        Some(WeightsArg::Random(seed)) => {
            let dir = name.directory()?.to_owned();
            tracing::warn!(
                "the weights are random, made from the seed {seed}: what the model answers means nothing"
            );
            spawn_blocking(move || ModelSource::open_random(&dir, seed)).await?
        }
    };
    Ok(source?)
}

fn start(
    source: &ModelSource,
    device: DeviceArg,
    options: &EngineOptions,
    config: EngineConfig,
) -> anyhow::Result<EngineHandle> {
    let progress =
        Progress::start(format!("loading {}", source.path().display()), source.checkpoint().file_bytes());
    let mut update = |loaded: LoadProgress| progress.set(loaded.bytes_done);
    let executor: Box<dyn Executor> = match device {
        DeviceArg::Cpu => load_on_cpu(source, options, &mut update)?,
        DeviceArg::Cuda(ordinal) => load_on_gpu(source, ordinal, options, &mut update)?,
    };
    progress.finish("loaded");
    Ok(Engine::start(executor, config)?)
}

fn load_on_cpu(
    source: &ModelSource,
    options: &EngineOptions,
    update: &mut dyn FnMut(LoadProgress),
) -> anyhow::Result<Box<dyn Executor>> {
    let default = CpuOptions::default();
    let cpu = CpuOptions {
        threads: options.threads,
        max_model_len: options.max_model_len,
        max_batch_tokens: options.max_batch_tokens.unwrap_or(default.max_batch_tokens),
        max_sequences: options.max_sequences.unwrap_or(default.max_sequences),
        kv_memory: options.kv_memory.map_or(default.kv_memory, |size| KvMemory(size.0)),
    };
    let executor = load_cpu(source, &cpu, update).map_err(explain)?;
    report(&executor.limits(), ByteSize(cpu.kv_memory.0));
    tracing::info!("{} threads compute", executor.threads());
    report_bits(options, "as always on the CPU");
    Ok(Box::new(executor))
}

fn load_on_gpu(
    source: &ModelSource,
    ordinal: u32,
    options: &EngineOptions,
    update: &mut dyn FnMut(LoadProgress),
) -> anyhow::Result<Box<dyn Executor>> {
    let cuda = cuda_options(options);
    let executor = load_cuda(source, ordinal, &cuda, update).map_err(explain_cuda)?;
    report(&executor.limits(), ByteSize(executor.kv_bytes()));
    let (operators, artifacts) = executor.plan_size();
    tracing::info!("{operators} operators are planned, all of them from {artifacts} kernel artifacts");
    report_bits(options, "every operator has one order of sums, and prompts have steps of their own");
    Ok(Box::new(executor))
}

/// What the options ask of a GPU. A step has room for one token of every sequence, unless its size was given.
fn cuda_options(options: &EngineOptions) -> CudaOptions {
    let default = CudaOptions::default();
    let max_sequences = options.max_sequences.unwrap_or(default.max_sequences);
    CudaOptions {
        max_model_len: options.max_model_len,
        max_batch_tokens: options.max_batch_tokens.unwrap_or(default.max_batch_tokens.max(max_sequences)),
        max_sequences,
        kv_memory: options.kv_memory.map(|size| size.0),
        artifacts: options.artifacts.clone().map_or(default.artifacts, ArtifactSource::Directory),
        decode_launch: default.decode_launch,
        goal: if options.deterministic { PlanGoal::Deterministic } else { PlanGoal::Fastest },
    }
}

/// Names the options that help.
fn explain(error: LoadError) -> anyhow::Error {
    let advice = match &error {
        LoadError::Plan(PlanError::KvMemory { .. }) => KV_MEMORY_ADVICE,
        LoadError::Plan(PlanError::TooLong { .. }) => TOO_LONG_ADVICE,
        LoadError::Plan(PlanError::TooSmall { .. }) => "an option is too small",
        LoadError::Plan(PlanError::Memory { .. }) => {
            "lower --kv-memory, --max-batch-tokens or --max-sequences"
        }
        _ => return error.into(),
    };
    anyhow::Error::from(error).context(advice)
}

/// As [`explain`], of a GPU.
fn explain_cuda(error: CudaLoadError) -> anyhow::Error {
    let advice = match &error {
        CudaLoadError::Plan(CudaPlanError::KvMemory { .. }) => KV_MEMORY_ADVICE,
        CudaLoadError::Plan(CudaPlanError::TooLong { .. }) => TOO_LONG_ADVICE,
        CudaLoadError::Plan(CudaPlanError::OutOfRange { .. }) => "an option is out of its range",
        CudaLoadError::Memory(_) => "lower --kv-memory, --max-batch-tokens or --max-sequences",
        CudaLoadError::NotDeterministic(_) => {
            "leave out --deterministic, or use --device cpu, which is always deterministic"
        }
        CudaLoadError::Uncovered(_) => "this model cannot run on a GPU; --device cpu runs it",
        _ => return error.into(),
    };
    anyhow::Error::from(error).context(advice)
}

const KV_MEMORY_ADVICE: &str = "raise --kv-memory or lower --max-model-len";
const TOO_LONG_ADVICE: &str = "lower --max-model-len";

/// Says that requests have the same bits in any company, if that was asked for.
fn report_bits(options: &EngineOptions, why: &str) {
    if options.deterministic {
        tracing::info!("deterministic: a request has the same bits whatever else runs; {why}");
    }
}

fn report(limits: &ExecutorLimits, kv_memory: ByteSize) {
    tracing::info!(
        "KV memory {kv_memory} (--kv-memory) holds {} tokens; a sequence has at most {}, {} sequences run at once, a step \
         computes at most {} tokens",
        limits.num_pages * limits.page_size,
        limits.max_model_len,
        limits.max_sequences,
        limits.max_batch_tokens,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        engine: EngineOptions,
    }

    fn options(words: &[&str]) -> CudaOptions {
        cuda_options(&Line::parse_from([&["oxide-infer"], words].concat()).engine)
    }

    #[test]
    fn a_step_has_room_for_every_sequence_unless_its_size_is_given() {
        assert_eq!(options(&[]).max_batch_tokens, 2048);
        assert_eq!(options(&["--max-sequences", "3000"]).max_batch_tokens, 3000);
        let given = options(&["--max-sequences", "3000", "--max-batch-tokens", "512"]);
        assert_eq!((given.max_sequences, given.max_batch_tokens), (3000, 512));
    }
}

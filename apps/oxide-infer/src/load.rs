//! From `--model` and the options to a running engine, with progress and with errors that name the options.

use crate::cli::options::{EngineOptions, ModelOptions};
use crate::cli::values::{ByteSize, DeviceArg};
use crate::device::{self, CUDA_EXECUTOR};
use crate::generate::Generator;
use crate::generation_config::GenerationConfig;
use crate::model::ModelName;
use crate::terminal::Progress;
use oxide_infer_engine::cpu::{CpuExecutor, CpuOptions, KvMemory, PlanError};
use oxide_infer_engine::{
    Engine, EngineConfig, EngineHandle, Executor, LoadError, LoadProgress, ModelSource, PrefixCache, load_cpu,
};
use oxide_infer_server::text::{SpecialInContent, TextModel, TextOptions};
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// A model that is ready to answer requests.
pub(crate) struct Loaded {
    pub(crate) text: Arc<TextModel>,
    pub(crate) engine: EngineHandle,
    pub(crate) defaults: GenerationConfig,
}

/// Loads a model for one user at a time.
pub(crate) async fn generator(options: &ModelOptions) -> anyhow::Result<Generator> {
    let Loaded { text, engine, defaults } =
        load(options, SpecialInContent::Parse, EngineConfig::default().max_waiting).await?;
    Ok(Generator { text, engine, defaults })
}

/// Loads a model's text and weights and starts an engine that queues at most `max_waiting` requests.
pub(crate) async fn load(
    options: &ModelOptions,
    special_in_content: SpecialInContent,
    max_waiting: usize,
) -> anyhow::Result<Loaded> {
    let device = choose_device(options.device)?;
    let source = open(&options.model).await?;
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
        Ok(Loaded { text: Arc::new(text), engine, defaults })
    })
    .await?
}

/// Loads the weights only and starts an engine without a prefix cache, so that it can be measured.
pub(crate) async fn load_to_measure(
    model: &str,
    device: Option<DeviceArg>,
    options: &EngineOptions,
) -> anyhow::Result<EngineHandle> {
    let device = choose_device(device)?;
    let source = open(model).await?;
    let options = options.clone();
    let config = EngineConfig { prefix_cache: PrefixCache::Disabled, ..EngineConfig::default() };
    spawn_blocking(move || start(&source, device, &options, config)).await?
}

/// Says where the model will run and why, before anything else happens.
fn choose_device(asked: Option<DeviceArg>) -> anyhow::Result<DeviceArg> {
    let choice = device::choose(asked, &oxide_infer_cuda::probe(), CUDA_EXECUTOR)?;
    match choice.device {
        DeviceArg::Cpu => tracing::info!("the model runs on the CPU: {}", choice.reason),
        DeviceArg::Cuda(ordinal) => tracing::info!("the model runs on cuda:{ordinal}: {}", choice.reason),
    }
    Ok(choice.device)
}

async fn open(model: &str) -> anyhow::Result<ModelSource> {
    let files = ModelName::parse(model)?.fetch().await?;
    Ok(spawn_blocking(move || ModelSource::open(files.path())).await??)
}

fn start(
    source: &ModelSource,
    device: DeviceArg,
    options: &EngineOptions,
    config: EngineConfig,
) -> anyhow::Result<EngineHandle> {
    let executor = match device {
        DeviceArg::Cpu => load_on_cpu(source, options)?,
        // `device::choose` admits no device that this build has no executor for.
        DeviceArg::Cuda(ordinal) => anyhow::bail!("this build cannot run models on cuda:{ordinal}"),
    };
    report(&executor, options);
    Ok(Engine::start(Box::new(executor), config)?)
}

fn load_on_cpu(source: &ModelSource, options: &EngineOptions) -> anyhow::Result<CpuExecutor> {
    let cpu = CpuOptions {
        threads: options.threads,
        max_model_len: options.max_model_len,
        max_batch_tokens: options.max_batch_tokens,
        max_sequences: options.max_sequences,
        kv_memory: KvMemory(options.kv_memory.0),
    };
    let progress =
        Progress::start(format!("loading {}", source.path().display()), source.checkpoint().file_bytes());
    let mut update = |loaded: LoadProgress| progress.set(loaded.bytes_done);
    let executor = load_cpu(source, &cpu, &mut update).map_err(explain)?;
    progress.finish("loaded");
    Ok(executor)
}

/// Names the options that help.
fn explain(error: LoadError) -> anyhow::Error {
    let advice = match &error {
        LoadError::Plan(PlanError::KvMemory { .. }) => "raise --kv-memory or lower --max-model-len",
        LoadError::Plan(PlanError::TooLong { .. }) => "lower --max-model-len",
        LoadError::Plan(PlanError::TooSmall { .. }) => "an option is too small",
        LoadError::Plan(PlanError::Memory { .. }) => {
            "lower --kv-memory, --max-batch-tokens or --max-sequences"
        }
        _ => return error.into(),
    };
    anyhow::Error::from(error).context(advice)
}

fn report(executor: &CpuExecutor, options: &EngineOptions) {
    let limits = executor.limits();
    tracing::info!(
        "KV memory {} (--kv-memory) holds {} tokens; a sequence has at most {}, {} sequences run at once, a step computes at \
         most {} tokens, {} threads",
        ByteSize(options.kv_memory.0),
        limits.num_pages * limits.page_size,
        limits.max_model_len,
        limits.max_sequences,
        limits.max_batch_tokens,
        executor.threads(),
    );
}

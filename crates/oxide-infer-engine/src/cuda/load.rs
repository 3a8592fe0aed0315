use super::bind::{Binder, BoundBody, PrepareError, rotations};
use super::classes::{Classes, StepClass};
use super::deterministic::NotDeterministicError;
use super::executor::{Bodies, CudaExecutor, Ring, Rings};
use super::inputs::{HeadInputLayout, HeadOutputLayout};
use super::lower::CudaModel;
use super::memory::{DeviceBuffers, LEAST_PAGES, MemorySizes, page_bytes};
use super::options::{ArtifactSource, CudaOptions, CudaPlanError, DecodeLaunch, STEPS_IN_FLIGHT};
use super::plan::{CoverageError, PlanSizes, Plans, Requests, UncoveredError};
use super::slots::Slots;
use super::staging::Staging;
use super::weights::{UploadError, WeightLayout, upload};
use super::writers::Writers;
use crate::batch::ExecutorLimits;
use crate::load::LoadProgress;
use crate::metrics::OperatorCounters;
use crate::model::{DenseDecoder, ModelConfig};
use crate::source::ModelSource;
use crate::weights::{ModelWeights, WeightsError};
use oxide_infer::SpecError;
use oxide_infer_cuda::artifact::{Registry, RegistryError};
use oxide_infer_cuda::driver::CudaError;
use oxide_infer_cuda::runtime::{
    CommandScope, CompletionError, Context, ContextError, EarlyLaunch, EnqueueError, Loader, MemoryPlanError,
    PinnedMemory, RegionError, StatusWord, Stream,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// Why a model could not be loaded onto a GPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaLoadError {
    /// The device cannot be used.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// No artifacts are made for the device.
    #[error("{name} has compute capability {major}.{minor}; there are kernel artifacts for 9.0 alone")]
    Architecture {
        /// The device.
        name: String,
        /// Its compute capability.
        major: u32,
        /// Its compute capability.
        minor: u32,
    },
    /// The artifacts cannot be used on it.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The files do not have the weights that the model needs.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The options cannot be met.
    #[error(transparent)]
    Plan(#[from] CudaPlanError),
    /// Operators of the model have no artifact.
    #[error(transparent)]
    Uncovered(#[from] UncoveredError),
    /// A deterministic plan is asked for, and operators have no order of sums.
    #[error(transparent)]
    NotDeterministic(#[from] NotDeterministicError),
    /// An operator of the model is not one that can be.
    #[error(transparent)]
    Operator(#[from] SpecError),
    /// The device's memory does not hold it.
    #[error(transparent)]
    Memory(#[from] MemoryPlanError),
    /// The weights cannot be brought to the device.
    #[error("the weights cannot be brought to the device: {0}")]
    Upload(#[from] UploadError),
    /// An operator that is covered could not be made ready.
    #[error("an operator cannot be made ready: {0}")]
    Prepare(#[from] PrepareError),
    /// A driver call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Work that prepares the device was refused.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// Work that prepares the device failed.
    #[error(transparent)]
    Completion(#[from] CompletionError),
    /// A part of memory is not there.
    #[error(transparent)]
    Region(#[from] RegionError),
}

impl From<CoverageError> for CudaLoadError {
    fn from(error: CoverageError) -> Self {
        match error {
            CoverageError::Uncovered(error) => error.into(),
            CoverageError::NotDeterministic(error) => error.into(),
        }
    }
}

/// Loads a model onto the GPU of that ordinal: checks that its artifacts cover the model, plans and allocates memory, brings
/// the weights there in bf16, and fixes every launch.
///
/// # Errors
/// [`CudaLoadError`]; coverage, options and memory are checked before any weight is read.
pub fn load_cuda(
    source: &ModelSource,
    ordinal: u32,
    options: &CudaOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<CudaExecutor, CudaLoadError> {
    load_cuda_on(&Context::primary(ordinal)?, source, options, progress)
}

/// As [`load_cuda`], on a context of the caller's.
///
/// # Errors
/// As [`load_cuda`].
pub fn load_cuda_on(
    context: &Context,
    source: &ModelSource,
    options: &CudaOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<CudaExecutor, CudaLoadError> {
    let config = source.config();
    options.check(config)?;
    let registry = Arc::new(registry(context, &options.artifacts)?);
    let decoder = DenseDecoder::new(config);
    let weights = ModelWeights::new(source.checkpoint(), config, &decoder)?;
    let model = CudaModel::new(&decoder);
    let layout = WeightLayout::new(&model);

    let Fit { limits, sizes, memory } = fit(context, options, config, &model, &layout, &registry)?;
    let buffers = DeviceBuffers::allocate(context, config, &layout, &memory, sizes.pool_pages)?;

    let stream = context.stream()?;
    prepare(context, &stream, config, &sizes, &buffers)?;
    upload(context, &model, &weights, &layout, &buffers.weights, progress)?;
    let status = StatusWord::new(context)?;
    let mut counters = OperatorCounters::of_artifacts(registry.digest().to_string());
    let mut loader = Loader::new(context, registry.clone()).early_launch(early_launch(options.decode_launch));
    let mut binder = Binder {
        requests: Requests::new(config, &model, &sizes, &registry)?,
        plans: Plans::new(&mut loader),
        buffers: &buffers,
        weights: &layout,
        status: &status,
        counters: &mut counters,
        decode_launch: options.decode_launch,
    };
    let rings = rings(context, &sizes, &memory, config)?;
    let bodies = bodies(&mut binder, &sizes.classes, &rings, &stream)?;
    let heads = sizes.classes.head.iter().map(|&rows| binder.head(rows)).collect::<Result<_, _>>()?;
    let record_history = binder.record_history()?;
    Ok(CudaExecutor {
        limits,
        classes: sizes.classes,
        bodies,
        heads,
        record_history,
        buffers,
        stream,
        copies: context.stream()?,
        slots: Slots::new(limits.max_sequences),
        counters: Arc::new(counters),
        num_pools: 2 * config.num_layers,
        rings,
        in_flight: VecDeque::with_capacity(STEPS_IN_FLIGHT),
        broken: false,
        spare: Vec::new(),
        writers: Writers::new(limits.num_pages, limits.max_sequences),
        kept: None,
    })
}

/// What an executor is planned for, and the memory that it takes beside weights and pages.
struct Fit {
    limits: ExecutorLimits,
    sizes: PlanSizes,
    memory: MemorySizes,
}

/// Fits the plans into the device's memory, once artifacts cover them.
fn fit(
    context: &Context,
    options: &CudaOptions,
    config: &ModelConfig,
    model: &CudaModel,
    weights: &WeightLayout,
    registry: &Registry,
) -> Result<Fit, CudaLoadError> {
    // Sizes at their largest: what is left for pages depends on them, and they on the longest sequence.
    let max_model_len = options.wanted_len(config);
    let mut sizes = PlanSizes {
        goal: options.goal,
        classes: Classes::of(options, max_model_len),
        max_sequences: options.max_sequences,
        max_model_len,
        pool_pages: LEAST_PAGES,
        multiprocessors: context.device().multiprocessors as usize,
    };
    let workspace = Requests::new(config, model, &sizes, registry)?.cover()?;
    let memory = MemorySizes::new(config, &sizes, workspace);
    let free = context.memory_info()?.free;
    memory.plan(config, &sizes, weights, LEAST_PAGES).check(free)?;
    let left = free - memory.bytes() - weights.bytes() as u64;
    let limits = options.limits(config, page_bytes(config), left)?;
    sizes.max_model_len = limits.max_model_len;
    sizes.pool_pages = limits.num_pages + 1;
    let workspace = Requests::new(config, model, &sizes, registry)?.cover()?;
    let memory = MemorySizes::new(config, &sizes, workspace);
    memory.plan(config, &sizes, weights, sizes.pool_pages).check(free)?;
    Ok(Fit { limits, sizes, memory })
}

/// What kernels may read before those ahead have ended. Weights are uploaded before the first step and never written again.
fn early_launch(launch: DecodeLaunch) -> EarlyLaunch {
    match launch {
        // A step's tables and copied pages are there before its graph begins, and of what a row attends to, the graph writes
        // the row's last page alone: that is in no other sequence of the step, and the rows of one sequence write one page.
        DecodeLaunch::Graph => EarlyLaunch::KeysSettled,
        // Nothing keeps a kernel from beginning beside the append of the step before.
        DecodeLaunch::Eager => EarlyLaunch::WhereKernelsWait,
    }
}

fn registry(context: &Context, source: &ArtifactSource) -> Result<Registry, CudaLoadError> {
    let device = context.device();
    let target = oxide_infer_cuda::artifact::Target::of(device.compute_capability, context.driver_version()?);
    let (major, minor) = device.compute_capability;
    let target =
        target.ok_or_else(|| CudaLoadError::Architecture { name: device.name.clone(), major, minor })?;
    Ok(match source {
        ArtifactSource::Embedded => Registry::embedded(target)?,
        ArtifactSource::Directory(path) => Registry::from_directory(path, target)?,
    })
}

/// Clears what steps read before they write it, and brings the rotations of every position to the device.
fn prepare(
    context: &Context,
    stream: &Stream,
    config: &ModelConfig,
    sizes: &PlanSizes,
    buffers: &DeviceBuffers,
) -> Result<(), CudaLoadError> {
    let table = rotations(config, sizes.max_model_len)?;
    let staged = PinnedMemory::allocate(context, table.len())?;
    staged.write(0, &table)?;
    let mut scope = CommandScope::new(stream)?;
    scope.copy_in(&staged, &buffers.rotations)?;
    // Unwritten slots of a page are masked, but a NaN among them would not be.
    scope.fill(&buffers.pages()?, 0)?;
    scope.fill(&buffers.history, 0)?;
    scope.fill(&buffers.last_tokens, 0)?;
    buffers.clear_activations(&mut scope)?;
    Ok(scope.finish()?.wait()?)
}

fn bodies(
    binder: &mut Binder<'_>,
    classes: &Classes,
    rings: &Rings,
    stream: &Stream,
) -> Result<Bodies, PrepareError> {
    let decode = classes.decode.iter().map(|&class| {
        let step = binder.requests.step(StepClass::Decode(class));
        let mut ring = |index: usize| {
            let (words, drawn) = (binder.buffers.step_tables(index)?, rings.rings[index].drawn.region()?);
            binder.decode(class, &step, [&words, &drawn], stream)
        };
        Ok([ring(0)?, ring(1)?])
    });
    let decode = decode.collect::<Result<Vec<_>, PrepareError>>()?;
    let mut mixed: Vec<Vec<BoundBody>> = Vec::new();
    for &tokens in &classes.tokens {
        let of = |&sequences: &usize| {
            let class = StepClass::Mixed { tokens, sequences };
            let step = binder.requests.step(class);
            binder.body(class, &step, &binder.buffers.body_inputs, stream)
        };
        mixed.push(classes.sequences.iter().map(of).collect::<Result<_, _>>()?);
    }
    Ok(Bodies { decode, mixed })
}

/// Pinned memory for the largest step that needs no more than one set of masks and biases.
fn rings(
    context: &Context,
    sizes: &PlanSizes,
    memory: &MemorySizes,
    config: &ModelConfig,
) -> Result<Rings, CudaError> {
    let largest = sizes.classes.head.last().copied().unwrap_or(1);
    // Draws and prompt rows of the largest step, each in chunks of the largest class with one more that is not full.
    let rows = sizes.max_sequences + sizes.max_tokens();
    let chunks = rows.div_ceil(largest) + 2;
    let head = chunks * HeadInputLayout::new(largest).words();
    let masks = largest * config.vocab_size.div_ceil(32);
    let inputs = memory.body_input_words() + head + masks + 2 * super::head::MAX_ADJUSTMENTS;
    let outputs = chunks * HeadOutputLayout::new(largest).words();
    let ring = || {
        Ok::<_, CudaError>(Ring {
            inputs: Staging::new(context, inputs)?,
            outputs: Staging::new(context, outputs)?,
            tables: PinnedMemory::allocate(context, memory.step_table_words())?,
            drawn: PinnedMemory::allocate(context, HeadOutputLayout::new(largest).sampled_words())?,
        })
    };
    Ok(Rings { rings: [ring()?, ring()?], next: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_count_as_settled_only_where_a_step_is_one_graph() {
        assert_eq!(early_launch(DecodeLaunch::Graph), EarlyLaunch::KeysSettled);
        assert_eq!(early_launch(DecodeLaunch::Eager), EarlyLaunch::WhereKernelsWait);
    }
}

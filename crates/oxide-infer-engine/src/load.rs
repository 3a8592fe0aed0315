use crate::cpu::{CpuExecutor, CpuOptions, PlanError};
use crate::source::{ModelSource, SourceError};
use crate::weights::WeightsError;
use oxide_infer::SpecError;
use oxide_infer_cpu::CpuError;

/// How far loading has come. Reported before the first weight and after each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadProgress {
    /// Tensors that are loaded.
    pub tensors_done: usize,
    /// Tensors in all.
    pub tensors: usize,
    /// Bytes of the files that are loaded.
    pub bytes_done: u64,
    /// Bytes of the files in all.
    pub bytes: u64,
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The path could not be opened as a model.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The files do not have the weights that the model needs.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The options cannot be met.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An operator of the model is not one that can be.
    #[error(transparent)]
    Operator(#[from] SpecError),
    /// The CPU provider refused.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The system gave no memory for the KV pages.
    #[error("cannot map {bytes} bytes for the KV pages: {source}")]
    KvPages {
        /// Bytes asked for.
        bytes: u64,
        /// What the system says.
        source: std::io::Error,
    },
}

/// Loads a model onto the CPU: checks and packs its weights, plans its memory.
///
/// Weights are packed one tensor at a time, and each tensor's pages of the file are given back, so that the process never
/// holds the model twice.
///
/// # Errors
/// [`LoadError`]; what the options ask for is checked before any weight is read.
pub fn load_cpu(
    source: &ModelSource,
    options: &CpuOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<CpuExecutor, LoadError> {
    CpuExecutor::load(source, options, progress)
}

/// Gives memory that is free back to the system. Loading frees what it needed, from many threads, and the allocator keeps that
/// for allocations that never come: what serving allocates is small.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's own locks, and gives back only pages that nothing is allocated in.
    unsafe {
        libc::malloc_trim(0);
    }
}

use super::classes::MAX_HEAD_ROWS;
use super::inputs::TOP_TOKENS;
use super::memory::PAGE_SIZE;
use crate::batch::{ExecutorLimits, PlanGoal, StepMix};
use crate::model::ModelConfig;
use std::path::PathBuf;

/// How a CUDA executor is planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Tokens in the longest sequence, prompt and answer. If absent: as many as the model was made for and the KV memory
    /// holds.
    pub max_model_len: Option<usize>,
    /// Tokens in one step; at least `max_sequences`.
    pub max_batch_tokens: usize,
    /// Sequences that run at once.
    pub max_sequences: usize,
    /// Bytes for keys and values. If absent: [`CudaOptions::KV_SHARE`] of the device memory that weights and workspace
    /// leave free.
    pub kv_memory: Option<u64>,
    /// How steps of decodes are launched.
    pub decode_launch: DecodeLaunch,
    /// Where the kernels come from.
    pub artifacts: ArtifactSource,
    /// What artifacts are chosen for: of [`PlanGoal::Fastest`] the quickest of each class, of [`PlanGoal::Deterministic`] those
    /// of one order of sums in every class, and steps of prompts and generated tokens apart.
    pub goal: PlanGoal,
}

/// Where kernel artifacts come from. Both are verified whole before one is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ArtifactSource {
    /// From the binary.
    #[default]
    Embedded,
    /// From a folder with an `index.json`, as `artifacts/sm_90a` is.
    Directory(PathBuf),
}

/// How the operators of a decode step are launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecodeLaunch {
    /// As one graph for each class, captured when the model is loaded.
    #[default]
    Graph,
    /// One by one, for parity runs and profilers.
    Eager,
}

impl CudaOptions {
    /// The share of what is free that KV pages take by default, in percent. The rest is for the driver: modules, graphs.
    pub const KV_SHARE: u64 = 92;
}

impl Default for CudaOptions {
    /// The model's own length as far as memory goes, 2,048 tokens a step, 256 sequences, most of the free memory for KV.
    fn default() -> Self {
        Self {
            max_model_len: None,
            max_batch_tokens: 2048,
            max_sequences: 256,
            kv_memory: None,
            decode_launch: DecodeLaunch::Graph,
            artifacts: ArtifactSource::Embedded,
            goal: PlanGoal::Fastest,
        }
    }
}

/// Options that a device cannot meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaPlanError {
    /// An option is outside its range.
    #[error("{option} is {value}; it must be from {least} to {most}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        value: usize,
        /// The least that works.
        least: usize,
        /// The most that works.
        most: usize,
    },
    /// More positions than the model was made for.
    #[error("max_model_len is {wanted}; the model was made for {limit} positions")]
    TooLong {
        /// Tokens asked for.
        wanted: usize,
        /// What the model can.
        limit: usize,
    },
    /// The KV memory does not hold one sequence.
    #[error(
        "{given} bytes of KV memory hold {held} tokens; one sequence of {wanted} tokens needs {needed} bytes, {} more",
        needed - given
    )]
    KvMemory {
        /// Bytes given.
        given: u64,
        /// Tokens that they hold.
        held: usize,
        /// Tokens of a sequence.
        wanted: usize,
        /// Bytes that those need.
        needed: u64,
    },
}

/// Tokens in a step; what is past it only makes steps long.
const MAX_BATCH_TOKENS: usize = 1 << 16;
/// Rows of a grid's second dimension.
const MAX_SEQUENCES: usize = 1 << 12;

impl CudaOptions {
    /// Checks what does not depend on memory.
    pub(super) fn check(&self, config: &ModelConfig) -> Result<(), CudaPlanError> {
        let most_sequences = match self.goal {
            PlanGoal::Fastest => MAX_SEQUENCES,
            // Of more there is no class of generated tokens.
            PlanGoal::Deterministic => MAX_HEAD_ROWS,
        };
        let ranges = [
            ("max_sequences", self.max_sequences, 1, most_sequences),
            ("max_batch_tokens", self.max_batch_tokens, self.max_sequences, MAX_BATCH_TOKENS),
            ("max_model_len", self.max_model_len.unwrap_or(1), 1, usize::MAX),
        ];
        for (option, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(CudaPlanError::OutOfRange { option, value, least, most });
            }
        }
        let limit = config.max_position_embeddings;
        match self.max_model_len {
            Some(wanted) if wanted > limit => Err(CudaPlanError::TooLong { wanted, limit }),
            _ => Ok(()),
        }
    }

    /// The longest sequence that may be asked for, before it is known how much memory is left for pages.
    pub(super) fn wanted_len(&self, config: &ModelConfig) -> usize {
        self.max_model_len.unwrap_or(config.max_position_embeddings)
    }

    /// The executor's limits, given the bytes that are left for pages.
    pub(super) fn limits(
        &self,
        config: &ModelConfig,
        page_bytes: u64,
        left: u64,
    ) -> Result<ExecutorLimits, CudaPlanError> {
        let given = self.kv_memory.unwrap_or(left / 100 * Self::KV_SHARE);
        // Page ids and a pool's rows are counted in 31 bits. One page is the null page.
        let pages = (given / page_bytes).min((i32::MAX as u64) / PAGE_SIZE as u64) as usize;
        let num_pages = pages.saturating_sub(1);
        let held = num_pages * PAGE_SIZE;
        let limit = config.max_position_embeddings;
        let max_model_len = self.max_model_len.unwrap_or_else(|| limit.min(held.max(PAGE_SIZE)));
        if max_model_len > held {
            let needed = (max_model_len.div_ceil(PAGE_SIZE) as u64 + 1) * page_bytes;
            return Err(CudaPlanError::KvMemory { given, held, wanted: max_model_len, needed });
        }
        Ok(ExecutorLimits {
            page_size: PAGE_SIZE,
            num_pages,
            max_sequences: self.max_sequences,
            max_batch_tokens: self.max_batch_tokens,
            max_model_len,
            vocab_size: config.vocab_size,
            max_logprobs: TOP_TOKENS as u32,
            // No operator hands them out yet.
            hidden_size: None,
            steps_in_flight: STEPS_IN_FLIGHT,
            step_mix: match self.goal {
                PlanGoal::Fastest => StepMix::Mixed,
                PlanGoal::Deterministic => StepMix::Apart,
            },
        })
    }
}

/// One step computes while the host prepares the next.
pub(super) const STEPS_IN_FLIGHT: usize = 2;

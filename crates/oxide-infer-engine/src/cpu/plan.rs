use super::workspace::Slabs;
use crate::batch::{ExecutorLimits, StepMix};
use crate::model::ModelConfig;
use std::fmt;
use std::num::NonZeroUsize;

/// Tokens in a KV page.
pub const PAGE_SIZE: usize = 64;

/// How a CPU executor is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that compute; one for every core if absent.
    pub threads: Option<NonZeroUsize>,
    /// Tokens in the longest sequence, prompt and answer. If absent: as many as the model was made for and the KV
    /// memory holds.
    pub max_model_len: Option<usize>,
    /// Tokens in one step; at least `max_sequences`.
    pub max_batch_tokens: usize,
    /// Sequences that run at once.
    pub max_sequences: usize,
    /// Memory for keys and values.
    pub kv_memory: KvMemory,
}

impl Default for CpuOptions {
    /// All cores, the model's own length as far as memory goes, 512 tokens a step, 64 sequences, 1 GiB of KV.
    fn default() -> Self {
        Self {
            threads: None,
            max_model_len: None,
            max_batch_tokens: 512,
            max_sequences: 64,
            kv_memory: KvMemory::default(),
        }
    }
}

/// Memory for keys and values of all layers, in bytes.
///
/// It is reserved when the model is loaded, and used as pages are written for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KvMemory(pub u64);

impl Default for KvMemory {
    /// 1 GiB.
    fn default() -> Self {
        Self(1 << 30)
    }
}

impl fmt::Display for KvMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / (1 << 20) as f64)
    }
}

/// Options that cannot be met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An option is out of its range.
    #[error("{option} is {value}; it must be at least {least}")]
    TooSmall {
        /// The option.
        option: &'static str,
        /// Its value.
        value: usize,
        /// The least that works.
        least: usize,
    },
    /// An option is past what any machine can use.
    #[error("{option} is {value}; it must be at most {most}")]
    TooLarge {
        /// The option.
        option: &'static str,
        /// Its value.
        value: usize,
        /// The most that works.
        most: usize,
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
    /// More positions than the model was made for.
    #[error("max_model_len is {wanted}; the model was made for {limit} positions")]
    TooLong {
        /// Tokens asked for.
        wanted: usize,
        /// What the model can.
        limit: usize,
    },
    /// The machine does not have the memory.
    #[error(
        "weights ({weights} bytes), KV ({kv} bytes) and workspace ({workspace} bytes) do not fit the {available} bytes \
         of memory that are available, {} are missing",
        weights + kv + workspace - available
    )]
    Memory {
        /// Bytes of the weights.
        weights: u64,
        /// Bytes of the KV pools.
        kv: u64,
        /// Bytes of the workspace.
        workspace: u64,
        /// Bytes that the system has.
        available: u64,
    },
}

/// Everything about an executor that is known before weights are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExecutorPlan {
    pub(super) limits: ExecutorLimits,
    /// Rows whose logits are computed at once.
    pub(super) logit_rows: usize,
}

/// Tokens in a step; far more than fill any machine.
const MAX_BATCH_TOKENS: usize = 1 << 20;
/// Threads; more than any machine has cores.
const MAX_THREADS: usize = 1024;
/// Logits that are held at once, unless one row has more.
const LOGIT_BYTES: usize = 16 << 20;
/// More rows at once gain nothing.
const MAX_LOGIT_ROWS: usize = 64;

impl ExecutorPlan {
    pub(super) fn new(
        config: &ModelConfig,
        options: &CpuOptions,
        weight_bytes: u64,
    ) -> Result<Self, PlanError> {
        let least = [
            ("max_sequences", options.max_sequences, 1),
            ("max_batch_tokens", options.max_batch_tokens, options.max_sequences),
            ("max_model_len", options.max_model_len.unwrap_or(1), 1),
        ];
        if let Some((option, value, least)) = least.into_iter().find(|(_, value, least)| value < least) {
            return Err(PlanError::TooSmall { option, value, least });
        }
        let most = [
            ("max_batch_tokens", options.max_batch_tokens, MAX_BATCH_TOKENS),
            ("threads", options.threads.map_or(1, NonZeroUsize::get), MAX_THREADS),
        ];
        if let Some((option, value, most)) = most.into_iter().find(|(_, value, most)| value > most) {
            return Err(PlanError::TooLarge { option, value, most });
        }
        let (num_pages, max_model_len) = pages(config, options)?;
        let limits = ExecutorLimits {
            page_size: PAGE_SIZE,
            num_pages,
            max_sequences: options.max_sequences,
            max_batch_tokens: options.max_batch_tokens,
            max_model_len,
            vocab_size: config.vocab_size,
            max_logprobs: u32::MAX,
            hidden_size: Some(config.hidden_size),
            steps_in_flight: 1,
            // Every product and every sum is the same in a chunk and alone.
            step_mix: StepMix::Mixed,
        };
        let logit_rows = (LOGIT_BYTES / (4 * config.vocab_size)).clamp(1, MAX_LOGIT_ROWS);
        let plan = Self { limits, logit_rows };
        plan.check_memory(config, weight_bytes)?;
        Ok(plan)
    }

    /// Refuses what the machine cannot hold, where the system says how much that is.
    fn check_memory(&self, config: &ModelConfig, weights: u64) -> Result<(), PlanError> {
        let kv = self.limits.num_pages as u64 * page_bytes(config);
        let workspace = Slabs::bytes(config, &self.limits, self.logit_rows);
        match available_memory() {
            Some(available) if weights + kv + workspace > available => {
                Err(PlanError::Memory { weights, kv, workspace, available })
            }
            _ => Ok(()),
        }
    }
}

/// Bytes of one page of keys and of values, in all layers.
pub(super) fn page_bytes(config: &ModelConfig) -> u64 {
    2 * (config.num_layers * PAGE_SIZE * config.kv_size() * size_of::<f32>()) as u64
}

/// Pages in the pool, and tokens in the longest sequence.
fn pages(config: &ModelConfig, options: &CpuOptions) -> Result<(usize, usize), PlanError> {
    let limit = config.max_position_embeddings;
    if let Some(wanted) = options.max_model_len.filter(|&wanted| wanted > limit) {
        return Err(PlanError::TooLong { wanted, limit });
    }
    let KvMemory(given) = options.kv_memory;
    // Page ids are 32-bit, and a pool's tokens are counted in a usize.
    let num_pages = (given / page_bytes(config)).min(u32::MAX.into()) as usize;
    let held = num_pages * PAGE_SIZE;
    let wanted = options.max_model_len.unwrap_or_else(|| limit.min(held.max(PAGE_SIZE)));
    if wanted > held {
        let needed = wanted.div_ceil(PAGE_SIZE) as u64 * page_bytes(config);
        return Err(PlanError::KvMemory { given, held, wanted, needed });
    }
    Ok((num_pages, wanted))
}

/// Bytes that this process may still use: what the kernel calls available, or what its control group has left.
fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let machine = line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024;
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(max, current)| max.saturating_sub(current));
    Some(group.map_or(machine, |group| group.min(machine)))
}

#[cfg(test)]
mod tests;

//! Device memory of an executor: sized before any of it is allocated.

use super::classes::{DecodeClass, StepClass};
use super::inputs::{BodyLayout, HeadInputLayout, HeadOutputLayout};
use super::lower::Activation;
use super::options::STEPS_IN_FLIGHT;
use super::plan::{CANDIDATE_TILE, PlanSizes};
use super::weights::WeightLayout;
use crate::model::ModelConfig;
use half::bf16;
use oxide_infer::{DType, Element};
use oxide_infer_cuda::runtime::{
    CommandScope, Context, DeviceMemory, EnqueueError, MemoryPlan, MemoryPlanError, Region, RegionError, Span,
};

/// Tokens in a KV page.
pub(super) const PAGE_SIZE: usize = 64;

/// The null page, and one for a sequence.
pub(super) const LEAST_PAGES: usize = 2;

/// Bytes of one page of keys and of values, in all layers.
pub(super) fn page_bytes(config: &ModelConfig) -> u64 {
    2 * (config.num_layers * PAGE_SIZE * config.kv_size() * size_of::<bf16>()) as u64
}

/// Elements of everything but weights and pages.
#[derive(Clone, Debug)]
pub(super) struct MemorySizes {
    /// Of a step's tokens, in bytes: they differ in type.
    activations: [usize; Activation::ALL.len()],
    /// Of rows that are picked of them, in bytes.
    picked: [usize; Activation::ALL.len()],
    logits: usize,
    candidates: usize,
    workspace: usize,
    rotations: usize,
    history: usize,
    last_tokens: usize,
    body_inputs: usize,
    step_tables: usize,
    head_inputs: usize,
    head_outputs: usize,
    masks: usize,
    adjustments: usize,
    history_entries: usize,
}

/// The memory of an executor.
pub(super) struct DeviceBuffers {
    pub(super) weights: DeviceMemory,
    /// Of all tokens of a step.
    pub(super) step: Activations,
    /// Of the rows whose logits are needed.
    pub(super) picked: Activations,
    /// `[rows, vocab_size]`
    pub(super) logits: Region<f32>,
    /// `[rows, ⌈vocab_size / 192⌉]`, of every tile of a row's logits the greatest.
    pub(super) best_logits: Region<f32>,
    /// The tokens that have them.
    pub(super) best_tokens: Region<u32>,
    pub(super) workspace: WorkspaceMemory,
    /// `[max_positions, head_dim / 2, 2]`
    pub(super) rotations: Region<f32>,
    /// `[max_sequences, vocab_size]`
    pub(super) history: Region<u32>,
    /// `[max_sequences]`
    pub(super) last_tokens: Region<u32>,
    /// The tables of a step that is no decode step.
    pub(super) body_inputs: Region<u32>,
    /// The tables of the decode steps in flight, of their bodies and of their draws.
    step_tables: Region<u32>,
    pub(super) head_inputs: Region<u32>,
    pub(super) head_outputs: Region<u32>,
    /// `[rows, ⌈vocab_size / 32⌉]`
    pub(super) masks: Region<u32>,
    pub(super) adjust_tokens: Region<u32>,
    pub(super) adjust_values: Region<f32>,
    /// Slots, tokens and kinds of the entries, one list after the other.
    pub(super) history_entries: Region<u32>,
    pools: DeviceMemory,
    /// Elements of one pool.
    pool: usize,
    /// Elements of one page of a pool.
    page: usize,
}

/// Where operators over the same rows read and write.
pub(super) struct Activations([Region<u8>; Activation::ALL.len()]);

impl Activations {
    /// All of one.
    pub(super) fn span(&self, activation: Activation) -> Result<Span<'_>, RegionError> {
        let region = &self.0[activation as usize];
        region.memory().span(region.offset(), region.bytes(), activation.dtype())
    }
}

/// Memory whose contents mean nothing between operators.
pub(super) struct WorkspaceMemory {
    memory: DeviceMemory,
    offset: usize,
}

impl WorkspaceMemory {
    /// A part of it for one operand of an operator.
    pub(super) fn span(&self, offset: usize, bytes: usize, dtype: DType) -> Result<Span<'_>, RegionError> {
        self.memory.span(self.offset + offset, bytes, dtype)
    }
}

/// Cuts memory into the parts that it was sized for, in order.
struct Cutter<'a> {
    memory: &'a DeviceMemory,
    offset: usize,
}

impl Cutter<'_> {
    fn region<T: Element>(&mut self, elements: usize) -> Region<T> {
        let offset = self.take(elements * size_of::<T>());
        self.memory.region(offset, elements).expect("the memory was sized for its parts")
    }

    fn workspace(&mut self, bytes: usize) -> WorkspaceMemory {
        WorkspaceMemory { memory: self.memory.clone(), offset: self.take(bytes) }
    }

    fn take(&mut self, bytes: usize) -> usize {
        let offset = self.offset;
        self.offset += bytes.max(1).next_multiple_of(ALIGNMENT);
        offset
    }
}

/// Parts begin at multiples of this many bytes.
const ALIGNMENT: usize = 256;

impl MemorySizes {
    pub(super) fn new(config: &ModelConfig, sizes: &PlanSizes, workspace: usize) -> Self {
        let tokens = sizes.max_tokens();
        let rows = sizes.classes.head.last().copied().unwrap_or(1);
        let words = |class: StepClass| BodyLayout::new(class, sizes.max_pages()).words();
        let decode =
            |&class: &DecodeClass| words(StepClass::Decode(class)) + HeadInputLayout::new(class.rows).words();
        let bytes =
            |rows: usize, activation: Activation| rows * activation.width(config) * activation.dtype().size();
        Self {
            activations: Activation::ALL.map(|activation| bytes(tokens, activation)),
            picked: Activation::ALL.map(|activation| match activation {
                Activation::Squares | Activation::Projected | Activation::Rotated => 0,
                Activation::Hidden | Activation::Normed | Activation::Attention | Activation::Activated => {
                    bytes(rows, activation)
                }
            }),
            logits: rows * config.vocab_size,
            candidates: rows * config.vocab_size.div_ceil(CANDIDATE_TILE),
            workspace,
            rotations: sizes.max_model_len * config.head_dim,
            history: sizes.max_sequences * config.vocab_size,
            last_tokens: sizes.max_sequences,
            body_inputs: sizes.classes.mixed().map(words).max().unwrap_or(0),
            step_tables: sizes.classes.decode.iter().map(decode).max().unwrap_or(0),
            head_inputs: HeadInputLayout::new(rows).words(),
            head_outputs: HeadOutputLayout::new(rows).words(),
            masks: rows * config.vocab_size.div_ceil(32),
            adjustments: super::head::MAX_ADJUSTMENTS,
            history_entries: super::history::WORDS,
        }
    }

    /// Bytes of every part, in the order of [`DeviceBuffers`]' fields between weights and pools.
    fn parts(&self) -> Vec<usize> {
        let mut parts = [self.activations, self.picked].concat();
        parts.extend([self.logits * 4, self.candidates * 4, self.candidates * 4, self.workspace]);
        let words = [
            self.rotations,
            self.history,
            self.last_tokens,
            self.body_inputs,
            STEPS_IN_FLIGHT * self.step_tables,
            self.head_inputs,
            self.head_outputs,
            self.masks,
            self.adjustments,
            self.adjustments,
            self.history_entries,
        ];
        parts.extend(words.map(|words| words * 4));
        parts.iter().map(|bytes| bytes.max(&1).next_multiple_of(ALIGNMENT)).collect()
    }

    /// Words of the tables of the largest step that is no decode step.
    pub(super) fn body_input_words(&self) -> usize {
        self.body_inputs
    }

    /// Words of the tables of the largest decode step.
    pub(super) fn step_table_words(&self) -> usize {
        self.step_tables
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> u64 {
        self.parts().iter().map(|&bytes| bytes as u64).sum()
    }

    /// What a model needs with so many pages, by what there could be less of.
    pub(super) fn plan(
        &self,
        config: &ModelConfig,
        sizes: &PlanSizes,
        weights: &WeightLayout,
        pages: usize,
    ) -> MemoryPlan {
        let (tokens, sequences) = (sizes.max_tokens() as u64, sizes.max_sequences as u64);
        let of_token = self.activations.iter().sum::<usize>() as u64 / tokens;
        let of_sequence = 4 * (self.history + self.last_tokens) as u64 / sequences;
        let rest = self.bytes() - of_token * tokens - of_sequence * sequences;
        MemoryPlan::default()
            .fixed("weights", weights.bytes() as u64)
            .fixed("workspace", rest)
            .counted("tokens a step", of_token, tokens, sequences)
            .counted("sequences", of_sequence, sequences, 1)
            .counted("KV pages", page_bytes(config), pages as u64, LEAST_PAGES as u64)
    }
}

impl DeviceBuffers {
    /// Allocates everything, which was found to fit.
    pub(super) fn allocate(
        context: &Context,
        config: &ModelConfig,
        weights: &WeightLayout,
        sizes: &MemorySizes,
        pool_pages: usize,
    ) -> Result<Self, MemoryPlanError> {
        let plan = MemoryPlan::default()
            .fixed("weights", weights.bytes() as u64)
            .fixed("workspace", sizes.bytes())
            .fixed("KV pages", page_bytes(config) * pool_pages as u64);
        let parts = plan.allocate(context)?;
        let [weights, working, pools] =
            <[DeviceMemory; 3]>::try_from(parts).unwrap_or_else(|_| unreachable!("the plan has three parts"));
        let page = PAGE_SIZE * config.kv_size();
        Ok(Self::carve(weights, &working, pools, sizes, (pool_pages * page, page)))
    }

    fn carve(
        weights: DeviceMemory,
        working: &DeviceMemory,
        pools: DeviceMemory,
        sizes: &MemorySizes,
        (pool, page): (usize, usize),
    ) -> Self {
        let mut cutter = Cutter { memory: working, offset: 0 };
        let [step, picked] = [sizes.activations, sizes.picked]
            .map(|sizes| Activations(sizes.map(|bytes| cutter.region(bytes))));
        Self {
            weights,
            step,
            picked,
            logits: cutter.region(sizes.logits),
            best_logits: cutter.region(sizes.candidates),
            best_tokens: cutter.region(sizes.candidates),
            workspace: cutter.workspace(sizes.workspace),
            rotations: cutter.region(sizes.rotations),
            history: cutter.region(sizes.history),
            last_tokens: cutter.region(sizes.last_tokens),
            body_inputs: cutter.region(sizes.body_inputs),
            step_tables: cutter.region(STEPS_IN_FLIGHT * sizes.step_tables),
            head_inputs: cutter.region(sizes.head_inputs),
            head_outputs: cutter.region(sizes.head_outputs),
            masks: cutter.region(sizes.masks),
            adjust_tokens: cutter.region(sizes.adjustments),
            adjust_values: cutter.region(sizes.adjustments),
            history_entries: cutter.region(sizes.history_entries),
            pools,
            pool,
            page,
        }
    }

    /// Fills everything that operators write before they read it, so that padding rows compute with numbers.
    pub(super) fn clear_activations(&self, scope: &mut CommandScope) -> Result<(), EnqueueError> {
        let activations = self.step.0.iter().chain(&self.picked.0).filter(|region| !region.is_empty());
        activations.into_iter().try_for_each(|activation| scope.fill(activation, 0))?;
        [&self.body_inputs, &self.step_tables, &self.head_inputs, &self.head_outputs, &self.masks]
            .into_iter()
            .try_for_each(|words| scope.fill(words, 0))?;
        scope.fill(&self.adjust_tokens, 0)?;
        scope.fill(&self.adjust_values, 0)
    }

    /// The tables of one ring's decode step.
    pub(super) fn step_tables(&self, ring: usize) -> Result<Region<u32>, RegionError> {
        let words = self.step_tables.len() / STEPS_IN_FLIGHT;
        self.step_tables.slice(ring * words..(ring + 1) * words)
    }

    /// The K pool and the V pool of a layer.
    pub(super) fn layer(&self, layer: usize) -> Result<[Region<bf16>; 2], RegionError> {
        let bytes = self.pool * size_of::<bf16>();
        Ok([
            self.pools.region(2 * layer * bytes, self.pool)?,
            self.pools.region((2 * layer + 1) * bytes, self.pool)?,
        ])
    }

    /// A page of every pool of a model, keys and values of all layers.
    pub(super) fn page(&self, pool: usize, page: usize) -> Result<Region<bf16>, RegionError> {
        self.pools.region((pool * self.pool + page * self.page) * size_of::<bf16>(), self.page)
    }

    /// Bytes of all pages.
    pub(super) fn pool_bytes(&self) -> u64 {
        self.pools.bytes() as u64
    }

    /// All pages, to be cleared before the first step.
    pub(super) fn pages(&self) -> Result<Region<bf16>, RegionError> {
        self.pools.region(0, self.pools.bytes() / size_of::<bf16>())
    }
}

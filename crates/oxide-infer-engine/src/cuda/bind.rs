//! Operators with every address fixed.

mod fused;
mod head;

pub(super) use head::BoundHead;

use super::classes::{DecodeClass, StepClass};
use super::fuse::{Embedding, Step};
use super::inputs::{BodyLayout, HeadInputLayout, HeadOutputLayout};
use super::lower::{Activation, CudaOperator, HeadNorms, Residual};
use super::memory::{Activations, DeviceBuffers};
use super::options::DecodeLaunch;
use super::plan::{Plans, Requests, WORKSPACE_ALIGNMENT};
use super::weights::WeightLayout;
use crate::metrics::OperatorCounters;
use crate::model::{ModelConfig, WeightId};
use half::bf16;
use head::{Draws, Samplers};
use oxide_infer::Element;
use oxide_infer_cuda::artifact::{Request, ResolveError};
use oxide_infer_cuda::runtime::{
    BindError, BoundOperator, CommandScope, EnqueueError, Graph, GraphError, Operands, OperatorPlan,
    PlanError, Region, RegionError, StatusWord, Stream, Workspace,
};
use std::ops::Range;
use std::rc::Rc;

/// Why a covered operator could not be made ready.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Its artifact cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Its operands cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Its workspace has no size.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A part of device memory is not there.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A graph cannot be captured.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Operators in order, and how often each artifact is among them.
#[derive(Default)]
pub(super) struct Sequence {
    operators: Vec<BoundOperator>,
    /// Index of the counter, and how often.
    counts: Vec<(usize, u64)>,
}

impl Sequence {
    pub(super) fn enqueue(&self, scope: &mut CommandScope) -> Result<(), EnqueueError> {
        self.operators.iter().try_for_each(|operator| operator.enqueue(scope))
    }

    /// Operators.
    pub(super) fn len(&self) -> usize {
        self.operators.len()
    }

    /// Counts its operators as executed.
    pub(super) fn count(&self, counters: &OperatorCounters) {
        self.counts.iter().for_each(|&(counter, times)| counters.add(counter, times));
    }

    fn push(&mut self, operator: BoundOperator, counters: &mut OperatorCounters) {
        let counter = counters.index(&operator.artifact().manifest().name);
        match self.counts.iter_mut().find(|(known, _)| *known == counter) {
            Some((_, times)) => *times += 1,
            None => self.counts.push((counter, 1)),
        }
        self.operators.push(operator);
    }
}

/// A step's body in one class.
pub(super) struct BoundBody {
    pub(super) layout: BodyLayout,
    /// From token ids to the residual stream.
    pub(super) operators: Sequence,
    /// Those operators as one launch; decode steps have it, unless they are to be launched one by one.
    pub(super) graph: Option<Graph>,
}

/// A decode step in one class, for one ring of steps in flight.
pub(super) struct BoundDecode {
    pub(super) body: BoundBody,
    /// Where the tables of its draws lie, after those of its body.
    pub(super) draws: HeadInputLayout,
    pub(super) outputs: HeadOutputLayout,
    /// From what the body leaves to logits.
    pub(super) logits: Sequence,
    /// From those and the tables to the ring's pinned memory.
    pub(super) samplers: Samplers,
    /// From what the body leaves to the same tokens as by logits and the greedy sampler, where that is faster.
    pub(super) candidates: Option<Sequence>,
}

impl BoundDecode {
    /// Words of its tables.
    pub(super) fn words(&self) -> usize {
        self.body.layout.words() + self.draws.words()
    }
}

/// Makes operators ready, one class after the other.
pub(super) struct Binder<'a> {
    pub(super) requests: Requests<'a>,
    pub(super) plans: Plans<'a>,
    pub(super) buffers: &'a DeviceBuffers,
    pub(super) weights: &'a WeightLayout,
    pub(super) status: &'a StatusWord,
    pub(super) counters: &'a mut OperatorCounters,
    pub(super) decode_launch: DecodeLaunch,
}

impl Binder<'_> {
    /// A step's body, whose tables are in `words`.
    pub(super) fn body(
        &mut self,
        class: StepClass,
        step: &Step,
        words: &Region<u32>,
        stream: &Stream,
    ) -> Result<BoundBody, PrepareError> {
        let layout = BodyLayout::new(class, self.requests.sizes.max_pages());
        let tables = Tables::new(words, &layout)?;
        let mut operators = Sequence::default();
        self.embed(&step.embedding, class, &tables, &mut operators)?;
        for (layer, lowered) in step.layers.iter().enumerate() {
            for operator in lowered {
                self.layer(operator, layer, class, &tables, &mut operators)?;
            }
        }
        let graph = match (class, self.decode_launch) {
            (StepClass::Decode(_), DecodeLaunch::Graph) => {
                Some(Graph::capture(stream, |scope| operators.enqueue(scope))?)
            }
            (StepClass::Decode(_), DecodeLaunch::Eager) | (StepClass::Mixed { .. }, _) => None,
        };
        Ok(BoundBody { layout, operators, graph })
    }

    /// A decode step, whose tables are in `words` and whose tokens go to `drawn`.
    pub(super) fn decode(
        &mut self,
        class: DecodeClass,
        step: &Step,
        [words, drawn]: [&Region<u32>; 2],
        stream: &Stream,
    ) -> Result<BoundDecode, PrepareError> {
        let body = self.body(StepClass::Decode(class), step, words, stream)?;
        let (draws, outputs) = (HeadInputLayout::new(class.rows), HeadOutputLayout::new(class.rows));
        let start = body.layout.words();
        let of_draws = words.slice(start..start + draws.words())?;
        let tables = Draws::new((&of_draws, &draws), (drawn, &outputs))?;
        let logits = self.decode_logits(class, step)?;
        let samplers = self.samplers(class.rows, &tables)?;
        let candidates = self.candidates(class, &tables)?;
        Ok(BoundDecode { body, draws, outputs, logits, samplers, candidates })
    }

    pub(super) fn record_history(&mut self) -> Result<Sequence, PrepareError> {
        let mut sequence = Sequence::default();
        let entries = &self.buffers.history_entries;
        let len = entries.len() / 3;
        let list = |i: usize| entries.slice(i * len..(i + 1) * len);
        let (slots, tokens, kinds) = (list(0)?, list(1)?, list(2)?);
        let operands = Operands::new()
            .region("history", &self.buffers.history)
            .region("entry_slots", &slots)
            .region("entry_tokens", &tokens)
            .region("entry_kinds", &kinds)
            .status(self.status);
        self.bind(&self.requests.record_history(), operands, &mut sequence)?;
        Ok(sequence)
    }

    fn embed(
        &mut self,
        embedding: &Embedding,
        class: StepClass,
        tables: &Tables,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let config = self.requests.config;
        let table = self.weight(self.requests.model.embed.id, config.vocab_size * config.hidden_size)?;
        let norm_weight = match embedding {
            Embedding::Plain => None,
            Embedding::Weighted { norm } => Some(self.weight(norm.id, norm.len)?),
        };
        let buffers = self.buffers;
        let mut operands = Operands::new()
            .region("ids", &tables.ids)
            .region("slots", &tables.slots)
            .region("last_tokens", &buffers.last_tokens)
            .region("table", &table)
            .span("output", buffers.step.span(Activation::Hidden)?)
            .status(self.status);
        if let Some(norm_weight) = &norm_weight {
            operands = operands
                .region("norm_weight", norm_weight)
                .span("weighted", buffers.step.span(Activation::Normed)?)
                .span("squares", buffers.step.span(Activation::Squares)?);
        }
        self.bind(&self.requests.embed(embedding, class), operands, to)
    }

    fn layer(
        &mut self,
        operator: &CudaOperator,
        layer: usize,
        class: StepClass,
        tables: &Tables,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let Some(request) = self.requests.layer(operator, class) else {
            unreachable!("the model is covered, and this operator has no contract: {operator:?}")
        };
        match operator {
            CudaOperator::RopeAppend { head_norms } => {
                self.rope_append(&request, *head_norms, layer, tables, to)
            }
            CudaOperator::Attention { .. } => self.attention(&request, layer, class, tables, to),
            CudaOperator::Fused(fused) => self.fused(&request, fused, layer, tables, to),
            by_rows => self.row_wise(&request, by_rows, &self.buffers.step, to),
        }
    }

    /// An operator whose rows have nothing to do with one another.
    fn row_wise(
        &mut self,
        request: &Request,
        operator: &CudaOperator,
        rows: &Activations,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        match operator {
            CudaOperator::RmsNorm(norm) => {
                let weight = self.weight(norm.weight.id, norm.weight.len)?;
                let operands = Operands::new()
                    .span("input", rows.span(Activation::Hidden)?)
                    .region("weight", &weight)
                    .span("output", rows.span(Activation::Normed)?)
                    .attribute("epsilon", norm.eps);
                self.bind(request, operands, to)
            }
            CudaOperator::Dense { input, weights, bias, residual, output } => {
                let elements = weights.iter().map(|weight| weight.rows * weight.cols).sum();
                let weight = self.weight(weights[0].id, elements)?;
                let bias =
                    bias.as_ref().map(|bias| self.weight(bias[0].id, bias.iter().map(|part| part.len).sum()));
                let bias = bias.transpose()?;
                let output = rows.span(*output)?;
                let mut operands = Operands::new()
                    .span("input", rows.span(*input)?)
                    .region("weight", &weight)
                    .span("output", output);
                if let Some(bias) = &bias {
                    operands = operands.region("bias", bias);
                }
                if *residual == Residual::Present {
                    operands = operands.span("residual", output);
                }
                self.bind(request, operands, to)
            }
            CudaOperator::DenseSwiGlu { gate, up } => {
                let elements = gate.rows * gate.cols + up.rows * up.cols;
                let weight = self.weight(gate.id, elements)?;
                let operands = Operands::new()
                    .span("input", rows.span(Activation::Normed)?)
                    .region("weight", &weight)
                    .span("output", rows.span(Activation::Activated)?);
                self.bind(request, operands, to)
            }
            CudaOperator::RopeAppend { .. }
            | CudaOperator::Attention { .. }
            | CudaOperator::Fused(_)
            | CudaOperator::Other(_) => unreachable!("it has no such request"),
        }
    }

    fn rope_append(
        &mut self,
        request: &Request,
        head_norms: Option<HeadNorms>,
        layer: usize,
        tables: &Tables,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let norms = head_norms.map(|norms| {
            let query = self.weight(norms.query.id, norms.query.len)?;
            let key = self.weight(norms.key.id, norms.key.len)?;
            Ok::<_, PrepareError>((query, key, norms.eps))
        });
        let norms = norms.transpose()?;
        let buffers = self.buffers;
        let [k_pages, v_pages] = buffers.layer(layer)?;
        let mut operands = Operands::new()
            .span("qkv", buffers.step.span(Activation::Projected)?)
            .region("positions", &tables.positions)
            .region("query_start", &tables.query_start)
            .region("block_table", &tables.block_table)
            .region("rotations", &buffers.rotations)
            .span("q_out", buffers.step.span(Activation::Rotated)?)
            .region("k_pages", &k_pages)
            .region("v_pages", &v_pages)
            .status(self.status);
        if let Some((query, key, eps)) = &norms {
            operands = operands.region("q_weight", query).region("k_weight", key);
            operands = operands.attribute("epsilon", *eps);
        }
        self.bind(request, operands, to)
    }

    fn attention(
        &mut self,
        request: &Request,
        layer: usize,
        class: StepClass,
        tables: &Tables,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let buffers = self.buffers;
        let [k_pages, v_pages] = buffers.layer(layer)?;
        let scale = (1.0 / (self.requests.config.head_dim as f64).sqrt()) as f32;
        let mut operands = Operands::new()
            .span("q", buffers.step.span(Activation::Rotated)?)
            .region("k_pages", &k_pages)
            .region("v_pages", &v_pages)
            .region("block_table", &tables.block_table)
            .region("kv_len", &tables.kv_len)
            .span("output", buffers.step.span(Activation::Attention)?)
            .attribute("scale", scale)
            .status(self.status);
        if let StepClass::Mixed { .. } = class {
            operands = operands.region("query_start", &tables.query_start);
        }
        self.bind(request, operands, to)
    }

    fn bind(
        &mut self,
        request: &Request,
        operands: Operands<'_>,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let plan: Rc<OperatorPlan> = self.plans.plan(request)?;
        let workspaces = plan.workspaces()?;
        let (mut operands, mut offset) = (operands, 0);
        for Workspace { name, dtype, bytes, .. } in &workspaces {
            let bytes = *bytes as usize;
            operands = operands.span(name, self.buffers.workspace.span(offset, bytes, *dtype)?);
            offset += bytes.next_multiple_of(WORKSPACE_ALIGNMENT);
        }
        let bound = plan.bind(&operands)?;
        to.push(bound, self.counters);
        Ok(())
    }

    fn weight(&self, first: WeightId, elements: usize) -> Result<Region<bf16>, RegionError> {
        self.weights.region(&self.buffers.weights, first, elements)
    }
}

/// A part of a table memory, as the type that its words have.
fn part<T: Element>(memory: &Region<u32>, range: &Range<usize>) -> Result<Region<T>, RegionError> {
    memory.slice(range.clone())?.cast()
}

/// The tables of a step's body on the device.
struct Tables {
    ids: Region<u32>,
    slots: Region<i32>,
    positions: Region<i32>,
    query_start: Region<i32>,
    kv_len: Region<i32>,
    block_table: Region<i32>,
}

impl Tables {
    fn new(words: &Region<u32>, layout: &BodyLayout) -> Result<Self, RegionError> {
        Ok(Self {
            ids: part(words, &layout.ids)?,
            slots: part(words, &layout.slots)?,
            positions: part(words, &layout.positions)?,
            query_start: part(words, &layout.query_start)?,
            kv_len: part(words, &layout.kv_len)?,
            block_table: part(words, &layout.block_table)?,
        })
    }
}

/// The cosines and sines of every position, `[max_positions, head_dim / 2, 2]`.
pub(super) fn rotations(
    config: &ModelConfig,
    max_positions: usize,
) -> Result<Vec<f32>, oxide_infer::SpecError> {
    use oxide_infer::position::rope;
    use rayon::prelude::*;
    let spec = rope::Spec::new(config.rope.contract(oxide_infer::DType::BF16, config.head_dim))?;
    let row = |position| spec.rotations(position).flatten().map(|value| value as f32).collect::<Vec<_>>();
    Ok((0..max_positions).into_par_iter().flat_map_iter(row).collect())
}

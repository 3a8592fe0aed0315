//! The artifacts as a provider of the contracts, for the conformance suite that every provider runs.

mod attention;
mod cache;
mod chained;
mod judged;
mod norms;
mod tokens;

use crate::call::{Bench, Call, Outcome, failed};
use crate::gates::Shape;
pub(crate) use chained::{BegunNorm, ScaledProducts};
use judged::{Judged, agrees, is_padding};
pub(crate) use norms::NormedReference;
use oxide_infer::activation::swiglu;
use oxide_infer::attention::{paged_decode, paged_prefill, ragged_prefill, single_decode};
use oxide_infer::conformance::{Operators, Refusal};
use oxide_infer::embedding::gather;
use oxide_infer::gemm::{dense, dense_swiglu};
use oxide_infer::kv_cache::{paged_append, rope_append};
use oxide_infer::normalization::rms_norm;
use oxide_infer::position::rope;
use oxide_infer::sampling::{self, LogitsRow, Sampled};
use oxide_infer::{Contract, FloatView, OperandError, Spec as _, Weight};
use oxide_infer_cuda::artifact::{Artifact, Dimensions, Request};
use std::sync::Arc;

/// What a call may choose that its contract does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// There is nothing to choose.
    Plain,
    /// Blocks that share the keys of a sequence.
    Splits(u64),
    /// Tokens at the end of the batch that belong to no sequence.
    Padding(usize),
}

/// Runs contracts through one artifact on one device; what that artifact does not admit is not covered.
pub(crate) struct OxideTile {
    bench: Bench,
    artifact: Arc<Artifact>,
    choice: Choice,
    /// The only case that is run, if not all are.
    shape: Option<Shape>,
    runs: usize,
    unjudged: usize,
}

impl OxideTile {
    pub(crate) fn new(bench: Bench, artifact: &Arc<Artifact>, choice: Choice) -> Self {
        Self { bench, artifact: artifact.clone(), choice, shape: None, runs: 0, unjudged: 0 }
    }

    /// Takes no case but this one.
    pub(crate) fn only(self, shape: Shape) -> Self {
        Self { shape: Some(shape), ..self }
    }

    /// Refuses cases that are not to be run.
    fn check_shape(&self, dimensions: &Dimensions) -> Result<(), Refusal> {
        match self.shape {
            Some(shape) if !shape.is_of(dimensions) => {
                Err(Refusal::NotAdmitted(format!("only the case of {:?} is run", shape.0)))
            }
            _ => Ok(()),
        }
    }

    /// Calls that the device has run to their end; the others were refused before it.
    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    /// Calls that were also run by a graph's replay, to the same bits.
    pub(crate) fn replays(&self) -> usize {
        self.bench.replays
    }

    /// Faults of the contract that the artifact admits: their cases count as not covered.
    pub(crate) fn unjudged(&self) -> usize {
        self.unjudged
    }

    fn outcome(&mut self, call: Call<'_>) -> Outcome {
        self.check_shape(call.dimensions())?;
        let outcome = call.run(&mut self.bench, &self.artifact);
        self.runs += usize::from(outcome.is_ok());
        outcome
    }

    /// Runs a call whose operands hold no index, in which no fault can be found.
    fn run(&mut self, call: Call<'_>) -> Result<(), Refusal> {
        match self.outcome(call)? {
            None => Ok(()),
            Some(fault) => Err(Refusal::Failed(format!("the device found a fault: {fault}"))),
        }
    }

    /// Runs a call whose indices the host has judged: the device must come to the same verdict.
    fn run_judged(&mut self, call: Call<'_>, judged: Judged) -> Result<(), Refusal> {
        match (self.outcome(call)?, judged) {
            (None, Judged(_, Ok(()))) => Ok(()),
            (Some(found), Judged(contract, Err(error))) if agrees(found, contract, error) => {
                Err(OperandError::Data { contract, error }.into())
            }
            (None, Judged(contract, Err(error))) if is_padding(contract, error) => {
                self.unjudged += 1;
                Err(Refusal::NotAdmitted(format!("the kernel takes these tokens for padding: {error}")))
            }
            (found, Judged(_, judged)) => Err(judged::disagreement(found, judged)),
        }
    }

    /// A product with its input staged; if that was weighted before, with sums of the stream's squares.
    fn product<'a>(&self, asked: Request, input: &FloatView<'_, 2>) -> Result<Call<'a>, Refusal> {
        if self.has("norm", "squares") {
            let [m, k] = input.shape();
            let mut call = Call::new(asked.property("input", "weighted_bf16").property("norm", "squares"));
            call.read_float("input", input)?;
            call.read_list("squares", &chained::squares(m, k));
            call.attribute("epsilon", chained::EPSILON);
            return Ok(call);
        }
        let mut call = Call::new(asked);
        call.read_float("input", input)?;
        Ok(call)
    }

    /// Whether the artifact has these properties, and these dimensions in its domain.
    fn is_for(&self, asked: &Request) -> bool {
        let manifest = self.artifact.manifest();
        let inside = |(name, value): (&String, &u64)| {
            manifest.dimensions.get(name).is_some_and(|domain| (domain.min..=domain.max).contains(value))
        };
        *asked.properties() == manifest.properties && asked.dimensions().iter().all(inside)
    }

    /// Whether the artifact has a property with that value.
    pub(crate) fn has(&self, property: &str, value: &str) -> bool {
        self.artifact.manifest().properties.get(property).is_some_and(|found| found.to_string() == value)
    }
}

fn with(request: Request, dimensions: &[(&str, usize)]) -> Request {
    dimensions.iter().fold(request, |r, (name, value)| r.dimension(name, *value as u64))
}

/// The operands of a product but its input.
pub(crate) fn stage_product<'a>(call: &mut Call<'a>, operands: dense::Operands<'a>) -> Result<(), Refusal> {
    call.read_float("weight", &dense_only("weight", &operands.weight)?)?;
    if let Some(bias) = &operands.bias {
        call.read_float("bias", bias)?;
    }
    if let Some(residual) = &operands.residual {
        call.read_float("residual", residual)?;
    }
    call.write_float("output", operands.output)
}

fn dense_only<'a>(name: &str, weight: &Weight<'a>) -> Result<FloatView<'a, 2>, Refusal> {
    match weight {
        Weight::Dense(view) => Ok(*view),
        Weight::Blocks(_) => Err(Refusal::NotAdmitted(format!("operand {name} is stored in blocks"))),
    }
}

impl Operators for OxideTile {
    fn rms_norm(&mut self, spec: &rms_norm::Spec, operands: rms_norm::Operands<'_>) -> Result<(), Refusal> {
        operands.check(spec)?;
        let [tokens, heads, _] = operands.input.shape();
        if tokens * heads == 0 {
            return Ok(());
        }
        let mut call = Call::new(with(Request::from(spec), &[("tokens", tokens), ("heads", heads)]));
        call.read_float("input", &operands.input)?;
        call.read_float("weight", &operands.weight)?;
        if let Some(residual) = operands.residual {
            call.read_write_float("residual", residual)?;
        }
        call.write_float("output", operands.output)?;
        call.attribute("epsilon", spec.config().epsilon);
        self.run(call)
    }

    fn dense(&mut self, spec: &dense::Spec, operands: dense::Operands<'_>) -> Result<(), Refusal> {
        operands.check(spec)?;
        let [m, _] = operands.input.shape();
        if m == 0 {
            return Ok(());
        }
        if self.has("residual", "weighted") {
            return chained::weighted(self, spec, operands);
        }
        let mut call = self.product(with(Request::from(spec), &[("m", m)]), &operands.input)?;
        stage_product(&mut call, operands)?;
        self.run(call)
    }

    fn dense_swiglu(
        &mut self,
        spec: &dense_swiglu::Spec,
        operands: dense_swiglu::Operands<'_>,
    ) -> Result<(), Refusal> {
        operands.check(spec)?;
        let [m, _] = operands.input.shape();
        if m == 0 {
            return Ok(());
        }
        let mut call = self.product(with(Request::from(spec), &[("m", m)]), &operands.input)?;
        call.read_float("weight", &dense_only("weight", &operands.weight)?)?;
        call.write_float("output", operands.output)?;
        self.run(call)
    }

    fn gather(&mut self, spec: &gather::Spec, operands: gather::Operands<'_>) -> Result<(), Refusal> {
        operands.check(spec)?;
        let ([tokens], [vocab_size, _]) = (operands.ids.shape(), operands.table.shape());
        if tokens == 0 {
            return Ok(());
        }
        let judged = Judged(Contract::GATHER, operands.check_indices());
        let mut asked = with(Request::from(spec), &[("tokens", tokens), ("vocab_size", vocab_size)]);
        let mut ids: Vec<u32> = (0..tokens).map(|token| operands.ids.at([token])).collect();
        // Every other id by way of a slot, where the artifact feeds sampled tokens back.
        let feeds = self.has("feedback", "present");
        let (mut slots, mut last_tokens) = (vec![-1_i32; tokens], vec![u32::MAX; tokens + 3]);
        if feeds {
            asked = with(asked.property("feedback", "present"), &[("max_sequences", last_tokens.len())]);
            if self.has("norm", "weighted") {
                asked = asked.property("norm", "weighted");
            }
            for token in (1..tokens).step_by(2) {
                let slot = last_tokens.len() - 1 - token;
                (slots[token], last_tokens[slot]) = (slot as i32, ids[token]);
                ids[token] = u32::MAX;
            }
        }
        let mut call = Call::new(asked);
        call.read_list("ids", &ids);
        if feeds {
            call.read_list("slots", &slots);
            call.read_list("last_tokens", &last_tokens);
        }
        call.read_float("table", &dense_only("table", &operands.table)?)?;
        if self.has("norm", "weighted") {
            return chained::gathered(self, call, judged, operands.output);
        }
        call.write_float("output", operands.output)?;
        self.run_judged(call, judged)
    }

    fn swiglu(&mut self, spec: &swiglu::Spec, operands: swiglu::Operands<'_>) -> Result<(), Refusal> {
        operands.check(spec)?;
        let [rows, _] = operands.gate.shape();
        if rows == 0 {
            return Ok(());
        }
        let mut call = Call::new(with(Request::from(spec), &[("rows", rows)]));
        call.read_float("gate", &operands.gate)?;
        call.read_float("up", &operands.up)?;
        call.write_float("output", operands.output)?;
        self.run(call)
    }

    fn rope(&mut self, spec: &rope::Spec, operands: rope::Operands<'_>) -> Result<(), Refusal> {
        cache::rope(self, spec, operands)
    }

    fn paged_append(
        &mut self,
        spec: &paged_append::Spec,
        operands: paged_append::Operands<'_>,
    ) -> Result<(), Refusal> {
        cache::paged_append(self, spec, operands)
    }

    fn rope_append(
        &mut self,
        spec: &rope_append::Spec,
        operands: rope_append::Operands<'_>,
    ) -> Result<(), Refusal> {
        if self.has("qkv", "projected") {
            return chained::rope_append(self, spec, operands);
        }
        cache::rope_append(self, spec, operands)
    }

    fn single_decode(
        &mut self,
        spec: &single_decode::Spec,
        operands: single_decode::Operands<'_>,
    ) -> Result<(), Refusal> {
        attention::single_decode(self, spec, operands)
    }

    fn paged_decode(
        &mut self,
        spec: &paged_decode::Spec,
        operands: paged_decode::Operands<'_>,
    ) -> Result<(), Refusal> {
        attention::paged_decode(self, spec, operands)
    }

    fn ragged_prefill(
        &mut self,
        spec: &ragged_prefill::Spec,
        operands: ragged_prefill::Operands<'_>,
    ) -> Result<(), Refusal> {
        attention::ragged_prefill(self, spec, operands)
    }

    fn paged_prefill(
        &mut self,
        spec: &paged_prefill::Spec,
        operands: paged_prefill::Operands<'_>,
    ) -> Result<(), Refusal> {
        attention::paged_prefill(self, spec, operands)
    }

    fn sample(&mut self, spec: &sampling::Spec, rows: &[LogitsRow<'_>]) -> Result<Vec<Sampled>, Refusal> {
        tokens::sample(self, spec, rows)
    }
}

//! The artifacts as a provider of the contracts, for the conformance suite that every provider runs.

mod fused;
mod judged;
mod norms;
mod tokens;

use crate::call::{Bench, Call, Outcome, failed};
use crate::gates::Shape;
pub(crate) use fused::NormedProducts;
use half::bf16;
use judged::{Judged, agrees, is_padding};
pub(crate) use norms::NormedReference;
use oxide_infer::attention::{paged_decode, paged_prefill};
use oxide_infer::conformance::{Operators, Refusal};
use oxide_infer::embedding::gather;
use oxide_infer::gemm::{dense, dense_swiglu};
use oxide_infer::kv_cache::rope_append;
use oxide_infer::normalization::rms_norm;
use oxide_infer::position::rope;
use oxide_infer::sampling::{self, LogitsRow, Sampled};
use oxide_infer::{Contract, FloatView, OperandError, Spec, View, Weight};
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
    /// Rows of a tile of the weight, where they are not fixed, and blocks that take turns at tiles.
    Tiles { rows: u64, blocks: u64 },
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

    /// A product with its input staged; if the artifact normalizes it, as the residual stream with a norm's weights.
    fn product<'a>(&self, asked: Request, input: &FloatView<'_, 2>) -> Result<Call<'a>, Refusal> {
        let asked = self.tiled(asked);
        if !self.has("norm", "rms") {
            let mut call = Call::new(asked);
            call.read_float("input", input)?;
            return Ok(call);
        }
        let mut call = Call::new(asked.property("input", "f32").property("norm", "rms"));
        call.read_list("input", &fused::stream(input));
        call.read_list("norm_weight", &fused::weights(input.shape()[1]));
        call.attribute("epsilon", fused::EPSILON);
        Ok(call)
    }

    /// With the tiles that were chosen, as far as the artifact leaves them open.
    fn tiled(&self, asked: Request) -> Request {
        let Choice::Tiles { rows, blocks } = self.choice else { return asked };
        let open = |name: &str| self.artifact.manifest().dimensions.contains_key(name);
        let chosen = [("tile_rows", rows), ("blocks", blocks)].into_iter().filter(|(name, _)| open(name));
        chosen.fold(asked, |asked, (name, value)| asked.dimension(name, value))
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

/// What the two attention contracts over pages read of their tables.
fn sizes(pages: [usize; 4], table: [usize; 2]) -> [(&'static str, usize); 3] {
    [("batch", table[0]), ("num_pages", pages[0]), ("max_pages", table[1])]
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
        call.write_float("output", operands.output)?;
        self.run_judged(call, judged)
    }

    fn rope_append(
        &mut self,
        spec: &rope_append::Spec,
        operands: rope_append::Operands<'_>,
    ) -> Result<(), Refusal> {
        operands.check(spec)?;
        let ([tokens, num_q_heads, head_dim], [_, num_kv_heads, _]) =
            (operands.q.shape(), operands.k.shape());
        if tokens == 0 {
            return Ok(());
        }
        if self.has("qkv", "projected") {
            return fused::rope_append(self, spec, operands);
        }
        let judged = Judged(Contract::ROPE_APPEND, operands.check_indices(spec));
        let qkv = packed(&[&operands.q, &operands.k, &operands.v]);
        let rotations = rotations(spec.config().rope.clone(), &operands.positions)?;
        let max_positions = rotations.len() / head_dim.max(1);
        let tables = sizes(operands.k_pages.shape(), operands.block_table.shape());
        let more = [("tokens", tokens), ("max_positions", max_positions)];
        let normed = self.has("qk_norm", "present");
        let asked = Request::from(spec).property("qkv", "packed");
        let asked = asked.property("qk_norm", if normed { "present" } else { "absent" });
        let mut call = Call::new(with(with(asked, &tables), &more));
        let heads = num_q_heads + 2 * num_kv_heads;
        debug_assert_eq!(qkv.len(), tokens * heads * head_dim);
        call.read_list("qkv", &qkv);
        call.read("positions", &operands.positions)?;
        call.read("query_start", &operands.query_start)?;
        call.read("block_table", &operands.block_table)?;
        call.read_list("rotations", &rotations);
        if normed {
            let [q_weight, k_weight] = norms::weights(head_dim);
            call.read_list("q_weight", &q_weight);
            call.read_list("k_weight", &k_weight);
            call.attribute("epsilon", norms::EPSILON);
        }
        call.write_float("q_out", operands.q_out)?;
        call.read_write_float("k_pages", operands.k_pages)?;
        call.read_write_float("v_pages", operands.v_pages)?;
        self.run_judged(call, judged)
    }

    fn paged_decode(
        &mut self,
        spec: &paged_decode::Spec,
        operands: paged_decode::Operands<'_>,
    ) -> Result<(), Refusal> {
        operands.check(spec)?;
        if operands.q.shape()[0] == 0 {
            return Ok(());
        }
        let judged = Judged(Contract::PAGED_DECODE, operands.check_indices(spec));
        let asked = with(Request::from(spec), &sizes(operands.k_pages.shape(), operands.block_table.shape()));
        let mut call = Call::new(match self.choice {
            Choice::Splits(splits) => asked.dimension("splits", splits),
            Choice::Plain | Choice::Padding(_) | Choice::Tiles { .. } => asked,
        });
        call.read_float("q", &operands.q)?;
        call.read_float("k_pages", &operands.k_pages)?;
        call.read_float("v_pages", &operands.v_pages)?;
        call.read("block_table", &operands.block_table)?;
        call.read("kv_len", &operands.kv_len)?;
        call.write_float("output", operands.output)?;
        if let Some(lse) = operands.lse {
            call.write("lse", lse)?;
        }
        call.attribute("scale", spec.config().attention.scale);
        self.run_judged(call, judged)
    }

    fn paged_prefill(
        &mut self,
        spec: &paged_prefill::Spec,
        operands: paged_prefill::Operands<'_>,
    ) -> Result<(), Refusal> {
        operands.check(spec)?;
        let ([tokens, num_q_heads, head_dim], [batch, _]) =
            (operands.q.shape(), operands.block_table.shape());
        if tokens * batch == 0 {
            return Ok(());
        }
        let verdict = operands.check_indices(spec);
        // Padding would bring starts into range that lie after the tokens.
        let padding = match self.choice {
            Choice::Padding(tokens) if verdict.is_ok() => tokens,
            _ => 0,
        };
        let judged = Judged(Contract::PAGED_PREFILL, verdict);
        let all = tokens + padding;
        let tables = sizes(operands.k_pages.shape(), operands.block_table.shape());
        let (Some(q), Some(mut output)) = (operands.q.typed::<bf16>(), operands.output.typed::<bf16>())
        else {
            return Err(Refusal::NotAdmitted("only bf16 is".to_owned()));
        };
        let (Some(q), Some(output)) = (q.as_slice(), output.as_mut_slice()) else {
            return Err(Refusal::NotAdmitted("q and output must be contiguous".to_owned()));
        };
        let row = num_q_heads * head_dim;
        let mut padded = vec![bf16::ZERO; all * row];
        let mut call = Call::new(with(with(Request::from(spec), &tables), &[("tokens", all)]));
        call.read_list("q", &[q, &vec![bf16::NAN; padding * row]].concat());
        call.read_float("k_pages", &operands.k_pages)?;
        call.read_float("v_pages", &operands.v_pages)?;
        call.read("block_table", &operands.block_table)?;
        call.read("kv_len", &operands.kv_len)?;
        call.read("query_start", &operands.query_start)?;
        call.write_list("output", &mut padded);
        if let Some(lse) = operands.lse {
            call.write("lse", lse)?;
        }
        call.attribute("scale", spec.config().attention.scale);
        let found = self.run_judged(call, judged);
        let (own, others) = padded.split_at(tokens * row);
        output.copy_from_slice(own);
        match others.iter().position(|element| element.to_bits() != u16::MAX) {
            Some(at) if found.is_ok() => {
                Err(Refusal::Failed(format!("element {at} of tokens of no sequence was written")))
            }
            _ => found,
        }
    }

    fn sample(&mut self, spec: &sampling::Spec, rows: &[LogitsRow<'_>]) -> Result<Vec<Sampled>, Refusal> {
        tokens::sample(self, spec, rows)
    }
}

/// `[tokens, heads, head_dim]` parts joined along the heads, as the projection of a model leaves them.
fn packed(parts: &[&FloatView<'_, 3>]) -> Vec<bf16> {
    let [tokens, _, head_dim] = parts[0].shape();
    let mut all = Vec::new();
    for token in 0..tokens {
        for part in parts {
            let heads = part.shape()[1];
            let at = |i: usize| part.at([token, i / head_dim, i % head_dim]);
            all.extend((0..heads * head_dim).map(|i| bf16::from_f32(at(i))));
        }
    }
    all
}

/// `[max_positions, rotary_dim / 2, 2]`: the contract's cosines and sines up to the last position in use.
fn rotations(config: rope::Config, positions: &View<'_, i32, 1>) -> Result<Vec<f32>, Refusal> {
    let last = (0..positions.shape()[0]).map(|i| positions.at([i])).max().unwrap_or(0).max(0);
    let spec = rope::Spec::new(config).map_err(failed)?;
    let rows = (0..=last as usize).flat_map(|position| spec.rotations(position));
    Ok(rows.flatten().map(|value| value as f32).collect())
}

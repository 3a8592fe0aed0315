//! The artifacts as a provider of the contracts, for the conformance suite that every provider runs.

use crate::call::{Call, Outcome, failed};
use half::bf16;
use oxide_infer::attention::{paged_decode, paged_prefill};
use oxide_infer::conformance::{Operators, Refusal};
use oxide_infer::embedding::gather;
use oxide_infer::gemm::dense;
use oxide_infer::kv_cache::rope_append;
use oxide_infer::normalization::rms_norm;
use oxide_infer::position::rope;
use oxide_infer::sampling::{self, LogitsRow, Sampled};
use oxide_infer::{Contract, DataError, FloatView, OperandError, Spec, TokenId, View, ViewMut, Weight};
use oxide_infer_cuda::artifact::status::DeviceStatus;
use oxide_infer_cuda::artifact::{Artifact, Registry, Request};
use oxide_infer_cuda::driver::CudaError;
use oxide_infer_cuda::runtime::{Context, Loader, Stream};
use std::sync::Arc;

/// Blocks that share the keys of a sequence where an artifact splits them: enough that short sequences leave some empty.
const SPLITS: u64 = 7;

/// Runs contracts through one artifact on one device; what that artifact does not admit is not covered.
pub(crate) struct OxideTile {
    context: Context,
    stream: Stream,
    loader: Loader,
    registry: Arc<Registry>,
    artifact: Arc<Artifact>,
    runs: usize,
}

impl OxideTile {
    pub(crate) fn new(
        context: &Context,
        registry: &Arc<Registry>,
        artifact: &Arc<Artifact>,
    ) -> Result<Self, CudaError> {
        let (stream, loader) = (context.stream()?, Loader::new(context, registry.clone()));
        let (registry, artifact) = (registry.clone(), artifact.clone());
        Ok(Self { context: context.clone(), stream, loader, registry, artifact, runs: 0 })
    }

    /// Cases that the device has run to their end; the others were refused before it.
    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    fn outcome(&mut self, call: Call<'_>) -> Outcome {
        let outcome = call.run(&mut self.loader, &self.registry, &self.artifact.manifest().name);
        self.runs += usize::from(outcome.is_ok());
        outcome
    }

    fn call<'a>(&self, request: Request) -> Call<'a> {
        Call::new(&self.context, &self.stream, request)
    }

    /// Runs a call whose operands hold no index, in which no fault can be found.
    fn run(&mut self, call: Call<'_>) -> Result<(), Refusal> {
        match self.outcome(call)? {
            None => Ok(()),
            Some(fault) => Err(Refusal::Failed(format!("the device found a fault: {fault}"))),
        }
    }

    /// Runs a call whose indices the host has judged: the device must come to the same verdict.
    fn run_judged(&mut self, call: Call<'_>, judged: Result<(), OperandError>) -> Result<(), Refusal> {
        match (self.outcome(call)?, judged) {
            (None, Ok(())) => Ok(()),
            (Some(_), Err(error)) => Err(error.into()),
            (found, judged) => Err(disagreement(found, judged)),
        }
    }
}

fn judge(contract: Contract, indices: Result<(), DataError>) -> Result<(), OperandError> {
    indices.map_err(|error| OperandError::Data { contract, error })
}

fn disagreement(found: Option<DeviceStatus>, judged: Result<(), OperandError>) -> Refusal {
    let device = found.map_or("no fault".to_owned(), |fault| fault.to_string());
    let host = judged.err().map_or("no fault".to_owned(), |error| error.to_string());
    Refusal::Failed(format!("the device found {device}; the host found {host}"))
}

/// A spec's own properties and dimensions; what the operands say is added by the caller.
fn request<S: Spec>(spec: &S) -> Request {
    let request = Request::new(S::CONTRACT.name(), S::CONTRACT.version());
    let request = spec.properties().into_iter().fold(request, |r, (name, value)| r.property(name, value));
    spec.dimensions().into_iter().fold(request, |r, (name, value)| r.dimension(name, value as u64))
}

fn with(request: Request, dimensions: &[(&str, usize)]) -> Request {
    dimensions.iter().fold(request, |r, (name, value)| r.dimension(name, *value as u64))
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
        let mut call = self.call(with(request(spec), &[("tokens", tokens), ("heads", heads)]));
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
        let mut call = self.call(with(request(spec), &[("m", m)]));
        call.read_float("input", &operands.input)?;
        call.read_float("weight", &dense_only("weight", &operands.weight)?)?;
        if let Some(bias) = &operands.bias {
            call.read_float("bias", bias)?;
        }
        if let Some(residual) = &operands.residual {
            call.read_float("residual", residual)?;
        }
        call.write_float("output", operands.output)?;
        self.run(call)
    }

    fn gather(&mut self, spec: &gather::Spec, operands: gather::Operands<'_>) -> Result<(), Refusal> {
        operands.check(spec)?;
        let ([tokens], [vocab_size, _]) = (operands.ids.shape(), operands.table.shape());
        if tokens == 0 {
            return Ok(());
        }
        let judged = judge(Contract::GATHER, operands.check_indices());
        let mut call = self.call(with(request(spec), &[("tokens", tokens), ("vocab_size", vocab_size)]));
        call.read("ids", &operands.ids)?;
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
        let ([num_pages, ..], [batch, max_pages]) = (operands.k_pages.shape(), operands.block_table.shape());
        if tokens == 0 {
            return Ok(());
        }
        let judged = judge(Contract::ROPE_APPEND, operands.check_indices(spec));
        let qkv = packed(&[&operands.q, &operands.k, &operands.v]);
        let rotations = rotations(spec.config().rope.clone(), &operands.positions)?;
        let max_positions = rotations.len() / head_dim.max(1);
        let sizes = [
            ("tokens", tokens),
            ("batch", batch),
            ("num_pages", num_pages),
            ("max_pages", max_pages),
            ("max_positions", max_positions),
        ];
        let asked = request(spec).property("qkv", "packed").property("qk_norm", "absent");
        let mut call = self.call(with(asked, &sizes));
        let heads = num_q_heads + 2 * num_kv_heads;
        call.read("qkv", &View::contiguous(&qkv, [tokens, heads, head_dim]).map_err(failed)?)?;
        call.read("positions", &operands.positions)?;
        call.read("query_start", &operands.query_start)?;
        call.read("block_table", &operands.block_table)?;
        call.read("rotations", &View::contiguous(&rotations, [rotations.len()]).map_err(failed)?)?;
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
        let ([num_pages, ..], [batch, max_pages]) = (operands.k_pages.shape(), operands.block_table.shape());
        if batch == 0 {
            return Ok(());
        }
        let judged = judge(Contract::PAGED_DECODE, operands.check_indices(spec));
        let sizes = [("batch", batch), ("num_pages", num_pages), ("max_pages", max_pages)];
        let asked = with(request(spec), &sizes);
        let splits = self.artifact.manifest().dimensions.contains_key("splits");
        let mut call = self.call(if splits { asked.dimension("splits", SPLITS) } else { asked });
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
        let ([num_pages, ..], [batch, max_pages]) = (operands.k_pages.shape(), operands.block_table.shape());
        let [tokens, ..] = operands.q.shape();
        if tokens * batch == 0 {
            return Ok(());
        }
        let judged = judge(Contract::PAGED_PREFILL, operands.check_indices(spec));
        let sizes =
            [("batch", batch), ("num_pages", num_pages), ("max_pages", max_pages), ("tokens", tokens)];
        let mut call = self.call(with(request(spec), &sizes));
        call.read_float("q", &operands.q)?;
        call.read_float("k_pages", &operands.k_pages)?;
        call.read_float("v_pages", &operands.v_pages)?;
        call.read("block_table", &operands.block_table)?;
        call.read("kv_len", &operands.kv_len)?;
        call.read("query_start", &operands.query_start)?;
        call.write_float("output", operands.output)?;
        if let Some(lse) = operands.lse {
            call.write("lse", lse)?;
        }
        call.attribute("scale", spec.config().attention.scale);
        self.run_judged(call, judged)
    }

    fn sample(&mut self, spec: &sampling::Spec, rows: &[LogitsRow<'_>]) -> Result<Vec<Sampled>, Refusal> {
        let plain = |row: &LogitsRow<'_>| {
            let p = row.params;
            p.temperature == 0.0 && !p.reads_history() && p.logit_bias.is_empty() && row.mask.is_none()
        };
        if !rows.iter().all(|row| plain(row) && row.top_logprobs.is_none()) {
            return Err(Refusal::NotAdmitted("only greedy rows with nothing added are sampled".to_owned()));
        }
        // The contract's own judgement of the rows, and its errors.
        let expected = sampling::reference(spec, rows)?;
        if rows.is_empty() {
            return Ok(expected);
        }
        let logits = rows.iter().flat_map(|row| row.logits).copied().collect::<Vec<_>>();
        let mut tokens = vec![0_u32; rows.len()];
        let greedy = request(spec).property("logits", "f32").property("method", "greedy");
        let mut call = self.call(with(greedy, &[("rows", rows.len())]));
        call.read("logits", &View::contiguous(&logits, [logits.len()]).map_err(failed)?)?;
        call.write("tokens", ViewMut::contiguous(&mut tokens, [rows.len()]).map_err(failed)?)?;
        self.run(call)?;
        Ok(tokens.into_iter().map(|token| Sampled { token: TokenId(token), logprobs: None }).collect())
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

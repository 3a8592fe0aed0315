//! Attention, over pages and over keys that lie one after another.

use super::cache::sizes;
use super::{Choice, Judged, OxideTile, Refusal, with};
use crate::call::Call;
use half::bf16;
use oxide_infer::attention::{paged_decode, paged_prefill, ragged_prefill, single_decode};
use oxide_infer::{Contract, FloatView, FloatViewMut, Spec, View, ViewMut};
use oxide_infer_cuda::artifact::Request;

pub(super) fn single_decode(
    tile: &mut OxideTile,
    spec: &single_decode::Spec,
    operands: single_decode::Operands<'_>,
) -> Result<(), Refusal> {
    operands.check(spec)?;
    let [kv_len, _, _] = operands.k.shape();
    let mut call = Call::new(tile.split(with(Request::from(spec), &[("kv_len", kv_len)])));
    call.read_float("q", &operands.q)?;
    call.read_float("k", &operands.k)?;
    call.read_float("v", &operands.v)?;
    call.write_float("output", operands.output)?;
    if let Some(lse) = operands.lse {
        call.write("lse", lse)?;
    }
    call.attribute("scale", spec.config().scale);
    tile.run(call)
}

pub(super) fn paged_decode(
    tile: &mut OxideTile,
    spec: &paged_decode::Spec,
    operands: paged_decode::Operands<'_>,
) -> Result<(), Refusal> {
    operands.check(spec)?;
    if operands.q.shape()[0] == 0 {
        return Ok(());
    }
    let judged = Judged(Contract::PAGED_DECODE, operands.check_indices(spec));
    let tables = sizes(operands.k_pages.shape(), operands.block_table.shape());
    let mut call = Call::new(tile.split(with(Request::from(spec), &tables)));
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
    tile.run_judged(call, judged)
}

pub(super) fn paged_prefill(
    tile: &mut OxideTile,
    spec: &paged_prefill::Spec,
    operands: paged_prefill::Operands<'_>,
) -> Result<(), Refusal> {
    operands.check(spec)?;
    let ([tokens, ..], [batch, _]) = (operands.q.shape(), operands.block_table.shape());
    if tokens * batch == 0 {
        return Ok(());
    }
    let judged = Judged(Contract::PAGED_PREFILL, operands.check_indices(spec));
    let tables = sizes(operands.k_pages.shape(), operands.block_table.shape());
    let mut call = Call::new(with(Request::from(spec), &tables));
    call.read_float("k_pages", &operands.k_pages)?;
    call.read_float("v_pages", &operands.v_pages)?;
    call.read("block_table", &operands.block_table)?;
    call.read("kv_len", &operands.kv_len)?;
    call.attribute("scale", spec.config().attention.scale);
    let rows =
        Rows { q: operands.q, query_start: operands.query_start, output: operands.output, lse: operands.lse };
    rows.run(tile, call, judged)
}

pub(super) fn ragged_prefill(
    tile: &mut OxideTile,
    spec: &ragged_prefill::Spec,
    operands: ragged_prefill::Operands<'_>,
) -> Result<(), Refusal> {
    operands.check(spec)?;
    let ([tokens, ..], [kv_tokens, ..]) = (operands.q.shape(), operands.k.shape());
    let batch = operands.query_start.shape()[0] - 1;
    if tokens * batch == 0 {
        return Ok(());
    }
    let judged = Judged(Contract::RAGGED_PREFILL, operands.check_indices());
    let sizes = [("batch", batch), ("kv_tokens", kv_tokens)];
    let mut call = Call::new(with(Request::from(spec), &sizes));
    call.read_float("k", &operands.k)?;
    call.read_float("v", &operands.v)?;
    call.read("kv_start", &operands.kv_start)?;
    call.attribute("scale", spec.config().attention.scale);
    let rows =
        Rows { q: operands.q, query_start: operands.query_start, output: operands.output, lse: operands.lse };
    rows.run(tile, call, judged)
}

/// The rows of a prefill.
struct Rows<'a> {
    q: FloatView<'a, 3>,
    query_start: View<'a, i32, 1>,
    output: FloatViewMut<'a, 3>,
    lse: Option<ViewMut<'a, f32, 2>>,
}

impl Rows<'_> {
    /// Runs a call with these rows and, if so chosen, with some of no sequence after them, which must be left as they are.
    fn run(self, tile: &mut OxideTile, call: Call<'_>, judged: Judged) -> Result<(), Refusal> {
        let [tokens, num_q_heads, head_dim] = self.q.shape();
        // Padding would bring starts into range that lie after the tokens.
        let padding = match tile.choice {
            Choice::Padding(tokens) if judged.1.is_ok() => tokens,
            _ => 0,
        };
        let (Some(q), Some(mut output)) = (self.q.typed::<bf16>(), self.output.typed::<bf16>()) else {
            return Err(Refusal::NotAdmitted("only bf16 is".to_owned()));
        };
        let (Some(q), Some(output)) = (q.as_slice(), output.as_mut_slice()) else {
            return Err(Refusal::NotAdmitted("q and output must be contiguous".to_owned()));
        };
        let row = num_q_heads * head_dim;
        let mut padded = vec![bf16::ZERO; (tokens + padding) * row];
        let mut call = call.dimension("tokens", tokens + padding);
        call.read_list("q", &[q, &vec![bf16::NAN; padding * row]].concat());
        call.read("query_start", &self.query_start)?;
        call.write_list("output", &mut padded);
        if let Some(lse) = self.lse {
            call.write("lse", lse)?;
        }
        let found = tile.run_judged(call, judged);
        let (own, others) = padded.split_at(tokens * row);
        output.copy_from_slice(own);
        match others.iter().position(|element| element.to_bits() != u16::MAX) {
            Some(at) if found.is_ok() => {
                Err(Refusal::Failed(format!("element {at} of tokens of no sequence was written")))
            }
            _ => found,
        }
    }
}

impl OxideTile {
    /// With the shares that were chosen, as far as the artifact leaves them open.
    fn split(&self, asked: Request) -> Request {
        match self.choice {
            Choice::Splits(splits) => asked.dimension("splits", splits),
            Choice::Plain | Choice::Padding(_) => asked,
        }
    }
}

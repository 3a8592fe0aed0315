//! Heads that are turned, and new keys and values that go into their pages.

use super::{Judged, OxideTile, Refusal, failed, norms, with};
use crate::call::Call;
use half::bf16;
use oxide_infer::kv_cache::{paged_append, rope_append};
use oxide_infer::position::rope;
use oxide_infer::{Contract, FloatView, Spec, View};
use oxide_infer_cuda::artifact::Request;

pub(super) fn rope(
    tile: &mut OxideTile,
    spec: &rope::Spec,
    operands: rope::Operands<'_>,
) -> Result<(), Refusal> {
    operands.check(spec)?;
    let [tokens, num_heads, head_dim] = operands.input.shape();
    if tokens == 0 {
        return Ok(());
    }
    let judged = Judged(Contract::ROPE, operands.check_indices());
    let asked = with(Request::from(spec), &[("tokens", tokens), ("num_heads", num_heads)]);
    if !tile.is_for(&asked) {
        // Tables of thousands of positions are not made to be refused.
        return Err(Refusal::NotAdmitted(asked.to_string()));
    }
    let rotations = rotations(spec.config().clone(), &operands.positions)?;
    let mut call = Call::new(with(asked, &[("max_positions", rotations.len() / head_dim)]));
    call.read_float("input", &operands.input)?;
    call.read("positions", &operands.positions)?;
    call.read_list("rotations", &rotations);
    call.write_float("output", operands.output)?;
    tile.run_judged(call, judged)
}

pub(super) fn paged_append(
    tile: &mut OxideTile,
    spec: &paged_append::Spec,
    operands: paged_append::Operands<'_>,
) -> Result<(), Refusal> {
    operands.check(spec)?;
    let [tokens, _, _] = operands.k.shape();
    if tokens == 0 {
        return Ok(());
    }
    let judged = Judged(Contract::PAGED_APPEND, operands.check_indices(spec));
    let tables = sizes(operands.k_pages.shape(), operands.block_table.shape());
    let mut call = Call::new(with(with(Request::from(spec), &tables), &[("tokens", tokens)]));
    call.read_float("k", &operands.k)?;
    call.read_float("v", &operands.v)?;
    call.read("positions", &operands.positions)?;
    call.read("query_start", &operands.query_start)?;
    call.read("block_table", &operands.block_table)?;
    call.read_write_float("k_pages", operands.k_pages)?;
    call.read_write_float("v_pages", operands.v_pages)?;
    tile.run_judged(call, judged)
}

/// With queries, keys and values packed or apart, as the artifact has them.
pub(super) fn rope_append(
    tile: &mut OxideTile,
    spec: &rope_append::Spec,
    operands: rope_append::Operands<'_>,
) -> Result<(), Refusal> {
    operands.check(spec)?;
    let [tokens, _, head_dim] = operands.q.shape();
    if tokens == 0 {
        return Ok(());
    }
    let judged = Judged(Contract::ROPE_APPEND, operands.check_indices(spec));
    let rotations = rotations(spec.config().rope.clone(), &operands.positions)?;
    let max_positions = rotations.len() / head_dim.max(1);
    let tables = sizes(operands.k_pages.shape(), operands.block_table.shape());
    let more = [("tokens", tokens), ("max_positions", max_positions)];
    let asked = with(with(Request::from(spec), &tables), &more);
    let mut call = if tile.has("qkv", "packed") {
        let normed = tile.has("qk_norm", "present");
        let asked = asked.property("qkv", "packed");
        let mut call = Call::new(asked.property("qk_norm", if normed { "present" } else { "absent" }));
        call.read_list("qkv", &packed(&[&operands.q, &operands.k, &operands.v]));
        if normed {
            let [q_weight, k_weight] = norms::weights(head_dim);
            call.read_list("q_weight", &q_weight);
            call.read_list("k_weight", &k_weight);
            call.attribute("epsilon", norms::EPSILON);
        }
        call
    } else {
        let mut call = Call::new(asked);
        call.read_float("q", &operands.q)?;
        call.read_float("k", &operands.k)?;
        call.read_float("v", &operands.v)?;
        call
    };
    call.read("positions", &operands.positions)?;
    call.read("query_start", &operands.query_start)?;
    call.read("block_table", &operands.block_table)?;
    call.read_list("rotations", &rotations);
    call.write_float("q_out", operands.q_out)?;
    call.read_write_float("k_pages", operands.k_pages)?;
    call.read_write_float("v_pages", operands.v_pages)?;
    tile.run_judged(call, judged)
}

/// What contracts over pages read of their tables.
pub(super) fn sizes(pages: [usize; 4], table: [usize; 2]) -> [(&'static str, usize); 3] {
    [("batch", table[0]), ("num_pages", pages[0]), ("max_pages", table[1])]
}

/// `[tokens, heads, head_dim]` parts joined along the heads, as the projection of a model leaves them.
pub(super) fn packed(parts: &[&FloatView<'_, 3>]) -> Vec<bf16> {
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
pub(super) fn rotations(config: rope::Config, positions: &View<'_, i32, 1>) -> Result<Vec<f32>, Refusal> {
    let last = (0..positions.shape()[0]).map(|i| positions.at([i])).max().unwrap_or(0).max(0);
    let spec = rope::Spec::new(config).map_err(failed)?;
    let rows = (0..=last as usize).flat_map(|position| spec.rotations(position));
    Ok(rows.flatten().map(|value| value as f32).collect())
}

use super::{Attention, Mask};
use crate::kv_cache::PageTables;
use crate::{DataError, FloatView, FloatViewMut, View, ViewMut};
use std::ops::Range;

/// The keys and values of one sequence, by position.
pub(super) trait KeysAndValues {
    fn key(&self, position: usize, kv_head: usize, dim: usize) -> f32;
    fn value(&self, position: usize, kv_head: usize, dim: usize) -> f32;
}

/// A run of `[kv_tokens, num_kv_heads, head_dim]` that begins at `first`.
pub(super) struct Flat<'a> {
    pub(super) k: FloatView<'a, 3>,
    pub(super) v: FloatView<'a, 3>,
    pub(super) first: usize,
}

impl KeysAndValues for Flat<'_> {
    fn key(&self, position: usize, kv_head: usize, dim: usize) -> f32 {
        self.k.at([self.first + position, kv_head, dim])
    }
    fn value(&self, position: usize, kv_head: usize, dim: usize) -> f32 {
        self.v.at([self.first + position, kv_head, dim])
    }
}

/// The pages of one sequence, whose table entries have been checked.
pub(super) struct Paged<'a> {
    pub(super) k_pages: FloatView<'a, 4>,
    pub(super) v_pages: FloatView<'a, 4>,
    pub(super) tables: PageTables<'a>,
    pub(super) sequence: usize,
}

impl Paged<'_> {
    fn place(&self, position: usize, kv_head: usize, dim: usize) -> [usize; 4] {
        let PageTables { block_table, paging, .. } = self.tables;
        let page = block_table.at([self.sequence, position / paging.page_size]) as usize;
        paging.index(page, position % paging.page_size, kv_head, dim)
    }
}

impl KeysAndValues for Paged<'_> {
    fn key(&self, position: usize, kv_head: usize, dim: usize) -> f32 {
        self.k_pages.at(self.place(position, kv_head, dim))
    }
    fn value(&self, position: usize, kv_head: usize, dim: usize) -> f32 {
        self.v_pages.at(self.place(position, kv_head, dim))
    }
}

/// The rows of one call: where queries come from and results go.
pub(super) struct Rows<'a, 'b> {
    pub(super) attention: &'a Attention,
    pub(super) q: FloatView<'a, 3>,
    pub(super) output: FloatViewMut<'b, 3>,
    pub(super) lse: Option<ViewMut<'b, f32, 2>>,
}

impl Rows<'_, '_> {
    /// All heads of the query row `row`, over the keys `seen` of its sequence, by the formula of the module, in `f64`.
    pub(super) fn attend(&mut self, row: usize, seen: Range<usize>, kv: &impl KeysAndValues) {
        let Attention { num_q_heads, head_dim, scale, soft_cap, .. } = *self.attention;
        for head in 0..num_q_heads {
            let kv_head = head / self.attention.group_size();
            let score = |position: usize| {
                let product =
                    |dim| f64::from(self.q.at([row, head, dim])) * f64::from(kv.key(position, kv_head, dim));
                let score = (0..head_dim).map(product).sum::<f64>() * f64::from(scale);
                soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            };
            let scores: Vec<f64> = seen.clone().map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for dim in 0..head_dim {
                let weighed = |(w, position): (&f64, usize)| w * f64::from(kv.value(position, kv_head, dim));
                let total: f64 = weights.iter().zip(seen.clone()).map(weighed).sum();
                self.output.set([row, head, dim], if seen.is_empty() { 0.0 } else { (total / sum) as f32 });
            }
            if let Some(lse) = &mut self.lse {
                // A row that sees nothing has max = −∞ and sum = 0, so this is −∞.
                lse.set([row, head], (max + sum.ln()) as f32);
            }
        }
    }
}

/// The keys that the last row of `kv_len` sees.
pub(super) fn seen_by_last(attention: &Attention, kv_len: usize) -> Range<usize> {
    match kv_len {
        0 => 0..0,
        _ => seen(attention, Mask::Causal, kv_len - 1, kv_len),
    }
}

/// The keys that the row at `position` of `kv_len` sees.
pub(super) fn seen(attention: &Attention, mask: Mask, position: usize, kv_len: usize) -> Range<usize> {
    let end = match mask {
        Mask::Causal => position + 1,
        Mask::Full => kv_len,
    };
    let start = attention.window.map_or(0, |window| (position + 1).saturating_sub(window));
    start..end
}

/// The rows of one sequence of a prefill. Rows are aligned to the end, so there must be at least as many keys.
pub(super) fn query_rows(
    query_start: View<'_, i32, 1>,
    sequence: usize,
    kv_len: usize,
) -> Result<Range<usize>, DataError> {
    let [start, end] = [sequence, sequence + 1].map(|entry| query_start.at([entry]) as usize);
    if end - start > kv_len {
        return Err(DataError::QueryLongerThanKv { sequence, query_len: end - start, kv_len });
    }
    Ok(start..end)
}

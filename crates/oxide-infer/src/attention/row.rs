use super::{Attention, Mask};
use crate::kv_cache::PageTables;
use crate::{DataError, Float, FloatView, FloatViewMut, View, ViewMut};
use std::ops::Range;

/// The keys and values of one sequence, by position: each fills a row of `head_dim` elements.
pub(super) trait KeysAndValues {
    fn key(&self, position: usize, kv_head: usize, row: &mut [f32]);
    fn value(&self, position: usize, kv_head: usize, row: &mut [f32]);
}

/// A run of `[kv_tokens, num_kv_heads, head_dim]` that begins at `first`.
pub(super) struct Flat<'a> {
    pub(super) k: FloatView<'a, 3>,
    pub(super) v: FloatView<'a, 3>,
    pub(super) first: usize,
}

impl KeysAndValues for Flat<'_> {
    fn key(&self, position: usize, kv_head: usize, row: &mut [f32]) {
        read(&self.k, [self.first + position, kv_head, 0], row);
    }
    fn value(&self, position: usize, kv_head: usize, row: &mut [f32]) {
        read(&self.v, [self.first + position, kv_head, 0], row);
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
    fn place(&self, position: usize, kv_head: usize) -> [usize; 4] {
        let PageTables { block_table, paging, .. } = self.tables;
        let page = block_table.at([self.sequence, position / paging.page_size]) as usize;
        paging.index(page, position % paging.page_size, kv_head, 0)
    }
}

impl KeysAndValues for Paged<'_> {
    fn key(&self, position: usize, kv_head: usize, row: &mut [f32]) {
        read(&self.k_pages, self.place(position, kv_head), row);
    }
    fn value(&self, position: usize, kv_head: usize, row: &mut [f32]) {
        read(&self.v_pages, self.place(position, kv_head), row);
    }
}

/// The elements along the last axis from `first` on.
fn read<const R: usize>(view: &FloatView<'_, R>, first: [usize; R], row: &mut [f32]) {
    fn typed<T: Float, const R: usize>(view: &View<'_, T, R>, first: [usize; R], row: &mut [f32]) {
        for (i, element) in row.iter_mut().enumerate() {
            let mut index = first;
            index[R - 1] += i;
            *element = view.at(index).to_f32();
        }
    }
    match view {
        FloatView::F32(view) => typed(view, first, row),
        FloatView::F16(view) => typed(view, first, row),
        FloatView::BF16(view) => typed(view, first, row),
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
        let (mut query, mut element) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        for head in 0..num_q_heads {
            let kv_head = head / self.attention.group_size();
            read(&self.q, [row, head, 0], &mut query);
            let score = |position: usize| {
                kv.key(position, kv_head, &mut element);
                let products = query.iter().zip(&element).map(|(&q, &k)| f64::from(q) * f64::from(k));
                let score = products.sum::<f64>() * f64::from(scale);
                soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            };
            let scores: Vec<f64> = seen.clone().map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut totals = vec![0.0; head_dim];
            for (w, position) in weights.iter().zip(seen.clone()) {
                kv.value(position, kv_head, &mut element);
                totals.iter_mut().zip(&element).for_each(|(total, &v)| *total += w * f64::from(v));
            }
            for (dim, total) in totals.iter().enumerate() {
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

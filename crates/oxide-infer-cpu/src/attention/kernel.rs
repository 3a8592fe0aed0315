//! Attention over one run of positions, and how runs are joined.

use super::source::Source;
use crate::gemm::{Lanes, multiply};
use crate::math::{exp, load, maximum, store, sum, tanh};
use crate::simd::{Isa, Kernel, LANES};
use std::cell::RefCell;
use std::ops::Range;

/// Positions of a block.
const BLOCK: usize = 64;

/// Positions that are summed from zero.
pub(super) const SPLIT: usize = 8 * BLOCK;

const PANELS: usize = BLOCK / LANES;

/// What a run of positions gives each row.
#[derive(Debug, Default)]
pub(super) struct Partial {
    /// The greatest score, `[rows]`.
    max: Vec<f32>,
    /// `Σ exp(score − max)`, `[rows]`.
    sum: Vec<f32>,
    /// `Σ exp(score − max) · value`, `[head_dim / 16, rows, 16]`.
    values: Vec<Lanes>,
}

impl Partial {
    /// No position.
    pub(super) fn reset(&mut self, rows: usize, head_dim: usize) {
        self.max.clear();
        self.max.resize(rows, f32::NEG_INFINITY);
        self.sum.clear();
        self.sum.resize(rows, 0.0);
        self.values.clear();
        self.values.resize(rows * head_dim.div_ceil(LANES), [0.0; LANES]);
    }

    fn rows(&self) -> usize {
        self.max.len()
    }

    /// `ln Σ exp(score)` of a row.
    pub(super) fn log_sum_exp(&self, row: usize) -> f32 {
        self.max[row] + self.sum[row].ln()
    }
}

/// Buffers that a thread keeps from call to call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// `[rows, head_dim]`.
    pub(super) queries: Vec<f32>,
    /// The positions that each row sees.
    pub(super) seen: Vec<Range<usize>>,
    pub(super) widened: Vec<f32>,
    pub(super) total: Partial,
    pub(super) part: Partial,
    /// `[BLOCK, head_dim / 16, 16]`.
    keys: Vec<Lanes>,
    /// `[PANELS, head_dim, 16 positions]`, head_dim rounded up.
    transposed: Vec<Lanes>,
    /// `[head_dim / 16, BLOCK, 16]`.
    values: Vec<Lanes>,
    /// `[PANELS, rows, 16]`.
    scores: Vec<Lanes>,
    /// `[rows, BLOCK]`.
    weights: Vec<f32>,
}

impl Scratch {
    pub(super) fn with<R>(body: impl FnOnce(&mut Self) -> R) -> R {
        thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());
        SCRATCH.with_borrow_mut(body)
    }
}

/// All rows of a tile over one run of positions.
pub(super) struct Attend<'a> {
    pub(super) head_dim: usize,
    pub(super) scale: f32,
    pub(super) soft_cap: Option<f32>,
    pub(super) positions: Range<usize>,
    pub(super) keys: Source<'a>,
    pub(super) values: Source<'a>,
    pub(super) scratch: &'a mut Scratch,
    pub(super) part: &'a mut Partial,
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(mut self) {
        let chunks = self.head_dim.div_ceil(LANES);
        let (scratch, rows) = (&mut *self.scratch, self.part.rows());
        scratch.keys.resize(BLOCK * chunks, [0.0; LANES]);
        scratch.transposed.resize(PANELS * chunks * LANES, [0.0; LANES]);
        scratch.values.resize(BLOCK * chunks, [0.0; LANES]);
        scratch.scores.resize(PANELS * rows, [0.0; LANES]);
        scratch.weights.resize(BLOCK * rows, 0.0);
        let Range { start, end } = self.positions;
        for block in (start / BLOCK * BLOCK..end).step_by(BLOCK) {
            self.block::<I>(block, start.max(block)..end.min(block + BLOCK));
        }
    }
}

impl Attend<'_> {
    /// The positions `seen` of the block that begins at `block`.
    #[inline(always)]
    fn block<I: Isa>(&mut self, block: usize, seen: Range<usize>) {
        let chunks = self.head_dim.div_ceil(LANES);
        let inside = seen.start - block..seen.end - block;
        let scratch = &mut *self.scratch;
        self.keys.read::<I>(
            seen.clone(),
            #[inline(always)]
            |index, chunk, lanes| I::store(lanes, &mut scratch.keys[(inside.start + index) * chunks + chunk]),
        );
        self.values.read::<I>(
            seen,
            #[inline(always)]
            |index, chunk, lanes| I::store(lanes, &mut scratch.values[chunk * BLOCK + inside.start + index]),
        );
        // Lanes of positions outside `inside` hold whatever was there; their scores are masked.
        for panel in inside.start / LANES..inside.end.div_ceil(LANES) {
            for chunk in 0..chunks {
                let keys = &scratch.keys[panel * LANES * chunks + chunk..];
                let to = &mut scratch.transposed[(panel * chunks + chunk) * LANES..];
                I::transpose(keys, chunks, to.first_chunk_mut().expect("sixteen of each chunk"));
            }
        }
        self.scores::<I>(&inside);
        for row in 0..self.part.rows() {
            self.soften::<I>(row, block, &inside);
        }
        self.weigh::<I>(inside);
    }

    /// `scores[panel][row] = query · key` for all positions of the panels that `inside` touches.
    #[inline(always)]
    fn scores<I: Isa>(&mut self, inside: &Range<usize>) {
        let (rows, head_dim) = (self.part.rows(), self.head_dim);
        let Scratch { queries, transposed, scores, .. } = &mut *self.scratch;
        let stride = head_dim.div_ceil(LANES) * LANES;
        for panel in inside.start / LANES..inside.end.div_ceil(LANES) {
            let keys = &transposed[panel * stride..][..head_dim];
            let scores = &mut scores[panel * rows..][..rows];
            scores.fill([0.0; LANES]);
            multiply::<I>(queries, head_dim, keys, scores);
        }
    }

    /// From the scores of a row to its weights, relative to the greatest score so far.
    #[inline(always)]
    fn soften<I: Isa>(&mut self, row: usize, block: usize, inside: &Range<usize>) {
        let Scratch { seen, scores, weights, .. } = &mut *self.scratch;
        let weights = &mut weights[row * BLOCK..][..BLOCK];
        let start = seen[row].start.max(block + inside.start) - block;
        let end = seen[row].end.min(block + inside.end).saturating_sub(block);
        if start >= end {
            weights.fill(0.0);
            return;
        }
        let rows = self.part.rows();
        let panels = inside.start / LANES..inside.end.div_ceil(LANES);
        let mut greatest = I::splat(f32::NEG_INFINITY);
        for panel in panels.clone() {
            let mut score = I::mul(I::load(&scores[panel * rows + row]), I::splat(self.scale));
            if let Some(cap) = self.soft_cap {
                score = I::mul(I::splat(cap), tanh::<I>(I::div(score, I::splat(cap))));
            }
            let score = keep::<I>(score, panel, start..end);
            greatest = I::max(greatest, score);
            I::store(score, &mut scores[panel * rows + row]);
        }
        let before = self.part.max[row];
        let max = maximum::<I>(I::max(greatest, I::splat(before)));
        if max == f32::NEG_INFINITY {
            weights.fill(0.0);
            return;
        }
        let mut total = I::splat(0.0);
        for panel in panels {
            let weight = exp::<I>(I::sub(I::load(&scores[panel * rows + row]), I::splat(max)));
            total = I::add(total, weight);
            store::<I>(weight, weights, panel * LANES);
        }
        let rescale = exp_one::<I>(before - max);
        self.part.max[row] = max;
        self.part.sum[row] = self.part.sum[row].mul_add(rescale, sum::<I>(total));
        if rescale != 1.0 {
            for values in self.part.values[row..].iter_mut().step_by(rows) {
                let scaled = I::mul(I::load(values), I::splat(rescale));
                I::store(scaled, values);
            }
        }
    }

    /// Adds the weighted values.
    #[inline(always)]
    fn weigh<I: Isa>(&mut self, inside: Range<usize>) {
        let rows = self.part.rows();
        let Scratch { weights, values, .. } = &*self.scratch;
        for (chunk, sums) in self.part.values.chunks_mut(rows).enumerate() {
            let values = &values[chunk * BLOCK..][inside.clone()];
            multiply::<I>(&weights[inside.start..], BLOCK, values, sums);
        }
    }
}

/// The scores of the positions in `kept`, −∞ for the others of the panel.
#[inline(always)]
fn keep<I: Isa>(score: I::F, panel: usize, kept: Range<usize>) -> I::F {
    const LANE: Lanes = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    let position = I::add(I::load(&LANE), I::splat((panel * LANES) as f32));
    let hidden = I::splat(f32::NEG_INFINITY);
    let score = I::select_less(position, I::splat(kept.end as f32), score, hidden);
    I::select_less(position, I::splat(kept.start as f32), hidden, score)
}

#[inline(always)]
fn exp_one<I: Isa>(x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    I::store(exp::<I>(I::splat(x)), &mut lanes);
    lanes[0]
}

/// Joins the result of the next run of positions to that of the runs before it.
pub(super) struct Join<'a> {
    pub(super) total: &'a mut Partial,
    pub(super) part: &'a Partial,
}

impl Kernel for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self { total, part } = self;
        let rows = total.rows();
        for row in 0..rows {
            // A run that the row does not see leaves it as it was.
            if part.max[row] == f32::NEG_INFINITY {
                continue;
            }
            let max = if total.max[row] > part.max[row] { total.max[row] } else { part.max[row] };
            let (before, after) = (exp_one::<I>(total.max[row] - max), exp_one::<I>(part.max[row] - max));
            total.max[row] = max;
            total.sum[row] = total.sum[row].mul_add(before, part.sum[row] * after);
            let values = total.values[row..].iter_mut().step_by(rows);
            for (total, part) in values.zip(part.values[row..].iter().step_by(rows)) {
                let part = I::mul(I::load(part), I::splat(after));
                let joined = I::fma(I::load(total), I::splat(before), part);
                I::store(joined, total);
            }
        }
    }
}

/// Divides a row's weighted values by the sum of the weights.
pub(super) struct Finish<'a> {
    pub(super) total: &'a Partial,
    pub(super) index: usize,
    pub(super) output: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let rows = self.total.rows();
        if self.total.max[self.index] == f32::NEG_INFINITY {
            self.output.fill(0.0);
            return;
        }
        let sum = I::splat(self.total.sum[self.index]);
        for (chunk, values) in self.total.values[self.index..].iter().step_by(rows).enumerate() {
            store::<I>(I::div(load::<I>(values, 0), sum), self.output, chunk * LANES);
        }
    }
}

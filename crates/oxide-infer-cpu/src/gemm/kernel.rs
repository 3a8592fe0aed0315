//! The two ways to form a block of a product: few rows read the weights once and widen them in registers; many rows widen
//! a piece of a panel into the cache and reuse it for every tile of rows.

use super::{Product, Update};
use crate::packed::Part;
use crate::packed::format::{Format, UNIT};
use crate::simd::{Isa, Kernel, LANES};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of a block: whole tiles, few enough that a chunk of the input (240 KiB) stays in the L2 cache.
pub(super) const ROWS: usize = 40 * TILE;

/// Rows of a tile: with sixteen lanes they take twelve of the sixteen registers of AVX2.
const TILE: usize = 6;

/// Columns of a panel that are widened at a time: 16 KiB, half of an L1 cache.
const CHUNK: usize = 8 * UNIT;

type Lanes = [f32; LANES];

/// What a thread keeps from block to block.
pub(super) struct Buffers {
    /// Widened columns of a panel.
    weights: Box<[Lanes; CHUNK]>,
    /// The sums of a panel's columns, a row each.
    sums: Box<[Lanes; ROWS]>,
}

impl Buffers {
    pub(super) fn with<T>(body: impl FnOnce(&mut Self) -> T) -> T {
        thread_local!(static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers {
            weights: Box::new([[0.0; LANES]; CHUNK]),
            sums: Box::new([[0.0; LANES]; ROWS]),
        }));
        BUFFERS.with_borrow_mut(body)
    }
}

/// A block of a product: some rows of the input with some panels of one part of the weight.
pub(super) struct Block<'a, F> {
    pub(super) product: &'a Product<'a>,
    pub(super) part: &'a Part,
    /// At most [`ROWS`].
    pub(super) rows: Range<usize>,
    pub(super) panels: Range<usize>,
    pub(super) format: PhantomData<F>,
}

/// The product of a block, with the buffers that it may use.
pub(super) struct Multiply<'a, F> {
    pub(super) block: Block<'a, F>,
    pub(super) buffers: &'a mut Buffers,
}

impl<F: Format> Kernel for Multiply<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self { block, buffers } = self;
        match block.rows.len() {
            1 => block.one_row::<I>(),
            2 => block.few_rows::<I, 2>(),
            3 => block.few_rows::<I, 3>(),
            4 => block.few_rows::<I, 4>(),
            _ => block.many_rows::<I>(&mut buffers.weights, &mut buffers.sums),
        }
    }
}

impl<F: Format> Block<'_, F> {
    #[inline(always)]
    fn panel(&self, panel: usize) -> &[u8] {
        &self.part.panels[panel * self.part.stride..][..self.part.stride]
    }

    #[inline(always)]
    fn one_row<I: Isa>(&self) {
        let Range { mut start, end } = self.panels;
        while start + 2 <= end {
            let sums = self.dot::<I, 1, 2>([self.panel(start), self.panel(start + 1)]);
            self.finish::<I>(self.rows.start, start, sums[0][0]);
            self.finish::<I>(self.rows.start, start + 1, sums[0][1]);
            start += 2;
        }
        if start < end {
            self.few_panels::<I, 1>(start);
        }
    }

    #[inline(always)]
    fn few_rows<I: Isa, const R: usize>(&self) {
        for panel in self.panels.clone() {
            self.few_panels::<I, R>(panel);
        }
    }

    #[inline(always)]
    fn few_panels<I: Isa, const R: usize>(&self, panel: usize) {
        let sums = self.dot::<I, R, 1>([self.panel(panel)]);
        for (row, [sum]) in self.rows.clone().zip(sums) {
            self.finish::<I>(row, panel, sum);
        }
    }

    /// `R` rows with `P` panels, widened in registers.
    #[inline(always)]
    fn dot<I: Isa, const R: usize, const P: usize>(&self, panels: [&[u8]; P]) -> [[I::F; P]; R] {
        let k = self.product.k;
        let input = &self.product.input[self.rows.start * k..][..R * k];
        let mut sums = [[I::splat(0.0); P]; R];
        for unit in 0..k.div_ceil(UNIT) {
            let columns = (k - unit * UNIT).min(UNIT);
            let mut rows = [input; R];
            for r in 0..R {
                rows[r] = &input[r * k + unit * UNIT..][..columns];
            }
            F::decode::<I, P>(
                panels,
                unit,
                columns,
                #[inline(always)]
                |column, p, weights| {
                    for r in 0..R {
                        sums[r][p] = I::fma(I::splat(rows[r][column]), weights, sums[r][p]);
                    }
                },
            );
        }
        sums
    }

    #[inline(always)]
    fn many_rows<I: Isa>(&self, weights: &mut [Lanes; CHUNK], sums: &mut [Lanes; ROWS]) {
        let k = self.product.k;
        for panel in self.panels.clone() {
            sums[..self.rows.len()].fill([0.0; LANES]);
            for start in (0..k).step_by(CHUNK) {
                let weights = &mut weights[..(k - start).min(CHUNK)];
                widen::<I, F>(self.panel(panel), start, weights);
                for (tile, sums) in sums[..self.rows.len()].chunks_mut(TILE).enumerate() {
                    let input = &self.product.input[(self.rows.start + tile * TILE) * k + start..];
                    match sums.len() {
                        1 => multiply::<I, 1>(input, k, weights, sums),
                        2 => multiply::<I, 2>(input, k, weights, sums),
                        3 => multiply::<I, 3>(input, k, weights, sums),
                        4 => multiply::<I, 4>(input, k, weights, sums),
                        5 => multiply::<I, 5>(input, k, weights, sums),
                        _ => multiply::<I, TILE>(input, k, weights, sums),
                    }
                }
            }
            for (row, sums) in self.rows.clone().zip(sums.iter()) {
                self.finish::<I>(row, panel, I::load(sums));
            }
        }
    }

    /// Bias, update, and the store of the lanes that are columns.
    #[inline(always)]
    fn finish<I: Isa>(&self, row: usize, panel: usize, sum: I::F) {
        let Product { n, bias, update, output, .. } = self.product;
        let column = self.part.first_row + panel * LANES;
        let len = (self.part.rows - panel * LANES).min(LANES);
        // SAFETY: rows and panels of the blocks of a product do not overlap.
        let output = unsafe { output.slice(row * n + column, len) };
        let mut lanes = [0.0; LANES];
        let mut sum = sum;
        if let Some(bias) = bias {
            lanes[..len].copy_from_slice(&bias[column..column + len]);
            sum = I::add(sum, I::load(&lanes));
        }
        if *update == Update::Add {
            lanes[..len].copy_from_slice(output);
            sum = I::add(sum, I::load(&lanes));
        }
        I::store(sum, &mut lanes);
        output.copy_from_slice(&lanes[..len]);
    }
}

/// Columns `start..` of a panel, a whole number of units from its start, as numbers.
#[inline(always)]
fn widen<I: Isa, F: Format>(panel: &[u8], start: usize, weights: &mut [Lanes]) {
    for (unit, weights) in weights.chunks_mut(UNIT).enumerate() {
        F::decode::<I, 1>(
            [panel],
            start / UNIT + unit,
            weights.len(),
            #[inline(always)]
            |column, _, lanes| I::store(lanes, &mut weights[column]),
        );
    }
}

/// `sums[r] += Σ_k input[r · stride + k] · weights[k]` for `R` rows.
#[inline(always)]
pub(crate) fn multiply<I: Isa, const R: usize>(
    input: &[f32],
    stride: usize,
    weights: &[Lanes],
    sums: &mut [Lanes],
) {
    let mut rows = [input; R];
    let mut acc = [I::splat(0.0); R];
    for r in 0..R {
        rows[r] = &input[r * stride..][..weights.len()];
        acc[r] = I::load(&sums[r]);
    }
    for (k, weights) in weights.iter().enumerate() {
        let weights = I::load(weights);
        for r in 0..R {
            // SAFETY: every row was cut to the length of `weights`. A check here costs a quarter of the speed.
            let x = unsafe { *rows[r].get_unchecked(k) };
            acc[r] = I::fma(I::splat(x), weights, acc[r]);
        }
    }
    for r in 0..R {
        I::store(acc[r], &mut sums[r]);
    }
}

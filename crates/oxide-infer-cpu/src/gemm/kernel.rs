//! The two ways to form a block of a product: few rows read the weights once and widen them in registers; many rows widen
//! a piece of a panel into the cache and reuse it for every tile of rows.
//!
//! Only what reads packed weights is compiled for each of their formats: [`Fused`] and
//! [`Part::widen`](crate::packed::Part::widen).

use crate::packed::format::{Format, UNIT};
use crate::simd::{Isa, Kernel, LANES};
use std::cell::RefCell;
use std::marker::PhantomData;

/// Rows of a block: whole tiles, few enough that a chunk of the input (240 KiB) stays in the L2 cache.
pub(super) const ROWS: usize = 40 * TILE;

/// Rows of a tile: with sixteen lanes they take twelve of the sixteen registers of AVX2.
const TILE: usize = 6;

/// Columns of a panel that are widened at a time: 16 KiB, half of an L1 cache.
pub(super) const CHUNK: usize = 8 * UNIT;

const CACHE_LINE: usize = 64;

/// Sixteen columns of the output.
pub(crate) type Lanes = [f32; LANES];

/// What a thread keeps from block to block.
pub(super) struct Buffers {
    /// Widened columns of a panel.
    pub(super) weights: Box<[Lanes; CHUNK]>,
    /// The sums of a panel's columns, a row each.
    pub(super) sums: Box<[Lanes; ROWS]>,
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

/// `R` rows of the input with `P` panels, widened in registers: the sums of all columns, `[R, P, 16]`.
pub(super) struct Fused<'a, F, const R: usize, const P: usize> {
    /// `[R, k]`.
    pub(super) input: &'a [f32],
    pub(super) k: usize,
    pub(super) panels: [&'a [u8]; P],
    /// What will be read next: fetched into the cache meanwhile. The streams of panels are too short for the hardware to
    /// run ahead of.
    pub(super) ahead: &'a [u8],
    pub(super) sums: &'a mut [[Lanes; P]; R],
    pub(super) format: PhantomData<F>,
}

impl<F: Format, const R: usize, const P: usize> Kernel for Fused<'_, F, R, P> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        if !I::FUSES {
            unreachable!("the caller asks the level first");
        }
        let Self { input, k, panels, ahead, sums, .. } = self;
        let units = k.div_ceil(UNIT);
        let mut ahead = ahead.chunks(ahead.len().div_ceil(units.max(1)).max(1));
        let mut acc = [[I::splat(0.0); P]; R];
        for unit in 0..units {
            for byte in ahead.next().unwrap_or_default().iter().step_by(CACHE_LINE) {
                I::prefetch(byte);
            }
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
                        acc[r][p] = I::fma(I::splat(rows[r][column]), weights, acc[r][p]);
                    }
                },
            );
        }
        for r in 0..R {
            for p in 0..P {
                I::store(acc[r][p], &mut sums[r][p]);
            }
        }
    }
}

/// `sums[r] += Σ_k input[r · stride + k] · weights[k]` for every row.
pub(super) struct Tiles<'a> {
    pub(super) input: &'a [f32],
    pub(super) stride: usize,
    pub(super) weights: &'a [Lanes],
    pub(super) sums: &'a mut [Lanes],
}

impl Kernel for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        multiply::<I>(self.input, self.stride, self.weights, self.sums);
    }
}

/// What [`Tiles`] does, for use inside other kernels.
#[inline(always)]
pub(crate) fn multiply<I: Isa>(input: &[f32], stride: usize, weights: &[Lanes], sums: &mut [Lanes]) {
    for (tile, sums) in sums.chunks_mut(TILE).enumerate() {
        let input = &input[tile * TILE * stride..];
        match sums.len() {
            1 => multiply_tile::<I, 1>(input, stride, weights, sums),
            2 => multiply_tile::<I, 2>(input, stride, weights, sums),
            3 => multiply_tile::<I, 3>(input, stride, weights, sums),
            4 => multiply_tile::<I, 4>(input, stride, weights, sums),
            5 => multiply_tile::<I, 5>(input, stride, weights, sums),
            _ => multiply_tile::<I, TILE>(input, stride, weights, sums),
        }
    }
}

#[inline(always)]
fn multiply_tile<I: Isa, const R: usize>(
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

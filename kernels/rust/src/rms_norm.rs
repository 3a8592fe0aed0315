//! `normalization.rms_norm`: a row stays in the registers of one warp or of one block, so that it is read once.

use crate::device::*;
use crate::element::{Bf16, Element, MOST};

/// Threads of a block.
const THREADS: u32 = 256;

/// What the kernels of one form have in common.
struct Operands<T> {
    /// `[rows, hidden_size]`
    input: *const T,
    /// `[hidden_size]`
    weight: *const T,
    /// `[rows, hidden_size]`; null if there is none.
    residual: *mut T,
    /// `[rows, hidden_size]`
    output: *mut T,
    rows: u32,
    hidden_size: u32,
    epsilon: f32,
}

/// The mean of squares of a row becomes the factor of its elements.
#[derive(Clone, Copy, PartialEq)]
enum Sharing {
    /// Each warp has a row.
    Warp,
    /// Each block has a row.
    Block,
}

/// A thread holds `VECTORS` times 16 bytes of a row.
#[inline(always)]
unsafe fn rms_norm<T: Element, const VECTORS: usize>(operands: Operands<T>, sharing: Sharing) {
    let Operands { input, weight, residual, output, rows, hidden_size, epsilon } = operands;
    let (row, first, step) = match sharing {
        Sharing::Warp => (block_x() * (THREADS / WARP) + thread() / WARP, thread() % WARP, WARP),
        Sharing::Block => (block_x(), thread(), THREADS),
    };
    let vectors = hidden_size / T::PER_VECTOR as u32;
    let has = |j: usize| first + j as u32 * step < vectors;
    let place = |j: usize| (first + j as u32 * step) as usize * T::PER_VECTOR;

    release_successor();
    let mut weights = [Vector::ZERO; VECTORS];
    for j in 0..VECTORS {
        weights[j] = load_cached(weight.wrapping_add(place(j)), has(j));
    }
    wait_for_predecessor();
    // A warp without a row goes on, since the others may need it at a barrier.
    let active = row < rows;
    let begin = row as usize * hidden_size as usize;
    let mut packed = [Vector::ZERO; VECTORS];
    for j in 0..VECTORS {
        packed[j] = load_streamed(input.wrapping_add(begin + place(j)), active && has(j));
    }
    if !residual.is_null() {
        let mut others = [Vector::ZERO; VECTORS];
        for j in 0..VECTORS {
            others[j] = load_streamed(residual.wrapping_add(begin + place(j)) as *const T, active && has(j));
        }
        for j in 0..VECTORS {
            packed[j] = added::<T>(packed[j], others[j]);
            if active && has(j) {
                store(residual.add(begin + place(j)), packed[j]);
            }
        }
    }
    let mut squares = 0.0;
    for j in 0..VECTORS {
        let numbers = T::unpack(packed[j]);
        for e in 0..T::PER_VECTOR {
            squares = fma(numbers[e], numbers[e], squares);
        }
    }
    squares = sum_lanes::<WARP>(squares);
    if sharing == Sharing::Block {
        squares = sum_block(squares);
    }
    let factor = rsqrt(squares / hidden_size as f32 + epsilon);
    for j in 0..VECTORS {
        if active && has(j) {
            store(output.add(begin + place(j)), scaled::<T>(packed[j], weights[j], factor));
        }
    }
}

/// Sums of two rows, as they are stored.
#[inline(always)]
fn added<T: Element>(one: Vector, other: Vector) -> Vector {
    let (mut sum, other) = (T::unpack(one), T::unpack(other));
    for e in 0..T::PER_VECTOR {
        sum[e] += other[e];
    }
    T::pack(&sum)
}

#[inline(always)]
fn scaled<T: Element>(row: Vector, weight: Vector, factor: f32) -> Vector {
    let (mut numbers, weight): ([f32; MOST], _) = (T::unpack(row), T::unpack(weight));
    for e in 0..T::PER_VECTOR {
        numbers[e] = numbers[e] * factor * weight[e];
    }
    T::pack(&numbers)
}

/// The sum of the warps' sums, in the order of warps.
#[inline(always)]
unsafe fn sum_block(of_warp: f32) -> f32 {
    let shared = shared_memory!("32");
    if thread() % WARP == 0 {
        store_shared(shared + thread() / WARP * 4, of_warp);
    }
    sync_block();
    let mut sum = 0.0;
    for warp in 0..THREADS / WARP {
        sum += load_shared(shared + warp * 4);
    }
    sum
}

/// The names of kernels say their type, who shares a row, and the most elements that a row has.
macro_rules! kernels {
    ($($plain:ident, $with_residual:ident: $type:ty, $sharing:ident, $vectors:literal;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $plain(
            input: *const $type, weight: *const $type, output: *mut $type, rows: u32, hidden_size: u32, epsilon: f32,
        ) {
            let residual = core::ptr::null_mut();
            let operands = Operands { input, weight, residual, output, rows, hidden_size, epsilon };
            rms_norm::<$type, $vectors>(operands, Sharing::$sharing)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $with_residual(
            input: *const $type, weight: *const $type, residual: *mut $type, output: *mut $type,
            rows: u32, hidden_size: u32, epsilon: f32,
        ) {
            let operands = Operands { input, weight, residual, output, rows, hidden_size, epsilon };
            rms_norm::<$type, $vectors>(operands, Sharing::$sharing)
        }
    )* };
}

kernels! {
    rms_norm_bf16_warp_1k, add_rms_norm_bf16_warp_1k: Bf16, Warp, 4;
    rms_norm_bf16_warp_2k, add_rms_norm_bf16_warp_2k: Bf16, Warp, 8;
    rms_norm_bf16_block_2k, add_rms_norm_bf16_block_2k: Bf16, Block, 1;
    rms_norm_bf16_block_8k, add_rms_norm_bf16_block_8k: Bf16, Block, 4;
    rms_norm_f16_warp_1k, add_rms_norm_f16_warp_1k: f16, Warp, 4;
    rms_norm_f16_warp_2k, add_rms_norm_f16_warp_2k: f16, Warp, 8;
    rms_norm_f16_block_2k, add_rms_norm_f16_block_2k: f16, Block, 1;
    rms_norm_f16_block_8k, add_rms_norm_f16_block_8k: f16, Block, 4;
    rms_norm_f32_warp_1k, add_rms_norm_f32_warp_1k: f32, Warp, 8;
    rms_norm_f32_warp_2k, add_rms_norm_f32_warp_2k: f32, Warp, 16;
    rms_norm_f32_block_2k, add_rms_norm_f32_block_2k: f32, Block, 2;
    rms_norm_f32_block_8k, add_rms_norm_f32_block_8k: f32, Block, 8;
}

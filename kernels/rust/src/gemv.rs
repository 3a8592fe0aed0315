//! `gemm.dense` of one row: `output[n] = Σ_k input[k] · weight[n, k] + bias[n] + residual[n]`.
//!
//! The time is that of reading the weight once. So each thread has a batch of loads in flight, the first of them before the
//! kernel ahead has ended. Meanwhile the block brings the input that they are for into shared memory.

use crate::device::*;
use crate::element::{Bf16, Element, bf16_pair};

const THREADS: u32 = 256;
/// Elements of a load.
const WIDTH: usize = 8;

struct Operands<T> {
    /// `[k]`
    input: *const Bf16,
    /// `[n, k]`
    weight: *const Bf16,
    /// `[n]`; null if there is none.
    bias: *const Bf16,
    /// `[n]`; null if there is none.
    residual: *const T,
    /// `[n]`
    output: *mut T,
    n: u32,
    k: u32,
}

/// `SHARERS` warps share `ROWS` rows of the weight; a thread has `LOADS` loads of each in flight.
#[inline(always)]
unsafe fn gemv<T: Element, const SHARERS: u32, const ROWS: usize, const LOADS: usize>(operands: Operands<T>) {
    let Operands { input, weight, bias, residual, output, n, k } = operands;
    let (group, member) = (thread() / (SHARERS * WARP), thread() % (SHARERS * WARP));
    let groups = THREADS / (SHARERS * WARP);
    let first = (block_x() * groups + group) * ROWS as u32;
    let vectors = k / WIDTH as u32;
    let mut rows = [weight; ROWS];
    for r in 0..ROWS {
        // The last group may have fewer rows: it reads the last one again, and does not write it.
        rows[r] = weight.add((first + r as u32).min(n - 1) as usize * k as usize);
    }
    let place = |batch: u32, load: usize| batch + load as u32 * SHARERS * WARP + member;
    let batch_of = |batch: u32| {
        let mut loaded = [[Vector::ZERO; LOADS]; ROWS];
        for load in 0..LOADS {
            let at = place(batch, load);
            for r in 0..ROWS {
                loaded[r][load] = load_streamed(rows[r].wrapping_add(at as usize * WIDTH), at < vectors);
            }
        }
        loaded
    };

    let staged = dynamic_shared_memory();
    let stage = |batch: u32| {
        let mut at = thread();
        while at < LOADS as u32 * SHARERS * WARP {
            let from = input.wrapping_add((batch + at) as usize * WIDTH);
            copy_async(staged + at * Vector::BYTES, from, batch + at < vectors);
            at += THREADS;
        }
        commit_copies();
    };

    release_successor();
    let mut batch = 0;
    let mut loaded = batch_of(batch);
    wait_for_predecessor();
    stage(batch);
    let mut sums = [[0.0; 2]; ROWS];
    loop {
        wait_copies::<0>();
        sync_block();
        for load in 0..LOADS {
            let numbers = load_shared_vector(staged + place(0, load) * Vector::BYTES);
            for word in 0..4 {
                let [low, high] = bf16_pair(numbers.0[word]);
                for r in 0..ROWS {
                    let [weight_low, weight_high] = bf16_pair(loaded[r][load].0[word]);
                    sums[r][0] = fma(weight_low, low, sums[r][0]);
                    sums[r][1] = fma(weight_high, high, sums[r][1]);
                }
            }
        }
        batch += LOADS as u32 * SHARERS * WARP;
        // The same for the whole block.
        if batch >= vectors {
            break;
        }
        loaded = batch_of(batch);
        sync_block();
        stage(batch);
    }
    let mut totals = [0.0; ROWS];
    for r in 0..ROWS {
        totals[r] = sum_lanes::<WARP>(sums[r][0] + sums[r][1]);
    }
    if SHARERS > 1 {
        totals = sum_group::<SHARERS, ROWS>(totals, group, member);
    }
    if member == 0 {
        for r in 0..ROWS {
            let row = first + r as u32;
            if row < n {
                let mut total = totals[r];
                if !bias.is_null() {
                    total += (*bias.add(row as usize)).to_f32();
                }
                if !residual.is_null() {
                    total += (*residual.add(row as usize)).to_f32();
                }
                *output.add(row as usize) = T::from_f32(total);
            }
        }
    }
}

/// The sums of a group's warps, in the order of warps.
#[inline(always)]
unsafe fn sum_group<const SHARERS: u32, const ROWS: usize>(
    of_warp: [f32; ROWS],
    group: u32,
    member: u32,
) -> [f32; ROWS] {
    let shared = shared_memory!("256") + group * SHARERS * ROWS as u32 * 4;
    if member % WARP == 0 {
        for r in 0..ROWS {
            store_shared(shared + (member / WARP * ROWS as u32 + r as u32) * 4, of_warp[r]);
        }
    }
    sync_block();
    let mut sums = [0.0; ROWS];
    for r in 0..ROWS {
        for warp in 0..SHARERS {
            sums[r] += load_shared(shared + (warp * ROWS as u32 + r as u32) * 4);
        }
    }
    sums
}

/// The names of kernels say how many warps share how many rows, and the loads in flight; forms differ in what is added.
macro_rules! kernels {
    ($($plain:ident, $bias:ident, $to_f32:ident, $residual:ident: $sharers:literal, $rows:literal, $loads:literal;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $plain(
            input: *const Bf16, weight: *const Bf16, output: *mut Bf16, n: u32, k: u32,
        ) {
            let (bias, residual) = (core::ptr::null(), core::ptr::null());
            gemv::<_, $sharers, $rows, $loads>(Operands { input, weight, bias, residual, output, n, k })
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $bias(
            input: *const Bf16, weight: *const Bf16, bias: *const Bf16, output: *mut Bf16, n: u32, k: u32,
        ) {
            let residual = core::ptr::null();
            gemv::<_, $sharers, $rows, $loads>(Operands { input, weight, bias, residual, output, n, k })
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $to_f32(
            input: *const Bf16, weight: *const Bf16, output: *mut f32, n: u32, k: u32,
        ) {
            let (bias, residual) = (core::ptr::null(), core::ptr::null());
            gemv::<_, $sharers, $rows, $loads>(Operands { input, weight, bias, residual, output, n, k })
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $residual(
            input: *const Bf16, weight: *const Bf16, residual: *const f32, output: *mut f32, n: u32, k: u32,
        ) {
            let bias = core::ptr::null();
            gemv::<_, $sharers, $rows, $loads>(Operands { input, weight, bias, residual, output, n, k })
        }
    )* };
}

kernels! {
    gemv_s1_r1_l6, gemv_bias_s1_r1_l6, gemv_f32_s1_r1_l6, gemv_residual_s1_r1_l6: 1, 1, 6;
    gemv_s1_r2_l6, gemv_bias_s1_r2_l6, gemv_f32_s1_r2_l6, gemv_residual_s1_r2_l6: 1, 2, 6;
    gemv_s2_r1_l8, gemv_bias_s2_r1_l8, gemv_f32_s2_r1_l8, gemv_residual_s2_r1_l8: 2, 1, 8;
    gemv_s4_r1_l9, gemv_bias_s4_r1_l9, gemv_f32_s4_r1_l9, gemv_residual_s4_r1_l9: 4, 1, 9;
    gemv_s8_r1_l7, gemv_bias_s8_r1_l7, gemv_f32_s8_r1_l7, gemv_residual_s8_r1_l7: 8, 1, 7;
}

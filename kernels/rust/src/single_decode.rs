//! `attention.single_decode`: the keys of one sequence are shared by blocks, and each block's by groups of lanes.
//!
//! A group of lanes has a whole key at a time, 16 bytes a lane, and up to [`HEADS`] query heads that read the same
//! key/value head. Every thread copies what it will read itself into its own places of a ring in shared memory, so that it
//! waits for its own copies and for no one else. Groups, warps and blocks merge in a fixed order.

use crate::device::*;
use crate::element::{Bf16, Element, MOST};
use core::num::NonZero;

const THREADS: u32 = 256;
const WARPS: u32 = THREADS / WARP;
/// Query heads of a block.
const HEADS: usize = 4;
/// Keys of a group of lanes that are computed together, and as many values.
const STEP: usize = 4;
/// Steps in flight.
const STAGES: u32 = 4;
/// Elements of 16 bytes.
const WIDTH: u32 = 8;
/// Bytes of a key or value in the ring, of all threads.
const PLANE: u32 = THREADS * Vector::BYTES;
const STAGE: u32 = 2 * STEP as u32 * PLANE;
/// Where the merge of warps begins in shared memory, after the ring.
const MERGE: u32 = STAGES * STAGE;
/// Under every score, and so far above minus infinity that differences of it are numbers.
const LEAST: f32 = -1e30;
const LOG2_E: f32 = core::f32::consts::LOG2_E;
const LN_2: f32 = core::f32::consts::LN_2;

struct Operands {
    /// `[1, num_q_heads, HEAD_DIM]`
    q: *const Bf16,
    /// `[kv_len, num_kv_heads, HEAD_DIM]`
    k: *const Bf16,
    /// `[kv_len, num_kv_heads, HEAD_DIM]`
    v: *const Bf16,
    kv_len: u32,
    num_q_heads: u32,
    num_kv_heads: NonZero<u32>,
    scale: f32,
}

/// Query heads that one block computes, of one key/value head.
#[derive(Clone, Copy)]
struct Heads {
    kv_head: u32,
    first: u32,
    count: u32,
}

/// Softmax of some keys: the largest score, the sum of exponentials below it, and values weighted by them. Scores are
/// binary logarithms.
#[derive(Clone, Copy)]
struct Softmax {
    largest: f32,
    total: f32,
}

impl Softmax {
    const NONE: Self = Self { largest: LEAST, total: 0.0 };

    /// Of the keys of both, with the factors that bring what either has weighted to it.
    #[inline(always)]
    fn merged(self, other: Self) -> (Self, f32, f32) {
        let largest = self.largest.max(other.largest);
        let (own, others) = (exp2(self.largest - largest), exp2(other.largest - largest));
        (Self { largest, total: self.total * own + other.total * others }, own, others)
    }

    /// The natural logarithm of the sum of exponentials.
    #[inline(always)]
    fn log_sum(self) -> f32 {
        (self.largest + log2(self.total)) * LN_2
    }
}

/// Query heads of this block: those of a key/value head are shared evenly among as few blocks along y as can have them.
#[inline(always)]
fn heads_of_block(num_q_heads: u32, num_kv_heads: NonZero<u32>) -> Heads {
    let group = num_q_heads / num_kv_heads;
    let parts = NonZero::new(group.div_ceil(HEADS as u32)).unwrap_or(NonZero::<u32>::MIN);
    let each = (group + parts.get() - 1) / parts;
    let (kv_head, part) = (block_y() / parts, block_y() % parts);
    let first = part * each;
    Heads { kv_head, first: kv_head * group + first, count: each.min(group - first.min(group)) }
}

/// Keys of share `share` of `shares`: as even as whole keys allow.
#[inline(always)]
fn share_of(kv_len: u32, share: u32, shares: NonZero<u32>) -> [u32; 2] {
    let (each, more) = (kv_len / shares, kv_len % shares);
    let start = share * each + share.min(more);
    [start, start + each + (share < more) as u32]
}

/// What one block makes of its share, in shared memory from [`MERGE`] on: for each head `HEAD_DIM` weighted sums of values,
/// and after those of all heads the [`Softmax`] of each.
#[inline(always)]
unsafe fn attend<const HEAD_DIM: u32>(operands: &Operands, heads: Heads, [start, end]: [u32; 2]) {
    let lanes = HEAD_DIM / WIDTH;
    let slots = THREADS / lanes;
    let (lane, slot) = (thread() % lanes, thread() / lanes);
    let own = dynamic_shared_memory() + thread() * Vector::BYTES;
    let row = operands.num_kv_heads.get() as usize * HEAD_DIM as usize;
    let column = (heads.kv_head * HEAD_DIM + lane * WIDTH) as usize;
    let steps = (end - start).div_ceil(slots * STEP as u32);
    let key_of = |step: u32, i: usize| start + (step * STEP as u32 + i as u32) * slots + slot;
    let place = |step: u32, i: usize| own + step % STAGES * STAGE + i as u32 * 2 * PLANE;
    let copy = |step: u32| {
        for i in 0..STEP {
            let key = key_of(step, i);
            let at = key as usize * row + column;
            copy_async(place(step, i), operands.k.wrapping_add(at), key < end);
            copy_async(place(step, i) + PLANE, operands.v.wrapping_add(at), key < end);
        }
    };
    // Every step closes a group of copies, empty or not, so that their number says which have arrived.
    for step in 0..STAGES - 1 {
        if step < steps {
            copy(step);
        }
        commit_copies();
    }
    let mut queries = [[0.0; MOST]; HEADS];
    for h in 0..HEADS {
        if (h as u32) < heads.count {
            let at = (heads.first + h as u32) * HEAD_DIM + lane * WIDTH;
            queries[h] = Bf16::unpack(load_cached(operands.q.add(at as usize), true));
            for e in 0..MOST {
                queries[h][e] *= operands.scale * LOG2_E;
            }
        }
    }
    let mut found = [Softmax::NONE; HEADS];
    let mut sums = [[0.0; MOST]; HEADS];
    let mut step = 0;
    while step < steps {
        if step + STAGES - 1 < steps {
            copy(step + STAGES - 1);
        }
        commit_copies();
        wait_copies::<{ STAGES as i32 - 1 }>();
        let mut scores = [[0.0; STEP]; HEADS];
        let mut keys = [[0.0; MOST]; STEP];
        for i in 0..STEP {
            keys[i] = Bf16::unpack(load_shared_vector(place(step, i)));
        }
        for h in 0..HEADS {
            if (h as u32) < heads.count {
                scores[h] = scores_of::<HEAD_DIM>(&queries[h], &keys);
                for i in 0..STEP {
                    scores[h][i] = if key_of(step, i) < end { scores[h][i] } else { f32::NEG_INFINITY };
                }
                weigh(&mut scores[h], &mut found[h], &mut sums[h]);
            }
        }
        let mut values = [[0.0; MOST]; STEP];
        for i in 0..STEP {
            values[i] = Bf16::unpack(load_shared_vector(place(step, i) + PLANE));
        }
        for h in 0..HEADS {
            if (h as u32) < heads.count {
                for i in 0..STEP {
                    for e in 0..MOST {
                        sums[h][e] = fma(scores[h][i], values[i][e], sums[h][e]);
                    }
                }
            }
        }
        step += 1;
    }
    for h in 0..HEADS {
        if (h as u32) < heads.count {
            merge_warp::<HEAD_DIM>(&mut found[h], &mut sums[h]);
        }
    }
    merge_block::<HEAD_DIM>(heads, &found, &sums);
}

/// Products of one query with several keys, summed over the lanes that have them, all keys side by side.
#[inline(always)]
fn scores_of<const HEAD_DIM: u32>(query: &[f32; MOST], keys: &[[f32; MOST]; STEP]) -> [f32; STEP] {
    let mut scores = [0.0; STEP];
    for e in 0..MOST {
        for i in 0..STEP {
            scores[i] = fma(query[e], keys[i][e], scores[i]);
        }
    }
    let mut distance = HEAD_DIM / WIDTH / 2;
    while distance > 0 {
        for i in 0..STEP {
            scores[i] += shuffle_xor(scores[i], distance);
        }
        distance /= 2;
    }
    scores
}

/// Turns scores into weights, and brings to them what was weighted before.
#[inline(always)]
fn weigh(scores: &mut [f32; STEP], found: &mut Softmax, sums: &mut [f32; MOST]) {
    let mut largest = found.largest;
    for i in 0..STEP {
        largest = largest.max(scores[i]);
    }
    let before = exp2(found.largest - largest);
    found.largest = largest;
    found.total *= before;
    for i in 0..STEP {
        scores[i] = exp2(scores[i] - largest);
        found.total += scores[i];
    }
    for e in 0..MOST {
        sums[e] *= before;
    }
}

/// Merges the groups of lanes of a warp, in each of them.
#[inline(always)]
fn merge_warp<const HEAD_DIM: u32>(found: &mut Softmax, sums: &mut [f32; MOST]) {
    let mut distance = HEAD_DIM / WIDTH;
    while distance < WARP {
        let other = Softmax {
            largest: shuffle_xor(found.largest, distance),
            total: shuffle_xor(found.total, distance),
        };
        let (merged, own, others) = found.merged(other);
        *found = merged;
        for e in 0..MOST {
            sums[e] = sums[e] * own + shuffle_xor(sums[e], distance) * others;
        }
        distance *= 2;
    }
}

/// Where a block keeps the merged sum of element `e` of head `h`.
#[inline(always)]
fn merged_sum<const HEAD_DIM: u32>(h: u32, e: u32) -> u32 {
    dynamic_shared_memory() + MERGE + (h * HEAD_DIM + e) * 4
}

/// Where a block keeps the merged softmax of head `h`.
#[inline(always)]
fn merged_softmax<const HEAD_DIM: u32>(h: u32) -> u32 {
    merged_sum::<HEAD_DIM>(HEADS as u32, 0) + h * 8
}

/// Merges the warps of a block, in their order.
#[inline(always)]
unsafe fn merge_block<const HEAD_DIM: u32>(
    heads: Heads,
    found: &[Softmax; HEADS],
    sums: &[[f32; MOST]; HEADS],
) {
    let (warp, lane) = (thread() / WARP, thread() % WARP);
    // The warps' own results lie after the merged ones.
    let sums_of_warps = merged_softmax::<HEAD_DIM>(HEADS as u32);
    let sum_of = |warp: u32, h: u32, e: u32| sums_of_warps + ((warp * HEADS as u32 + h) * HEAD_DIM + e) * 4;
    let softmax_of = |warp: u32, h: u32| sum_of(WARPS, 0, 0) + (warp * HEADS as u32 + h) * 8;
    for h in 0..HEADS {
        if (h as u32) < heads.count && lane < HEAD_DIM / WIDTH {
            for e in 0..MOST {
                store_shared(sum_of(warp, h as u32, lane * WIDTH + e as u32), sums[h][e]);
            }
            if lane == 0 {
                store_softmax(softmax_of(warp, h as u32), found[h]);
            }
        }
    }
    sync_block();
    let mut item = thread();
    while item < heads.count * HEAD_DIM {
        let (h, e) = (item / HEAD_DIM, item % HEAD_DIM);
        let (mut merged, mut sum) = (Softmax::NONE, 0.0);
        for warp in 0..WARPS {
            let (with, own, others) = merged.merged(load_softmax(softmax_of(warp, h)));
            merged = with;
            sum = sum * own + load_shared(sum_of(warp, h, e)) * others;
        }
        store_shared(merged_sum::<HEAD_DIM>(h, e), sum);
        if e == 0 {
            store_softmax(merged_softmax::<HEAD_DIM>(h), merged);
        }
        item += THREADS;
    }
}

#[inline(always)]
unsafe fn store_softmax(at: u32, softmax: Softmax) {
    store_shared(at, softmax.largest);
    store_shared(at + 4, softmax.total);
}

#[inline(always)]
unsafe fn load_softmax(at: u32) -> Softmax {
    Softmax { largest: load_shared(at), total: load_shared(at + 4) }
}

/// Blocks of a cluster share the keys; each merges its part of the results, in the order of blocks.
#[inline(always)]
unsafe fn in_cluster<const HEAD_DIM: u32, const BLOCKS: u32>(
    operands: &Operands,
    output: *mut Bf16,
    lse: *mut f32,
) {
    overlap_predecessor();
    let heads = heads_of_block(operands.num_q_heads, operands.num_kv_heads);
    let rank = cluster_rank();
    let blocks = NonZero::new(BLOCKS).unwrap_or(NonZero::<u32>::MIN);
    attend::<HEAD_DIM>(operands, heads, share_of(operands.kv_len, rank, blocks));
    sync_cluster();
    let items = HEADS as u32 * HEAD_DIM / BLOCKS;
    let item = rank * items + thread();
    let (h, e) = (item / HEAD_DIM, item % HEAD_DIM);
    if thread() < items && h < heads.count {
        let (mut merged, mut sum) = (Softmax::NONE, 0.0);
        for block in 0..BLOCKS {
            let of_block = merged_softmax::<HEAD_DIM>(h);
            let other =
                Softmax { largest: load_cluster(of_block, block), total: load_cluster(of_block + 4, block) };
            let (with, own, others) = merged.merged(other);
            merged = with;
            sum = sum * own + load_cluster(merged_sum::<HEAD_DIM>(h, e), block) * others;
        }
        finish::<HEAD_DIM>(heads.first + h, e, merged, sum, output, lse);
    }
    // Until the others have read this block's memory.
    sync_cluster();
}

#[inline(always)]
unsafe fn finish<const HEAD_DIM: u32>(
    head: u32,
    e: u32,
    merged: Softmax,
    sum: f32,
    output: *mut Bf16,
    lse: *mut f32,
) {
    *output.add((head * HEAD_DIM + e) as usize) = Bf16::from_f32(sum / merged.total);
    if !lse.is_null() && e == 0 {
        *lse.add(head as usize) = merged.log_sum();
    }
}

/// Blocks along x share the keys, and leave their results to [`merge`].
#[inline(always)]
unsafe fn in_shares<const HEAD_DIM: u32>(
    operands: &Operands,
    splits: NonZero<u32>,
    partial: *mut f32,
    partial_softmax: *mut f32,
) {
    overlap_predecessor();
    let heads = heads_of_block(operands.num_q_heads, operands.num_kv_heads);
    let split = block_x();
    attend::<HEAD_DIM>(operands, heads, share_of(operands.kv_len, split, splits));
    sync_block();
    let first = split * operands.num_q_heads + heads.first;
    let mut item = thread();
    while item < heads.count * HEAD_DIM {
        let (h, e) = (item / HEAD_DIM, item % HEAD_DIM);
        let row = (first + h) as usize;
        *partial.add(row * HEAD_DIM as usize + e as usize) = load_shared(merged_sum::<HEAD_DIM>(h, e));
        if e < 2 {
            *partial_softmax.add(2 * row + e as usize) = load_shared(merged_softmax::<HEAD_DIM>(h) + e * 4);
        }
        item += THREADS;
    }
}

/// Merges the shares of one head: each of several parts of the block a run of them, then those in their order.
#[inline(always)]
unsafe fn merge<const HEAD_DIM: u32>(
    partial: *const f32,
    partial_softmax: *const f32,
    output: *mut Bf16,
    lse: *mut f32,
    num_q_heads: u32,
    splits: u32,
) {
    overlap_predecessor();
    let parts = THREADS / HEAD_DIM;
    let (head, part, e) = (block_x(), thread() / HEAD_DIM, thread() % HEAD_DIM);
    let each = splits.div_ceil(parts);
    let (mut split, end) = (part * each, splits.min(part * each + each));
    let (mut merged, mut sum) = (Softmax::NONE, 0.0);
    while split < end {
        // Loads of eight shares in flight; those past the end weigh nothing.
        let (mut softmaxes, mut sums) = ([Softmax::NONE; 8], [0.0; 8]);
        for i in 0..8 {
            if split + i < end {
                let row = ((split + i) * num_q_heads + head) as usize;
                let softmax = partial_softmax.add(2 * row);
                softmaxes[i as usize] = Softmax { largest: *softmax, total: *softmax.add(1) };
                sums[i as usize] = *partial.add(row * HEAD_DIM as usize + e as usize);
            }
        }
        for i in 0..8 {
            let (with, own, others) = merged.merged(softmaxes[i]);
            merged = with;
            sum = sum * own + sums[i] * others;
        }
        split += 8;
    }
    let shared = shared_memory!("3072");
    let place = shared + thread() * 12;
    store_softmax(place, merged);
    store_shared(place + 8, sum);
    sync_block();
    if part == 0 {
        for other in 1..parts {
            let place = shared + (other * HEAD_DIM + e) * 12;
            let (with, own, others) = merged.merged(load_softmax(place));
            merged = with;
            sum = sum * own + load_shared(place + 8) * others;
        }
        finish::<HEAD_DIM>(head, e, merged, sum, output, lse);
    }
}

/// The names of kernels say the head size.
macro_rules! kernels {
    ($($cluster:ident, $cluster_lse:ident, $shares:ident, $merge:ident, $merge_lse:ident: $head_dim:literal;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $cluster(
            q: *const Bf16, k: *const Bf16, v: *const Bf16, output: *mut Bf16,
            kv_len: u32, num_q_heads: u32, num_kv_heads: NonZero<u32>, scale: f32,
        ) {
            let operands = Operands { q, k, v, kv_len, num_q_heads, num_kv_heads, scale };
            in_cluster::<$head_dim, 8>(&operands, output, core::ptr::null_mut())
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $cluster_lse(
            q: *const Bf16, k: *const Bf16, v: *const Bf16, output: *mut Bf16, lse: *mut f32,
            kv_len: u32, num_q_heads: u32, num_kv_heads: NonZero<u32>, scale: f32,
        ) {
            let operands = Operands { q, k, v, kv_len, num_q_heads, num_kv_heads, scale };
            in_cluster::<$head_dim, 8>(&operands, output, lse)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $shares(
            q: *const Bf16, k: *const Bf16, v: *const Bf16, partial: *mut f32, partial_softmax: *mut f32,
            kv_len: u32, num_q_heads: u32, num_kv_heads: NonZero<u32>, splits: NonZero<u32>, scale: f32,
        ) {
            let operands = Operands { q, k, v, kv_len, num_q_heads, num_kv_heads, scale };
            in_shares::<$head_dim>(&operands, splits, partial, partial_softmax)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $merge(
            partial: *const f32, partial_softmax: *const f32, output: *mut Bf16, num_q_heads: u32, splits: u32,
        ) {
            merge::<$head_dim>(partial, partial_softmax, output, core::ptr::null_mut(), num_q_heads, splits)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $merge_lse(
            partial: *const f32, partial_softmax: *const f32, output: *mut Bf16, lse: *mut f32,
            num_q_heads: u32, splits: u32,
        ) {
            merge::<$head_dim>(partial, partial_softmax, output, lse, num_q_heads, splits)
        }
    )* };
}

kernels! {
    single_decode_64_cluster_8, single_decode_64_cluster_8_lse, single_decode_64_shares, single_decode_64_merge,
        single_decode_64_merge_lse: 64;
    single_decode_128_cluster_8, single_decode_128_cluster_8_lse, single_decode_128_shares, single_decode_128_merge,
        single_decode_128_merge_lse: 128;
}

//! `kv_cache.rope_append`: queries turned by their positions, keys turned and values copied into their pages.
//!
//! A thread has one item of a token: 8 pairs of a head of queries or keys, or 8 elements of a value. Blocks along x are
//! tokens, along y parts of a token's items.

use crate::device::*;
use crate::element::{Bf16, Element, MOST};
use crate::status::Fault;
use core::num::NonZero;

const THREADS: u32 = 128;
/// Pairs that a thread turns: 16 bytes of either half of a head.
const PAIRS: u32 = 8;

/// How a pool of pages is laid out.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    /// `[num_pages, num_kv_heads, page_size, head_dim]`
    HeadsFirst,
    /// `[num_pages, page_size, num_kv_heads, head_dim]`
    TokensFirst,
}

struct Operands {
    /// `[tokens, num_q_heads + 2 num_kv_heads, HEAD_DIM]`
    qkv: *const Bf16,
    /// `[tokens]`
    positions: *const i32,
    /// `[batch + 1]`
    query_start: *const i32,
    /// `[batch, max_pages]`
    block_table: *const i32,
    /// `[max_positions, HEAD_DIM / 2, 2]`
    rotations: *const f32,
    /// `[tokens, num_q_heads, HEAD_DIM]`
    q_out: *mut Bf16,
    k_pages: *mut Bf16,
    v_pages: *mut Bf16,
    status: *mut i32,
    sizes: Sizes,
}

struct Sizes {
    tokens: u32,
    batch: u32,
    num_q_heads: u32,
    num_kv_heads: u32,
    page_size: NonZero<u32>,
    num_pages: u32,
    max_pages: u32,
    max_positions: u32,
}

#[inline(always)]
unsafe fn rope_append<const HEAD_DIM: u32>(operands: &Operands, layout: Layout) {
    let Operands { qkv, rotations, q_out, k_pages, v_pages, ref sizes, .. } = *operands;
    overlap_predecessor();
    let token = block_x();
    let Place { turned_by, slot } = place(operands, token);

    let slices = HEAD_DIM / 2 / PAIRS;
    let (turning, all) = (sizes.num_q_heads + sizes.num_kv_heads, sizes.num_q_heads + 2 * sizes.num_kv_heads);
    let row = |head: u32| qkv.add((token as usize * all as usize + head as usize) * HEAD_DIM as usize);
    let in_page = |kv_head: u32, slot: Slot| {
        let (page, size, heads) =
            (slot.page as usize, sizes.page_size.get() as usize, sizes.num_kv_heads as usize);
        let (at, head) = (slot.at as usize, kv_head as usize);
        let row = match layout {
            Layout::HeadsFirst => (page * heads + head) * size + at,
            Layout::TokensFirst => (page * size + at) * heads + head,
        };
        row * HEAD_DIM as usize
    };
    let item = block_y() * THREADS + thread();
    if item < turning * slices {
        let (head, from) = (item / slices, item % slices * PAIRS);
        let half = HEAD_DIM as usize / 2;
        let from_low = row(head).add(from as usize);
        let (low, high) = (load_streamed(from_low, true), load_streamed(from_low.add(half), true));
        let [low, high] = match turned_by {
            Some(position) => {
                let at = (position as usize * half + from as usize) * 2;
                turned(low, high, rotations.add(at))
            }
            None => [Vector::ZERO; 2],
        };
        let to = if head < sizes.num_q_heads {
            let row = token as usize * sizes.num_q_heads as usize + head as usize;
            Some(q_out.add(row * HEAD_DIM as usize))
        } else {
            slot.map(|slot| k_pages.add(in_page(head - sizes.num_q_heads, slot)))
        };
        if let Some(to) = to {
            store(to.add(from as usize), low);
            store(to.add(from as usize + half), high);
        }
    } else if let Some(slot) = slot {
        let item = item - turning * slices;
        let (head, from) = (item / (2 * slices), item % (2 * slices) * PAIRS);
        if head < sizes.num_kv_heads {
            let value = load_streamed(row(turning + head).add(from as usize), true);
            store(v_pages.add(in_page(head, slot) + from as usize), value);
        }
    }
}

/// Pairs turned by `[PAIRS, 2]` cosines and sines.
#[inline(always)]
unsafe fn turned(low: Vector, high: Vector, rotations: *const f32) -> [Vector; 2] {
    let (mut low, mut high): ([f32; MOST], [f32; MOST]) = (Bf16::unpack(low), Bf16::unpack(high));
    for two in 0..PAIRS as usize / 2 {
        let angles = f32::unpack(load_cached(rotations.add(4 * two), true));
        for one in 0..2 {
            let (e, cosine, sine) = (2 * two + one, angles[2 * one], angles[2 * one + 1]);
            (low[e], high[e]) = (low[e] * cosine - high[e] * sine, high[e] * cosine + low[e] * sine);
        }
    }
    [Bf16::pack(&low), Bf16::pack(&high)]
}

/// What a token's position comes to.
struct Place {
    /// Its row of rotations; `None` if there is none.
    turned_by: Option<u32>,
    /// Where its key and value go; `None` if it goes nowhere.
    slot: Option<Slot>,
}

#[derive(Clone, Copy)]
struct Slot {
    page: u32,
    at: u32,
}

/// Finds a token's place, and reports what is wrong with it, and the first block what is wrong with starts.
#[inline(always)]
unsafe fn place(operands: &Operands, token: u32) -> Place {
    let Operands { positions, query_start, block_table, status, ref sizes, .. } = *operands;
    let position = *positions.add(token as usize);
    // The sequence is the number of those that end at or before the token.
    let (mut ended, mut entry) = (0, thread() % WARP);
    while entry - thread() % WARP < sizes.batch {
        if entry < sizes.batch && *query_start.add(entry as usize + 1) <= token as i32 {
            ended += 1;
        }
        entry += WARP;
    }
    let sequence = count_warp(ended);
    let first_block = block_y() == 0;
    if token == 0 && first_block {
        report_starts(operands);
    }
    let turns = 0 <= position && (position as u32) < sizes.max_positions;
    let fits = sequence < sizes.batch
        && position >= 0
        && (position as u64) < sizes.max_pages as u64 * sizes.page_size.get() as u64;
    let mut page = -1;
    if fits {
        let entry =
            sequence as usize * sizes.max_pages as usize + (position as u32 / sizes.page_size) as usize;
        page = *block_table.add(entry);
    }
    let is_page = 0 <= page && (page as u32) < sizes.num_pages;
    if thread() == 0 && first_block {
        if !turns {
            Fault::Position { token }.report(status);
        }
        if !fits {
            Fault::Length { token }.report(status);
        } else if !is_page {
            Fault::Page { token }.report(status);
        }
    }
    let slot = Slot { page: page as u32, at: position as u32 % sizes.page_size };
    Place {
        turned_by: if turns { Some(position as u32) } else { None },
        slot: if turns && is_page { Some(slot) } else { None },
    }
}

/// Starts go from 0 to the number of tokens, and never fall.
#[inline(always)]
unsafe fn report_starts(operands: &Operands) {
    let Operands { query_start, status, ref sizes, .. } = *operands;
    let mut entry = thread();
    while entry < sizes.batch {
        let (start, end) = (*query_start.add(entry as usize), *query_start.add(entry as usize + 1));
        if entry == 0 && start != 0 {
            Fault::Start { entry }.report(status);
        }
        let last = entry == sizes.batch - 1;
        if end < start || end > sizes.tokens as i32 || (last && end < sizes.tokens as i32) {
            Fault::Start { entry: entry + 1 }.report(status);
        }
        entry += THREADS;
    }
}

/// The names of kernels say the layout and the head size.
macro_rules! kernels {
    ($($name:ident: $head_dim:literal, $layout:ident;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(
            qkv: *const Bf16, positions: *const i32, query_start: *const i32, block_table: *const i32,
            rotations: *const f32, q_out: *mut Bf16, k_pages: *mut Bf16, v_pages: *mut Bf16, status: *mut i32,
            tokens: u32, batch: u32, num_q_heads: u32, num_kv_heads: u32, page_size: NonZero<u32>, num_pages: u32,
            max_pages: u32, max_positions: u32,
        ) {
            let sizes =
                Sizes { tokens, batch, num_q_heads, num_kv_heads, page_size, num_pages, max_pages, max_positions };
            let operands = Operands {
                qkv, positions, query_start, block_table, rotations, q_out, k_pages, v_pages, status, sizes,
            };
            rope_append::<$head_dim>(&operands, Layout::$layout)
        }
    )* };
}

kernels! {
    rope_append_64_hnd: 64, HeadsFirst;
    rope_append_128_hnd: 128, HeadsFirst;
    rope_append_64_nhd: 64, TokensFirst;
    rope_append_128_nhd: 128, TokensFirst;
}

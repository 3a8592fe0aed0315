//! How the rows of a weight matrix lie in memory, and how sixteen of them become numbers.
//!
//! Sixteen rows make a *panel*; the panel's numbers are stored column by column, so that one vector holds sixteen rows of
//! one column and a row's dot product runs down the columns in order. Quantized formats keep their bits: the codes and
//! scales of GGUF blocks are only rearranged.
//!
//! A panel is a sequence of blocks (32 columns, or 256 for the `K` formats); a block is its scales followed by its units
//! of 32 columns. The bytes of a unit, sixteen lanes at a time:
//!
//! - bytes (`Q8_0`): 32 columns, one signed byte a lane;
//! - nibbles: 16 pairs of columns, the even one in the low four bits; then the high bits, if the format has any, eight
//!   columns (one bit each) or four (two bits each) to a byte.

use crate::simd::{Isa, LANES};
use std::marker::PhantomData;

/// Columns of a unit.
pub(crate) const UNIT: usize = 32;

/// One way to store a panel.
pub(crate) trait Format {
    /// Columns of a block.
    const BLOCK: usize;
    /// Bytes of a block's scales, for all lanes.
    const SCALE_BYTES: usize;
    /// Bytes of a unit of [`UNIT`] columns.
    const UNIT_BYTES: usize;
    /// Bytes of a block, for all lanes.
    const BLOCK_BYTES: usize = Self::SCALE_BYTES + Self::BLOCK / UNIT * Self::UNIT_BYTES;

    /// Hands the first `columns` columns of unit `unit` of each panel to `sink`, in order: the column in the unit, which
    /// panel, the sixteen weights. Only dense formats have units of fewer than [`UNIT`] columns.
    fn decode<I: Isa, const P: usize>(
        panels: [&[u8]; P],
        unit: usize,
        columns: usize,
        sink: impl FnMut(usize, usize, I::F),
    );
}

// What runs per column uses plain loops: a closure or a combinator of the standard library is a function of its own, and
// where the compiler keeps it one, its vector operations become calls.

#[inline(always)]
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..at + N].first_chunk().expect("N bytes were sliced")
}

/// The same part of every panel.
#[inline(always)]
fn slices<const P: usize>(panels: [&[u8]; P], at: usize, len: usize) -> [&[u8]; P] {
    let mut parts = panels;
    for p in 0..P {
        parts[p] = &panels[p][at..at + len];
    }
    parts
}

/// A dense element type.
pub(crate) trait Dense {
    /// Bytes of an element.
    const BYTES: usize;
    /// Sixteen elements.
    fn widen<I: Isa>(bytes: &[u8]) -> I::F;
}

pub(crate) struct F32;

impl Dense for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn widen<I: Isa>(bytes: &[u8]) -> I::F {
        let mut lanes = [0.0; LANES];
        for (lane, bytes) in lanes.iter_mut().zip(chunk::<{ 4 * LANES }>(bytes, 0).as_chunks().0) {
            *lane = f32::from_le_bytes(*bytes);
        }
        I::load(&lanes)
    }
}

pub(crate) struct F16;

impl Dense for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn widen<I: Isa>(bytes: &[u8]) -> I::F {
        I::widen_f16(chunk(bytes, 0))
    }
}

pub(crate) struct Bf16;

impl Dense for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn widen<I: Isa>(bytes: &[u8]) -> I::F {
        I::widen_bf16(chunk(bytes, 0))
    }
}

impl<D: Dense> Format for D {
    const BLOCK: usize = 1;
    const SCALE_BYTES: usize = 0;
    const UNIT_BYTES: usize = UNIT * D::BYTES * LANES;
    const BLOCK_BYTES: usize = D::BYTES * LANES;

    #[inline(always)]
    fn decode<I: Isa, const P: usize>(
        panels: [&[u8]; P],
        unit: usize,
        columns: usize,
        mut sink: impl FnMut(usize, usize, I::F),
    ) {
        let units = slices(panels, unit * Self::UNIT_BYTES, columns * Self::BLOCK_BYTES);
        for column in 0..columns {
            for (p, unit) in units.iter().enumerate() {
                sink(column, p, D::widen::<I>(&unit[column * Self::BLOCK_BYTES..]));
            }
        }
    }
}

/// Where a quantized format has its scales: `weight = scale · code + offset` for a run of columns.
pub(crate) trait Scales {
    /// Columns of a block.
    const BLOCK: usize;
    /// Bytes of a block's scales, for all lanes.
    const BYTES: usize;
    /// Columns that share a scale.
    const RUN: usize;
    /// Scale and offset of a run, counted from the start of the block.
    fn scale<I: Isa>(scales: &[u8], run: usize) -> [I::F; 2];
}

/// Codes of four bits and `HIGH` bits more.
pub(crate) struct Nibbles<S, const HIGH: usize>(PhantomData<S>);

impl<S: Scales, const HIGH: usize> Format for Nibbles<S, HIGH> {
    const BLOCK: usize = S::BLOCK;
    const SCALE_BYTES: usize = S::BYTES;
    const UNIT_BYTES: usize = (4 + HIGH) * UNIT * LANES / 8;

    #[inline(always)]
    fn decode<I: Isa, const P: usize>(
        panels: [&[u8]; P],
        unit: usize,
        _columns: usize,
        mut sink: impl FnMut(usize, usize, I::F),
    ) {
        let units = S::BLOCK / UNIT;
        let runs = UNIT / S::RUN;
        let blocks = slices(panels, unit / units * Self::BLOCK_BYTES, Self::BLOCK_BYTES);
        let codes = slices(blocks, S::BYTES + unit % units * Self::UNIT_BYTES, Self::UNIT_BYTES);
        for run in 0..runs {
            let mut scales = [[I::splat(0.0); 2]; P];
            for p in 0..P {
                scales[p] = S::scale::<I>(&blocks[p][..S::BYTES], unit % units * runs + run);
            }
            for octet in run * S::RUN / 8..(run + 1) * S::RUN / 8 {
                octet_pairs::<I, HIGH, P>(
                    codes,
                    octet,
                    #[inline(always)]
                    |column, p, code| sink(column, p, I::fma(I::float(code), scales[p][0], scales[p][1])),
                );
            }
        }
    }
}

/// Eight columns of codes, two at a time: the shifts of the high bits are constants then.
#[inline(always)]
fn octet_pairs<I: Isa, const HIGH: usize, const P: usize>(
    codes: [&[u8]; P],
    octet: usize,
    mut sink: impl FnMut(usize, usize, I::U),
) {
    octet_pair::<I, HIGH, 0, P>(codes, octet, &mut sink);
    octet_pair::<I, HIGH, 1, P>(codes, octet, &mut sink);
    octet_pair::<I, HIGH, 2, P>(codes, octet, &mut sink);
    octet_pair::<I, HIGH, 3, P>(codes, octet, &mut sink);
}

#[inline(always)]
fn octet_pair<I: Isa, const HIGH: usize, const PAIR: usize, const P: usize>(
    codes: [&[u8]; P],
    octet: usize,
    sink: &mut impl FnMut(usize, usize, I::U),
) {
    let column = 8 * octet + 2 * PAIR;
    let mut low = [I::unsigned(&[0; LANES]); P];
    let mut high = low;
    for p in 0..P {
        low[p] = I::unsigned(chunk(codes[p], column / 2 * LANES));
        if HIGH > 0 {
            high[p] = I::unsigned(chunk(codes[p], UNIT * LANES / 2 + column * HIGH / 8 * LANES));
        }
    }
    for p in 0..P {
        let code = I::and(low[p], 0xf);
        sink(column, p, if HIGH > 0 { I::or(code, bits::<I, HIGH>(high[p], 2 * PAIR)) } else { code });
    }
    for p in 0..P {
        let code = I::shr::<4>(low[p]);
        sink(
            column + 1,
            p,
            if HIGH > 0 { I::or(code, bits::<I, HIGH>(high[p], 2 * PAIR + 1)) } else { code },
        );
    }
}

/// The high bits of a column, above where the low four go.
#[inline(always)]
fn bits<I: Isa, const HIGH: usize>(high: I::U, column: usize) -> I::U {
    let mask = ((1 << HIGH) - 1) << 4;
    let moved = match HIGH * column % 8 {
        0 => I::shl::<4>(high),
        1 => I::shl::<3>(high),
        2 => I::shl::<2>(high),
        3 => I::shl::<1>(high),
        4 => high,
        5 => I::shr::<1>(high),
        6 => I::shr::<2>(high),
        _ => I::shr::<3>(high),
    };
    I::and(moved, mask)
}

/// `Q8_0`.
pub(crate) struct Bytes;

impl Format for Bytes {
    const BLOCK: usize = UNIT;
    const SCALE_BYTES: usize = 2 * LANES;
    const UNIT_BYTES: usize = UNIT * LANES;

    #[inline(always)]
    fn decode<I: Isa, const P: usize>(
        panels: [&[u8]; P],
        unit: usize,
        _columns: usize,
        mut sink: impl FnMut(usize, usize, I::F),
    ) {
        let blocks = slices(panels, unit * Self::BLOCK_BYTES, Self::BLOCK_BYTES);
        let mut scales = [I::splat(0.0); P];
        for p in 0..P {
            scales[p] = I::widen_f16(chunk(blocks[p], 0));
        }
        for column in 0..UNIT {
            for p in 0..P {
                let codes = I::signed(chunk(blocks[p], Self::SCALE_BYTES + column * LANES));
                sink(column, p, I::mul(I::float(codes), scales[p]));
            }
        }
    }
}

/// `d`; codes are `ZERO` too high.
pub(crate) struct Symmetric<const ZERO: i32>;

impl<const ZERO: i32> Scales for Symmetric<ZERO> {
    const BLOCK: usize = UNIT;
    const BYTES: usize = 2 * LANES;
    const RUN: usize = UNIT;

    #[inline(always)]
    fn scale<I: Isa>(scales: &[u8], _run: usize) -> [I::F; 2] {
        let scale = I::widen_f16(chunk(scales, 0));
        [scale, I::mul(scale, I::splat(-ZERO as f32))]
    }
}

/// `d` and `m`.
pub(crate) struct Affine;

impl Scales for Affine {
    const BLOCK: usize = UNIT;
    const BYTES: usize = 4 * LANES;
    const RUN: usize = UNIT;

    #[inline(always)]
    fn scale<I: Isa>(scales: &[u8], _run: usize) -> [I::F; 2] {
        [I::widen_f16(chunk(scales, 0)), I::widen_f16(chunk(scales, 2 * LANES))]
    }
}

/// `d` and `dmin` of a block of 256, then eight scales and eight minima of one byte each.
pub(crate) struct Super;

impl Scales for Super {
    const BLOCK: usize = 256;
    const BYTES: usize = (2 + 2 + 8 + 8) * LANES;
    const RUN: usize = UNIT;

    #[inline(always)]
    fn scale<I: Isa>(scales: &[u8], run: usize) -> [I::F; 2] {
        let factors = I::float(I::unsigned(chunk(scales, (4 + run) * LANES)));
        let minima = I::float(I::unsigned(chunk(scales, (12 + run) * LANES)));
        let minima = I::mul(minima, I::splat(-1.0));
        [
            I::mul(I::widen_f16(chunk(scales, 0)), factors),
            I::mul(I::widen_f16(chunk(scales, 2 * LANES)), minima),
        ]
    }
}

/// `d` of a block of 256, then sixteen signed scales of one byte each; codes are 32 too high.
pub(crate) struct SuperSymmetric;

impl Scales for SuperSymmetric {
    const BLOCK: usize = 256;
    const BYTES: usize = (2 + 16) * LANES;
    const RUN: usize = 16;

    #[inline(always)]
    fn scale<I: Isa>(scales: &[u8], run: usize) -> [I::F; 2] {
        let factors = I::float(I::signed(chunk(scales, (2 + run) * LANES)));
        let scale = I::mul(I::widen_f16(chunk(scales, 0)), factors);
        [scale, I::mul(scale, I::splat(-32.0))]
    }
}

pub(crate) type Q4_0 = Nibbles<Symmetric<8>, 0>;
pub(crate) type Q4_1 = Nibbles<Affine, 0>;
pub(crate) type Q5_0 = Nibbles<Symmetric<16>, 1>;
pub(crate) type Q5_1 = Nibbles<Affine, 1>;
pub(crate) type Q8_0 = Bytes;
pub(crate) type Q4K = Nibbles<Super, 0>;
pub(crate) type Q5K = Nibbles<Super, 1>;
pub(crate) type Q6K = Nibbles<SuperSymmetric, 2>;

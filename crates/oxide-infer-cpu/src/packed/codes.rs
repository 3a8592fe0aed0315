//! From the rows of a file to the lanes of a panel.

use super::format::{Format, UNIT};
use super::with_format;
use crate::simd::LANES;
use oxide_infer::WeightFormat;
use oxide_infer::quantization::BlockFormat;

/// Writes up to [`LANES`] rows, one after another in `rows`, into the lanes of a panel whose bytes are zero.
pub(super) fn write_panel(format: WeightFormat, rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    let format = match format {
        WeightFormat::Blocks(format) => format,
        WeightFormat::Dense(dtype) => {
            let size = dtype.size();
            for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                for (source, column) in row.chunks_exact(size).zip(panel.chunks_exact_mut(size * LANES)) {
                    column[lane * size..][..size].copy_from_slice(source);
                }
            }
            return;
        }
    };
    let block_bytes = with_format!(WeightFormat::Blocks(format), F => F::BLOCK_BYTES);
    // Lanes without a row stay zero.
    let mut blocks: [Block; LANES] = Default::default();
    for (index, out) in panel.chunks_exact_mut(block_bytes).enumerate() {
        for (block, row) in blocks.iter_mut().zip(rows.chunks_exact(row_bytes)) {
            block.read(format, &row[index * format.block_bytes()..][..format.block_bytes()]);
        }
        write(&blocks, format, out);
    }
}

/// A GGUF block taken apart.
struct Block {
    /// Scale, then minimum, as binary16.
    halves: [[u8; 2]; 2],
    /// Scales, then minima, of the runs of a `K` block.
    factors: [u8; 16],
    /// The quantized numbers, in order.
    codes: [u8; 256],
}

impl Default for Block {
    fn default() -> Self {
        Self { halves: [[0; 2]; 2], factors: [0; 16], codes: [0; 256] }
    }
}

/// How many halves and factors a format has, and how many bits past the low four.
struct Anatomy {
    halves: usize,
    factors: usize,
    /// `None`: whole bytes.
    high_bits: Option<usize>,
}

fn anatomy(format: BlockFormat) -> Anatomy {
    let (halves, factors, high_bits) = match format {
        BlockFormat::Q4_0 => (1, 0, Some(0)),
        BlockFormat::Q4_1 => (2, 0, Some(0)),
        BlockFormat::Q5_0 => (1, 0, Some(1)),
        BlockFormat::Q5_1 => (2, 0, Some(1)),
        BlockFormat::Q8_0 => (1, 0, None),
        BlockFormat::Q4_K => (2, 16, Some(0)),
        BlockFormat::Q5_K => (2, 16, Some(1)),
        BlockFormat::Q6_K => (1, 16, Some(2)),
    };
    Anatomy { halves, factors, high_bits }
}

impl Block {
    /// The layouts are those of `oxide_infer::quantization`.
    fn read(&mut self, format: BlockFormat, block: &[u8]) {
        let half = |at: usize| [block[at], block[at + 1]];
        self.halves[0] = half(if format == BlockFormat::Q6_K { 208 } else { 0 });
        match format {
            BlockFormat::Q4_0 => self.nibbles(&block[2..]),
            BlockFormat::Q4_1 => {
                self.halves[1] = half(2);
                self.nibbles(&block[4..]);
            }
            BlockFormat::Q5_0 => {
                self.nibbles(&block[6..]);
                self.fifth_bits(&block[2..6]);
            }
            BlockFormat::Q5_1 => {
                self.halves[1] = half(2);
                self.nibbles(&block[8..]);
                self.fifth_bits(&block[4..8]);
            }
            BlockFormat::Q8_0 => self.codes[..UNIT].copy_from_slice(&block[2..]),
            BlockFormat::Q4_K => {
                self.halves[1] = half(2);
                self.scales_and_minima(&block[4..16]);
                self.pairs_of_units(&block[16..144]);
            }
            BlockFormat::Q5_K => {
                self.halves[1] = half(2);
                self.scales_and_minima(&block[4..16]);
                self.pairs_of_units(&block[48..176]);
                for (i, code) in self.codes.iter_mut().enumerate() {
                    *code |= (block[16 + i % UNIT] >> (i / UNIT) & 1) << 4;
                }
            }
            BlockFormat::Q6_K => {
                self.factors.copy_from_slice(&block[192..208]);
                for (i, code) in self.codes.iter_mut().enumerate() {
                    let (half, quarter, j) = (i / 128, i % 128 / UNIT, i % UNIT);
                    let low = block[64 * half + quarter % 2 * UNIT + j] >> (4 * (quarter / 2)) & 0xf;
                    *code = low | (block[128 + half * UNIT + j] >> (2 * quarter) & 3) << 4;
                }
            }
        }
    }

    /// Sixteen bytes: the low nibbles are numbers 0 to 15, the high ones 16 to 31.
    fn nibbles(&mut self, bytes: &[u8]) {
        for (j, byte) in bytes.iter().enumerate() {
            self.codes[j] = byte & 0xf;
            self.codes[j + 16] = byte >> 4;
        }
    }

    fn fifth_bits(&mut self, bits: &[u8]) {
        for (i, code) in self.codes[..UNIT].iter_mut().enumerate() {
            *code |= (bits[i / 8] >> (i % 8) & 1) << 4;
        }
    }

    /// Each 32 bytes hold two units: low nibbles, then high nibbles.
    fn pairs_of_units(&mut self, bytes: &[u8]) {
        for (pair, bytes) in bytes.chunks_exact(UNIT).enumerate() {
            for (j, byte) in bytes.iter().enumerate() {
                self.codes[2 * pair * UNIT + j] = byte & 0xf;
                self.codes[(2 * pair + 1) * UNIT + j] = byte >> 4;
            }
        }
    }

    /// Twelve bytes of six-bit numbers: eight scales and eight minima.
    fn scales_and_minima(&mut self, packed: &[u8]) {
        for i in 0..4 {
            self.factors[i] = packed[i] & 63;
            self.factors[8 + i] = packed[4 + i] & 63;
            self.factors[4 + i] = packed[8 + i] & 0xf | packed[i] >> 6 << 4;
            self.factors[12 + i] = packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4;
        }
    }
}

fn write(blocks: &[Block; LANES], format: BlockFormat, out: &mut [u8]) {
    let Anatomy { halves, factors, high_bits } = anatomy(format);
    let (scales, units) = out.split_at_mut((2 * halves + factors) * LANES);
    let (scales, bytes) = scales.split_at_mut(2 * halves * LANES);
    for (half, out) in scales.chunks_exact_mut(2 * LANES).enumerate() {
        for (block, out) in blocks.iter().zip(out.as_chunks_mut().0) {
            *out = block.halves[half];
        }
    }
    for (factor, out) in bytes.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        *out = each(blocks, |block| block.factors[factor]);
    }
    let unit_bytes = units.len() / (format.block_elements() / UNIT);
    for (unit, out) in units.chunks_exact_mut(unit_bytes).enumerate() {
        let first = unit * UNIT;
        let Some(high_bits) = high_bits else {
            for (column, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                *out = each(blocks, |block| block.codes[first + column]);
            }
            continue;
        };
        let (low, high) = out.split_at_mut(UNIT * LANES / 2);
        for (pair, out) in low.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let column = first + 2 * pair;
            *out = each(blocks, |block| block.codes[column] & 0xf | block.codes[column + 1] << 4);
        }
        for (group, out) in high.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let per_byte = 8 / high_bits;
            let columns = first + group * per_byte..first + (group + 1) * per_byte;
            *out = each(blocks, |block| {
                let codes = block.codes[columns.clone()].iter().rev();
                codes.fold(0, |byte, code| byte << high_bits | code >> 4)
            });
        }
    }
}

fn each(blocks: &[Block; LANES], byte: impl Fn(&Block) -> u8) -> [u8; LANES] {
    let mut bytes = [0; LANES];
    for (out, block) in bytes.iter_mut().zip(blocks) {
        *out = byte(block);
    }
    bytes
}

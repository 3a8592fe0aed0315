use super::{BlockFormat, QuantizationError};
use half::f16;

/// The numbers that `bytes` stand for. This is the definition of the formats: plain, and slow.
///
/// # Errors
/// [`QuantizationError`] when `out` is not a whole number of blocks or `bytes` is not exactly its blocks; `out` is then
/// as it was.
pub fn dequantize(format: BlockFormat, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantizationError> {
    let expected = format.bytes_for(out.len())?;
    if bytes.len() != expected {
        return Err(QuantizationError::Bytes { format, elements: out.len(), expected, got: bytes.len() });
    }
    let block = match format {
        BlockFormat::Q4_0 => q4_0,
        BlockFormat::Q4_1 => q4_1,
        BlockFormat::Q5_0 => q5_0,
        BlockFormat::Q5_1 => q5_1,
        BlockFormat::Q8_0 => q8_0,
        BlockFormat::Q4_K => q4_k,
        BlockFormat::Q5_K => q5_k,
        BlockFormat::Q6_K => q6_k,
    };
    let blocks = bytes.chunks_exact(format.block_bytes());
    for (bytes, out) in blocks.zip(out.chunks_exact_mut(format.block_elements())) {
        block(bytes, out);
    }
    Ok(())
}

// Each function below takes exactly one block: `block_bytes` bytes in, `block_elements` numbers out.

/// `d: f16, q: [u8; 16]`; the low nibbles are elements 0–15, the high ones 16–31.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (j, &q) in block[2..].iter().enumerate() {
        out[j] = d * signed(q & 0xf, 8);
        out[j + 16] = d * signed(q >> 4, 8);
    }
}

/// `d: f16, m: f16, q: [u8; 16]`; nibbles as in `q4_0`.
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, &q) in block[4..].iter().enumerate() {
        out[j] = d * f32::from(q & 0xf) + m;
        out[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// `d: f16, high: u32, q: [u8; 16]`; bit `i` of `high` is the fifth bit of element `i`.
fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for j in 0..16 {
        let [low, high] = five_bits(&block[2..6], block[6 + j], j);
        out[j] = d * signed(low, 16);
        out[j + 16] = d * signed(high, 16);
    }
}

/// `d: f16, m: f16, high: u32, q: [u8; 16]`.
fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for j in 0..16 {
        let [low, high] = five_bits(&block[4..8], block[8 + j], j);
        out[j] = d * f32::from(low) + m;
        out[j + 16] = d * f32::from(high) + m;
    }
}

/// `d: f16, q: [i8; 32]`.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (out, &q) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(q as i8);
    }
}

/// `d: f16, dmin: f16, scales: [u8; 12], q: [u8; 128]`. Each 32 bytes of `q` hold two sub-blocks of 32: low nibbles,
/// then high nibbles.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, q) = (&block[4..16], &block[16..144]);
    for (i, out) in out.iter_mut().enumerate() {
        let sub = i / 32;
        let (scale, min) = scale_and_min(scales, sub);
        let q = nibble(q, sub, i % 32);
        *out = d * scale * f32::from(q) - dmin * min;
    }
}

/// `d: f16, dmin: f16, scales: [u8; 12], high: [u8; 32], q: [u8; 128]`. Bit `s` of `high[j]` is the fifth bit of element
/// `j` of sub-block `s`.
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, high, q) = (&block[4..16], &block[16..48], &block[48..176]);
    for (i, out) in out.iter_mut().enumerate() {
        let (sub, j) = (i / 32, i % 32);
        let (scale, min) = scale_and_min(scales, sub);
        let q = nibble(q, sub, j) | (high[j] >> sub & 1) << 4;
        *out = d * scale * f32::from(q) - dmin * min;
    }
}

/// `low: [u8; 128], high: [u8; 64], scales: [i8; 16], d: f16`. Each half of the block (128 elements) is four quarters of
/// 32: quarters 0 and 1 are the low nibbles of its 64 bytes of `low`, 2 and 3 the high nibbles; bits `2k` and `2k + 1` of
/// its 32 bytes of `high` are the top bits of quarter `k`.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208);
    for (i, out) in out.iter_mut().enumerate() {
        let (half, quarter, j) = (i / 128, i % 128 / 32, i % 32);
        let low = low[half * 64 + quarter % 2 * 32 + j] >> (quarter / 2 * 4) & 0xf;
        let top = high[half * 32 + j] >> (quarter * 2) & 3;
        let scale = f32::from(scales[i / 16] as i8);
        *out = d * scale * signed(low | top << 4, 32);
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn signed(q: u8, zero: i16) -> f32 {
    f32::from(i16::from(q) - zero)
}

/// Elements `j` and `j + 16` of a five-bit block of 32.
fn five_bits(high: &[u8], q: u8, j: usize) -> [u8; 2] {
    let bit = |i: usize| (high[i / 8] >> (i % 8) & 1) << 4;
    [q & 0xf | bit(j), q >> 4 | bit(j + 16)]
}

/// Element `j` of sub-block `sub` of a K block's nibbles.
fn nibble(q: &[u8], sub: usize, j: usize) -> u8 {
    q[sub / 2 * 32 + j] >> (sub % 2 * 4) & 0xf
}

/// The six-bit scale and minimum of a K block's sub-block. Sub-blocks 0–3 lie in the low six bits of bytes 0–3 (scales)
/// and 4–7 (minima); 4–7 have their low four bits in bytes 8–11 and their top two in the spare bits of the others.
fn scale_and_min(packed: &[u8], sub: usize) -> (f32, f32) {
    let (scale, min) = if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        let low = packed[sub + 4];
        (low & 0xf | packed[sub - 4] >> 6 << 4, low >> 4 | packed[sub] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

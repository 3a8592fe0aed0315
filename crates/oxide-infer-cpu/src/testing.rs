//! Random operands for the tests of this crate.

use crate::CpuProvider;
use half::{bf16, f16};
use oxide_infer::quantization::{BlockFormat, dequantize};
use oxide_infer::{DType, WeightFormat};
use std::num::NonZeroUsize;

pub(crate) fn provider(threads: usize) -> CpuProvider {
    CpuProvider::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

/// SplitMix64: a stream of words from a seed.
pub(crate) fn words(seed: u64) -> impl Iterator<Item = u64> {
    (1..).map(move |i: u64| {
        let mut z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    })
}

/// Numbers in [−1, 1).
pub(crate) fn random_floats(len: usize, seed: u64) -> Vec<f32> {
    words(seed).take(len).map(|word| (word >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Random weights: their bytes in a format, and the numbers that these stand for.
pub(crate) fn random_blocks(format: WeightFormat, elements: usize, seed: u64) -> (Vec<u8>, Vec<f32>) {
    let floats = random_floats(elements, seed);
    let format = match format {
        WeightFormat::Dense(DType::F16) => {
            let halves: Vec<f16> = floats.iter().map(|&x| f16::from_f32(x)).collect();
            return (bytemuck::cast_slice(&halves).to_vec(), halves.iter().map(|x| x.to_f32()).collect());
        }
        WeightFormat::Dense(DType::BF16) => {
            let halves: Vec<bf16> = floats.iter().map(|&x| bf16::from_f32(x)).collect();
            return (bytemuck::cast_slice(&halves).to_vec(), halves.iter().map(|x| x.to_f32()).collect());
        }
        WeightFormat::Dense(_) => return (bytemuck::cast_slice(&floats).to_vec(), floats),
        WeightFormat::Blocks(format) => format,
    };
    let mut bytes: Vec<u8> =
        words(seed).take(format.bytes_for(elements).unwrap()).map(|word| word as u8).collect();
    for (block, scale) in bytes.chunks_exact_mut(format.block_bytes()).zip(random_floats(elements, seed ^ 7))
    {
        // Random bytes make NaN and infinite scales.
        let halves: &[usize] = match format {
            BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => &[0],
            BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4_K | BlockFormat::Q5_K => &[0, 2],
            BlockFormat::Q6_K => &[208],
        };
        for &at in halves {
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale / 64.0).to_le_bytes());
        }
    }
    let mut numbers = vec![0.0; elements];
    dequantize(format, &bytes, &mut numbers).unwrap();
    (bytes, numbers)
}

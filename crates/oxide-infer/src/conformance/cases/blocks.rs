//! Weights for the suite, in every format.

use crate::conformance::buffer::{Floats, Numbers, Spacing};
use crate::quantization::{BlockFormat, BlockMatrix};
use crate::{Weight, WeightFormat};
use half::f16;

/// A weight matrix, stored one way.
pub(super) enum Stored {
    Dense(Floats<2>),
    Blocks { format: BlockFormat, shape: [usize; 2], bytes: Vec<u8> },
}

impl Stored {
    /// Numbers of at most about 1.
    pub(super) fn random(
        numbers: &mut Numbers,
        format: WeightFormat,
        shape: [usize; 2],
        spacing: Spacing,
    ) -> Self {
        match format {
            WeightFormat::Dense(dtype) => {
                Self::Dense(Floats::random(numbers, dtype, spacing.layout(shape), 1.0))
            }
            WeightFormat::Blocks(format) => {
                Self::Blocks { format, shape, bytes: blocks(numbers, format, shape) }
            }
        }
    }

    pub(super) fn view(&self) -> Weight<'_> {
        match self {
            Self::Dense(floats) => Weight::Dense(floats.view()),
            Self::Blocks { format, shape: [rows, cols], bytes } => {
                Weight::Blocks(BlockMatrix::new(*format, *rows, *cols, bytes).expect("made to fit"))
            }
        }
    }
}

/// Random bytes, but for the half-precision scales: those keep each number within about ±1.
fn blocks(numbers: &mut Numbers, format: BlockFormat, [rows, cols]: [usize; 2]) -> Vec<u8> {
    // The greatest number that a block can hold at scale 1, and where its scales (and minima) lie.
    let (greatest, scales): (f32, &[usize]) = match format {
        BlockFormat::Q4_0 => (8.0, &[0]),
        BlockFormat::Q4_1 => (15.0, &[0, 2]),
        BlockFormat::Q5_0 => (16.0, &[0]),
        BlockFormat::Q5_1 => (31.0, &[0, 2]),
        BlockFormat::Q8_0 => (128.0, &[0]),
        BlockFormat::Q4_K => (63.0 * 15.0, &[0, 2]),
        BlockFormat::Q5_K => (63.0 * 31.0, &[0, 2]),
        BlockFormat::Q6_K => (128.0 * 32.0, &[208]),
    };
    let count = rows * cols / format.block_elements();
    let mut bytes: Vec<u8> = (0..count * format.block_bytes()).map(|_| numbers.below(256) as u8).collect();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for &at in scales {
            let scale = f16::from_f32(numbers.signed() / greatest);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}

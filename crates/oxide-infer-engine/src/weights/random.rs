//! Weights made from a seed. [`Checkpoint::random`](super::Checkpoint::random) has the formula.

use super::CheckpointTensor;
use super::TensorFormat;
use crate::model::{DenseDecoder, ModelConfig, Naming, WeightRef, WeightRole};
use half::bf16;
use oxide_infer::{DType, WeightFormat};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// The tensors of a model, in BF16; an element's value is a function of the seed, the tensor's name and its index.
#[derive(Debug)]
pub(super) struct RandomTensors {
    seed: u64,
    tensors: BTreeMap<String, RandomTensor>,
}

#[derive(Debug)]
pub(super) struct RandomTensor {
    shape: Vec<u64>,
    fill: Fill,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    Ones,
    Normal { std: f32 },
}

/// Elements that one task makes.
const CHUNK: usize = 1 << 16;

impl RandomTensors {
    pub(super) fn new(config: &ModelConfig, seed: u64) -> Self {
        let tensors = DenseDecoder::new(config).weights().into_iter().map(|weight| {
            let name = Naming::HuggingFace.name(weight.id());
            (name, RandomTensor { shape: weight.shape(), fill: Fill::of(&weight) })
        });
        Self { seed, tensors: tensors.collect() }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub(super) fn tensor(&self, name: &str) -> Option<CheckpointTensor> {
        let shape = self.tensors.get(name)?.shape.clone();
        let format = TensorFormat::Known(WeightFormat::Dense(DType::BF16));
        Some(CheckpointTensor { name: name.to_owned(), shape, format })
    }

    pub(super) fn byte_len(&self, name: &str) -> usize {
        self.tensors.get(name).map_or(0, RandomTensor::byte_len)
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.byte_len() as u64).sum()
    }

    /// A tensor's elements, little-endian; all threads of the process's pool make them.
    pub(super) fn bytes(&self, name: &str) -> Vec<u8> {
        let Some(tensor) = self.tensors.get(name) else { return Vec::new() };
        let mut bytes = vec![0; tensor.byte_len()];
        let key = splitmix64(self.seed ^ fnv1a64(name));
        bytes.par_chunks_mut(CHUNK * size_of::<bf16>()).enumerate().for_each(|(chunk, bytes)| {
            tensor.fill.write(key.wrapping_add((chunk * CHUNK) as u64), bytes);
        });
        bytes
    }
}

impl RandomTensor {
    fn byte_len(&self) -> usize {
        self.shape.iter().product::<u64>() as usize * size_of::<bf16>()
    }
}

impl Fill {
    fn of(weight: &WeightRef) -> Self {
        use WeightRole as W;
        let over_fan_in = |gain: f32, cols: usize| Self::Normal { std: gain / (cols as f32).sqrt() };
        match weight {
            WeightRef::Matrix(matrix) => match matrix.id.role {
                W::TokenEmbedding | W::OutputHead => over_fan_in(3.0, matrix.cols),
                W::AttentionOutput | W::Down => over_fan_in(2.0, matrix.cols),
                _ => over_fan_in(1.0, matrix.cols),
            },
            WeightRef::Vector(vector) => match vector.id.role {
                W::AttentionNorm | W::FeedForwardNorm | W::FinalNorm | W::QueryNorm | W::KeyNorm => {
                    Self::Ones
                }
                _ => Self::Normal { std: 0.1 },
            },
        }
    }

    /// Writes the elements that begin at a counter.
    fn write(self, counter: u64, bytes: &mut [u8]) {
        let elements = bytes.as_chunks_mut().0;
        match self {
            Self::Ones => elements.fill(bf16::ONE.to_le_bytes()),
            Self::Normal { std } => {
                let scale = std / LANES_STD;
                for (element, counter) in elements.iter_mut().zip(counter..) {
                    *element = bf16::from_f32(lanes(splitmix64(counter)) * scale).to_le_bytes();
                }
            }
        }
    }
}

/// The sum of four 16-bit numbers less its mean: nearly normal (Irwin–Hall), and exact, so that every machine makes the
/// same bits.
fn lanes(hash: u64) -> f32 {
    let sum = (hash & 0xffff) + (hash >> 16 & 0xffff) + (hash >> 32 & 0xffff) + (hash >> 48);
    (sum as i32 - 2 * 0xffff) as f32
}

/// Standard deviation of [`lanes`]: each lane's variance is `(2^32 − 1) / 12`.
const LANES_STD: f32 = 37_837.227;

/// The FNV-1a hash of a name.
pub(crate) fn fnv1a64(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The SplitMix64 generator's output for a counter.
pub(crate) fn splitmix64(counter: u64) -> u64 {
    let mut z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;

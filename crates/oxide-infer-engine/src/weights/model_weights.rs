use super::{Checkpoint, TensorFormat};
use crate::model::{DenseDecoder, Matrix, ModelConfig, RotaryRows, Vector, WeightId, WeightRef, WeightRole};
use half::{bf16, f16};
use oxide_infer::{DType, WeightFormat};
use std::borrow::Cow;
use std::collections::HashSet;

/// Unexpected tensors are named in the log up to this number.
const MAX_LISTED: usize = 10;

/// A checkpoint that has every weight of a model, in its shape and in a format that can be computed with.
#[derive(Debug)]
pub struct ModelWeights<'a> {
    checkpoint: &'a Checkpoint,
    rotary_rows: RotaryRows,
    head_dim: usize,
    weights: Vec<WeightRef>,
}

/// A matrix's numbers: `rows` rows one after the other, little-endian.
#[derive(Clone, Debug)]
pub struct MatrixBytes<'a> {
    /// How they are stored.
    pub format: WeightFormat,
    /// Borrowed from the map of the file, unless rows had to be put into another order or the bytes were made from a seed.
    pub bytes: Cow<'a, [u8]>,
}

/// A checkpoint does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the weights do not fit the model, {} problems:{}", problems.len(), list(problems))]
pub struct WeightsError {
    /// Everything that is wrong.
    pub problems: Vec<WeightProblem>,
}

fn list(problems: &[WeightProblem]) -> String {
    problems.iter().map(|problem| format!("\n  {problem}")).collect()
}

/// A tensor that does not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightProblem {
    /// It is not there.
    #[error("{name} {shape:?} is missing")]
    Missing {
        /// Its name.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// It has another shape.
    #[error("{name} has the shape {found:?}, the configuration asks for {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// The shape that the configuration asks for.
        expected: Vec<u64>,
        /// Its shape.
        found: Vec<u64>,
    },
    /// Its numbers are stored in a way that is not read.
    #[error("{name} is stored as {found}; {supported}")]
    Format {
        /// Its name.
        name: String,
        /// How it is stored.
        found: String,
        /// What is read.
        supported: &'static str,
    },
}

const MATRIX_FORMATS: &str =
    "matrices are read in f32, f16, bf16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K";
const VECTOR_FORMATS: &str = "norms and biases are read in f32, f16 and bf16";

impl<'a> ModelWeights<'a> {
    /// Checks every weight of a decoder for presence, shape and format, and logs tensors that no operator reads.
    ///
    /// # Errors
    /// [`WeightsError`] with everything that is wrong.
    pub fn new(
        checkpoint: &'a Checkpoint,
        config: &ModelConfig,
        decoder: &DenseDecoder,
    ) -> Result<Self, WeightsError> {
        let naming = checkpoint.naming();
        let weights = decoder.weights();
        let problems: Vec<_> = weights.iter().filter_map(|weight| problem(checkpoint, weight)).collect();
        if !problems.is_empty() {
            return Err(WeightsError { problems });
        }
        let known: HashSet<String> = weights.iter().map(|weight| naming.name(weight.id())).collect();
        let unexpected: Vec<_> = checkpoint
            .names()
            .into_iter()
            .filter(|name| !known.contains(*name) && !naming.is_ignored(name))
            .collect();
        if !unexpected.is_empty() {
            let first = &unexpected[..unexpected.len().min(MAX_LISTED)];
            tracing::warn!(
                count = unexpected.len(),
                ?first,
                "the checkpoint has tensors that the model does not read"
            );
        }
        let rotary_rows = naming.rotary_rows(config.architecture);
        Ok(Self { checkpoint, rotary_rows, head_dim: config.head_dim, weights })
    }

    /// Every weight once, in the order of its first use.
    pub fn weights(&self) -> &[WeightRef] {
        &self.weights
    }

    /// How a matrix is stored.
    pub fn format(&self, matrix: &Matrix) -> WeightFormat {
        self.known(matrix.id)
    }

    /// Bytes of a weight in its file.
    pub fn stored_bytes(&self, id: WeightId) -> usize {
        self.checkpoint.byte_len(&self.name(id))
    }

    /// A matrix, rows in the order of the [`DenseDecoder`].
    pub fn matrix(&self, matrix: &Matrix) -> MatrixBytes<'a> {
        let format = self.known(matrix.id);
        let bytes = self.checkpoint.bytes(&self.name(matrix.id));
        let bytes = match self.is_permuted(matrix.id.role) {
            true => Cow::Owned(halves_from_interleaved(&bytes, self.head_dim, bytes.len() / matrix.rows)),
            false => bytes,
        };
        MatrixBytes { format, bytes }
    }

    /// A vector, widened to `f32`.
    pub fn vector(&self, vector: &Vector) -> Vec<f32> {
        let bytes = self.checkpoint.bytes(&self.name(vector.id));
        let format = self.known(vector.id);
        let bytes = match self.is_permuted(vector.id.role) {
            true => Cow::Owned(halves_from_interleaved(&bytes, self.head_dim, bytes.len() / vector.len)),
            false => bytes,
        };
        match format {
            WeightFormat::Dense(DType::F16) => {
                bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect()
            }
            WeightFormat::Dense(DType::BF16) => {
                bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect()
            }
            _ => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        }
    }

    /// Tells the system that a weight's bytes have been used, so that they stop counting as this process's memory.
    pub fn release(&self, id: WeightId) {
        self.checkpoint.release(&self.name(id));
    }

    fn name(&self, id: WeightId) -> String {
        self.checkpoint.naming().name(id)
    }

    fn known(&self, id: WeightId) -> WeightFormat {
        match self.checkpoint.tensor(&self.name(id)).map(|tensor| tensor.format) {
            Some(TensorFormat::Known(format)) => format,
            // `new` found it in a known format.
            _ => unreachable!("{:?} was checked", id),
        }
    }

    fn is_permuted(&self, role: WeightRole) -> bool {
        self.rotary_rows == RotaryRows::Interleaved
            && matches!(
                role,
                WeightRole::Query | WeightRole::QueryBias | WeightRole::Key | WeightRole::KeyBias
            )
    }
}

fn problem(checkpoint: &Checkpoint, weight: &WeightRef) -> Option<WeightProblem> {
    let name = checkpoint.naming().name(weight.id());
    let expected = weight.shape();
    let Some(tensor) = checkpoint.tensor(&name) else {
        return Some(WeightProblem::Missing { name, shape: expected });
    };
    if tensor.shape != expected {
        return Some(WeightProblem::Shape { name, expected, found: tensor.shape });
    }
    let supported = match (weight, &tensor.format) {
        (_, TensorFormat::Known(WeightFormat::Dense(_))) => return None,
        (WeightRef::Matrix(_), TensorFormat::Known(WeightFormat::Blocks(_))) => return None,
        (WeightRef::Matrix(_), TensorFormat::Other(_)) => MATRIX_FORMATS,
        (WeightRef::Vector(_), _) => VECTOR_FORMATS,
    };
    Some(WeightProblem::Format { name, found: tensor.format.to_string(), supported })
}

/// Puts the rows of every head from llama.cpp's order, where rows `2i` and `2i + 1` rotate together, into the order
/// where rows `i` and `i + head_dim / 2` do.
fn halves_from_interleaved(bytes: &[u8], head_dim: usize, row_bytes: usize) -> Vec<u8> {
    let half = head_dim / 2;
    let mut ordered = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(head_dim * row_bytes) {
        for row in 0..head_dim {
            let source = 2 * (row % half) + row / half;
            ordered.extend_from_slice(&head[source * row_bytes..][..row_bytes]);
        }
    }
    ordered
}

#[cfg(test)]
mod tests;

//! Model files on disk, and their tensors.
//!
//! A [`Checkpoint`] is one source of named tensors, whatever files they are in. Files are mapped, so that a tensor's bytes
//! cost memory only between [`Checkpoint::bytes`] and [`Checkpoint::release`]; tensors made from a seed cost it as long as
//! their bytes are held. [`ModelWeights`] is a checkpoint that was found to have every weight of a model.

mod checkpoint;
mod mapped;
mod model_weights;
pub(crate) mod random;
mod safetensors;

pub use self::safetensors::SafetensorsError;
pub use checkpoint::{Checkpoint, CheckpointTensor, TensorFormat};
pub use mapped::MappedFile;
pub use model_weights::{MatrixBytes, ModelWeights, WeightProblem, WeightsError};

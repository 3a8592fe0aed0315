//! Model files on disk, and their tensors.
//!
//! A [`Checkpoint`] is one source of named tensors, whatever files they are in. Files are mapped, so that a tensor's bytes
//! cost memory only between [`Checkpoint::bytes`] and [`Checkpoint::release`].

mod checkpoint;
mod mapped;
mod safetensors;

pub use self::safetensors::SafetensorsError;
pub use checkpoint::{Checkpoint, CheckpointTensor, TensorFormat};
pub use mapped::MappedFile;

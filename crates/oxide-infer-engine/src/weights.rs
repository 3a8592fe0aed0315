//! Model files on disk, and their tensors.

mod mapped;

pub use mapped::MappedFile;

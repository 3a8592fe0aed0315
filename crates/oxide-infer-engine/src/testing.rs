//! Writers of small model files, for tests.

mod gguf_writer;
mod safetensors_writer;

pub use gguf_writer::GgufWriter;
pub use safetensors_writer::{safetensors_file, safetensors_file_of};

//! For tests of this crate and of those above it: writers of small model files, and an executor that follows a script.

mod gguf_writer;
mod safetensors_writer;
pub mod scripted;
mod tiny_model;

pub use gguf_writer::GgufWriter;
pub use safetensors_writer::{safetensors_file, safetensors_file_of};
pub use tiny_model::TinyModel;

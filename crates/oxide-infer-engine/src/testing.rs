//! For tests of this crate and of those above it: writers of small model files, and executors that follow a script or a
//! clock.

mod gguf_writer;
mod safetensors_writer;
pub mod scripted;
pub mod timed;
mod tiny_model;

pub use gguf_writer::GgufWriter;
pub use safetensors_writer::{safetensors_file, safetensors_file_of};
pub use tiny_model::TinyModel;

//! Writers of small model files, for tests.

mod gguf_writer;

pub use gguf_writer::GgufWriter;

//! Embeddings.

pub mod gather;

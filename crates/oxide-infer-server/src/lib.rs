//! The OpenAI-compatible HTTP server of Oxide Infer.

pub mod text;

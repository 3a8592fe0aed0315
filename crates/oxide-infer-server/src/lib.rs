//! The OpenAI-compatible HTTP server of Oxide Infer.

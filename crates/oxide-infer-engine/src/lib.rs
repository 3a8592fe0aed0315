//! Model loading, paged KV, scheduling and execution for Oxide Infer.

//! Checked CUDA runtime and kernel artifact registry of Oxide Infer.

//! Fast CPU provider of the Oxide Infer operator contracts.

mod activation;
mod disjoint;
mod embedding;
mod error;
mod gemm;
mod math;
mod norm;
mod packed;
mod rows;
mod simd;
mod team;
#[cfg(test)]
mod testing;

pub use activation::swiglu;
pub use embedding::gather;
pub use error::CpuError;
pub use gemm::{Update, gemm};
pub use norm::rms_norm;
pub use packed::PackedMatrix;
pub use team::{CpuProvider, Team};

/// Elements of simple work (a pass over memory) that are worth handing to another thread.
const TASK_ELEMENTS: usize = 4096;

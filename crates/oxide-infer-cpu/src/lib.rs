//! Fast CPU provider of the Oxide Infer operator contracts.

mod activation;
mod attention;
mod disjoint;
mod embedding;
mod error;
mod gemm;
mod kv_cache;
mod math;
mod norm;
mod packed;
mod plan;
mod rope;
mod rows;
mod sampling;
mod simd;
mod team;
#[cfg(test)]
mod testing;

pub use embedding::gather;
pub use error::CpuError;
pub use gemm::{Update, gemm};
pub use packed::PackedMatrix;
pub use plan::{Operator, Plan};
pub use rope::Angles;
pub use team::{CpuProvider, Team};

/// Elements of simple work (a pass over memory) that are worth handing to another thread.
const TASK_ELEMENTS: usize = 4096;

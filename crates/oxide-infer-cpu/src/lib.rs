//! Fast CPU provider of the Oxide Infer operator contracts.
//!
//! - [`CpuProvider`] owns the threads; its [`CpuProvider::step`] hands out the [`Team`] that operators run on.
//! - [`Plan`] makes any contract's `Spec` ready to run on that contract's operands.
//! - [`PackedMatrix`] keeps a model's weights: [`gemm`] multiplies with them and [`gather`] looks rows up, from one copy
//!   in which quantized blocks stay quantized.
//!
//! What a row gives depends on that row alone: not on the rows beside it, on chunks, pages, threads, or the machine's
//! vector instructions (all of which the tests compare bit for bit). Activations stay `f32` next to quantized weights.
//!
//! ```
//! use oxide_infer::quantization::BlockFormat;
//! use oxide_infer::{TokenId, WeightFormat};
//! use oxide_infer_cpu::{CpuProvider, PackedMatrix, Update, gather, gemm};
//!
//! // A table of two tokens, 32 features each: d = 0.5 as binary16, then the numbers 0 to 31 and 31 to 0.
//! let mut bytes = vec![0x00, 0x38];
//! bytes.extend(0..32);
//! bytes.extend([0x00, 0x38]);
//! bytes.extend((0..32).rev());
//! let mut table = PackedMatrix::new(32);
//! table.push(WeightFormat::Blocks(BlockFormat::Q8_0), 2, &bytes)?;
//!
//! let mut cpu = CpuProvider::with_all_cores()?;
//! let (mut hidden, mut logits) = ([0.0; 32], [0.0; 2]);
//! cpu.step(|team| {
//!     gather(team, &[TokenId(1)], &table, &mut hidden)?;
//!     gemm(team, &hidden, &table, None, Update::Overwrite, &mut logits)
//! })?;
//! assert_eq!(hidden[..3], [15.5, 15.0, 14.5]);
//! assert_eq!(logits, [0.25 * 4960.0, 0.25 * 10416.0]);
//! # Ok::<(), oxide_infer_cpu::CpuError>(())
//! ```

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
pub use sampling::{GivenToken, log_probabilities};
pub use team::{CpuProvider, Team};

/// Elements of simple work (a pass over memory) that are worth handing to another thread.
const TASK_ELEMENTS: usize = 4096;

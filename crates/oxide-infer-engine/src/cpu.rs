//! The CPU executor: a model's operators lowered to the CPU provider, with paged KV in main memory.
//!
//! A step is one forward pass over the tokens of all rows, prefill chunks and decodes together. The body of the model runs
//! over all of them; final norm, output matrix and sampling run over the rows whose logits are needed, a bounded number at a
//! time. Every operator computes a token's numbers from that token's operands in one order, so a sequence gets the same
//! bits alone, in a batch, in chunks and after a prefix that was computed earlier.

mod executor;
mod forward;
mod lower;
mod plan;
mod pools;
mod sample;
mod slots;
mod workspace;

pub use executor::CpuExecutor;
pub use plan::{CpuOptions, KvMemory, PAGE_SIZE, PlanError};

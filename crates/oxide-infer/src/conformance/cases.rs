//! The cases of each contract: what is admitted, and what is refused.

mod attention;
mod blocks;
mod dense;
mod kv;
mod norm;
mod paged;
mod rope;
mod rows;
mod sample;

use super::suite::Suite;
use crate::{Contract, DType};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

type Cases = fn(&mut Suite<'_>);

/// Runs the cases of a contract.
pub(super) const CASES: &[(Contract, Cases)] = &[
    (Contract::RMS_NORM, norm::run),
    (Contract::ROPE, rope::run),
    (Contract::PAGED_APPEND, kv::run_append),
    (Contract::ROPE_APPEND, kv::run_rope_append),
    (Contract::SINGLE_DECODE, attention::run_single_decode),
    (Contract::PAGED_DECODE, attention::run_paged_decode),
    (Contract::RAGGED_PREFILL, attention::run_ragged_prefill),
    (Contract::PAGED_PREFILL, attention::run_paged_prefill),
    (Contract::DENSE, dense::run),
    (Contract::SWIGLU, rows::run_swiglu),
    (Contract::GATHER, rows::run_gather),
    (Contract::SAMPLE, sample::run),
];

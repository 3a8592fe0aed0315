//! The shared conformance suite, on one thread and on several.

use oxide_infer::activation::swiglu;
use oxide_infer::attention::{paged_decode, paged_prefill, ragged_prefill, single_decode};
use oxide_infer::conformance::{self, Operators, Refusal};
use oxide_infer::embedding::gather;
use oxide_infer::gemm::{dense, dense_swiglu};
use oxide_infer::kv_cache::{paged_append, rope_append};
use oxide_infer::normalization::rms_norm;
use oxide_infer::position::rope;
use oxide_infer::sampling::{self, LogitsRow, Sampled};
use oxide_infer::{Contract, OperandError};
use oxide_infer_cpu::{CpuError, CpuProvider, Operator, Plan};
use std::num::NonZeroUsize;

struct Cpu(CpuProvider);

impl Cpu {
    fn run<S: Operator>(&mut self, spec: &S, operands: S::Operands<'_>) -> Result<S::Output, S::Error> {
        let plan = Plan::new(spec.clone());
        self.0.step(|team| plan.run(team, operands))
    }
}

fn refusal(error: CpuError) -> Refusal {
    match error {
        CpuError::Operand(error) => Refusal::Operand(OperandError::clone(&error)),
        error => Refusal::Failed(error.to_string()),
    }
}

macro_rules! operators {
    ($($name:ident),*) => {
        impl Operators for Cpu {
            $(fn $name(&mut self, spec: &$name::Spec, operands: $name::Operands<'_>) -> Result<(), Refusal> {
                Ok(self.run(spec, operands)?)
            })*

            fn dense(&mut self, spec: &dense::Spec, operands: dense::Operands<'_>) -> Result<(), Refusal> {
                self.run(spec, operands).map_err(refusal)
            }

            fn dense_swiglu(
                &mut self,
                spec: &dense_swiglu::Spec,
                operands: dense_swiglu::Operands<'_>,
            ) -> Result<(), Refusal> {
                self.run(spec, operands).map_err(refusal)
            }

            fn sample(
                &mut self,
                spec: &sampling::Spec,
                rows: &[LogitsRow<'_>],
            ) -> Result<Vec<Sampled>, Refusal> {
                Ok(self.run(spec, rows)?)
            }
        }
    };
}

operators!(
    rms_norm,
    rope,
    paged_append,
    rope_append,
    single_decode,
    paged_decode,
    ragged_prefill,
    paged_prefill,
    swiglu,
    gather
);

#[test]
fn every_contract_holds_on_any_number_of_threads() {
    for threads in [1, 3] {
        let threads = NonZeroUsize::new(threads).unwrap();
        let report = conformance::run(&mut Cpu(CpuProvider::new(threads).unwrap()));
        assert!(report.covers(Contract::ALL), "{threads} threads:\n{report}");
        // This provider weighs in f64 as the reference does, so its tokens are the reference's, near a threshold or not.
        assert_eq!(report.near(), 0, "{threads} threads:\n{report}");
    }
}

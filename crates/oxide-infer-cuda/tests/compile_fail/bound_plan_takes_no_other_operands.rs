//! A bound plan has its operands: other operands are another binding of the plan.
use oxide_infer_cuda::provider::BoundPlan;
use oxide_infer_cuda::runtime::Operands;

fn again(bound: &BoundPlan, operands: &Operands<'_>) {
    let _ = bound.bind(operands);
}

fn main() {}

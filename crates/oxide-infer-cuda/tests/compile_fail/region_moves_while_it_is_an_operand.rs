//! A region does not move, and is not dropped, between being named as an operand and being bound.
use oxide_infer_cuda::provider::Plan;
use oxide_infer_cuda::runtime::{Operands, Region};

fn moved(plan: &Plan, region: Region<f32>) {
    let operands = Operands::new().region("input", &region);
    drop(region);
    let _ = plan.bind(&operands);
}

fn main() {}

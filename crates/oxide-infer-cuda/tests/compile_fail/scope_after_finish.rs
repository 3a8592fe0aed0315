//! A scope that has ended takes no more work.
use oxide_infer_cuda::provider::BoundPlan;
use oxide_infer_cuda::runtime::CommandScope;

fn late(mut scope: CommandScope, plan: &BoundPlan) {
    let _ = scope.finish();
    let _ = plan.enqueue(&mut scope);
}

fn main() {}

//! A graph that was dropped is not replayed.
use oxide_infer_cuda::runtime::{CommandScope, Graph};

fn replay(graph: Graph, scope: &mut CommandScope) {
    drop(graph);
    let _ = graph.replay(scope);
}

fn main() {}

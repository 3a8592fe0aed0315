//! A graph's addresses are fixed: there is nothing to bind it to again.
use oxide_infer_cuda::runtime::{Graph, Operands};

fn again(graph: &Graph, operands: &Operands<'_>) {
    let _ = graph.bind(operands);
}

fn main() {}

//! Two threads do not enqueue, or replay, into one scope at once.
use oxide_infer_cuda::runtime::{CommandScope, Graph};

fn replayed_at_once(graph: &Graph, scope: &mut CommandScope) {
    std::thread::scope(|threads| {
        threads.spawn(|| graph.replay(scope));
        threads.spawn(|| graph.replay(scope));
    });
}

fn main() {}

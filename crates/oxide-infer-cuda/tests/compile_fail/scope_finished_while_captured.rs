//! What a capture enqueues is not ended by its body: the graph has its leases.
use oxide_infer_cuda::runtime::{Graph, Stream};

fn finished(stream: &Stream) {
    let _ = Graph::capture(stream, |scope| {
        let _ = scope.finish();
        Ok(())
    });
}

fn main() {}

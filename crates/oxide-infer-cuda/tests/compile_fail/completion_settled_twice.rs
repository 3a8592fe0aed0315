//! A completion settles once.
use oxide_infer_cuda::runtime::Completion;

fn twice(completion: Completion) {
    let _ = completion.wait();
    let _ = completion.wait();
}

fn main() {}

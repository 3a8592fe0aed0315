//! How much of the conformance gate is run: on which artifacts, and over how many shapes.

use crate::gates::Supplies;
use oxide_infer_cuda::artifact::{Artifact, Dimensions, Manifest};
use oxide_infer_cuda::provider::cublas_lt::Search;
use std::sync::Arc;

/// The cases that an artifact is run with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Cases {
    /// Every case of its contract, and what may not be bound to it.
    #[default]
    All,
    /// One odd shape over a few tiles, for tools under which launches are slow. Artifacts run one after another, and
    /// workspaces are left uninitialized before a kernel writes them, so that a tool sees who reads them.
    One,
}

/// What is gated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(crate) cases: Cases,
    /// Parts of names; artifacts that have none of them are left out. If there are no parts, none is left out.
    pub(crate) only: Vec<String>,
    /// Where the products gate looks for cuBLASLt.
    pub(crate) cublas_lt: Search,
    /// What the fault gate runs.
    pub(crate) supplies: Option<Supplies>,
}

impl Scope {
    pub(super) fn admits(&self, artifact: &Arc<Artifact>) -> bool {
        let name = &artifact.manifest().name;
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

/// Some dimensions of a case, enough to tell it from all others of the contract.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape(pub(crate) &'static [(&'static str, u64)]);

impl Shape {
    /// The one case of an artifact.
    pub(super) fn of(manifest: &Manifest) -> Self {
        let head_dim = manifest.dimensions.get("head_dim").map(|domain| domain.min);
        let greedy = manifest.properties.get("method").is_some_and(|method| method.to_string() == "greedy");
        let f16 = manifest.properties.get("input").is_some_and(|input| input.to_string() == "f16");
        Self(match (manifest.contract.as_str(), manifest.source.kernel.as_str()) {
            ("normalization.rms_norm", _) => {
                match manifest.dimensions.get("hidden_size").map(|size| size.max) {
                    Some(..=256) => &[("tokens", 33), ("heads", 2), ("hidden_size", 128)],
                    Some(..=1024) => &[("tokens", 7), ("hidden_size", 576)],
                    Some(..=2048) => &[("tokens", 3), ("hidden_size", 1536)],
                    Some(..=4096) => &[("tokens", 3), ("hidden_size", 2056)],
                    _ => &[("tokens", 1), ("hidden_size", 8184)],
                }
            }
            // More tiles than multiprocessors, so that a block takes a second one, and rows over a tile's border.
            ("gemm.dense", "prefill_gemm.dense" | "joint_gemm.dense") => {
                &[("m", 133), ("n", 17_416), ("k", 136)]
            }
            // So many tiles that a block takes several, and each place for their sums again.
            ("gemm.dense", "streamed_gemm.dense_streamed") => &[("m", 9), ("n", 17_416), ("k", 264)],
            ("gemm.dense", kernel) if kernel.starts_with("gemv.") => &[("m", 1), ("n", 200), ("k", 1032)],
            // More steps of k than there are stages for each warp, block or block of a cluster, so that it takes a stage
            // again, the last step not whole, and rows or columns over a tile's border.
            ("gemm.dense", kernel) if kernel.starts_with("chained_gemv.") => {
                &[("m", 1), ("n", 40), ("k", 9728)]
            }
            // In multiples of 32, since sums of squares are loaded four at a time.
            ("gemm.dense", "chained_gemm.scaled_swiglu") => &[("m", 17), ("n", 200), ("k", 1056)],
            // So many tiles that a block takes a second one, and adds up other squares for it.
            ("gemm.dense", "chained_tiles.scaled_swiglu") => &[("m", 133), ("n", 5768), ("k", 608)],
            // Of the fewer cases that f16 has; its schedules do not cut k.
            ("gemm.dense", _) if f16 => &[("m", 8), ("n", 200), ("k", 1032)],
            ("gemm.dense", _) => &[("m", 17), ("n", 72), ("k", 6216)],
            ("embedding.gather", _) => &[("tokens", 17), ("hidden_size", 2056)],
            ("kv_cache.rope_append", "chained_gemm.scaled_projected" | "projected.projected") => {
                &[("tokens", 33), ("num_q_heads", 9)]
            }
            ("kv_cache.rope_append", "chained_gemv.scaled_projected") => &[("tokens", 1), ("num_q_heads", 9)],
            // Those in Rust take pages of any size.
            ("kv_cache.rope_append", kernel) if kernel.starts_with("rope_append.") => {
                &[("tokens", 135), ("num_q_heads", 9), ("page_size", 16)]
            }
            ("kv_cache.rope_append", _) => &[("tokens", 135), ("num_q_heads", 9)],
            ("kv_cache.paged_append", _) => &[("tokens", 135), ("num_kv_heads", 3)],
            ("position.rope", _) if head_dim == Some(64) => &[("tokens", 5), ("num_heads", 9)],
            ("position.rope", _) => &[("tokens", 3), ("num_heads", 4)],
            ("activation.swiglu", _) => &[("rows", 5), ("size", 4104)],
            ("attention.paged_decode", _) => &[("batch", 10), ("num_q_heads", 7)],
            ("attention.single_decode", _) => &[("kv_len", 1201), ("num_q_heads", 7)],
            ("attention.ragged_prefill", _) => &[("batch", 4), ("tokens", 261), ("num_q_heads", 2)],
            ("attention.paged_prefill", _) => &[("batch", 4), ("tokens", 261), ("num_q_heads", 2)],
            ("sampling.candidates", _) => &[("rows", 38), ("vocab_size", 4097)],
            ("sampling.sample", _) if greedy => &[("rows", 38), ("vocab_size", 4097)],
            ("sampling.sample" | "sampling.log_probabilities", _) => &[("rows", 21), ("vocab_size", 5003)],
            _ => &[],
        })
    }

    /// Whether a call's dimensions are this case's; a call may have more of them.
    pub(crate) fn is_of(self, dimensions: &Dimensions) -> bool {
        self.0.iter().all(|(name, value)| dimensions.get(*name).is_none_or(|found| found == value))
    }
}

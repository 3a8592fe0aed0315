//! The gates, each a question to the hardware.

mod conformance;
mod deterministic;
mod engine;
mod fault;
mod lifetime;
mod products;

pub(crate) use conformance::{Cases, Scope, Shape};
pub(crate) use fault::Supplies;

use crate::record::Finding;
use oxide_infer_cuda::artifact::Registry;
use oxide_infer_cuda::runtime::Context;
use std::sync::Arc;

/// A set of checks on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Gate {
    /// Every artifact against the contracts' references, with guards, poison and bad indices; a call of each once more from a
    /// graph.
    Conformance,
    /// Dropping and replaying while the device works; copies; timing of launches.
    Lifetime,
    /// A thousand random requests through the engine: finished, cancelled, preempted; pages and memory after.
    Engine,
    /// Products of one order of sums bit by bit, and a model's requests alone and in 200 random mixes, whose tokens and
    /// log-probabilities must be the same.
    Deterministic,
    /// The server with requests in flight whose device writes to an illegal address: what clients and supervisor are told, and
    /// that the next server is sound. Not run unless named, since it needs the server's binary.
    Fault,
    /// Dense products by cuBLASLt against the contract's reference, over the suite's shapes and those of models. Not run unless
    /// named, since the library is not a part of this project.
    Products,
}

impl Gate {
    /// Those that need nothing but a device.
    pub(crate) const ALL: &'static [Self] =
        &[Self::Conformance, Self::Lifetime, Self::Engine, Self::Deterministic];

    pub(crate) fn run(self, context: &Context, registry: &Arc<Registry>, scope: &Scope) -> Finding {
        match self {
            Self::Conformance => conformance::run(context, registry, scope),
            Self::Lifetime => lifetime::run(context, registry),
            Self::Engine => engine::run(context),
            Self::Fault => fault::run(context.device().ordinal, scope.supplies.as_ref()),
            Self::Deterministic => deterministic::run(context, registry),
            Self::Products => products::run(context, registry, &scope.cublas_lt),
        }
    }
}

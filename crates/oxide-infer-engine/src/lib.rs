//! The Oxide Infer engine: model loading, paged KV, scheduling and execution. It knows no HTTP and no text.
//!
//! Three types carry a request through it: an [`EngineRequest`] goes in through an [`EngineHandle`], the engine thread
//! turns it into rows of an [`EngineBatch`] for an [`Executor`], and [`EngineEvent`]s come back out.

mod admission;
pub mod batch;
pub mod cpu;
mod engine;
pub mod gguf;
mod handle;
mod kv;
mod load;
pub mod metrics;
pub mod model;
pub mod request;
pub mod scheduler;
mod source;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod weights;

pub use batch::{EngineBatch, Executor, ExecutorError, ExecutorLimits, StepOutput};
pub use engine::{Engine, EngineConfig, StartError};
pub use handle::{DrainOutcome, EngineHandle, EventStream, Health};
pub use kv::PrefixCache;
pub use load::{LoadError, LoadProgress, load_cpu};
pub use metrics::{EngineMetrics, MetricsSnapshot};
pub use request::{EngineEvent, EngineRequest, FinishReason, RequestId, SubmitError};
pub use source::{ModelSource, SourceError};

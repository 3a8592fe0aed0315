//! The Oxide Infer engine: model loading, paged KV, scheduling and execution. It knows no HTTP and no text.
//!
//! Three types carry a request through it: an [`EngineRequest`] goes in through an [`EngineHandle`], the engine thread
//! turns it into rows of an [`EngineBatch`] for an [`Executor`], and [`EngineEvent`]s come back out.

pub mod batch;
pub mod gguf;
pub mod model;
pub mod request;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod weights;

pub use batch::{EngineBatch, Executor, ExecutorError, ExecutorLimits, StepOutput};
pub use request::{EngineEvent, EngineRequest, FinishReason, RequestId};

//! The Oxide Infer engine: model loading, paged KV, scheduling and execution. It knows no HTTP and no text.
//!
//! Three types carry a request through it: an [`EngineRequest`] goes in through an [`EngineHandle`], the engine thread
//! turns it into rows of an [`EngineBatch`] for an [`Executor`], and [`EngineEvent`]s come back out.
//!
//! ```no_run
//! use oxide_infer::{TokenId, sampling::SamplingParams};
//! use oxide_infer_engine::request::{Masking, StopConditions};
//! use oxide_infer_engine::{Engine, EngineConfig, EngineEvent, EngineRequest, ModelSource, cpu::CpuOptions, load_cpu};
//! use std::{num::NonZeroU32, path::Path, sync::Arc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = ModelSource::open(Path::new("models/SmolLM2-135M-Instruct.Q4_1.gguf"))?;
//! let executor = load_cpu(&model, &CpuOptions::default(), &mut |_| ())?;
//! let engine = Engine::start(Box::new(executor), EngineConfig::default())?;
//! let mut stream = engine.submit(EngineRequest {
//!     prompt: [504, 3575, 282].map(TokenId).into(),
//!     choices: NonZeroU32::MIN,
//!     sampling: Arc::new(SamplingParams { temperature: 0.0, ..Default::default() }),
//!     stop: StopConditions { max_tokens: 16, ..Default::default() },
//!     logprobs: None,
//!     prompt_logprobs: None,
//!     masking: Masking::None,
//!     pooling: None,
//! })?;
//! while let Some(event) = stream.blocking_next() {
//!     if let EngineEvent::Token { token, .. } = event {
//!         println!("{token}");
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod admission;
pub mod batch;
pub mod cpu;
pub mod cuda;
mod delivery;
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

pub use batch::{
    EngineBatch, Executor, ExecutorError, ExecutorLimits, LogitsTap, PlanGoal, StepKind, StepMix, StepOutput,
};
pub use engine::{Engine, EngineConfig, StartError};
pub use handle::{DrainOutcome, EngineHandle, EventStream, Health};
pub use kv::PrefixCache;
pub use load::{LoadError, LoadProgress, load_cpu, trim_heap};
pub use metrics::{EngineMetrics, MetricsSnapshot};
pub use request::{EngineEvent, EngineRequest, FinishReason, RequestId, SubmitError};
pub use source::{ModelSource, SourceError};

//! Contexts, streams, memory and checked work on a device.
//!
//! A [`CommandScope`] enqueues work on a [`Stream`]; what it returns, a [`Completion`], leases everything that the
//! device may still touch. Whatever the host drops, and in whatever order, memory is freed only after the work that
//! uses it has ended.

mod completion;
mod context;
mod graph;
mod kernel;
mod memory;
mod memory_plan;
mod operator;
mod reaper;
mod scope;
mod status;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use completion::Lease;
pub(crate) use graph::rehearse;
pub(crate) use operator::{Expected, check_operands};

pub use completion::{Completion, CompletionError};
pub use context::{Context, ContextError};
pub use graph::{Graph, GraphError};
pub use kernel::{Access, Argument, BoundLaunch, Kernel, KernelError, MAX_PARAMETERS, Module};
pub use memory::{DeviceMemory, PinnedMemory, Region, RegionError, Span};
pub use memory_plan::{Listing, MemoryPlan, MemoryPlanError, Part, Remedies, Remedy};
pub use operator::{
    BindError, BoundOperator, EarlyLaunch, Loader, Operands, OperatorPlan, PlanError, Workspace,
};
pub use scope::{CommandScope, EnqueueError};
pub use status::StatusWord;
pub use stream::{Event, Stream};

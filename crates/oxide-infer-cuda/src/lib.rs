//! Checked CUDA runtime and kernel artifact registry of Oxide Infer.
//!
//! The driver is loaded at run time, so that one binary starts on machines with and without a GPU. Three types carry
//! the work: a [`runtime::Context`] owns a device, a [`runtime::CommandScope`] enqueues launches and copies on one of
//! its streams, and a [`runtime::Completion`] leases all that they touch until the device is done.
//!
//! ```no_run
//! use oxide_infer_cuda::runtime::{CommandScope, Context, PinnedMemory, Region};
//!
//! let context = Context::primary(0)?;
//! let stream = context.stream()?;
//! let (host, device) = (PinnedMemory::allocate(&context, 4)?, Region::<f32>::allocate(&context, 4)?);
//! let mut scope = CommandScope::new(&stream)?;
//! scope.fill(&device, 0)?;
//! scope.copy_out(&device, &host)?;
//! scope.finish()?.wait()?;
//! assert_eq!(host.read(0), Some(0.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod artifact;
pub mod driver;
mod probe;
pub mod provider;
pub mod runtime;

pub use probe::{DeviceInfo, Probe, probe};

//! Kernel artifacts: machine code compiled ahead of time, and the manifests that say how to launch it.
//!
//! [`Registry::embedded`] (or [`Registry::from_directory`]) verifies every artifact against its manifest, its hash and the
//! device, and keeps the verified bytes; [`Registry::select`] finds the one artifact for a request, or says why there is
//! none; [`Manifest::resolve`] turns it and the request's dimensions into launches. All of it runs without a driver.
//!
//! ```
//! use oxide_infer_cuda::artifact::{Registry, Request, Target};
//!
//! let registry = Registry::embedded(Target::hopper())?;
//! let request = Request::new("normalization.rms_norm", 1)
//!     .property("dtype", "bf16")
//!     .property("weight_dtype", "bf16")
//!     .property("output_dtype", "bf16")
//!     .property("residual", "absent")
//!     .dimension("tokens", 7)
//!     .dimension("heads", 1)
//!     .dimension("hidden_size", 1536);
//! let artifact = registry.select(&request)?;
//! let launches = artifact.manifest().resolve(request.dimensions())?;
//! assert_eq!(launches[0].grid, [7, 1, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod elf;
pub mod expr;
pub mod manifest;
pub mod source;
pub mod status;

mod bundle;
mod choice;
mod index;
mod reduction;
mod registry;
mod resolve;
mod select;

pub use bundle::{Bundle, BundleError};
pub use choice::{Choice, CostError, Costs};
pub use expr::{Dimensions, Expr};
pub use index::{Index, IndexError, Rule};
pub use manifest::{Manifest, ManifestError};
pub use reduction::Reduction;
pub use registry::{Artifact, ArtifactError, Registry, RegistryError, Target};
pub use resolve::{ResolveError, ResolvedLaunch, ResolvedParameter, ResolvedTensorMap};
pub use select::{Miss, Prediction, Request, SelectError};

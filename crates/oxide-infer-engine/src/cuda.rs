//! The CUDA executor: a model's operators lowered to kernel artifacts, with paged KV in device memory.
//!
//! Everything that a step can need is settled when the model is loaded. `lower` fuses the decoder's operators as far as
//! artifacts do in every batch class and `fuse` further in those of one row, `plan` finds an artifact for every operator in
//! every class or says which ones are missing,
//! `memory` sizes and allocates device memory, and `bind` fixes every launch to its addresses. A step then only writes its
//! tables into pinned memory, enqueues copies and launches that exist already, and reads sampled tokens one step later.
//!
//! Steps of one token a row (decodes) run a captured graph of the next larger class; padding rows write to a page that no
//! sequence owns. All other steps run the operators of a class of tokens and sequences.

mod bind;
mod body;
mod classes;
mod deterministic;
mod executor;
mod fuse;
mod head;
mod history;
mod inputs;
mod load;
mod lower;
mod memory;
mod options;
mod plan;
mod slots;
mod staging;
mod tap;
#[cfg(test)]
mod tests;
mod weights;
mod writers;

pub use deterministic::NotDeterministicError;
pub use executor::CudaExecutor;
pub use load::{CudaLoadError, load_cuda, load_cuda_on};
pub use options::{ArtifactSource, CudaOptions, CudaPlanError, DecodeLaunch};
pub use plan::{CoverageError, Uncovered, UncoveredError, check_coverage};
pub use weights::weight_bytes;

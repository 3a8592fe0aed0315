use crate::artifact::manifest::Element;
use crate::artifact::{ResolveError, SelectError};
use crate::driver::{CudaError, LibraryError};
use crate::runtime::kernel::KernelError;
use oxide_infer::DType;

/// Why an operator cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// No artifact, or more than one, serves it.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The dimensions give no launch.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The driver refuses the code.
    #[error("artifact {artifact}: {source}")]
    Load {
        /// The artifact.
        artifact: String,
        /// The refusal.
        source: KernelError,
    },
}

/// Why operands cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An operand is missing.
    #[error("{operator}: operand {operand} is missing")]
    Missing {
        /// Whose operand: an artifact, or an algorithm of a library.
        operator: String,
        /// The operand.
        operand: String,
    },
    /// There is no such operand or attribute.
    #[error("{operator}: there is no operand or attribute {name}")]
    Unexpected {
        /// Whose operand: an artifact, or an algorithm of a library.
        operator: String,
        /// The name that was given.
        name: String,
    },
    /// Another element type.
    #[error("{operator}: operand {operand} is {found}, must be {expected}")]
    DType {
        /// Whose operand: an artifact, or an algorithm of a library.
        operator: String,
        /// The operand.
        operand: String,
        /// The contract's.
        expected: Element,
        /// The region's.
        found: DType,
    },
    /// Too little memory.
    #[error("{operator}: operand {operand} has {found} bytes, {expected} are needed")]
    Capacity {
        /// Whose operand: an artifact, or an algorithm of a library.
        operator: String,
        /// The operand.
        operand: String,
        /// Bytes that the dimensions need.
        expected: u64,
        /// Bytes of the region.
        found: usize,
    },
    /// An address that the kernels cannot use.
    #[error("{operator}: operand {operand} begins at {address:#x}, which is not a multiple of {alignment}")]
    Alignment {
        /// Whose operand: an artifact, or an algorithm of a library.
        operator: String,
        /// The operand.
        operand: String,
        /// Its address.
        address: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// Two operands share memory.
    #[error(
        "{operator}: operands {first} and {second} share memory, which only the same whole region may where the operator says so"
    )]
    Alias {
        /// Whose operand: an artifact, or an algorithm of a library.
        operator: String,
        /// The one that is written.
        first: String,
        /// The other.
        second: String,
    },
    /// The dimensions give no launch.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The launch cannot be made.
    #[error("{operator}: {source}")]
    Kernel {
        /// Whose operand: an artifact, or an algorithm of a library.
        operator: String,
        /// What is wrong.
        source: KernelError,
    },
    /// A library cannot be told of the operands.
    #[error("{operator}: {source}")]
    Library {
        /// Whose operand.
        operator: String,
        /// The library's answer.
        source: LibraryError,
    },
    /// A driver call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

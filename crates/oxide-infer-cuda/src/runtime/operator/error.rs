use crate::artifact::manifest::Element;
use crate::artifact::{ResolveError, SelectError};
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
    #[error("{artifact}: operand {operand} is missing")]
    Missing {
        /// The artifact.
        artifact: String,
        /// The operand.
        operand: String,
    },
    /// The artifact has no such operand or attribute.
    #[error("{artifact}: there is no operand or attribute {name}")]
    Unexpected {
        /// The artifact.
        artifact: String,
        /// The name that was given.
        name: String,
    },
    /// Another element type.
    #[error("{artifact}: operand {operand} is {found}, must be {expected}")]
    DType {
        /// The artifact.
        artifact: String,
        /// The operand.
        operand: String,
        /// The contract's.
        expected: Element,
        /// The region's.
        found: DType,
    },
    /// Too little memory.
    #[error("{artifact}: operand {operand} has {found} bytes, {expected} are needed")]
    Capacity {
        /// The artifact.
        artifact: String,
        /// The operand.
        operand: String,
        /// Bytes that the dimensions need.
        expected: u64,
        /// Bytes of the region.
        found: usize,
    },
    /// An address that the kernels cannot use.
    #[error("{artifact}: operand {operand} begins at {address:#x}, which is not a multiple of {alignment}")]
    Alignment {
        /// The artifact.
        artifact: String,
        /// The operand.
        operand: String,
        /// Its address.
        address: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// Two operands share memory.
    #[error(
        "{artifact}: operands {first} and {second} share memory, which only the same whole region may where the artifact says so"
    )]
    Alias {
        /// The artifact.
        artifact: String,
        /// The one that is written.
        first: String,
        /// The other.
        second: String,
    },
    /// The dimensions give no launch.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The launch cannot be made.
    #[error("{artifact}: {source}")]
    Kernel {
        /// The artifact.
        artifact: String,
        /// What is wrong.
        source: KernelError,
    },
}

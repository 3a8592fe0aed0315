use crate::{Contract, DType, Dims};
use thiserror::Error;

/// A `Spec` asks for something that the contract does not admit.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SpecError {
    /// An element type that the contract does not admit here.
    #[error("{contract}: {field} must be {expected}, got {got}")]
    DType {
        /// The contract.
        contract: Contract,
        /// The field of the spec.
        field: &'static str,
        /// What is admitted, in words.
        expected: &'static str,
        /// What was asked for.
        got: DType,
    },
    /// A size outside what the contract admits.
    #[error("{contract}: {field} must be {expected}, got {got}")]
    Size {
        /// The contract.
        contract: Contract,
        /// The field of the spec.
        field: &'static str,
        /// What is admitted, in words.
        expected: &'static str,
        /// What was asked for.
        got: usize,
    },
    /// A real number outside what the contract admits.
    #[error("{contract}: {field} must be {expected}, got {got}")]
    Number {
        /// The contract.
        contract: Contract,
        /// The field of the spec.
        field: &'static str,
        /// What is admitted, in words.
        expected: &'static str,
        /// What was asked for.
        got: f64,
    },
    /// A size that must be a multiple of another.
    #[error("{contract}: {field} must be a multiple of {divisor_name} ({divisor}), got {got}")]
    Multiple {
        /// The contract.
        contract: Contract,
        /// The field of the spec.
        field: &'static str,
        /// What it must be a multiple of.
        divisor_name: &'static str,
        /// The value of that.
        divisor: usize,
        /// What was asked for.
        got: usize,
    },
}

/// A shape and strides that cannot describe a region of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The last element lies past the end of the buffer.
    #[error("shape {shape} with strides {strides} spans {needed} elements, the buffer has {got}")]
    TooShort {
        /// The shape asked for.
        shape: Dims,
        /// The strides asked for, in elements.
        strides: Dims,
        /// Elements from the first to the last addressed one.
        needed: usize,
        /// Elements in the buffer.
        got: usize,
    },
    /// The span does not fit the address space.
    #[error("shape {shape} with strides {strides} spans more elements than a usize can count")]
    Overflow {
        /// The shape asked for.
        shape: Dims,
        /// The strides asked for, in elements.
        strides: Dims,
    },
    /// Two elements of a region to be written may share a place.
    #[error(
        "a write region needs one place per element, but shape {shape} with strides {strides} may overlap itself"
    )]
    Overlap {
        /// The shape asked for.
        shape: Dims,
        /// The strides asked for, in elements.
        strides: Dims,
    },
    /// A part of an axis that reaches outside it.
    #[error("elements {start}..{end} of axis {axis} were asked for, shape {shape} has fewer")]
    Narrow {
        /// The shape there is.
        shape: Dims,
        /// The axis.
        axis: usize,
        /// First element asked for.
        start: usize,
        /// One past the last element asked for.
        end: usize,
    },
}

/// Operands do not fit the spec they are used with.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OperandError {
    /// Wrong element type.
    #[error("{contract}: operand {operand} must be {expected}, got {got}")]
    DType {
        /// The contract.
        contract: Contract,
        /// The operand.
        operand: &'static str,
        /// The element type of the spec.
        expected: DType,
        /// The element type of the operand.
        got: DType,
    },
    /// Wrong shape.
    #[error("{contract}: operand {operand} must have shape {expected}, got {got}")]
    Shape {
        /// The contract.
        contract: Contract,
        /// The operand.
        operand: &'static str,
        /// The shape that the spec and the other operands ask for.
        expected: Dims,
        /// The shape of the operand.
        got: Dims,
    },
    /// Strides that a provider cannot read or write.
    #[error("{contract}: operand {operand} must have {expected}, got strides {got}")]
    Strides {
        /// The contract.
        contract: Contract,
        /// The operand.
        operand: &'static str,
        /// What the provider needs, in words.
        expected: &'static str,
        /// The strides of the operand, in elements.
        got: Dims,
    },
    /// Weights stored in another format than the spec says.
    #[error("{contract}: operand {operand} must be stored as {expected}, got {got}")]
    Format {
        /// The contract.
        contract: Contract,
        /// The operand.
        operand: &'static str,
        /// The name of the format in the spec.
        expected: &'static str,
        /// The name of the operand's format.
        got: &'static str,
    },
    /// The spec asks for an operand that is not there.
    #[error("{contract}: operand {operand} is missing, the spec asks for it")]
    Missing {
        /// The contract.
        contract: Contract,
        /// The operand.
        operand: &'static str,
    },
    /// An operand is there that the spec does not use.
    #[error("{contract}: operand {operand} was given, the spec does not use it")]
    Unexpected {
        /// The contract.
        contract: Contract,
        /// The operand.
        operand: &'static str,
    },
    /// A value inside an operand is wrong; see [`DataError`].
    #[error("{contract}: {error}")]
    Data {
        /// The contract.
        contract: Contract,
        /// The value.
        error: DataError,
    },
}

/// A value inside an index operand is wrong. A host provider finds it before it computes; a device provider's kernels
/// find it, write nothing through the bad index, and report it when the completion settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DataError {
    /// A page index outside the pool.
    #[error("block_table[{sequence}][{entry}] must be a page in 0..{num_pages}, got {page}")]
    Page {
        /// Row of the block table.
        sequence: usize,
        /// Column of the block table.
        entry: usize,
        /// The index found.
        page: i32,
        /// Pages in the pool.
        num_pages: usize,
    },
    /// A token id outside the vocabulary.
    #[error("ids[{row}] must be a token in 0..{vocab_size}, got {token}")]
    Token {
        /// Index into the ids.
        row: usize,
        /// The id found.
        token: u32,
        /// Rows of the table.
        vocab_size: usize,
    },
    /// A position that is negative or past what the operands can hold.
    #[error("positions[{token}] must be in 0..{limit}, got {position}")]
    Position {
        /// Index into the positions.
        token: usize,
        /// The position found.
        position: i32,
        /// One past the last admitted position.
        limit: usize,
    },
    /// A sequence length that is negative or past the sequence's block table row.
    #[error("kv_len[{sequence}] must be in 0..={capacity}, got {kv_len}")]
    KvLen {
        /// Index into the lengths.
        sequence: usize,
        /// The length found.
        kv_len: i32,
        /// Tokens that a block table row can hold.
        capacity: usize,
    },
    /// Row starts that do not go from 0 to the number of rows without falling.
    #[error(
        "{operand}[{entry}] must be in {low}..={high} (starts go from 0 to the number of rows and never fall), got {start}"
    )]
    Start {
        /// `query_start` or `kv_start`.
        operand: &'static str,
        /// Index into the starts.
        entry: usize,
        /// The start found.
        start: i32,
        /// Least admitted value.
        low: usize,
        /// Greatest admitted value.
        high: usize,
    },
    /// A causal query that would lie before the first key.
    #[error(
        "sequence {sequence} has {query_len} query rows but only {kv_len} keys; causal rows are aligned to the end"
    )]
    QueryLongerThanKv {
        /// The sequence.
        sequence: usize,
        /// Its query rows.
        query_len: usize,
        /// Its keys.
        kv_len: usize,
    },
}

use oxide_infer::quantization::QuantizationError;
use oxide_infer::{DType, DataError, LayoutError, OperandError};

/// Why the CPU provider refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// The system did not start the threads.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// What rayon says.
        source: rayon::ThreadPoolBuildError,
    },
    /// Dense weights of integers.
    #[error("dense weights must be f32, f16 or bf16, got {got}")]
    WeightDType {
        /// The element type.
        got: DType,
    },
    /// Weight bytes that are not the rows they should be.
    #[error("{rows} rows of {cols} weights in {format} take {expected} bytes, got {got}")]
    WeightBytes {
        /// The format.
        format: &'static str,
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
        /// Bytes that they take.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// Rows that are not whole blocks.
    #[error(transparent)]
    Quantization(#[from] QuantizationError),
    /// A value inside an index operand is wrong.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Operands that do not fit their spec.
    #[error(transparent)]
    Operand(#[from] OperandError),
    /// A shape that does not fit its buffer.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A slice of the wrong length.
    #[error("{operand} must have {expected} elements, got {got}")]
    Length {
        /// The operand.
        operand: &'static str,
        /// Elements that the other operands ask for.
        expected: usize,
        /// Elements given.
        got: usize,
    },
}

pub(crate) fn check_len(operand: &'static str, expected: usize, got: usize) -> Result<(), CpuError> {
    if expected == got { Ok(()) } else { Err(CpuError::Length { operand, expected, got }) }
}

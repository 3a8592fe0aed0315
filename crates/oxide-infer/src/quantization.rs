//! GGUF block formats: how quantized weights are stored, and what value each stored number stands for.
//!
//! A row of a weight matrix is a whole number of blocks. The formulas are those of the GGUF format
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, block structures in ggml's `ggml-common.h`). All
//! arithmetic is in `f32` in the order written here, so that every implementation can be held to the same bits.

mod blocks;

pub use blocks::dequantize;

use std::fmt;
use thiserror::Error;

/// A GGUF block format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(non_camel_case_types, reason = "the names that GGUF files and their users write")]
pub enum BlockFormat {
    /// 32 four-bit numbers with one scale: `d · (q − 8)`.
    Q4_0,
    /// 32 four-bit numbers with a scale and a minimum: `d · q + m`.
    Q4_1,
    /// 32 five-bit numbers with one scale: `d · (q − 16)`.
    Q5_0,
    /// 32 five-bit numbers with a scale and a minimum: `d · q + m`.
    Q5_1,
    /// 32 signed bytes with one scale: `d · q`.
    Q8_0,
    /// 256 four-bit numbers, 8 sub-blocks with six-bit scales and minima: `(d · s) · q − (dmin · m)`.
    Q4_K,
    /// As `Q4_K` with five-bit numbers.
    Q5_K,
    /// 256 six-bit numbers, 16 sub-blocks with signed eight-bit scales: `(d · s) · (q − 32)`.
    Q6_K,
}

impl BlockFormat {
    /// Every format.
    pub const ALL: [Self; 8] =
        [Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q5_1, Self::Q8_0, Self::Q4_K, Self::Q5_K, Self::Q6_K];

    /// Numbers in a block.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    /// Bytes in a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// The name in GGUF files, manifests and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
        }
    }

    /// Bytes that `elements` numbers take.
    ///
    /// # Errors
    /// [`QuantizationError::PartialBlock`] when they are not a whole number of blocks,
    /// [`QuantizationError::Overflow`] when the bytes cannot be counted.
    pub fn bytes_for(self, elements: usize) -> Result<usize, QuantizationError> {
        if !elements.is_multiple_of(self.block_elements()) {
            return Err(QuantizationError::PartialBlock { format: self, elements });
        }
        (elements / self.block_elements())
            .checked_mul(self.block_bytes())
            .ok_or(QuantizationError::Overflow { format: self, elements })
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Quantized bytes do not fit what they are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QuantizationError {
    /// A number of elements that is not a whole number of blocks.
    #[error("{format} stores blocks of {} elements, got {elements} elements", format.block_elements())]
    PartialBlock {
        /// The format.
        format: BlockFormat,
        /// The elements asked for.
        elements: usize,
    },
    /// A buffer of the wrong length.
    #[error("{elements} elements in {format} take {expected} bytes, got {got}")]
    Bytes {
        /// The format.
        format: BlockFormat,
        /// The elements asked for.
        elements: usize,
        /// The bytes they take.
        expected: usize,
        /// The bytes given.
        got: usize,
    },
    /// More elements than bytes can be counted for.
    #[error("{elements} elements in {format} take more bytes than a usize can count")]
    Overflow {
        /// The format.
        format: BlockFormat,
        /// The elements asked for.
        elements: usize,
    },
}

/// A read operand: a matrix `[rows, cols]` in a block format, rows one after another with no gaps.
#[derive(Clone, Copy, Debug)]
pub struct BlockMatrix<'a> {
    format: BlockFormat,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> BlockMatrix<'a> {
    /// A matrix over exactly its bytes.
    ///
    /// # Errors
    /// [`QuantizationError`] when a row is not a whole number of blocks or the bytes are too few or too many.
    pub fn new(
        format: BlockFormat,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Self, QuantizationError> {
        let row_bytes = format.bytes_for(cols)?;
        let elements = rows.saturating_mul(cols);
        let expected = rows.checked_mul(row_bytes).ok_or(QuantizationError::Overflow { format, elements })?;
        if bytes.len() != expected {
            return Err(QuantizationError::Bytes { format, elements, expected, got: bytes.len() });
        }
        Ok(Self { format, rows, cols, row_bytes, bytes })
    }

    /// The format.
    pub fn format(&self) -> BlockFormat {
        self.format
    }

    /// `[rows, cols]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// All bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes of one row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.bytes[row * self.row_bytes..(row + 1) * self.row_bytes]
    }
}

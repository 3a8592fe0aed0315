use crate::quantization::{BlockFormat, BlockMatrix, dequantize};
use crate::{Contract, DType, FloatView, OperandError, SpecError, check};

/// How a weight matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// One floating-point element per weight.
    Dense(DType),
    /// GGUF blocks along each row.
    Blocks(BlockFormat),
}

impl WeightFormat {
    /// The name used in manifests and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dense(dtype) => dtype.name(),
            Self::Blocks(format) => format.name(),
        }
    }

    /// Refuses formats that cannot store rows of `cols` weights.
    pub(crate) fn check(
        self,
        contract: Contract,
        field: &'static str,
        cols: (&'static str, usize),
    ) -> Result<(), SpecError> {
        match self {
            Self::Dense(dtype) => check::float_dtype(contract, field, dtype),
            Self::Blocks(format) => {
                check::multiple(contract, cols, ("the block size of the weights", format.block_elements()))
            }
        }
    }
}

/// A read operand: a weight matrix `[rows, cols]`.
#[derive(Clone, Copy, Debug)]
pub enum Weight<'a> {
    /// Floating-point elements, any strides.
    Dense(FloatView<'a, 2>),
    /// GGUF blocks.
    Blocks(BlockMatrix<'a>),
}

impl Weight<'_> {
    /// How the matrix is stored.
    pub fn format(&self) -> WeightFormat {
        match self {
            Self::Dense(view) => WeightFormat::Dense(view.dtype()),
            Self::Blocks(blocks) => WeightFormat::Blocks(blocks.format()),
        }
    }

    /// `[rows, cols]`.
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Self::Dense(view) => view.shape(),
            Self::Blocks(blocks) => blocks.shape(),
        }
    }

    /// One row, widened. `out` is as long as a row.
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Dense(view) => out.iter_mut().enumerate().for_each(|(col, out)| *out = view.at([row, col])),
            Self::Blocks(blocks) => {
                let read = dequantize(blocks.format(), blocks.row(row), out);
                debug_assert_eq!(read, Ok(()), "a BlockMatrix has whole rows");
            }
        }
    }

    pub(crate) fn check(
        &self,
        contract: Contract,
        operand: &'static str,
        expected: (WeightFormat, [usize; 2]),
    ) -> Result<(), OperandError> {
        if self.format() != expected.0 {
            let (expected, got) = (expected.0.name(), self.format().name());
            return Err(OperandError::Format { contract, operand, expected, got });
        }
        check::shape(contract, operand, expected.1, self.shape())
    }
}

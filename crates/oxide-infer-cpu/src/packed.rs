//! Weight matrices as the provider keeps them.

mod codes;
pub(crate) mod format;

use crate::CpuError;
use crate::simd::{Isa, Kernel, LANES, Level};
use format::{Format, UNIT};
use oxide_infer::WeightFormat;
use std::marker::PhantomData;
use std::ops::Range;

/// A weight matrix `[rows, cols]` rearranged for this provider: sixteen rows interleaved, quantized blocks still
/// quantized. It is the only copy that a model needs; products and row lookups both read it.
///
/// Tensors that are multiplied with the same input (q, k and v; gate and up) are stacked along the rows by pushing one
/// after another, and need not have the same format.
///
/// ```
/// use oxide_infer::{DType, WeightFormat};
/// use oxide_infer_cpu::PackedMatrix;
///
/// let mut weight = PackedMatrix::new(2);
/// weight.push(WeightFormat::Dense(DType::F32), 1, bytemuck::cast_slice(&[1.0f32, 2.0]))?;
/// weight.push(WeightFormat::Dense(DType::F32), 1, bytemuck::cast_slice(&[3.0f32, 4.0]))?;
/// assert_eq!(weight.shape(), [2, 2]);
/// # Ok::<(), oxide_infer_cpu::CpuError>(())
/// ```
#[derive(Debug)]
pub struct PackedMatrix {
    cols: usize,
    rows: usize,
    parts: Vec<Part>,
}

/// The rows of one pushed tensor.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) format: WeightFormat,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// Bytes of a panel.
    stride: usize,
    /// Panels of [`LANES`] rows; the last one is filled up with zeros.
    panels: Vec<u8>,
}

impl Part {
    pub(crate) fn num_panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    pub(crate) fn panel(&self, panel: usize) -> &[u8] {
        &self.panels[panel * self.stride..][..self.stride]
    }

    /// Those of some panels that there are.
    pub(crate) fn panels(&self, panels: Range<usize>) -> &[u8] {
        let [start, end] = [panels.start, panels.end].map(|panel| self.panels.len().min(panel * self.stride));
        &self.panels[start..end]
    }

    /// Columns `start..` of a panel, a whole number of units from its start, as numbers: sixteen rows of each.
    pub(crate) fn widen(&self, level: Level, panel: usize, start: usize, weights: &mut [[f32; LANES]]) {
        let panel = self.panel(panel);
        with_format!(self.format, F => level.run(Widen::<F> { panel, start, weights, format: PhantomData }));
    }
}

impl PackedMatrix {
    /// A matrix with no rows yet.
    pub fn new(cols: usize) -> Self {
        Self { cols, rows: 0, parts: Vec::new() }
    }

    /// Adds `rows` rows, given as GGUF and safetensors store them: row-major, little-endian.
    ///
    /// # Errors
    /// [`CpuError::WeightDType`] for dense elements that are not floats, [`CpuError::WeightBytes`] when `bytes` is not
    /// exactly the rows, [`CpuError::Quantization`] when a row is not a whole number of blocks.
    pub fn push(&mut self, format: WeightFormat, rows: usize, bytes: &[u8]) -> Result<(), CpuError> {
        let row_bytes = match format {
            WeightFormat::Dense(dtype) if !dtype.is_float() => {
                return Err(CpuError::WeightDType { got: dtype });
            }
            WeightFormat::Dense(dtype) => self.cols * dtype.size(),
            WeightFormat::Blocks(format) => format.bytes_for(self.cols)?,
        };
        let expected = rows.saturating_mul(row_bytes);
        if bytes.len() != expected {
            let cols = self.cols;
            return Err(CpuError::WeightBytes {
                format: format.name(),
                rows,
                cols,
                expected,
                got: bytes.len(),
            });
        }
        let stride = panel_bytes(format, self.cols);
        let mut panels = vec![0; rows.div_ceil(LANES) * stride];
        if row_bytes > 0 {
            let sources = bytes.chunks(LANES * row_bytes);
            for (panel, rows) in panels.chunks_exact_mut(stride).zip(sources) {
                codes::write_panel(format, rows, row_bytes, panel);
            }
        }
        self.parts.push(Part { format, first_row: self.rows, rows, stride, panels });
        self.rows += rows;
        Ok(())
    }

    /// `[rows, cols]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// Bytes of memory that the weights take.
    pub fn memory_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.panels.capacity()).sum()
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Writes one row's numbers to `out`.
    ///
    /// # Panics
    /// When there is no such row or `out` is not one row long.
    pub(crate) fn read_row(&self, level: Level, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row {row} of {:?}", self.shape());
        let after = self.parts.partition_point(|part| part.first_row <= row);
        let part = &self.parts[after - 1];
        let row = row - part.first_row;
        let panel = row / LANES;
        let mut weights = [[0.0; LANES]; 8 * UNIT];
        for (chunk, out) in out.chunks_mut(weights.len()).enumerate() {
            let weights = &mut weights[..out.len()];
            part.widen(level, panel, chunk * 8 * UNIT, weights);
            out.iter_mut().zip(weights).for_each(|(out, lanes)| *out = lanes[row % LANES]);
        }
    }
}

/// Bytes of a panel of `cols` columns, a whole number of blocks.
fn panel_bytes(format: WeightFormat, cols: usize) -> usize {
    with_format!(format, F => cols / F::BLOCK * F::BLOCK_BYTES)
}

/// Calls generic code with the storage type of a run-time format.
macro_rules! with_format {
    ($format:expr, $type:ident => $body:expr) => {{
        use oxide_infer::{DType, WeightFormat, quantization::BlockFormat};
        use $crate::packed::format;
        match $format {
            WeightFormat::Dense(DType::F16) => {
                type $type = format::F16;
                $body
            }
            WeightFormat::Dense(DType::BF16) => {
                type $type = format::Bf16;
                $body
            }
            // Other dense types are refused when a matrix is made.
            WeightFormat::Dense(_) => {
                type $type = format::F32;
                $body
            }
            WeightFormat::Blocks(BlockFormat::Q4_0) => {
                type $type = format::Q4_0;
                $body
            }
            WeightFormat::Blocks(BlockFormat::Q4_1) => {
                type $type = format::Q4_1;
                $body
            }
            WeightFormat::Blocks(BlockFormat::Q5_0) => {
                type $type = format::Q5_0;
                $body
            }
            WeightFormat::Blocks(BlockFormat::Q5_1) => {
                type $type = format::Q5_1;
                $body
            }
            WeightFormat::Blocks(BlockFormat::Q8_0) => {
                type $type = format::Q8_0;
                $body
            }
            WeightFormat::Blocks(BlockFormat::Q4_K) => {
                type $type = format::Q4K;
                $body
            }
            WeightFormat::Blocks(BlockFormat::Q5_K) => {
                type $type = format::Q5K;
                $body
            }
            WeightFormat::Blocks(BlockFormat::Q6_K) => {
                type $type = format::Q6K;
                $body
            }
        }
    }};
}
pub(crate) use with_format;

/// Columns `start..` of a panel, a whole number of units from its start, as numbers.
struct Widen<'a, F> {
    panel: &'a [u8],
    start: usize,
    weights: &'a mut [[f32; LANES]],
    format: PhantomData<F>,
}

impl<F: Format> Kernel for Widen<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (unit, weights) in self.weights.chunks_mut(UNIT).enumerate() {
            F::decode::<I, 1>(
                [self.panel],
                self.start / UNIT + unit,
                weights.len(),
                #[inline(always)]
                |column, _, lanes| I::store(lanes, &mut weights[column]),
            );
        }
    }
}

//! Weights in device memory: bf16, those of one operand one after the other.

use super::lower::CudaModel;
use crate::load::LoadProgress;
use crate::model::{DenseDecoder, Matrix, ModelConfig, Vector, WeightId};
use crate::weights::ModelWeights;
use half::{bf16, f16};
use oxide_infer::quantization::{QuantizationError, dequantize};
use oxide_infer::{DType, WeightFormat};
use oxide_infer_cuda::driver::CudaError;
use oxide_infer_cuda::runtime::{
    CommandScope, Completion, CompletionError, Context, DeviceMemory, EnqueueError, PinnedMemory, Region,
    RegionError, Stream,
};
use rayon::prelude::*;
use std::collections::{HashMap, VecDeque};

/// Operands begin at multiples of this many elements.
const ALIGNMENT: usize = 128;
/// Elements that are converted and copied at once.
const CHUNK: usize = 8 << 20;
/// Chunks on their way: one is converted while another is copied.
const CHUNKS: usize = 3;
/// Elements that one thread converts at once: whole blocks of every format.
const PIECE: usize = 1 << 16;

/// Where every weight lies, in elements.
#[derive(Clone, Debug, Default)]
pub(super) struct WeightLayout {
    offsets: HashMap<WeightId, usize>,
    elements: usize,
}

/// Why weights cannot be brought to the device.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// Memory, or the way to it.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A copy was refused.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// A copy failed.
    #[error(transparent)]
    Completion(#[from] CompletionError),
    /// A copy of the wrong size.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Blocks that are not whole.
    #[error(transparent)]
    Quantization(#[from] QuantizationError),
}

/// Bytes of device memory that a model's weights take, in bf16.
pub fn weight_bytes(config: &ModelConfig) -> u64 {
    WeightLayout::new(&CudaModel::new(&DenseDecoder::new(config))).bytes() as u64
}

impl WeightLayout {
    pub(super) fn new(model: &CudaModel) -> Self {
        let mut layout = Self::default();
        for group in model.matrices() {
            layout.place(group.iter().map(|matrix| (matrix.id, matrix.rows * matrix.cols)));
        }
        for group in model.vectors() {
            layout.place(group.iter().map(|vector| (vector.id, vector.len)));
        }
        layout
    }

    fn place(&mut self, group: impl Iterator<Item = (WeightId, usize)>) {
        for (id, elements) in group {
            self.offsets.insert(id, self.elements);
            self.elements += elements;
        }
        self.elements = self.elements.next_multiple_of(ALIGNMENT);
    }

    pub(super) fn bytes(&self) -> usize {
        self.elements * size_of::<bf16>()
    }

    /// So many elements from the beginning of a weight on.
    pub(super) fn region(
        &self,
        memory: &DeviceMemory,
        first: WeightId,
        elements: usize,
    ) -> Result<Region<bf16>, RegionError> {
        memory.region(self.offsets[&first] * size_of::<bf16>(), elements)
    }
}

/// Converts every weight to bf16 and copies it to its place. Numbers that are bf16 already are copied as they are.
pub(super) fn upload(
    context: &Context,
    model: &CudaModel,
    weights: &ModelWeights<'_>,
    layout: &WeightLayout,
    memory: &DeviceMemory,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), UploadError> {
    let total = LoadProgress {
        tensors: weights.weights().len(),
        bytes: weights.weights().iter().map(|weight| weights.stored_bytes(weight.id()) as u64).sum(),
        ..LoadProgress::default()
    };
    progress(total);
    let mut uploader = Uploader::new(context, memory)?;
    let mut done = total;
    let mut loaded = |id: WeightId| {
        weights.release(id);
        done.tensors_done += 1;
        done.bytes_done += weights.stored_bytes(id) as u64;
        progress(done);
    };
    for matrix in model.matrices().iter().flatten() {
        uploader.matrix(layout.offsets[&matrix.id], matrix, weights)?;
        loaded(matrix.id);
    }
    for vector in model.vectors().iter().flatten() {
        uploader.vector(layout.offsets[&vector.id], vector, weights)?;
        loaded(vector.id);
    }
    uploader.finish()
}

/// A ring of pinned chunks.
struct Uploader<'a> {
    stream: Stream,
    memory: &'a DeviceMemory,
    free: Vec<PinnedMemory<bf16>>,
    busy: VecDeque<(Completion, PinnedMemory<bf16>)>,
}

impl<'a> Uploader<'a> {
    fn new(context: &Context, memory: &'a DeviceMemory) -> Result<Self, CudaError> {
        let free = (0..CHUNKS).map(|_| PinnedMemory::allocate(context, CHUNK)).collect::<Result<_, _>>()?;
        Ok(Self { stream: context.stream()?, memory, free, busy: VecDeque::new() })
    }

    fn matrix(
        &mut self,
        offset: usize,
        matrix: &Matrix,
        weights: &ModelWeights<'_>,
    ) -> Result<(), UploadError> {
        let stored = weights.matrix(matrix);
        let elements = matrix.rows * matrix.cols;
        for start in (0..elements).step_by(CHUNK) {
            let len = CHUNK.min(elements - start);
            let chunk = self.chunk()?;
            let pieces = (0..len).into_par_iter().step_by(PIECE);
            pieces.try_for_each(|at| {
                let piece = PIECE.min(len - at);
                convert(stored.format, &stored.bytes, start + at, piece, |values| {
                    chunk.write(at, values).map_err(UploadError::from)
                })
            })?;
            self.send(chunk, offset + start, len)?;
        }
        Ok(())
    }

    fn vector(
        &mut self,
        offset: usize,
        vector: &Vector,
        weights: &ModelWeights<'_>,
    ) -> Result<(), UploadError> {
        let values: Vec<_> = weights.vector(vector).into_iter().map(bf16::from_f32).collect();
        for (index, values) in values.chunks(CHUNK).enumerate() {
            let chunk = self.chunk()?;
            chunk.write(0, values)?;
            self.send(chunk, offset + index * CHUNK, values.len())?;
        }
        Ok(())
    }

    /// A chunk that no copy reads.
    fn chunk(&mut self) -> Result<PinnedMemory<bf16>, UploadError> {
        if let Some(chunk) = self.free.pop() {
            return Ok(chunk);
        }
        let (copied, chunk) = self.busy.pop_front().expect("a chunk is free or busy");
        copied.wait()?;
        Ok(chunk)
    }

    fn send(&mut self, chunk: PinnedMemory<bf16>, offset: usize, len: usize) -> Result<(), UploadError> {
        let target = self.memory.region(offset * size_of::<bf16>(), len)?;
        let mut scope = CommandScope::new(&self.stream)?;
        scope.copy_in(&chunk.slice(0..len)?, &target)?;
        self.busy.push_back((scope.finish()?, chunk));
        Ok(())
    }

    fn finish(self) -> Result<(), UploadError> {
        self.busy.into_iter().try_for_each(|(copied, _)| copied.wait()).map_err(UploadError::from)
    }
}

/// Hands `len` numbers from number `start` on to `write`, in bf16.
fn convert(
    format: WeightFormat,
    bytes: &[u8],
    start: usize,
    len: usize,
    write: impl FnOnce(&[bf16]) -> Result<(), UploadError>,
) -> Result<(), UploadError> {
    let part = |size: usize| &bytes[start * size..(start + len) * size];
    match format {
        WeightFormat::Dense(DType::BF16) => match bytemuck::try_cast_slice(part(2)) {
            Ok(values) => write(values),
            // A file may hold them at odd addresses.
            Err(_) => {
                write(&part(2).as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b)).collect::<Vec<_>>())
            }
        },
        WeightFormat::Dense(DType::F16) => {
            let values =
                part(2).as_chunks().0.iter().map(|b| bf16::from_f32(f16::from_le_bytes(*b).to_f32()));
            write(&values.collect::<Vec<_>>())
        }
        WeightFormat::Dense(_) => {
            let values = part(4).as_chunks().0.iter().map(|b| bf16::from_f32(f32::from_le_bytes(*b)));
            write(&values.collect::<Vec<_>>())
        }
        WeightFormat::Blocks(blocks) => {
            let (from, to) = (blocks.bytes_for(start)?, blocks.bytes_for(start + len)?);
            let mut values = vec![0.0; len];
            dequantize(blocks, &bytes[from..to], &mut values)?;
            write(&values.into_iter().map(bf16::from_f32).collect::<Vec<_>>())
        }
    }
}

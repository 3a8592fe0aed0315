use super::random::RandomTensors;
use super::safetensors::{SafetensorsError, SafetensorsFiles};
use crate::gguf::{Gguf, TensorType};
use crate::model::{ModelConfig, Naming};
use ::safetensors::Dtype;
use oxide_infer::quantization::BlockFormat;
use oxide_infer::{DType, WeightFormat};
use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// One source of named tensors.
#[derive(Debug)]
pub struct Checkpoint(Files);

#[derive(Debug)]
enum Files {
    Gguf(Gguf),
    Safetensors(SafetensorsFiles),
    Random(RandomTensors),
}

/// How a tensor's numbers are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorFormat {
    /// Floats one after the other, little-endian, or blocks of quantized numbers.
    Known(WeightFormat),
    /// In a way that nothing here reads; its name.
    Other(String),
}

impl fmt::Display for TensorFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(format) => f.write_str(format.name()),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointTensor {
    /// Its name in the files.
    pub name: String,
    /// Outermost dimension first: a matrix is `[rows, cols]`.
    pub shape: Vec<u64>,
    /// How its numbers are stored.
    pub format: TensorFormat,
}

impl Checkpoint {
    /// The tensors of an open GGUF file.
    pub fn from_gguf(gguf: Gguf) -> Self {
        Self(Files::Gguf(gguf))
    }

    /// The tensors of a directory's safetensors files, `model.safetensors` or those that
    /// `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// [`SafetensorsError`], naming the file.
    pub fn from_safetensors(dir: &Path) -> Result<Self, SafetensorsError> {
        SafetensorsFiles::open(dir).map(|files| Self(Files::Safetensors(files)))
    }

    /// Every weight of a model in BF16, made from a seed, for benchmarks and parity runs: nothing that it answers means
    /// anything.
    ///
    /// Element `i` of the tensor `name` is `std · z(splitmix64(splitmix64(seed XOR fnv1a64(name)) + i))`, rounded to BF16,
    /// where `z` is the sum of the hash's four 16-bit parts brought to mean 0 and standard deviation 1 (nearly normal, at
    /// most 3.47 from 0). It depends on nothing else, and is made when it is read. `std` is
    /// - `3 / √hidden_size` for the embedding and the output matrix, so that logits have a standard deviation of 3: their
    ///   order is clear of rounding, and sampling has something to choose from;
    /// - `2 / √cols` for the two matrices of a layer that add to the residual stream, so that layers outweigh the embedding
    ///   and a model with tied embeddings does not only repeat its last token;
    /// - `1 / √cols` for the other matrices, so that what goes in with a mean square of 1 comes out with one of 1;
    /// - `0.1` for biases. Norms are 1.
    pub fn random(config: &ModelConfig, seed: u64) -> Self {
        Self(Files::Random(RandomTensors::new(config, seed)))
    }

    /// How the files name weights.
    pub fn naming(&self) -> Naming {
        match &self.0 {
            Files::Gguf(_) => Naming::Gguf,
            Files::Safetensors(_) | Files::Random(_) => Naming::HuggingFace,
        }
    }

    /// The GGUF file, if it is one.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.0 {
            Files::Gguf(gguf) => Some(gguf),
            Files::Safetensors(_) | Files::Random(_) => None,
        }
    }

    /// Bytes of all files, or of all tensors that are made from a seed.
    pub fn file_bytes(&self) -> u64 {
        match &self.0 {
            Files::Gguf(gguf) => gguf.file_bytes(),
            Files::Safetensors(files) => files.file_bytes(),
            Files::Random(tensors) => tensors.total_bytes(),
        }
    }

    /// The names of all tensors.
    pub fn names(&self) -> Vec<&str> {
        match &self.0 {
            Files::Gguf(gguf) => gguf.tensors().iter().map(|tensor| tensor.name.as_str()).collect(),
            Files::Safetensors(files) => files.names().collect(),
            Files::Random(tensors) => tensors.names().collect(),
        }
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<CheckpointTensor> {
        let (shape, format) = match &self.0 {
            Files::Gguf(gguf) => {
                let tensor = gguf.tensor(name)?;
                (tensor.shape.clone(), gguf_format(tensor.tensor_type))
            }
            Files::Safetensors(files) => {
                let info = &files.tensor(name)?.info;
                (info.shape.iter().map(|&dim| dim as u64).collect(), safetensors_format(info.dtype))
            }
            Files::Random(tensors) => return tensors.tensor(name),
        };
        Some(CheckpointTensor { name: name.to_owned(), shape, format })
    }

    /// A tensor's bytes: borrowed from the map of its file, or made from the seed. Empty for a name that is not there and
    /// for a GGUF type of unknown size.
    pub fn bytes(&self, name: &str) -> Cow<'_, [u8]> {
        match &self.0 {
            Files::Random(tensors) => Cow::Owned(tensors.bytes(name)),
            Files::Gguf(_) | Files::Safetensors(_) => Cow::Borrowed(self.mapped(name)),
        }
    }

    /// How many bytes [`Self::bytes`] gives.
    pub fn byte_len(&self, name: &str) -> usize {
        match &self.0 {
            Files::Random(tensors) => tensors.byte_len(name),
            Files::Gguf(_) | Files::Safetensors(_) => self.mapped(name).len(),
        }
    }

    fn mapped(&self, name: &str) -> &[u8] {
        match &self.0 {
            Files::Gguf(gguf) => gguf.tensor(name).and_then(|tensor| gguf.data(tensor)).unwrap_or_default(),
            Files::Safetensors(files) => {
                files.tensor(name).map(|tensor| files.bytes(tensor)).unwrap_or_default()
            }
            Files::Random(_) => &[],
        }
    }

    /// Tells the system that a tensor's bytes have been used, so that they stop counting as this process's memory.
    pub fn release(&self, name: &str) {
        match &self.0 {
            Files::Gguf(gguf) => gguf.tensor(name).into_iter().for_each(|tensor| gguf.release(tensor)),
            Files::Safetensors(files) => {
                files.tensor(name).into_iter().for_each(|tensor| files.release(tensor))
            }
            Files::Random(_) => {}
        }
    }
}

fn gguf_format(tensor_type: TensorType) -> TensorFormat {
    TensorFormat::Known(match tensor_type {
        TensorType::F32 => WeightFormat::Dense(DType::F32),
        TensorType::F16 => WeightFormat::Dense(DType::F16),
        TensorType::BF16 => WeightFormat::Dense(DType::BF16),
        TensorType::Q4_0 => WeightFormat::Blocks(BlockFormat::Q4_0),
        TensorType::Q4_1 => WeightFormat::Blocks(BlockFormat::Q4_1),
        TensorType::Q5_0 => WeightFormat::Blocks(BlockFormat::Q5_0),
        TensorType::Q5_1 => WeightFormat::Blocks(BlockFormat::Q5_1),
        TensorType::Q8_0 => WeightFormat::Blocks(BlockFormat::Q8_0),
        TensorType::Q4_K => WeightFormat::Blocks(BlockFormat::Q4_K),
        TensorType::Q5_K => WeightFormat::Blocks(BlockFormat::Q5_K),
        TensorType::Q6_K => WeightFormat::Blocks(BlockFormat::Q6_K),
        other => return TensorFormat::Other(other.to_string()),
    })
}

fn safetensors_format(dtype: Dtype) -> TensorFormat {
    TensorFormat::Known(match dtype {
        Dtype::F32 => WeightFormat::Dense(DType::F32),
        Dtype::F16 => WeightFormat::Dense(DType::F16),
        Dtype::BF16 => WeightFormat::Dense(DType::BF16),
        other => return TensorFormat::Other(format!("{other:?}")),
    })
}

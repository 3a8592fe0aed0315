use super::{GgufWriter, safetensors_file};
use crate::gguf::TensorType;
use crate::model::{Architecture, DenseDecoder, ModelConfig, Naming, RotaryRows, WeightRef, WeightRole};
use crate::weights::random::{fnv1a64, splitmix64};
use half::{bf16, f16};
use oxide_infer::DType;
use oxide_infer::position::rope::{self, Scaling};
use oxide_infer::quantization::{BlockFormat, dequantize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// A small model with weights that are a formula of their name and index, so that any implementation can make them (see
/// `scripts/tiny_model_logits.py`).
#[derive(Clone, Debug)]
pub struct TinyModel {
    config: Value,
    parsed: ModelConfig,
    tensors: Vec<TinyTensor>,
}

/// A weight of a [`TinyModel`].
#[derive(Clone, Debug)]
struct TinyTensor {
    weight: WeightRef,
    values: Vec<f32>,
}

impl TinyModel {
    /// A model of a `config.json`: hidden 64, 2 layers, 4 query heads over 2 key heads, feed-forward 96, vocabulary
    /// 128, with fields replaced.
    ///
    /// # Panics
    /// When the configuration is refused.
    pub fn new(architecture: Architecture, fields: Value) -> Self {
        let mut config = json!({
            "architectures": [architecture.json_name()], "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "hidden_act": "silu", "eos_token_id": 2,
            "bos_token_id": 1, "tie_word_embeddings": false, "sliding_window": null
        });
        for (name, value) in fields.as_object().into_iter().flatten() {
            config[name] = value.clone();
        }
        let parsed = ModelConfig::from_json(&config.to_string()).expect("the configuration is valid");
        let weights = DenseDecoder::new(&parsed).weights();
        let tensors =
            weights.into_iter().map(|weight| TinyTensor { weight, values: values(&weight) }).collect();
        Self { config, parsed, tensors }
    }

    /// The parsed configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.parsed
    }

    /// Rounds every weight to an element type, so that files of all element types mean the same.
    pub fn rounded_to(mut self, dtype: DType) -> Self {
        for value in self.tensors.iter_mut().flat_map(|tensor| &mut tensor.values) {
            *value = match dtype {
                DType::F16 => f16::from_f32(*value).to_f32(),
                DType::BF16 => bf16::from_f32(*value).to_f32(),
                _ => *value,
            };
        }
        self
    }

    /// Writes `config.json` and `model.safetensors`.
    pub fn write_safetensors(&self, dir: &Path, dtype: DType) -> std::io::Result<()> {
        std::fs::write(dir.join("config.json"), self.config.to_string())?;
        std::fs::write(dir.join("model.safetensors"), self.shard(&self.tensors, dtype))
    }

    /// Writes `config.json`, `model.safetensors.index.json` and two shards.
    pub fn write_shards(&self, dir: &Path, dtype: DType) -> std::io::Result<()> {
        std::fs::write(dir.join("config.json"), self.config.to_string())?;
        let mut map = serde_json::Map::new();
        for (i, tensors) in self.tensors.chunks(self.tensors.len().div_ceil(2)).enumerate() {
            let name = format!("model-{:05}-of-00002.safetensors", i + 1);
            std::fs::write(dir.join(&name), self.shard(tensors, dtype))?;
            map.extend(tensors.iter().map(|tensor| (hugging_face_name(tensor), json!(name))));
        }
        let index = json!({"metadata": {}, "weight_map": map});
        std::fs::write(dir.join("model.safetensors.index.json"), index.to_string())
    }

    fn shard(&self, tensors: &[TinyTensor], dtype: DType) -> Vec<u8> {
        let parts: Vec<_> = tensors
            .iter()
            .map(|tensor| (hugging_face_name(tensor), tensor.weight.shape(), bytes(&tensor.values, dtype)))
            .collect();
        let name = match dtype {
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            _ => "F32",
        };
        let parts: Vec<_> = parts
            .iter()
            .map(|(tensor, shape, bytes)| (tensor.as_str(), name, &shape[..], &bytes[..]))
            .collect();
        safetensors_file(&parts)
    }

    /// A GGUF file with matrices of an element type and vectors in F32, as llama.cpp's converter lays it out.
    pub fn gguf(&self, dtype: DType) -> GgufWriter {
        let tensor_type = match dtype {
            DType::F16 => TensorType::F16,
            DType::BF16 => TensorType::BF16,
            _ => TensorType::F32,
        };
        self.gguf_with(|tensor| match tensor.weight {
            WeightRef::Matrix(_) => (tensor_type, bytes(&tensor.values, dtype)),
            WeightRef::Vector(_) => (TensorType::F32, bytes(&tensor.values, DType::F32)),
        })
    }

    /// A GGUF file whose matrices are random blocks of a format, and the model of the values that those stand for.
    pub fn quantized(mut self, format: BlockFormat) -> (GgufWriter, Self) {
        let mut stored = HashMap::new();
        for tensor in &mut self.tensors {
            if let WeightRef::Matrix(matrix) = tensor.weight {
                let blocks = blocks(format, &tensor.values);
                dequantize(format, &blocks, &mut tensor.values).expect("whole blocks");
                stored.insert(matrix.id, blocks);
            }
        }
        let rotary_rows = Naming::Gguf.rotary_rows(self.parsed.architecture);
        let head_dim = self.parsed.head_dim;
        let file = self.gguf_with(|tensor| match stored.get(&tensor.weight.id()) {
            None => (TensorType::F32, bytes(&tensor.values, DType::F32)),
            Some(blocks) if is_permuted(rotary_rows, tensor) => {
                let rows = tensor.weight.shape()[0] as usize;
                (tensor_type(format), interleaved(blocks, rows, head_dim))
            }
            Some(blocks) => (tensor_type(format), blocks.clone()),
        });
        (file, self)
    }

    fn gguf_with(&self, store: impl Fn(&TinyTensor) -> (TensorType, Vec<u8>)) -> GgufWriter {
        let mut writer = self.gguf_metadata();
        let rotary_rows = Naming::Gguf.rotary_rows(self.parsed.architecture);
        for tensor in &self.tensors {
            let mut tensor = tensor.clone();
            if is_permuted(rotary_rows, &tensor) {
                let rows = tensor.weight.shape()[0] as usize;
                tensor.values = interleaved(&tensor.values, rows, self.parsed.head_dim);
            }
            let (tensor_type, bytes) = store(&tensor);
            let name = Naming::Gguf.name(tensor.weight.id());
            writer = writer.tensor(&name, &tensor.weight.shape(), tensor_type, &bytes);
        }
        writer
    }

    fn gguf_metadata(&self) -> GgufWriter {
        let config = &self.parsed;
        let arch = config.architecture.gguf_name();
        let key = |name: &str| format!("{arch}.{name}");
        let mut writer = GgufWriter::new()
            .string("general.architecture", arch)
            .u32(&key("block_count"), config.num_layers as u32)
            .u32(&key("context_length"), config.max_position_embeddings as u32)
            .u32(&key("embedding_length"), config.hidden_size as u32)
            .u32(&key("feed_forward_length"), config.intermediate_size as u32)
            .u32(&key("attention.head_count"), config.num_heads as u32)
            .u32(&key("attention.head_count_kv"), config.num_kv_heads as u32)
            .u32(&key("attention.key_length"), config.head_dim as u32)
            .u32(&key("attention.value_length"), config.head_dim as u32)
            .f32(&key("attention.layer_norm_rms_epsilon"), config.rms_norm_eps)
            .f32(&key("rope.freq_base"), config.rope.theta as f32)
            .u32("tokenizer.ggml.eos_token_id", 2);
        if let Some(window) = config.sliding_windows[0] {
            writer = writer.u32(&key("attention.sliding_window"), window.get());
        }
        match &config.rope.scaling {
            Scaling::Linear { factor } => writer
                .string(&key("rope.scaling.type"), "linear")
                .f32(&key("rope.scaling.factor"), *factor as f32),
            Scaling::Yarn { factor, original_max_position, .. } => writer
                .string(&key("rope.scaling.type"), "yarn")
                .f32(&key("rope.scaling.factor"), *factor as f32)
                .u32(&key("rope.scaling.original_context_length"), *original_max_position as u32),
            Scaling::Llama3 { .. } => {
                let divisors = divisors(&config.rope.contract(DType::F32, config.head_dim));
                let bytes = bytes(&divisors, DType::F32);
                writer.tensor("rope_freqs.weight", &[divisors.len() as u64], TensorType::F32, &bytes)
            }
            Scaling::None | Scaling::Divided { .. } => writer,
        }
    }
}

/// What the unscaled frequencies must be divided by to get the scaled ones.
fn divisors(config: &rope::Config) -> Vec<f32> {
    let frequencies = |scaling| {
        let config = rope::Config { scaling, ..config.clone() };
        rope::Spec::new(config).expect("the configuration was validated").inv_freq().to_vec()
    };
    let scaled = frequencies(config.scaling.clone());
    frequencies(Scaling::None).iter().zip(scaled).map(|(base, scaled)| base / scaled).collect()
}

fn hugging_face_name(tensor: &TinyTensor) -> String {
    Naming::HuggingFace.name(tensor.weight.id())
}

fn is_permuted(rotary_rows: RotaryRows, tensor: &TinyTensor) -> bool {
    use WeightRole::{Key, KeyBias, Query, QueryBias};
    let role = tensor.weight.id().role;
    rotary_rows == RotaryRows::Interleaved && matches!(role, Query | QueryBias | Key | KeyBias)
}

/// Rows of every head in llama.cpp's order: its converter reshapes `[heads, 2, head_dim / 2, …]` and swaps the middle
/// axes.
fn interleaved<T: Copy>(values: &[T], rows: usize, head_dim: usize) -> Vec<T> {
    let row_len = values.len() / rows;
    let mut permuted = Vec::with_capacity(values.len());
    for head in 0..rows / head_dim {
        for pair in 0..head_dim / 2 {
            for side in 0..2 {
                let row = head * head_dim + side * head_dim / 2 + pair;
                permuted.extend_from_slice(&values[row * row_len..][..row_len]);
            }
        }
    }
    permuted
}

/// As many random blocks as there are values, with scales that give numbers of an order of 1/16.
fn blocks(format: BlockFormat, values: &[f32]) -> Vec<u8> {
    let count = values.len() / format.block_elements();
    // Where a block has its 16-bit scales, and how large they are.
    let scales: &[(usize, f32)] = match format {
        BlockFormat::Q4_0 => &[(0, 0.016)],
        BlockFormat::Q4_1 => &[(0, 0.016), (2, -0.12)],
        BlockFormat::Q5_0 => &[(0, 0.008)],
        BlockFormat::Q5_1 => &[(0, 0.008), (2, -0.12)],
        BlockFormat::Q8_0 => &[(0, 0.001)],
        BlockFormat::Q4_K => &[(0, 0.0006), (2, 0.004)],
        BlockFormat::Q5_K => &[(0, 0.0003), (2, 0.004)],
        BlockFormat::Q6_K => &[(208, 0.00005)],
    };
    let mut blocks = Vec::with_capacity(count * format.block_bytes());
    for (index, first) in values.chunks(format.block_elements()).map(|block| block[0]).enumerate() {
        let seed = u64::from(first.to_bits()) << 32 | index as u64;
        let start = blocks.len();
        blocks.extend((0..format.block_bytes() as u64).map(|i| splitmix64(seed.wrapping_add(i << 40)) as u8));
        for &(at, scale) in scales {
            blocks[start + at..][..2]
                .copy_from_slice(&f16::from_f32(scale * (1.0 + first / 4.0)).to_le_bytes());
        }
    }
    blocks
}

fn tensor_type(format: BlockFormat) -> TensorType {
    match format {
        BlockFormat::Q4_0 => TensorType::Q4_0,
        BlockFormat::Q4_1 => TensorType::Q4_1,
        BlockFormat::Q5_0 => TensorType::Q5_0,
        BlockFormat::Q5_1 => TensorType::Q5_1,
        BlockFormat::Q8_0 => TensorType::Q8_0,
        BlockFormat::Q4_K => TensorType::Q4_K,
        BlockFormat::Q5_K => TensorType::Q5_K,
        BlockFormat::Q6_K => TensorType::Q6_K,
    }
}

fn bytes(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// The formula: `u = splitmix64(fnv1a64(name) + i)`, its upper 24 bits taken to [−1, 1), then scaled: matrices by 1/4,
/// the embedding by 1, biases by 1/2; norms are 1 + u/4. Every value is exact in `f32` before the scaling.
fn values(weight: &WeightRef) -> Vec<f32> {
    let seed = fnv1a64(&Naming::HuggingFace.name(weight.id()));
    let count: u64 = weight.shape().iter().product();
    let uniform = (0..count).map(|i| {
        let bits = splitmix64(seed.wrapping_add(i)) >> 40;
        bits as f32 / (1u64 << 23) as f32 - 1.0
    });
    match weight {
        WeightRef::Matrix(matrix) if matrix.id.role == WeightRole::TokenEmbedding => uniform.collect(),
        WeightRef::Matrix(_) => uniform.map(|u| u * 0.25).collect(),
        WeightRef::Vector(vector) => match Naming::HuggingFace.name(vector.id).ends_with("bias") {
            true => uniform.map(|u| u * 0.5).collect(),
            false => uniform.map(|u| 1.0 + u * 0.25).collect(),
        },
    }
}

//! `oxide-infer-lab export`: a model's weights as another implementation can read them.

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use half::{bf16, f16};
use oxide_infer::quantization::dequantize;
use oxide_infer::{DType, WeightFormat};
use oxide_infer_engine::ModelSource;
use oxide_infer_engine::model::{DenseDecoder, ModelConfig, Naming, WeightRef};
use oxide_infer_engine::weights::{MatrixBytes, ModelWeights};
use safetensors::tensor::{Dtype, View, serialize_to_file};
use std::borrow::Cow;
use std::path::PathBuf;

/// Write a model's weights as safetensors in f32, with Hugging Face's names
///
/// Quantized weights are dequantized, and rows that llama.cpp permutes are put back in order, so that transformers can
/// compute the same model.
#[derive(Args, Debug)]
pub(crate) struct ExportOptions {
    /// Model: a .gguf file, or a directory with safetensors
    #[arg(long)]
    model: PathBuf,
    /// The model's config.json, which is copied beside the weights
    #[arg(long)]
    config: PathBuf,
    /// Directory to write config.json and model.safetensors to
    #[arg(long)]
    out: PathBuf,
}

pub(crate) fn run(options: &ExportOptions) -> Result<()> {
    let source = ModelSource::open(&options.model)?;
    let config = std::fs::read_to_string(&options.config)
        .with_context(|| format!("reading {}", options.config.display()))?;
    let decoder = DenseDecoder::new(source.config());
    let named = ModelConfig::from_json(&config)
        .with_context(|| format!("{} is not a configuration", options.config.display()))?;
    ensure!(
        DenseDecoder::new(&named) == decoder,
        "{} is of another model than {}: {named}, not {}",
        options.config.display(),
        options.model.display(),
        source.config()
    );
    let weights = ModelWeights::new(source.checkpoint(), source.config(), &decoder)?;
    std::fs::create_dir_all(&options.out).with_context(|| format!("making {}", options.out.display()))?;
    let tensors = weights.weights().iter().map(|&weight| {
        let shape = weight.shape().iter().map(|&dim| dim as usize).collect();
        (Naming::HuggingFace.name(weight.id()), Tensor { weights: &weights, weight, shape })
    });
    serialize_to_file(tensors, None, &options.out.join("model.safetensors"))?;
    std::fs::write(options.out.join("config.json"), config)?;
    println!("{}: {} tensors in f32", options.out.display(), weights.weights().len());
    Ok(())
}

/// A weight that is converted when it is written.
struct Tensor<'a> {
    weights: &'a ModelWeights<'a>,
    weight: WeightRef,
    shape: Vec<usize>,
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let values = match &self.weight {
            WeightRef::Matrix(matrix) => widened(&self.weights.matrix(matrix), matrix.rows * matrix.cols),
            WeightRef::Vector(vector) => self.weights.vector(vector),
        };
        values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>().into()
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * size_of::<f32>()
    }
}

fn widened(matrix: &MatrixBytes<'_>, elements: usize) -> Vec<f32> {
    let bytes = &matrix.bytes;
    match matrix.format {
        WeightFormat::Blocks(format) => {
            let mut values = vec![0.0; elements];
            // `ModelWeights` has checked the shape, and a GGUF file has whole blocks.
            dequantize(format, bytes, &mut values).expect("whole blocks of the matrix");
            values
        }
        WeightFormat::Dense(DType::F16) => {
            bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect()
        }
        WeightFormat::Dense(DType::BF16) => {
            bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect()
        }
        WeightFormat::Dense(_) => {
            bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxide_infer::quantization::BlockFormat;
    use oxide_infer_engine::model::Architecture;
    use oxide_infer_engine::testing::TinyModel;
    use serde_json::json;

    fn every_number(source: &ModelSource) -> Vec<(String, Vec<f32>)> {
        let decoder = DenseDecoder::new(source.config());
        let weights = ModelWeights::new(source.checkpoint(), source.config(), &decoder).unwrap();
        let numbers = |weight: &WeightRef| match weight {
            WeightRef::Matrix(matrix) => widened(&weights.matrix(matrix), matrix.rows * matrix.cols),
            WeightRef::Vector(vector) => weights.vector(vector),
        };
        weights.weights().iter().map(|w| (Naming::HuggingFace.name(w.id()), numbers(w))).collect()
    }

    #[test]
    fn a_quantized_file_becomes_the_model_of_the_values_that_its_blocks_stand_for() {
        // Q4_0 blocks have 32 elements, and a Llama's rows are permuted in GGUF.
        let (file, values) = TinyModel::new(Architecture::Llama, json!({})).quantized(BlockFormat::Q4_0);
        let dir = tempfile::tempdir().unwrap();
        let expected = dir.path().join("expected");
        std::fs::create_dir(&expected).unwrap();
        values.write_safetensors(&expected, DType::F32).unwrap();
        let gguf = dir.path().join("model.gguf");
        std::fs::write(&gguf, file.build()).unwrap();
        let out = dir.path().join("out");
        let options = ExportOptions { model: gguf, config: expected.join("config.json"), out: out.clone() };
        run(&options).unwrap();
        let open = |path| ModelSource::open(path).unwrap();
        assert_eq!(every_number(&open(&out)), every_number(&open(&expected)));
        assert_eq!(open(&out).config(), open(&expected).config());
    }

    #[test]
    fn the_configuration_of_another_model_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        TinyModel::new(Architecture::Qwen3, json!({})).write_safetensors(dir.path(), DType::F32).unwrap();
        let gguf = dir.path().join("model.gguf");
        std::fs::write(&gguf, TinyModel::new(Architecture::Llama, json!({})).gguf(DType::F32).build())
            .unwrap();
        let config = dir.path().join("config.json");
        let error = run(&ExportOptions { model: gguf, config, out: dir.path().join("out") }).unwrap_err();
        assert!(error.to_string().contains("is of another model than"), "{error}");
    }
}

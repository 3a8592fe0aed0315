use super::*;
use crate::model::{Architecture, ModelConfig};
use crate::source::ModelSource;
use crate::testing::{GgufWriter, TinyModel, safetensors_file};
use serde_json::json;

fn checked<'a>(source: &'a ModelSource, config: &ModelConfig) -> Result<ModelWeights<'a>, WeightsError> {
    ModelWeights::new(source.checkpoint(), config, &DenseDecoder::new(config))
}

fn open_gguf(writer: &GgufWriter) -> ModelSource {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), writer.build()).unwrap();
    ModelSource::open(file.path()).unwrap()
}

#[test]
fn every_problem_is_in_one_error() {
    let model =
        TinyModel::new(Architecture::Qwen2, json!({"num_hidden_layers": 1, "tie_word_embeddings": true}));
    let dir = tempfile::tempdir().unwrap();
    model.write_safetensors(dir.path(), DType::F32).unwrap();
    let file = safetensors_file(&[
        ("model.embed_tokens.weight", "F32", &[128, 32], &[0; 128 * 32 * 4]),
        ("model.norm.weight", "I32", &[64], &[0; 64 * 4]),
        ("model.layers.0.self_attn.q_proj.weight", "F8_E4M3", &[64, 64], &[0; 64 * 64]),
        ("model.layers.0.self_attn.q_proj.bias", "F32", &[64], &[0; 64 * 4]),
        ("model.layers.0.self_attn.k_proj.weight", "F32", &[32, 64], &[0; 32 * 64 * 4]),
    ]);
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    let source = ModelSource::open(dir.path()).unwrap();
    assert_eq!(
        checked(&source, source.config()).unwrap_err().to_string(),
        "the weights do not fit the model, 12 problems:
  model.embed_tokens.weight has the shape [128, 32], the configuration asks for [128, 64]
  model.layers.0.input_layernorm.weight [64] is missing
  model.layers.0.self_attn.q_proj.weight is stored as F8_E4M3; matrices are read in f32, f16, bf16, Q4_0, Q4_1, \
         Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K
  model.layers.0.self_attn.k_proj.bias [32] is missing
  model.layers.0.self_attn.v_proj.weight [32, 64] is missing
  model.layers.0.self_attn.v_proj.bias [32] is missing
  model.layers.0.self_attn.o_proj.weight [64, 64] is missing
  model.layers.0.post_attention_layernorm.weight [64] is missing
  model.layers.0.mlp.gate_proj.weight [96, 64] is missing
  model.layers.0.mlp.up_proj.weight [96, 64] is missing
  model.layers.0.mlp.down_proj.weight [64, 96] is missing
  model.norm.weight is stored as I32; norms and biases are read in f32, f16 and bf16"
    );
}

#[test]
fn weights_are_the_same_from_one_file_from_shards_and_from_gguf() {
    for architecture in Architecture::ALL {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let bias = json!({"attention_bias": true});
            let model = TinyModel::new(architecture, bias).rounded_to(dtype);
            let [one, shards] = [(), ()].map(|()| tempfile::tempdir().unwrap());
            model.write_safetensors(one.path(), dtype).unwrap();
            model.write_shards(shards.path(), dtype).unwrap();
            let sources = [
                ModelSource::open(one.path()).unwrap(),
                ModelSource::open(shards.path()).unwrap(),
                open_gguf(&model.gguf(dtype)),
            ];
            let weights = sources.each_ref().map(|source| checked(source, source.config()).unwrap());
            for weight in weights[0].weights() {
                let numbers = weights.each_ref().map(|weights| match weight {
                    WeightRef::Matrix(matrix) => weights.matrix(matrix).bytes.into_owned(),
                    WeightRef::Vector(vector) => bytemuck::cast_slice(&weights.vector(vector)).to_vec(),
                });
                assert_eq!(numbers[0], numbers[1], "{architecture} {dtype} {weight:?}");
                assert_eq!(numbers[0], numbers[2], "{architecture} {dtype} {weight:?}");
            }
        }
    }
}

/// llama.cpp's order of a head of four rows, worked by hand from its converter: `[2, 2]` transposed.
#[test]
fn rows_of_a_head_are_put_back_in_order() {
    let stored = [0, 2, 1, 3, 4, 6, 5, 7];
    assert_eq!(halves_from_interleaved(&stored, 4, 1), [0, 1, 2, 3, 4, 5, 6, 7]);
}

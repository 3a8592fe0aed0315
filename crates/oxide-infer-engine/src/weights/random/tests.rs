use super::*;
use crate::model::Architecture;
use crate::source::ModelSource;
use crate::testing::TinyModel;
use serde_json::json;

fn tensors(seed: u64) -> RandomTensors {
    let wide = json!({"hidden_size": 256, "intermediate_size": 1024, "head_dim": 64, "vocab_size": 1000});
    RandomTensors::new(TinyModel::new(Architecture::Qwen2, wide).config(), seed)
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect()
}

#[test]
fn a_seed_and_a_name_give_the_same_bits_and_others_give_others() {
    let query = "model.layers.0.self_attn.q_proj.weight";
    let made = tensors(7).bytes(query);
    assert_eq!(made.len(), 256 * 256 * 2);
    assert_eq!(tensors(7).bytes(query), made);
    let others = [tensors(8).bytes(query), tensors(7).bytes("model.layers.1.self_attn.q_proj.weight")];
    for other in others {
        let equal =
            made.as_chunks::<2>().0.iter().zip(other.as_chunks::<2>().0).filter(|(a, b)| a == b).count();
        assert!(equal < 2000, "{equal} of 65536 elements are equal");
    }
    assert!(tensors(7).bytes("model.absent").is_empty());
}

/// The first elements for seed 7, made with the formula by another implementation, in Python.
#[test]
fn elements_follow_the_documented_formula() {
    let bytes = tensors(7).bytes("model.layers.0.self_attn.q_proj.weight");
    let bits: Vec<u16> = bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
    assert_eq!(bits[..8], [15820, 15436, 15516, 15726, 15600, 48240, 15521, 48538]);
    // Past the first chunk.
    let bytes = tensors(7).bytes("model.layers.1.mlp.down_proj.weight");
    let bits: Vec<u16> = bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
    assert_eq!(bits[200_000..200_004], [47885, 15800, 48418, 48489]);
}

#[test]
fn mean_and_deviation_are_those_of_the_formula() {
    let tensors = tensors(3);
    for (name, std) in [
        ("model.embed_tokens.weight", 3.0 / 16.0),
        ("lm_head.weight", 3.0 / 16.0),
        ("model.layers.0.self_attn.k_proj.weight", 1.0 / 16.0),
        ("model.layers.1.self_attn.o_proj.weight", 2.0 / 16.0),
        ("model.layers.1.mlp.gate_proj.weight", 1.0 / 16.0),
        ("model.layers.1.mlp.down_proj.weight", 2.0 / 32.0),
        ("model.layers.0.self_attn.q_proj.bias", 0.1),
    ] {
        let values = numbers(&tensors.bytes(name));
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / count;
        // Five standard errors.
        assert!(mean.abs() < 5.0 * std / count.sqrt(), "{name} has a mean of {mean}");
        assert!((square.sqrt() / std - 1.0).abs() < 5.0 / (2.0 * count).sqrt(), "{name}: {}", square.sqrt());
        // A normal number is within one deviation 68.3% of the time; the sum of four uniform ones 66.9%.
        let inside = values.iter().filter(|value| value.abs() < std).count() as f32 / count;
        assert!((inside - 0.669).abs() < 2.5 / count.sqrt(), "{name}: {inside} are within one deviation");
    }
    for norm in ["model.norm.weight", "model.layers.1.input_layernorm.weight"] {
        assert!(numbers(&tensors.bytes(norm)).iter().all(|value| *value == 1.0));
    }
}

#[test]
fn the_tensors_are_those_that_the_model_needs_and_the_directory_needs_no_weights() {
    for architecture in Architecture::ALL {
        for tied in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let model = TinyModel::new(architecture, json!({"tie_word_embeddings": tied}));
            model.write_safetensors(dir.path(), DType::BF16).unwrap();
            let stored = ModelSource::open(dir.path()).unwrap();
            std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
            let random = ModelSource::open_random(dir.path(), 1).unwrap();
            let shapes = |source: &ModelSource| {
                let checkpoint = source.checkpoint();
                let mut tensors: Vec<_> =
                    checkpoint.names().iter().map(|name| checkpoint.tensor(name).unwrap()).collect();
                tensors.sort_by(|a, b| a.name.cmp(&b.name));
                tensors
            };
            assert_eq!(shapes(&random), shapes(&stored));
            let checkpoint = random.checkpoint();
            let lengths = checkpoint.names().iter().map(|name| checkpoint.bytes(name).len()).sum::<usize>();
            assert_eq!(checkpoint.file_bytes(), lengths as u64);
            assert!(checkpoint.names().iter().all(|n| checkpoint.byte_len(n) == checkpoint.bytes(n).len()));
        }
    }
}

#[test]
fn what_has_no_configuration_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let message = |path: &std::path::Path| ModelSource::open_random(path, 1).unwrap_err().to_string();
    assert!(message(dir.path()).contains("has no config.json"));
    let file = dir.path().join("a.gguf");
    std::fs::write(&file, "").unwrap();
    assert!(
        message(&file)
            .ends_with("a.gguf is a file; random weights are made for a directory with config.json")
    );
    assert!(message(&dir.path().join("absent")).contains("absent cannot be read"));
}

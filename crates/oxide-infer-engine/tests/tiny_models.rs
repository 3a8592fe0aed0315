//! Small models of every architecture on the CPU executor, against logits of transformers and against each other.

mod common;

use common::{by_id, load_gguf, load_safetensors, load_with, options, prompt_logprobs};
use oxide_infer::position::rope::Scaling;
use oxide_infer::quantization::BlockFormat;
use oxide_infer::sampling::LogProbs;
use oxide_infer::{DType, TokenId};
use oxide_infer_engine::cpu::{CpuExecutor, CpuOptions};
use oxide_infer_engine::model::Architecture;
use oxide_infer_engine::testing::TinyModel;
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::path::Path;

/// Logits by transformers in float32 (`scripts/tiny_model_logits.py`).
fn reference() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny_models.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn tokens(reference: &Value) -> Vec<TokenId> {
    reference["tokens"].as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
}

fn model(case: &Value) -> TinyModel {
    let name = case["architecture"].as_str().unwrap();
    let architecture = Architecture::ALL.into_iter().find(|a| a.json_name() == name).unwrap();
    TinyModel::new(architecture, case["fields"].clone())
}

/// All log-probabilities at every position, in one chunk.
fn all_logprobs(executor: &mut CpuExecutor, tokens: &[TokenId]) -> Vec<LogProbs> {
    prompt_logprobs(executor, tokens, &[tokens.len()], &[3, 1], 128)
}

fn largest_difference(a: &[LogProbs], b: &[LogProbs]) -> f32 {
    let pairs = a.iter().zip(b).flat_map(|(a, b)| by_id(a).into_iter().zip(by_id(b)));
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn logits_agree_with_transformers() {
    let reference = reference();
    let tokens = tokens(&reference);
    for case in reference["cases"].as_array().unwrap() {
        let logprobs = all_logprobs(&mut load_safetensors(&model(case), DType::F32), &tokens);
        for (position, logits) in case["logits"].as_object().unwrap() {
            let logits: Vec<f64> = logits.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
            let normalizer = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
            let found = by_id(&logprobs[position.parse::<usize>().unwrap()]);
            for (id, (found, logit)) in found.iter().zip(logits).enumerate() {
                let difference = (f64::from(*found) - (logit - normalizer)).abs();
                assert!(difference < 2e-5, "{} position {position} id {id}: {difference}", case["name"]);
            }
        }
    }
}

#[test]
fn a_gguf_file_of_the_same_weights_has_the_same_logits() {
    let reference = reference();
    let tokens = tokens(&reference);
    for case in reference["cases"].as_array().unwrap() {
        let model = model(case);
        if case["name"] == "qwen2 window from layer 1" {
            continue; // GGUF files have one window for all layers.
        }
        let expected = all_logprobs(&mut load_safetensors(&model, DType::F32), &tokens);
        let found = all_logprobs(&mut load_gguf(&model.gguf(DType::F32).build()), &tokens);
        // The divisors that a GGUF file stores for llama3 scaling are rounded.
        match model.config().rope.scaling {
            Scaling::Llama3 { .. } => {
                assert!(largest_difference(&expected, &found) < 2e-5, "{}", case["name"])
            }
            _ => assert_eq!(expected, found, "{}", case["name"]),
        }
    }
}

#[test]
fn half_precision_files_mean_their_values_in_float32() {
    let tokens = tokens(&reference());
    for dtype in [DType::F16, DType::BF16] {
        let model = TinyModel::new(Architecture::Qwen3, json!({"head_dim": 32})).rounded_to(dtype);
        let expected = all_logprobs(&mut load_safetensors(&model, DType::F32), &tokens);
        assert_eq!(all_logprobs(&mut load_safetensors(&model, dtype), &tokens), expected, "{dtype}");
        assert_eq!(all_logprobs(&mut load_gguf(&model.gguf(dtype).build()), &tokens), expected, "{dtype}");
    }
}

#[test]
fn every_block_format_means_its_dequantized_values() {
    let tokens = &tokens(&reference())[..20];
    for format in BlockFormat::ALL {
        // Blocks of 256 need widths that are multiples of it.
        let sizes =
            json!({"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 64});
        let (file, dequantized) = TinyModel::new(Architecture::Llama, sizes).quantized(format);
        let expected = all_logprobs(&mut load_safetensors(&dequantized, DType::F32), tokens);
        let found = all_logprobs(&mut load_gguf(&file.build()), tokens);
        let difference = largest_difference(&expected, &found);
        assert!(difference < 2e-5, "{format}: {difference}");
        let spread = expected[19].top[0].logprob - expected[19].top[127].logprob;
        assert!(spread > 1.0, "{format}: the logits of the test are all alike ({spread})");
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let reference = reference();
    let tokens = tokens(&reference);
    let dir = tempfile::tempdir().unwrap();
    for case in reference["cases"].as_array().unwrap() {
        model(case).write_safetensors(dir.path(), DType::F32).unwrap();
        let logprobs = [1, 2, 3].map(|threads| {
            let options = CpuOptions { threads: NonZeroUsize::new(threads), ..options() };
            all_logprobs(&mut load_with(dir.path(), &options), &tokens)
        });
        assert_eq!(logprobs[0], logprobs[1], "{}", case["name"]);
        assert_eq!(logprobs[0], logprobs[2], "{}", case["name"]);
    }
}

#[test]
fn chunks_and_pages_do_not_change_a_bit() {
    let reference = reference();
    let tokens = tokens(&reference);
    for case in reference["cases"].as_array().unwrap() {
        let mut executor = load_safetensors(&model(case), DType::F32);
        let expected = all_logprobs(&mut executor, &tokens);
        for chunk_ends in [&[1, 2, 40, 64, 90][..], &[63, 65, 90], &[7, 89, 90]] {
            let found = prompt_logprobs(&mut executor, &tokens, chunk_ends, &[0, 2], 128);
            assert_eq!(found, expected, "{} in chunks {chunk_ends:?}", case["name"]);
        }
    }
}

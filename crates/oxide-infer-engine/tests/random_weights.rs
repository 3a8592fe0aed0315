//! A model of random weights from a `config.json` alone, on the CPU.

mod common;

use common::{by_id, options, prompt_logprobs};
use oxide_infer::TokenId;
use oxide_infer_engine::cpu::CpuExecutor;
use oxide_infer_engine::model::Architecture;
use oxide_infer_engine::{ModelSource, load_cpu};
use serde_json::{Value, json};

const VOCAB: u32 = 512;

fn executor(architecture: Architecture, fields: Value, seed: u64) -> CpuExecutor {
    let dir = tempfile::tempdir().unwrap();
    let mut config = json!({
        "architectures": [architecture.json_name()], "hidden_size": 128, "intermediate_size": 320,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "vocab_size": VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-6
    });
    for (name, value) in fields.as_object().unwrap() {
        config[name] = value.clone();
    }
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    load_cpu(&ModelSource::open_random(dir.path(), seed).unwrap(), &options(), &mut |_| ()).unwrap()
}

/// Log-probabilities of the whole vocabulary at every position of a prompt.
fn rows(executor: &mut CpuExecutor, prompt: &[TokenId]) -> Vec<Vec<f32>> {
    prompt_logprobs(executor, prompt, &[prompt.len()], &[3, 1], VOCAB).iter().map(by_id).collect()
}

fn prompt() -> Vec<TokenId> {
    (0..100).map(|i| TokenId((i * i * 7 + 5 * i + 3) % VOCAB)).collect()
}

fn best(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
}

#[test]
fn logits_are_well_spread_and_follow_the_whole_prompt() {
    for architecture in Architecture::ALL {
        for tied in [true, false] {
            let mut executor = executor(architecture, json!({"tie_word_embeddings": tied}), 11);
            let prompt = prompt();
            let found = rows(&mut executor, &prompt);
            for row in &found {
                let mean = row.iter().sum::<f32>() / row.len() as f32;
                let std = (row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / row.len() as f32).sqrt();
                assert!((2.5..3.6).contains(&std), "{architecture}: logits deviate by {std}");
            }
            let repeats = found.iter().zip(&prompt).filter(|(row, token)| best(row) == token.index()).count();
            assert!(repeats < 40, "{architecture}: {repeats} of 100 tokens are repeated");
            let mut different: Vec<_> = found.iter().map(|row| best(row)).collect();
            different.sort_unstable();
            different.dedup();
            assert!(different.len() > 30, "{architecture}: {} different best tokens", different.len());

            let mut other = prompt.clone();
            other[0] = TokenId(77);
            let changed = rows(&mut executor, &other);
            assert_ne!(found[99], changed[99], "{architecture}: the last row does not see the first token");
        }
    }
}

#[test]
fn a_seed_gives_the_same_answers_and_another_seed_others() {
    let prompt = prompt();
    let answers = |seed| rows(&mut executor(Architecture::Qwen2, json!({}), seed), &prompt);
    assert_eq!(answers(5), answers(5));
    assert_ne!(answers(5), answers(6));
}

//! Damaged model files are refused with an error, or loaded and run; they never panic.

mod common;

use common::{Chunk, options, step};
use oxide_infer::{DType, TokenId};
use oxide_infer_engine::cpu::CpuOptions;
use oxide_infer_engine::model::Architecture;
use oxide_infer_engine::testing::TinyModel;
use oxide_infer_engine::{ModelSource, load_cpu};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;
use std::num::NonZeroUsize;
use std::path::Path;

/// Loads a model and runs a step, unless it is refused. Returns whether it ran.
fn load_and_run(path: &Path) -> bool {
    let Ok(source) = ModelSource::open(path) else { return false };
    let options = CpuOptions { threads: NonZeroUsize::new(1), max_model_len: None, ..options() };
    let Ok(mut executor) = load_cpu(&source, &options, &mut |_| ()) else { return false };
    let prompt = [TokenId(1), TokenId(3)];
    // Weights may be damaged, too, and then a row has no log-probabilities.
    let chunk = Chunk { slot: 0, prompt: &prompt, tokens: 0..2, pages: &[0], next: &[] };
    step(&mut executor, &[chunk], 1);
    true
}

fn small() -> TinyModel {
    TinyModel::new(
        Architecture::Llama,
        json!({"num_hidden_layers": 1, "vocab_size": 16, "intermediate_size": 32}),
    )
}

/// Writes bytes and words over a file, and possibly cuts it.
fn damage(
    bytes: &mut Vec<u8>,
    within: usize,
    writes: &[(Index, u8)],
    words: &[(Index, u64)],
    cut: Option<Index>,
) {
    for (at, value) in writes {
        let at = at.index(within);
        bytes[at] = *value;
    }
    for (at, value) in words {
        let at = at.index(within - 8);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len()));
    }
}

fn writes() -> impl Strategy<Value = Vec<(Index, u8)>> {
    prop::collection::vec((any::<Index>(), any::<u8>()), 0..4)
}

fn words() -> impl Strategy<Value = Vec<(Index, u64)>> {
    let word = prop::sample::select(vec![0, 1, 64, 1 << 20, 1 << 31, u64::MAX >> 1, u64::MAX]);
    prop::collection::vec((any::<Index>(), word), 0..2)
}

fn cut() -> impl Strategy<Value = Option<Index>> {
    prop::option::weighted(0.1, any::<Index>())
}

#[test]
fn an_undamaged_model_runs() {
    let dir = tempfile::tempdir().unwrap();
    small().write_safetensors(dir.path(), DType::F32).unwrap();
    assert!(load_and_run(dir.path()));
    let file = dir.path().join("m.gguf");
    std::fs::write(&file, small().gguf(DType::F32).build()).unwrap();
    assert!(load_and_run(&file));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_gguf_file(writes in writes(), words in words(), cut in cut()) {
        let mut bytes = small().gguf(DType::F32).build();
        // The header: what comes before the tensors' numbers.
        damage(&mut bytes, 1600, &writes, &words, cut);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        load_and_run(file.path());
    }

    #[test]
    fn a_damaged_directory(writes in writes(), cut in cut(), which in 0usize..2, number in prop::option::of(any::<Index>())) {
        let dir = tempfile::tempdir().unwrap();
        small().write_safetensors(dir.path(), DType::F32).unwrap();
        let path = dir.path().join(["config.json", "model.safetensors"][which]);
        let mut bytes = std::fs::read(&path).unwrap();
        let within = bytes.len().min(1200);
        damage(&mut bytes, within, &writes, &[], cut);
        // A digit becomes a long number.
        let digits: Vec<_> = (0..bytes.len().min(within)).filter(|&at| bytes[at].is_ascii_digit()).collect();
        if let (Some(number), false) = (number, digits.is_empty()) {
            let at = digits[number.index(digits.len())];
            bytes.splice(at..at, *b"9007199254740993");
        }
        std::fs::write(&path, bytes).unwrap();
        load_and_run(dir.path());
    }
}

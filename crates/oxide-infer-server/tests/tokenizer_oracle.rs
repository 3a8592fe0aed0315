//! Tokenizers against ids from other implementations.

use std::path::PathBuf;

use oxide_infer::TokenId;
use oxide_infer_server::text::{AddSpecialTokens, SpecialInOutput, TextModel, TextOptions, Tokenizer};
use serde_json::Value;

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file that `make` fetches: where an environment variable says, or in `models/`.
fn fetched(variable: &str, name: &str, command: &str) -> PathBuf {
    let path =
        std::env::var_os(variable).map_or_else(|| workspace().join("models").join(name), PathBuf::from);
    assert!(path.exists(), "{} is missing: run {command}, or set {variable}", path.display());
    path
}

fn demo_model() -> TextModel {
    let path = fetched("OXIDE_INFER_TEST_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf", "`make model`");
    TextModel::load(&path, &TextOptions::default()).unwrap()
}

fn cases(name: &str) -> Value {
    let path = workspace().join("testdata/cases").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
}

fn check_cases(tokenizer: &Tokenizer, cases: &Value) {
    let cases = cases.as_array().unwrap();
    assert!(cases.len() >= 15);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let got = tokenizer.encode(text, AddSpecialTokens::Omit).unwrap();
        assert_eq!(got, ids(&case["ids"]), "{text:?}");
        let decoded = tokenizer.decode(&got, SpecialInOutput::Keep);
        assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{text:?}");
    }
}

#[test]
fn the_tokenizer_rebuilt_from_gguf_gives_the_published_ids() {
    check_cases(demo_model().tokenizer(), &cases("tokenizer.json")["smollm2"]);
}

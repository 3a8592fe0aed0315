//! The text layer against other implementations: transformers, llama.cpp, SentencePiece.

mod escape;
mod gguf;
mod hub;
mod oracle;
mod streaming;

use std::path::{Path, PathBuf};

use oxide_infer::TokenId;
use oxide_infer_server::text::{AddSpecialTokens, SpecialInContent, TextModel, TextOptions, Tokenizer};
use serde_json::Value;

/// The tokenizers of the demo model and of Qwen2.5, loaded once.
static DEMO: std::sync::LazyLock<TextModel> =
    std::sync::LazyLock::new(|| demo_model(SpecialInContent::Parse));
static QWEN: std::sync::LazyLock<Tokenizer> = std::sync::LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(qwen_tokenizer_json(), dir.path().join("tokenizer.json")).unwrap();
    Tokenizer::from_dir(dir.path()).unwrap()
});

fn demo_model(special_in_content: SpecialInContent) -> TextModel {
    let options = TextOptions { special_in_content, ..TextOptions::default() };
    TextModel::load(&demo_gguf(), &options).unwrap()
}

fn demo_gguf() -> PathBuf {
    fetched("OXIDE_INFER_TEST_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf", "`make model`")
}

fn qwen_tokenizer_json() -> PathBuf {
    fetched("OXIDE_INFER_TEST_QWEN_TOKENIZER", "qwen2.5-tokenizer.json", "scripts/fetch-test-data.sh")
}

/// A file that is fetched before the tests: where an environment variable says, or in `models/`.
fn fetched(variable: &str, name: &str, command: &str) -> PathBuf {
    let path =
        std::env::var_os(variable).map_or_else(|| workspace().join("models").join(name), PathBuf::from);
    assert!(path.exists(), "{} is missing: run {command}, or set {variable}", path.display());
    path
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

fn token_ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
}

fn plain_ids(tokenizer: &Tokenizer, text: &str) -> Vec<TokenId> {
    tokenizer.encode(text, AddSpecialTokens::Omit).unwrap()
}

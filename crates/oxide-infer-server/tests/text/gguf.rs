//! Tokenizers rebuilt from GGUF metadata against the tokenizers that the metadata was made from.

use std::sync::LazyLock;

use oxide_infer::TokenId;
use oxide_infer_server::text::{AddSpecialTokens, GgufTokenizerData, LoadError, SpecialInOutput, Tokenizer};
use proptest::prelude::*;
use serde_json::Value;

use crate::{QWEN, plain_ids, qwen_tokenizer_json, read_json, testdata, token_ids};

/// A small SentencePiece model as GGUF metadata.
pub(crate) static SENTENCEPIECE: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_gguf(&sentencepiece_data(&SENTENCEPIECE_JSON)).unwrap());
static SENTENCEPIECE_JSON: LazyLock<Value> =
    LazyLock::new(|| read_json(&testdata("sentencepiece/expected.json")));
static REBUILT_QWEN: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_gguf(&qwen_data(&read_json(&qwen_tokenizer_json()))).unwrap());

fn sentencepiece_data(json: &Value) -> GgufTokenizerData<'_> {
    let array = |key: &str| json[key].as_array().unwrap().iter();
    let id = |key: &str| Some(json[key].as_u64().unwrap() as u32);
    GgufTokenizerData {
        model: "llama",
        tokens: array("pieces").map(|piece| piece.as_str().unwrap()).collect(),
        scores: array("scores").map(|score| score.as_f64().unwrap()).collect(),
        token_types: array("types").map(|kind| kind.as_i64().unwrap()).collect(),
        unk: id("unk"),
        bos: id("bos"),
        eos: id("eos"),
        ..GgufTokenizerData::default()
    }
}

/// What llama.cpp's converter writes for a `tokenizer.json` of Qwen.
fn qwen_data(json: &Value) -> GgufTokenizerData<'_> {
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let added = json["added_tokens"].as_array().unwrap();
    let count = vocab.len() + added.len();
    let (mut tokens, mut token_types) = (vec![""; count], vec![1; count]);
    for (piece, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = piece;
    }
    for token in added {
        let id = token["id"].as_u64().unwrap() as usize;
        tokens[id] = token["content"].as_str().unwrap();
        token_types[id] = if token["special"].as_bool().unwrap() { 3 } else { 4 };
    }
    GgufTokenizerData {
        model: "gpt2",
        pre: Some("qwen2"),
        tokens,
        token_types,
        merges: json["model"]["merges"]
            .as_array()
            .unwrap()
            .iter()
            .map(|merge| merge.as_str().unwrap())
            .collect(),
        ..GgufTokenizerData::default()
    }
}

#[test]
fn sentencepiece_scores_give_the_ids_of_sentencepiece() {
    let cases = SENTENCEPIECE_JSON["cases"].as_array().unwrap();
    assert!(cases.len() >= 20);
    // "</s>" is text to SentencePiece and a token to transformers and llama.cpp: its case is below.
    for case in cases.iter().filter(|case| !case["text"].as_str().unwrap().contains("</s>")) {
        let text = case["text"].as_str().unwrap();
        let ids = plain_ids(&SENTENCEPIECE, text);
        assert_eq!(ids, token_ids(&case["ids"]), "{text:?}");
        let decoded = SENTENCEPIECE.decode(&ids, SpecialInOutput::Keep);
        assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{text:?}");
    }
}

#[test]
fn sentencepiece_adds_a_bos_and_a_space_after_special_text() {
    let id = |piece: &str| SENTENCEPIECE.token_id(piece).unwrap();
    let with_bos = SENTENCEPIECE.encode("a", AddSpecialTokens::Add).unwrap();
    assert_eq!(with_bos, [id("<s>"), id("▁a")]);
    // As transformers' legacy Llama tokenizer and llama.cpp: each piece between special tokens gets the space.
    assert_eq!(plain_ids(&SENTENCEPIECE, "a</s>a"), [id("▁a"), id("</s>"), id("▁a")]);
}

#[test]
fn a_control_token_is_no_merge_of_text() {
    let mut data = sentencepiece_data(&SENTENCEPIECE_JSON);
    // With "<", "s>" and "<s>" in the vocabulary and "<s>" the best score, merging by score alone would give the token.
    data.tokens.push("s>");
    data.scores.push(-1.0);
    data.token_types.push(1);
    let tokenizer = Tokenizer::from_gguf(&data).unwrap();
    assert!(!plain_ids(&tokenizer, "< s>").contains(&TokenId(data.bos.unwrap())));
}

#[test]
fn qwen_rebuilt_from_gguf_metadata_is_the_published_tokenizer() {
    assert_eq!(REBUILT_QWEN.vocab_size(), QWEN.vocab_size());
    for id in (0..QWEN.vocab_size() as u32).map(TokenId) {
        assert_eq!(REBUILT_QWEN.token_bytes(id), QWEN.token_bytes(id), "{id}");
        assert_eq!(REBUILT_QWEN.is_special(id), QWEN.is_special(id), "{id}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn qwen_rebuilt_from_gguf_metadata_gives_the_same_ids(
        pieces in prop::collection::vec("<\\|im_end\\|>|<tool_call>|[ \n\t]{1,5}|[a-z']{1,8}|[0-9]{1,6}|\\PC{1,4}|e\u{301}", 0..12),
    ) {
        let text = pieces.concat();
        prop_assert_eq!(plain_ids(&REBUILT_QWEN, &text), plain_ids(&QWEN, &text));
    }
}

fn tiny() -> GgufTokenizerData<'static> {
    GgufTokenizerData {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: vec!["a", "b", "ab", "<end>", ""],
        token_types: vec![1, 1, 1, 3, 5],
        merges: vec!["a b"],
        ..GgufTokenizerData::default()
    }
}

#[test]
fn a_small_vocabulary_with_an_empty_entry_loads() {
    let tokenizer = Tokenizer::from_gguf(&tiny()).unwrap();
    assert_eq!(
        plain_ids(&tokenizer, "abb<end>?"),
        [2, 1, 3].map(TokenId),
        "the ? has no token and is dropped"
    );
}

#[test]
fn a_whole_piece_is_taken_before_merging_where_the_pre_tokenizer_says_so() {
    let mut data = tiny();
    data.tokens.push("ba");
    data.token_types.push(1);
    data.add_bos = Some(false);
    assert_eq!(plain_ids(&Tokenizer::from_gguf(&data).unwrap(), "ba"), [1, 0].map(TokenId));
    data.pre = Some("llama-bpe");
    assert_eq!(plain_ids(&Tokenizer::from_gguf(&data).unwrap(), "ba"), [TokenId(5)]);
}

#[test]
fn metadata_that_contradicts_itself_is_named() {
    let error = |change: fn(&mut GgufTokenizerData<'static>)| {
        let mut data = tiny();
        change(&mut data);
        Tokenizer::from_gguf(&data).unwrap_err()
    };
    let message = |change: fn(&mut GgufTokenizerData<'static>)| error(change).to_string();
    let unknown = error(|data| data.model = "rwkv");
    assert!(
        matches!(&unknown, LoadError::UnsupportedGgufModel { supported, .. } if supported.contains(&"llama"))
    );
    let unknown = error(|data| data.pre = Some("qwen9"));
    assert!(
        matches!(&unknown, LoadError::UnsupportedPreTokenizer { name, supported } if name == "qwen9" && supported.contains(&"qwen2"))
    );
    assert!(message(|data| data.tokens = Vec::new()).contains("tokens is missing"));
    assert!(message(|data| data.tokens[1] = "a").contains("tokens 0 and 1 are the same"));
    assert!(message(|data| data.token_types.truncate(2)).contains("2 entries for 5 tokens"));
    assert!(message(|data| data.merges = vec!["ab"]).contains("\"ab\""));
    assert!(message(|data| data.merges = vec!["a c"]).contains('c'));
    assert!(message(|data| data.eos = Some(5)).contains("eos_token_id is 5"));
    assert!(message(|data| data.add_bos = Some(true)).contains("add_bos_token"));
    assert!(message(|data| data.model = "llama").contains("scores"));
}

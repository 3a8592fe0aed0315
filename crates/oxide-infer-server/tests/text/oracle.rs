//! Ids, prompts and texts of the oracle cases.

use oxide_infer_server::text::{ChatInput, SpecialInOutput, Tokenizer};
use serde_json::Value;

use crate::{DEMO, QWEN, plain_ids, read_json, token_ids, workspace};

fn cases(name: &str) -> Value {
    read_json(&workspace().join("testdata/cases").join(name))
}

fn check(tokenizer: &Tokenizer, cases: &Value) {
    let cases = cases.as_array().unwrap();
    assert!(cases.len() >= 15);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let ids = plain_ids(tokenizer, text);
        assert_eq!(ids, token_ids(&case["ids"]), "{text:?}");
        let decoded = tokenizer.decode(&ids, SpecialInOutput::Keep);
        assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{text:?}");
    }
}

#[test]
fn the_tokenizer_rebuilt_from_gguf_gives_the_published_ids() {
    check(DEMO.tokenizer(), &cases("tokenizer.json")["smollm2"]);
}

#[test]
fn the_qwen_tokenizer_gives_the_published_ids() {
    check(&QWEN, &cases("tokenizer.json")["qwen2.5"]["cases"]);
}

#[test]
fn chats_render_and_encode_to_the_oracle_prompts() {
    let mut chats = 0;
    for case in cases("smollm2.json")["cases"].as_array().unwrap() {
        let ids = match case["messages"].as_array() {
            Some(messages) => {
                chats += 1;
                let chat = ChatInput { messages: messages.clone(), ..ChatInput::default() };
                let prompt = DEMO.render_chat(&chat).unwrap();
                assert_eq!(prompt.text(), case["rendered"].as_str().unwrap(), "{}", case["id"]);
                DEMO.encode_prompt(&prompt).unwrap()
            }
            None => plain_ids(DEMO.tokenizer(), case["prompt"].as_str().unwrap()),
        };
        assert_eq!(ids, token_ids(&case["prompt_ids"]), "{}", case["id"]);
    }
    assert!(chats >= 10);
}

#[test]
fn generated_ids_decode_to_the_oracle_texts() {
    for case in cases("smollm2.json")["cases"].as_array().unwrap() {
        let ids = token_ids(&case["new_ids"]);
        let decode = |ids, special| DEMO.decode(ids, special);
        assert_eq!(decode(&ids, SpecialInOutput::Keep), case["text"].as_str().unwrap(), "{}", case["id"]);
        let without = case["text_skip_special"].as_str().unwrap();
        assert_eq!(decode(&ids, SpecialInOutput::Skip), without, "{}", case["id"]);
        let end = ids.iter().position(|id| id == &DEMO.eos_ids()[0]).unwrap_or(ids.len());
        let until_end = case["text_until_eos"].as_str().unwrap();
        assert_eq!(decode(&ids[..end], SpecialInOutput::Skip), until_end, "{}", case["id"]);
    }
}

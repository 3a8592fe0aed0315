//! `/tokenize` and `/detokenize`, in vLLM's form.

use crate::harness::{Harness, MAX_MODEL_LEN, MODEL, tokens};
use serde_json::json;

#[tokio::test]
async fn a_text_becomes_its_tokens() {
    let harness = Harness::answering("x");
    let reply =
        harness.post_json("/tokenize", &json!({"model": MODEL, "prompt": "Hé<|im_end|>"})).await.json();
    let expected = tokens("Hé<|im_end|>");
    assert_eq!(
        reply,
        json!({"count": 4, "max_model_len": MAX_MODEL_LEN, "tokens": expected, "token_strs": null})
    );
}

#[tokio::test]
async fn messages_become_the_tokens_of_the_rendered_chat() {
    let harness = Harness::answering("x");
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (fields, text) in [
        (json!({"messages": messages}), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (json!({"messages": messages, "add_generation_prompt": false}), "<|im_start|>user\nHi<|im_end|>\n"),
    ] {
        let reply = harness.post_json("/tokenize", &fields).await.json();
        assert_eq!(reply["tokens"], json!(tokens(text)));
        assert_eq!(reply["count"], tokens(text).len());
    }
}

#[tokio::test]
async fn vocabulary_entries_are_returned_on_request() {
    let harness = Harness::answering("x");
    let body = json!({"prompt": "a <|im_end|>", "return_token_strs": true});
    let reply = harness.post_json("/tokenize", &body).await.json();
    assert_eq!(reply["token_strs"], json!(["a", "Ġ", "<|im_end|>"]));
}

#[tokio::test]
async fn tokens_become_their_text_special_ones_included() {
    let harness = Harness::answering("x");
    let text = "Hé 🦀<|im_end|>";
    let reply = harness.post_json("/detokenize", &json!({"tokens": tokens(text)})).await.json();
    assert_eq!(reply, json!({"prompt": text}));
    let reply = harness.post_json("/detokenize", &json!({"tokens": []})).await.json();
    assert_eq!(reply, json!({"prompt": ""}));
}

#[tokio::test]
async fn tokenization_errors_name_their_field() {
    let harness = Harness::answering("x");
    for (path, body, code, param) in [
        ("/tokenize", json!({}), "missing_required_parameter", "prompt"),
        ("/tokenize", json!({"prompt": 3}), "invalid_type", "prompt"),
        ("/tokenize", json!({"prompt": "a", "messages": []}), "unknown_parameter", "messages"),
        ("/tokenize", json!({"messages": []}), "invalid_value", "messages"),
        ("/detokenize", json!({}), "missing_required_parameter", "tokens"),
        ("/detokenize", json!({"tokens": ["a"]}), "invalid_type", "tokens"),
        ("/detokenize", json!({"tokens": [264]}), "invalid_value", "tokens"),
        ("/detokenize", json!({"tokens": [-1]}), "invalid_type", "tokens"),
    ] {
        harness.post_json(path, &body).await.error(400, code, Some(param));
    }
    let unknown = json!({"model": "other", "tokens": []});
    harness.post_json("/detokenize", &unknown).await.error(404, "model_not_found", Some("model"));
}

/// They wait for each other, and small ones do not wait for them.
#[tokio::test]
async fn large_texts_sent_at_once_are_all_tokenized() {
    let harness = Harness::answering("x");
    let text = "a".repeat(300 << 10);
    let count = async |text: &str| {
        harness.post_json("/tokenize", &json!({"prompt": text})).await.json()["count"].as_u64()
    };
    let counts = tokio::join!(count(&text), count(&text), count("a"), count(&text));
    assert_eq!(counts, (Some(300 << 10), Some(300 << 10), Some(1), Some(300 << 10)));
}

//! `/v1/chat/completions`.

use crate::harness::{Harness, MODEL, chat_prompt, tokens};
use serde_json::{Value, json};

/// The concatenated content of a stream's chunks of one answer.
fn content(events: &[Value], index: usize) -> String {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    choices
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice["delta"]["content"].as_str())
        .collect()
}

#[tokio::test]
async fn a_chat_is_answered_in_openais_form() {
    let harness = Harness::answering("Hello, world");
    let reply = harness.chat(json!({})).await.json();
    assert_eq!(reply["object"], "chat.completion");
    assert_eq!(reply["model"], MODEL);
    assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(
        reply["choices"],
        json!([{
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world", "refusal": null},
            "logprobs": null, "finish_reason": "stop", "stop_reason": null,
        }])
    );
    let prompt = chat_prompt().len();
    // 12 bytes and the token that ended the answer.
    assert_eq!(
        reply["usage"],
        json!({
            "prompt_tokens": prompt, "completion_tokens": 13, "total_tokens": prompt + 13,
            "prompt_tokens_details": {"cached_tokens": 0},
        })
    );
}

#[tokio::test]
async fn a_stream_has_the_role_first_the_text_in_pieces_and_the_reason_last() {
    let harness = Harness::answering("Hello, world");
    let events = harness.chat(json!({"stream": true})).await.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(content(&events, 0), "Hello, world");
    let reasons: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["finish_reason"]).collect();
    let (last, earlier) = reasons.split_last().unwrap();
    assert_eq!(*last, "stop");
    assert!(earlier.iter().all(|reason| reason.is_null()));
    assert!(
        events
            .iter()
            .all(|event| event["object"] == "chat.completion.chunk" && event["id"] == events[0]["id"])
    );
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[tokio::test]
async fn a_prompt_reaches_the_engine_as_the_template_wrote_it() {
    let harness = Harness::answering("x");
    let reply = harness.chat(json!({"return_token_ids": true})).await.json();
    assert_eq!(reply["prompt_token_ids"], json!(chat_prompt()));
    assert_eq!(reply["choices"][0]["token_ids"], json!(tokens("x<|im_end|>")));
}

//! Log-probabilities in both forms. The scripted executor makes them up: the best token is the sampled one, the next id
//! is one less probable, and so on.

use crate::harness::{Harness, tokens};
use serde_json::{Value, json};

#[tokio::test]
async fn chat_tokens_come_with_their_bytes_and_the_best_tokens() {
    let harness = Harness::answering("é");
    let reply = harness.chat(json!({"logprobs": true, "top_logprobs": 2})).await.json();
    let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    // The two bytes of é, and the token that ended the answer.
    assert_eq!(content.len(), 3);
    let first = &content[0];
    assert_eq!(first["bytes"], json!([0xc3]));
    assert_eq!(first["token"], "\u{FFFD}");
    let logprob = first["logprob"].as_f64().unwrap();
    assert!(logprob <= 0.0);
    let top = first["top_logprobs"].as_array().unwrap();
    assert_eq!((top.len(), &top[0]["bytes"], &top[1]["bytes"]), (2, &json!([0xc3]), &json!([0xc4])));
    assert_eq!(top[0]["logprob"], first["logprob"]);
    assert!((top[1]["logprob"].as_f64().unwrap() - (logprob - 1.0)).abs() < 1e-6);
    assert_eq!(content[2]["token"], "<|im_end|>");
}

#[tokio::test]
async fn without_top_logprobs_only_the_tokens_own_comes() {
    let harness = Harness::answering("a");
    let reply = harness.chat(json!({"logprobs": true})).await.json();
    let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert!(content.iter().all(|token| token["top_logprobs"] == json!([]) && token["logprob"].is_number()));
}

#[tokio::test]
async fn a_stream_has_the_log_probabilities_of_the_whole_answer() {
    let harness = Harness::answering("Hi é.");
    let fields = json!({"logprobs": true, "top_logprobs": 1});
    let whole = harness.chat(fields.clone()).await.json()["choices"][0]["logprobs"]["content"].clone();
    let fields = crate::harness::merged(fields, json!({"stream": true, "stop": "zzz"}));
    let events = harness.chat(fields).await.events();
    let streamed: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    assert_eq!(json!(streamed), whole);
}

/// The tokens of text that is held back would show what may still be taken back.
#[tokio::test]
async fn log_probabilities_are_held_back_with_their_text() {
    let harness = Harness::answering("a<en>");
    let events = harness.chat(json!({"logprobs": true, "stream": true, "stop": "<end>"})).await.events();
    for event in events.iter().filter(|event| event["choices"][0]["finish_reason"].is_null()) {
        let choice = &event["choices"][0];
        let named: String = choice["logprobs"]["content"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|token| token["token"].as_str().unwrap())
            .collect();
        assert!(choice["delta"]["content"].as_str().unwrap_or("").starts_with(&named), "{event}");
    }
}

#[tokio::test]
async fn completions_have_parallel_lists() {
    let harness = Harness::answering("aé");
    let reply = harness.complete("x", json!({"logprobs": 1})).await.json();
    let logprobs = &reply["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "\u{FFFD}", "\u{FFFD}", "<|im_end|>"]));
    // In characters: é is one, which its second byte completes.
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 2]));
    assert_eq!(logprobs["token_logprobs"].as_array().unwrap().len(), 4);
    assert_eq!(logprobs["top_logprobs"][0], json!({"a": logprobs["token_logprobs"][0]}));
}

#[tokio::test]
async fn zero_logprobs_of_a_completion_are_the_tokens_own() {
    let harness = Harness::answering("a");
    let reply = harness.complete("x", json!({"logprobs": 0})).await.json();
    let logprobs = &reply["choices"][0]["logprobs"];
    assert_eq!(logprobs["top_logprobs"][0], json!({"a": logprobs["token_logprobs"][0]}));
}

/// Tokens that look alike share a key; the more probable one keeps it.
#[tokio::test]
async fn tokens_that_look_alike_are_one_entry() {
    let harness = Harness::answering("é");
    let reply = harness.complete("x", json!({"logprobs": 3})).await.json();
    let logprobs = &reply["choices"][0]["logprobs"];
    assert_eq!(logprobs["top_logprobs"][0], json!({"\u{FFFD}": logprobs["token_logprobs"][0]}));
}

#[tokio::test]
async fn an_echo_has_the_prompts_log_probabilities_and_none_for_its_first_token() {
    let harness = Harness::answering("bc");
    for max_tokens in [0, 1] {
        let fields = json!({"echo": true, "logprobs": 1, "max_tokens": max_tokens, "temperature": 0});
        let reply = harness.complete("Ha🦀", fields).await.json();
        let logprobs = &reply["choices"][0]["logprobs"];
        let count = 6 + max_tokens as usize;
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(logprobs[list].as_array().unwrap().len(), count, "{list}");
        }
        assert_eq!(&logprobs["tokens"].as_array().unwrap()[..2], ["H", "a"]);
        assert_eq!(
            (&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]),
            (&Value::Null, &Value::Null)
        );
        assert!(logprobs["token_logprobs"].as_array().unwrap()[1..].iter().all(Value::is_number));
        let offsets: Vec<u64> = logprobs["text_offset"]
            .as_array()
            .unwrap()
            .iter()
            .map(|offset| offset.as_u64().unwrap())
            .collect();
        assert_eq!(offsets, [0, 1, 2, 2, 2, 2, 3][..count]);
    }
}

#[tokio::test]
async fn a_streamed_echo_has_the_log_probabilities_of_the_whole_one() {
    let harness = Harness::answering("bc");
    let fields = json!({"echo": true, "logprobs": 2, "max_tokens": 3});
    let whole = harness.complete("Ha", fields.clone()).await.json()["choices"][0]["logprobs"].clone();
    let events =
        harness.complete("Ha", crate::harness::merged(fields, json!({"stream": true}))).await.events();
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let streamed: Vec<&Value> = events
            .iter()
            .filter_map(|event| event["choices"][0]["logprobs"][list].as_array())
            .flatten()
            .collect();
        assert_eq!(json!(streamed), whole[list], "{list}");
    }
}

#[tokio::test]
async fn tokens_are_named_by_id_on_request() {
    let harness = Harness::answering("a");
    let fields = json!({"logprobs": 0, "return_tokens_as_token_ids": true});
    let reply = harness.complete("x", fields).await.json();
    let names: Vec<String> = tokens("a<|im_end|>").iter().map(|id| format!("token_id:{id}")).collect();
    assert_eq!(reply["choices"][0]["logprobs"]["tokens"], json!(names));
}

/// In vLLM's form: by token id, the prompt's own token first, nothing for the first token.
#[tokio::test]
async fn prompt_logprobs_name_the_prompts_tokens_and_the_best_ones() {
    let harness = Harness::answering("b");
    let reply = harness.complete("Ha", json!({"prompt_logprobs": 2, "max_tokens": 1})).await.json();
    let places = reply["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!((places.len(), &places[0], &reply["choices"][0]["logprobs"]), (2, &Value::Null, &Value::Null));
    let place = places[1].as_object().unwrap();
    // `a` (97), and the two best that the executor makes up, of which `a` may be one.
    assert!(place.len() == 2 || place.len() == 3, "{place:?}");
    assert_eq!(place["97"]["decoded_token"], "a");
    let ranks: Vec<u64> = place.values().map(|entry| entry["rank"].as_u64().unwrap()).collect();
    assert!(ranks.contains(&1) && ranks.contains(&2), "{ranks:?}");
    assert!(place.values().all(|entry| entry["logprob"].as_f64().unwrap() <= 0.0));
}

#[tokio::test]
async fn a_chats_prompt_logprobs_stand_beside_its_answers() {
    let harness = Harness::answering("b");
    let reply = harness.chat(json!({"prompt_logprobs": 0, "n": 2})).await.json();
    let places = reply["prompt_logprobs"].as_array().unwrap();
    assert_eq!((places.len(), &places[0]), (crate::harness::chat_prompt().len(), &Value::Null));
    assert!(places[1..].iter().all(|place| place.as_object().unwrap().len() == 1));
    let without = harness.chat(json!({})).await.json();
    assert_eq!(without.get("prompt_logprobs"), None);
}

#[tokio::test]
async fn echo_and_prompt_logprobs_each_show_as_many_as_they_were_asked_for() {
    let harness = Harness::answering("b");
    let fields = json!({"echo": true, "logprobs": 0, "prompt_logprobs": 3, "max_tokens": 1});
    let reply = harness.complete("Ha", fields).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["logprobs"]["top_logprobs"][1].as_object().unwrap().len(), 1);
    assert!(choice["prompt_logprobs"][1].as_object().unwrap().len() >= 3);
}

#[tokio::test]
async fn prompt_logprobs_are_not_streamed() {
    let harness = Harness::answering("b");
    let reply = harness.chat(json!({"prompt_logprobs": 1, "stream": true})).await;
    reply.error(400, "invalid_value", Some("prompt_logprobs"));
}

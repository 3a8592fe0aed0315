//! What ends an answer, and what of it is shown.

use crate::harness::{Harness, IM_END, IM_START};
use proptest::prelude::*;
use serde_json::{Value, json};

fn ending(reply: &Value) -> (&str, &str, &Value) {
    let choice = &reply["choices"][0];
    (choice["text"].as_str().unwrap(), choice["finish_reason"].as_str().unwrap(), &choice["stop_reason"])
}

#[tokio::test]
async fn a_stop_string_ends_the_answer_and_is_not_shown() {
    // Every byte is a token, so the stop string spans five.
    let harness = Harness::answering("one <end> two");
    for stop in [json!("<end>"), json!(["nothing", "<end>"])] {
        let reply = harness.complete("x", json!({"stop": stop})).await.json();
        assert_eq!(ending(&reply), ("one ", "stop", &json!("<end>")));
        // The tokens of the stop string were generated.
        assert_eq!(reply["usage"]["completion_tokens"], 9);
    }
}

#[tokio::test]
async fn a_stop_string_is_shown_on_request() {
    let harness = Harness::answering("one <end> two");
    let reply =
        harness.complete("x", json!({"stop": "<end>", "include_stop_str_in_output": true})).await.json();
    assert_eq!(ending(&reply), ("one <end>", "stop", &json!("<end>")));
}

#[tokio::test]
async fn what_only_starts_like_a_stop_string_is_shown_in_the_end() {
    let harness = Harness::answering("a <en");
    let reply = harness.complete("x", json!({"stop": "<end>"})).await.json();
    assert_eq!(ending(&reply), ("a <en", "stop", &Value::Null));
}

#[tokio::test]
async fn stop_strings_count_only_after_min_tokens() {
    let harness = Harness::answering("..a.b");
    let reply = harness.complete("x", json!({"stop": ".", "min_tokens": 2})).await.json();
    assert_eq!(ending(&reply), ("..a", "stop", &json!(".")));
}

#[tokio::test]
async fn a_stop_token_ends_the_answer_and_is_named() {
    let harness = Harness::answering("abc");
    let reply = harness.complete("x", json!({"stop_token_ids": [u32::from(b'b')]})).await.json();
    assert_eq!(ending(&reply), ("a", "stop", &json!(u32::from(b'b'))));
    let shown = json!({"stop_token_ids": [u32::from(b'b')], "include_stop_str_in_output": true});
    let reply = harness.complete("x", shown).await.json();
    assert_eq!(ending(&reply), ("ab", "stop", &json!(u32::from(b'b'))));
}

#[tokio::test]
async fn the_end_token_is_text_only_if_both_switches_ask_for_it() {
    let harness = Harness::answering("a");
    for (skip, include, text) in
        [(true, true, "a"), (false, false, "a"), (false, true, "a<|im_end|>"), (true, false, "a")]
    {
        let fields = json!({"skip_special_tokens": skip, "include_stop_str_in_output": include});
        let reply = harness.complete("x", fields).await.json();
        assert_eq!(ending(&reply), (text, "stop", &Value::Null));
    }
}

#[tokio::test]
async fn ignore_eos_goes_on_past_the_end_token() {
    let harness = Harness::answering("a");
    let fields = json!({"ignore_eos": true, "max_tokens": 3, "return_token_ids": true});
    let reply = harness.complete("x", fields).await.json();
    assert_eq!(ending(&reply), ("a", "length", &Value::Null));
    assert_eq!(reply["choices"][0]["token_ids"], json!([u32::from(b'a'), IM_END, IM_END]));
}

#[tokio::test]
async fn min_tokens_forbids_the_end_token() {
    let harness = Harness::answering("a");
    let reply = harness.complete("x", json!({"min_tokens": 4, "return_token_ids": true})).await.json();
    let ids = reply["choices"][0]["token_ids"].as_array().unwrap();
    assert!(ids[..4].iter().all(|id| *id != json!(IM_END)), "{ids:?}");
    assert_eq!(ids[0], u32::from(b'a'));
}

#[tokio::test]
async fn a_stop_string_ends_one_answer_and_not_the_others() {
    let harness = Harness::answering("ab");
    let reply = harness.complete("x", json!({"n": 3, "stop": "b"})).await.json();
    for choice in reply["choices"].as_array().unwrap() {
        assert_eq!((&choice["text"], &choice["stop_reason"]), (&json!("a"), &json!("b")));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However the answer and the stop strings look, a stream shows what is before the first stop string and no byte
    /// of it, and the whole answer is the same text.
    #[test]
    fn no_part_of_a_stop_string_is_ever_streamed(
        answer in "[ab<é]{0,12}",
        stops in prop::collection::vec("[ab<é]{1,3}", 1..=4),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let harness = Harness::answering(&answer);
            // The stop string that is complete first wins, wherever it starts; of those the longest.
            let ends = stops.iter().filter_map(|stop| answer.find(stop.as_str()).map(|at| (at + stop.len(), at)));
            let expected = match ends.min() {
                Some((_, start)) => &answer[..start],
                None => &answer[..],
            };
            let fields = json!({"stop": stops, "stream": true, "max_tokens": 64});
            let events = harness.complete("x", fields).await.events();
            let mut shown = String::new();
            for event in &events {
                shown += event["choices"][0]["text"].as_str().unwrap();
                assert!(expected.starts_with(&shown), "{shown:?} is not a start of {expected:?}");
            }
            assert_eq!(shown, expected);
            let whole = harness.complete("x", json!({"stop": stops, "max_tokens": 64})).await.json();
            assert_eq!(whole["choices"][0]["text"], expected);
        });
    }
}

#[tokio::test]
async fn tokens_after_a_stop_string_are_not_in_the_answer() {
    let harness = Harness::answering("a.b");
    let reply = harness.complete("x", json!({"stop": ".", "return_token_ids": true})).await.json();
    assert_eq!(reply["choices"][0]["token_ids"], json!([u32::from(b'a'), u32::from(b'.')]));
}

#[tokio::test]
async fn a_special_token_can_be_a_stop_token() {
    let harness = Harness::answering("a<|im_start|>b");
    let reply = harness.complete("x", json!({"stop_token_ids": [IM_START]})).await.json();
    assert_eq!(ending(&reply), ("a", "stop", &json!(IM_START)));
}

//! `/v1/chat/completions`.

use crate::harness::{Harness, IM_END, LIMITS, MAX_MODEL_LEN, MODEL, chat_prompt, endless, merged, tokens};
use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use oxide_infer_engine::testing::scripted::{Draw, ScriptedExecutor};
use oxide_infer_server::SamplingDefaults;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

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

#[tokio::test]
async fn usage_comes_in_a_last_chunk_without_answers_and_is_null_before() {
    let harness = Harness::answering("Hello");
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let events = harness.chat(options).await.events();
    let (last, earlier) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 6);
    assert_eq!(last["usage"]["prompt_tokens"], chat_prompt().len());
    assert!(earlier.iter().all(|event| event.get("usage") == Some(&Value::Null)));
}

#[tokio::test]
async fn continuous_usage_counts_up_with_every_chunk() {
    let harness = Harness::answering("Hello");
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = harness.chat(json!({"stream": true, "stream_options": options})).await.events();
    let counts: Vec<u64> =
        events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!(counts.last(), Some(&6));
}

#[tokio::test]
async fn each_of_n_answers_has_its_own_index_text_and_end() {
    let by_choice = |draw: Draw<'_>| match draw.output.len() {
        0 => TokenId(u32::from(b'A') + draw.choice.0),
        _ => TokenId(IM_END),
    };
    let harness = Harness::new(ScriptedExecutor::new(LIMITS).script(by_choice), |_| {});
    let reply = harness.chat(json!({"n": 3})).await.json();
    let texts: Vec<_> =
        reply["choices"].as_array().unwrap().iter().map(|choice| &choice["message"]["content"]).collect();
    assert_eq!(texts, ["A", "B", "C"]);
    // The prompt is computed once, the answers have two tokens each.
    assert_eq!(reply["usage"]["prompt_tokens"], chat_prompt().len());
    assert_eq!(reply["usage"]["completion_tokens"], 6);

    let events = harness.chat(json!({"n": 3, "stream": true})).await.events();
    for (index, text) in ["A", "B", "C"].into_iter().enumerate() {
        assert_eq!(content(&events, index), text);
        let roles = events.iter().filter(|event| {
            event["choices"][0]["index"] == index && event["choices"][0]["delta"]["role"] == "assistant"
        });
        assert_eq!(roles.count(), 1);
    }
}

#[tokio::test]
async fn a_character_of_several_tokens_is_never_cut() {
    let harness = Harness::answering("naïve 🦀!");
    let events = harness.chat(json!({"stream": true})).await.events();
    assert_eq!(content(&events, 0), "naïve 🦀!");
    let texts = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert!(texts.into_iter().all(|text| !text.contains('\u{FFFD}')));
}

#[tokio::test]
async fn max_tokens_ends_an_answer_with_length() {
    let harness = Harness::answering("Hello");
    for field in ["max_tokens", "max_completion_tokens"] {
        let reply = harness.chat(json!({field: 2})).await.json();
        assert_eq!(reply["choices"][0]["message"]["content"], "He");
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
        assert_eq!(reply["usage"]["completion_tokens"], 2);
    }
}

#[tokio::test]
async fn without_max_tokens_an_answer_may_fill_the_context() {
    let harness = Harness::new(endless(Duration::ZERO), |_| {});
    let reply = harness.chat(json!({})).await.json();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["total_tokens"], MAX_MODEL_LEN);
}

#[tokio::test]
async fn text_parts_are_joined_by_line_ends() {
    let harness = Harness::answering("x");
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let body = json!({"messages": [{"role": "user", "content": parts}], "return_token_ids": true});
    let reply = harness.chat(body).await.json();
    let prompt = tokens("<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(reply["prompt_token_ids"], json!(prompt));
}

#[tokio::test]
async fn the_template_follows_its_switches_and_variables() {
    let harness = Harness::answering("x");
    let open = json!([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "The"}]);
    for (fields, prompt) in [
        (json!({"add_generation_prompt": false}), "<|im_start|>user\nHi<|im_end|>\n"),
        (
            json!({"messages": open, "continue_final_message": true, "add_generation_prompt": false}),
            "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nThe",
        ),
        (
            json!({"chat_template_kwargs": {"shout": true}}),
            "<|im_start|>user\nHi<|im_end|>\n!<|im_start|>assistant\n",
        ),
    ] {
        let reply = harness.chat(merged(fields, json!({"return_token_ids": true}))).await.json();
        assert_eq!(reply["prompt_token_ids"], json!(tokens(prompt)));
    }
}

#[tokio::test]
async fn an_answer_can_be_sent_back_as_it_came() {
    let harness = Harness::answering("x");
    let answer = harness.chat(json!({})).await.json()["choices"][0]["message"].clone();
    let again = json!([{"role": "user", "content": "Hi"}, answer, {"role": "user", "content": "More"}]);
    harness.chat(json!({"messages": again})).await.json();
}

#[tokio::test]
async fn streamed_token_ids_are_those_of_the_whole_answer() {
    let harness = Harness::answering("Hi 🦀");
    let events = harness.chat(json!({"stream": true, "return_token_ids": true})).await.events();
    assert_eq!(events[0]["prompt_token_ids"], json!(chat_prompt()));
    assert!(events[1..].iter().all(|event| event.get("prompt_token_ids").is_none()));
    let ids: Vec<u32> = events
        .iter()
        .filter_map(|event| event["choices"][0]["token_ids"].as_array())
        .flat_map(|ids| ids.iter().map(|id| id.as_u64().unwrap() as u32))
        .collect();
    assert_eq!(ids, tokens("Hi 🦀<|im_end|>"));
}

#[tokio::test]
async fn special_tokens_are_shown_only_on_request() {
    let harness = Harness::answering("a<|im_start|>b");
    let text = |reply: Value| reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert_eq!(text(harness.chat(json!({})).await.json()), "ab");
    let shown = harness.chat(json!({"skip_special_tokens": false})).await.json();
    // The token that ended the answer is never text.
    assert_eq!(text(shown), "a<|im_start|>b");
}

/// The default script of the executor hashes the seed, so a seed that did not arrive would show.
#[tokio::test]
async fn the_same_seed_gives_the_same_text_and_no_seed_a_random_one() {
    let harness = Harness::new(ScriptedExecutor::new(LIMITS), |_| {});
    let ids = async |fields: Value| {
        let fields = merged(fields, json!({"max_tokens": 20, "ignore_eos": true, "return_token_ids": true}));
        harness.chat(fields).await.json()["choices"][0]["token_ids"].clone()
    };
    let first = ids(json!({"seed": 7})).await;
    assert_eq!(ids(json!({"seed": 7})).await, first);
    assert_ne!(ids(json!({"seed": -7})).await, first);
    assert_ne!(ids(json!({})).await, ids(json!({})).await);
}

/// What the request asks for must be what the engine's sampler gets.
#[tokio::test]
async fn sampling_fields_reach_the_engine() {
    let (seen, sampled) = std::sync::mpsc::channel();
    let executor = ScriptedExecutor::new(LIMITS).script(move |draw| {
        seen.send(draw.sampling.clone()).unwrap();
        TokenId(IM_END)
    });
    let harness = Harness::new(executor, |config| {
        config.sampling_defaults =
            SamplingDefaults { top_p: Some(0.25), min_p: Some(0.5), ..Default::default() };
    });
    harness
        .chat(json!({
            "temperature": 0.5, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": -1,
            "frequency_penalty": 2, "logit_bias": {"65": 100, "3": -2.5}, "seed": 11,
        }))
        .await
        .json();
    let expected = SamplingParams {
        temperature: 0.5,
        top_k: Some(7),
        // Not named by the request: the model's default.
        top_p: 0.25,
        min_p: 0.125,
        repetition_penalty: 1.5,
        presence_penalty: -1.0,
        frequency_penalty: 2.0,
        logit_bias: Arc::from([(TokenId(3), -2.5), (TokenId(65), 100.0)]),
        seed: 11,
    };
    assert_eq!(sampled.recv().unwrap(), expected);

    harness.chat(json!({"top_k": -1, "temperature": 0, "seed": 0})).await.json();
    let params = sampled.recv().unwrap();
    assert_eq!((params.top_k, params.temperature, params.min_p), (None, 0.0, 0.5));
}

#[tokio::test]
async fn fields_without_effect_are_taken_and_neutral_ones_too() {
    let harness = Harness::answering("Hello");
    let fields = json!({
        "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "parallel_tool_calls": false,
        "safety_identifier": "s", "prompt_cache_key": "k", "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "modalities": ["text"], "audio": null, "echo": false,
        "length_penalty": 1.0, "use_beam_search": false, "priority": 0,
    });
    assert_eq!(harness.chat(fields).await.json()["choices"][0]["message"]["content"], "Hello");
}

#[tokio::test]
async fn cached_prompt_tokens_are_reported() {
    let harness = Harness::answering("x");
    harness.chat(json!({})).await.json();
    let usage = harness.chat(json!({})).await.json()["usage"].clone();
    // All whole pages of 4 tokens before the last token, which must be computed.
    let cached = (chat_prompt().len() - 1) / 4 * 4;
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], cached);
}

//! `/v1/completions`.

use crate::harness::{Harness, IM_END, LIMITS, MAX_MODEL_LEN, executor, tokens};
use oxide_infer::TokenId;
use oxide_infer_engine::testing::scripted::{Draw, ScriptedExecutor};
use serde_json::{Value, json};

/// Answers with the prompt's last token, the choice's letter, and the end.
fn parrot() -> ScriptedExecutor {
    ScriptedExecutor::new(LIMITS).script(|draw: Draw<'_>| match draw.output.len() {
        0 => *draw.prompt.last().unwrap(),
        1 => TokenId(u32::from(b'0') + draw.choice.0),
        _ => TokenId(IM_END),
    })
}

fn texts(reply: &Value) -> Vec<&str> {
    let choices = reply["choices"].as_array().unwrap();
    assert!(choices.iter().enumerate().all(|(at, choice)| choice["index"] == at));
    choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_completion_is_answered_in_openais_form() {
    let harness = Harness::answering(" world");
    let reply = harness.complete("Hello", json!({})).await.json();
    assert_eq!(reply["object"], "text_completion");
    assert!(reply["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(
        reply["choices"],
        json!([{"index": 0, "text": " world", "logprobs": null, "finish_reason": "stop", "stop_reason": null}])
    );
    assert_eq!(reply["usage"]["prompt_tokens"], 5);
    assert_eq!(reply["usage"]["completion_tokens"], 7);
}

#[tokio::test]
async fn a_prompt_may_be_text_token_ids_or_an_array_of_either() {
    let harness = Harness::new(parrot(), |_| {});
    for (prompt, expected) in [
        (json!("abc"), vec!["c0"]),
        (json!([97, 98]), vec!["b0"]),
        (json!(["ab", "xyz"]), vec!["b0", "z0"]),
        (json!([[97], [120, 121]]), vec!["a0", "y0"]),
        (json!(["ab"]), vec!["b0"]),
    ] {
        let reply = harness.complete(prompt, json!({})).await.json();
        assert_eq!(texts(&reply), expected);
    }
}

#[tokio::test]
async fn answers_to_several_prompts_are_numbered_prompt_by_prompt() {
    let harness = Harness::new(parrot(), |_| {});
    let reply = harness.complete(json!(["ab", "xyz"]), json!({"n": 2})).await.json();
    assert_eq!(texts(&reply), ["b0", "b1", "z0", "z1"]);
    assert_eq!(
        reply["usage"],
        json!({
            "prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17,
            "prompt_tokens_details": {"cached_tokens": 0},
        })
    );

    let events = harness.complete(json!(["ab", "xyz"]), json!({"n": 2, "stream": true})).await.events();
    let mut streamed = vec![String::new(); 4];
    for choice in events.iter().map(|event| &event["choices"][0]) {
        streamed[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    assert_eq!(streamed, ["b0", "b1", "z0", "z1"]);
}

#[tokio::test]
async fn without_max_tokens_a_completion_has_sixteen() {
    let harness = Harness::answering("0123456789abcdefghij");
    let reply = harness.complete("x", json!({})).await.json();
    assert_eq!(texts(&reply), ["0123456789abcdef"]);
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn an_echo_starts_with_the_prompt_also_when_it_was_tokens() {
    let harness = Harness::answering(" world");
    for prompt in [json!("Hé🦀<|im_end|>"), json!(tokens("Hé🦀<|im_end|>"))] {
        let reply = harness.complete(prompt.clone(), json!({"echo": true})).await.json();
        assert_eq!(texts(&reply), ["Hé🦀<|im_end|> world"]);
        let events = harness.complete(prompt, json!({"echo": true, "stream": true})).await.events();
        let streamed: String =
            events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(streamed, "Hé🦀<|im_end|> world");
    }
}

#[tokio::test]
async fn an_echo_without_answer_takes_no_completion_tokens() {
    let harness = Harness::answering(" world");
    let reply = harness.complete("Hello", json!({"echo": true, "max_tokens": 0})).await.json();
    assert_eq!(texts(&reply), ["Hello"]);
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["completion_tokens"], 0);
}

#[tokio::test]
async fn token_ids_are_returned_with_each_answer() {
    let harness = Harness::new(parrot(), |_| {});
    let reply = harness.complete(json!(["ab", "z"]), json!({"return_token_ids": true})).await.json();
    assert_eq!(reply["choices"][0]["prompt_token_ids"], json!(tokens("ab")));
    assert_eq!(reply["choices"][1]["prompt_token_ids"], json!(tokens("z")));
    assert_eq!(reply["choices"][1]["token_ids"], json!(tokens("z0<|im_end|>")));
    assert!(reply.get("prompt_token_ids").is_none());
}

#[tokio::test]
async fn best_of_may_be_n() {
    let harness = Harness::new(executor("x"), |_| {});
    let reply = harness.complete("a", json!({"n": 2, "best_of": 2})).await.json();
    assert_eq!(texts(&reply), ["x", "x"]);
}

#[tokio::test]
async fn numbers_may_be_written_with_a_fraction_of_zero() {
    let harness = Harness::answering("Hello");
    let reply =
        harness.post("/v1/completions", r#"{"prompt": "a", "max_tokens": 2.0, "seed": 1e3}"#).await.json();
    assert_eq!(texts(&reply), ["He"]);
}

#[tokio::test]
async fn the_model_may_be_left_out() {
    let harness = Harness::answering("x");
    harness.post("/v1/completions", r#"{"prompt": "a"}"#).await.json();
}

#[tokio::test]
async fn truncation_keeps_the_end_of_a_prompt() {
    let harness = Harness::answering("x");
    let prompt = async |prompt: Value, fields: Value| {
        let fields = crate::harness::merged(json!({"return_token_ids": true, "echo": true}), fields);
        let reply = harness.complete(prompt, fields).await.json();
        let choice = &reply["choices"][0];
        (choice["prompt_token_ids"].as_array().unwrap().len(), choice["text"].as_str().unwrap().to_owned())
    };
    assert_eq!(prompt(json!("abcdef"), json!({"truncate_prompt_tokens": 2})).await, (2, "efx".to_owned()));
    assert_eq!(prompt(json!("abcdef"), json!({"truncate_prompt_tokens": 6})).await.1, "abcdefx");
    assert_eq!(prompt(json!([97, 98, 99]), json!({"truncate_prompt_tokens": 1})).await, (1, "cx".to_owned()));
    let long = "z".repeat(2 * MAX_MODEL_LEN);
    let fields = json!({"truncate_prompt_tokens": -1, "max_tokens": 6});
    assert_eq!(prompt(json!(long), fields).await.0, MAX_MODEL_LEN - 6);
}

#[tokio::test]
async fn a_truncation_that_leaves_nothing_is_refused() {
    let harness = Harness::answering("x");
    for bad in [0, -2] {
        let reply = harness.complete("abc", json!({"truncate_prompt_tokens": bad})).await;
        reply.error(400, "invalid_value", Some("truncate_prompt_tokens"));
    }
    let fields = json!({"truncate_prompt_tokens": -1, "max_tokens": MAX_MODEL_LEN});
    harness.complete("abc", fields).await.error(400, "context_length_exceeded", Some("max_tokens"));
}

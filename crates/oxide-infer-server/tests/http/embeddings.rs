//! `/v1/embeddings`, in OpenAI's form.

use crate::harness::{Harness, LIMITS, MAX_MODEL_LEN, MODEL, Reply, VOCAB, executor_with, merged, tokens};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oxide_infer::TokenId;
use oxide_infer_engine::request::Pooling;
use oxide_infer_engine::testing::scripted::{ScriptedExecutor, expected_pooled};
use oxide_infer_engine::{EngineConfig, ExecutorLimits};
use serde_json::{Value, json};
use std::time::Duration;

async fn embed(harness: &Harness, input: impl Into<Value>, fields: Value) -> Reply {
    let body = merged(json!({"model": MODEL, "input": input.into()}), fields);
    harness.post_json("/v1/embeddings", &body).await
}

/// What the scripted engine makes of a text, before it is normalized.
fn raw(text: &str, pooling: Pooling) -> Vec<f32> {
    let ids: Vec<TokenId> = tokens(text).into_iter().map(TokenId).collect();
    expected_pooled(&ids, pooling)
}

fn vector(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[tokio::test]
async fn every_input_gets_its_vector_of_length_one_in_its_place() {
    let harness = Harness::answering("x");
    let reply = embed(&harness, json!(["Hello", "Hé🦀", "Hello"]), json!({})).await.json();
    assert_eq!(reply["object"], "list");
    assert_eq!(reply["model"], MODEL);
    assert_eq!(reply["usage"], json!({"prompt_tokens": 17, "total_tokens": 17}));
    for (index, text) in ["Hello", "Hé🦀", "Hello"].into_iter().enumerate() {
        let data = &reply["data"][index];
        assert_eq!((&data["object"], &data["index"]), (&json!("embedding"), &json!(index)));
        let (found, raw) = (vector(&data["embedding"]), raw(text, Pooling::Last));
        let norm = raw.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert_eq!(found.len(), raw.len());
        assert!(found.iter().zip(&raw).all(|(x, y)| (x - y / norm).abs() < 1e-6), "{found:?} {raw:?}");
    }
}

#[tokio::test]
async fn texts_and_their_token_ids_have_the_same_vectors() {
    let harness = Harness::answering("x");
    let plain = json!({"normalize": false});
    let of_text = embed(&harness, "ab", plain.clone()).await.json();
    let of_tokens = embed(&harness, json!(tokens("ab")), plain.clone()).await.json();
    let of_lists = embed(&harness, json!([tokens("xyz"), tokens("ab")]), plain).await.json();
    assert_eq!(vector(&of_text["data"][0]["embedding"]), raw("ab", Pooling::Last));
    assert_eq!(of_text["data"], of_tokens["data"]);
    assert_eq!(of_text["data"][0]["embedding"], of_lists["data"][1]["embedding"]);
}

#[tokio::test]
async fn base64_holds_the_same_numbers() {
    let harness = Harness::answering("x");
    let reply = embed(&harness, "abc", json!({"encoding_format": "base64", "normalize": false})).await.json();
    let bytes = STANDARD.decode(reply["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let numbers: Vec<f32> =
        bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(numbers, raw("abc", Pooling::Last));
}

#[tokio::test]
async fn pooling_is_the_requests_or_the_servers() {
    let long = "a text of several chunks ".repeat(10);
    let harness = Harness::new(
        executor_with("x", &[], ExecutorLimits { max_batch_tokens: 16, steps_in_flight: 2, ..LIMITS }),
        |config| config.pooling = Pooling::Mean,
    );
    for (fields, pooling) in [
        (json!({}), Pooling::Mean),
        (json!({"pooling": "mean"}), Pooling::Mean),
        (json!({"pooling": "last"}), Pooling::Last),
    ] {
        let reply = embed(&harness, long.clone(), merged(fields, json!({"normalize": false}))).await.json();
        assert_eq!(vector(&reply["data"][0]["embedding"]), raw(&long, pooling));
    }
}

#[tokio::test]
async fn a_long_input_is_cut_at_its_beginning_if_asked_and_refused_by_place_if_not() {
    let harness = Harness::answering("x");
    let long = "x".repeat(MAX_MODEL_LEN - 1) + "ab";
    let message = embed(&harness, json!(["a", long]), json!({})).await.error(
        400,
        "context_length_exceeded",
        Some("input[1]"),
    );
    assert_eq!(message, "the model's context is 256 tokens; 'input[1]' has 257");
    for (kept, rest) in [(json!(-1), &long[1..]), (json!(2), "ab")] {
        let fields = json!({"truncate_prompt_tokens": kept, "normalize": false});
        let reply = embed(&harness, long.clone(), fields).await.json();
        assert_eq!(vector(&reply["data"][0]["embedding"]), raw(rest, Pooling::Last));
        assert_eq!(reply["usage"]["prompt_tokens"], rest.len());
    }
    // The model's whole length needs no room for an answer.
    embed(&harness, &long[1..], json!({})).await.json();
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let harness = Harness::answering("x");
    for (input, fields, code, param) in [
        (json!([]), json!({}), "invalid_value", "input"),
        (json!(vec!["a"; 2049]), json!({}), "invalid_value", "input"),
        (json!(""), json!({}), "invalid_value", "input"),
        (json!(["a", ""]), json!({}), "invalid_value", "input[1]"),
        (json!([[97], []]), json!({}), "invalid_value", "input[1]"),
        (json!([97, VOCAB]), json!({}), "invalid_value", "input"),
        (json!([[97], [VOCAB]]), json!({}), "invalid_value", "input[1]"),
        (json!(["a", 3]), json!({}), "invalid_type", "input"),
        (json!({"text": "a"}), json!({}), "invalid_type", "input"),
        (json!("a"), json!({"dimensions": 2}), "invalid_value", "dimensions"),
        (json!("a"), json!({"dimensions": 0}), "invalid_value", "dimensions"),
        (json!("a"), json!({"encoding_format": "int8"}), "invalid_value", "encoding_format"),
        (json!("a"), json!({"pooling": "cls"}), "invalid_value", "pooling"),
        (json!("a"), json!({"normalize": "yes"}), "invalid_type", "normalize"),
        (json!("a"), json!({"truncate_prompt_tokens": 0}), "invalid_value", "truncate_prompt_tokens"),
        (json!("a"), json!({"temperature": 0}), "unknown_parameter", "temperature"),
        (Value::Null, json!({}), "missing_required_parameter", "input"),
    ] {
        embed(&harness, input, fields).await.error(400, code, Some(param));
    }
    embed(&harness, "a", json!({"model": "other"})).await.error(404, "model_not_found", Some("model"));
    embed(&harness, "a", json!({"dimensions": 3, "user": "u"})).await.json();
}

#[tokio::test]
async fn a_device_without_hidden_states_refuses() {
    let limits = ExecutorLimits { hidden_size: None, ..LIMITS };
    let harness = Harness::new(executor_with("x", &[], limits), |_| {});
    let message = embed(&harness, "a", json!({})).await.error(400, "invalid_value", Some("model"));
    assert!(message.contains("gives no embeddings"), "{message}");
}

#[tokio::test]
async fn more_inputs_than_may_wait_are_computed_all_the_same() {
    let engine = EngineConfig { max_waiting: 2, ..EngineConfig::default() };
    let harness = Harness::with_engine(executor_with("x", &[], LIMITS), engine, |_| {});
    let inputs: Vec<String> = (0..100).map(|at| format!("text {at}")).collect();
    let reply = embed(&harness, inputs.clone(), json!({"normalize": false})).await.json();
    for (data, input) in reply["data"].as_array().unwrap().iter().zip(&inputs) {
        assert_eq!(vector(&data["embedding"]), raw(input, Pooling::Last));
    }
    assert_eq!(reply["data"].as_array().unwrap().len(), 100);
}

fn slow(limits: ExecutorLimits) -> ScriptedExecutor {
    executor_with("x", &[], limits).step_time(Duration::from_millis(3))
}

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("text {at}")).collect()
}

async fn until_running(harness: &Harness) {
    while harness.engine.metrics().snapshot().running == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_list_that_has_begun_is_finished_while_the_server_drains() {
    let harness = Harness::new(slow(ExecutorLimits { max_sequences: 1, ..LIMITS }), |_| {});
    let (reply, refused) = tokio::join!(embed(&harness, texts(100), json!({})), async {
        until_running(&harness).await;
        harness.server.begin_drain();
        embed(&harness, "late", json!({})).await
    });
    assert_eq!(reply.json()["data"].as_array().unwrap().len(), 100);
    assert_eq!(refused.status, 503);
}

#[tokio::test]
async fn lists_leave_the_queue_to_others() {
    let engine = EngineConfig { max_waiting: 8, ..EngineConfig::default() };
    let harness = Harness::with_engine(slow(ExecutorLimits { max_sequences: 1, ..LIMITS }), engine, |_| {});
    let lists = async {
        tokio::join!(
            embed(&harness, texts(60), json!({})),
            embed(&harness, texts(60), json!({})),
            embed(&harness, texts(60), json!({}))
        )
    };
    let others = async {
        until_running(&harness).await;
        for _ in 0..10 {
            harness.complete("a", json!({"max_tokens": 1})).await.json();
        }
    };
    let ((a, b, c), ()) = tokio::join!(lists, others);
    assert!([a, b, c].iter().all(|reply| reply.status == 200));
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_inputs_with_it() {
    let harness = Harness::new(slow(LIMITS), |_| {});
    tokio::select! {
        _ = embed(&harness, texts(1000), json!({})) => panic!("it cannot be done yet"),
        () = until_running(&harness) => {}
    }
    let busy = || {
        let now = harness.engine.metrics().snapshot();
        now.running + now.waiting + now.kv_pages_used
    };
    while busy() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

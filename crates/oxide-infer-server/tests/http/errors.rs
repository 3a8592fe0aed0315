//! Every kind of bad request, and what is said about it.

use crate::harness::{Harness, LIMITS, MODEL, chat_body, endless, executor};
use axum::body::Body;
use axum::http::{Method, Request, header};
use oxide_infer_engine::testing::scripted::ScriptedExecutor;
use oxide_infer_engine::{EngineConfig, PrefixCache};
use serde_json::{Value, json};
use std::time::Duration;

#[tokio::test]
async fn broken_json_is_400() {
    let harness = Harness::answering("x");
    for body in ["", "{", "{\"prompt\": }", "nul", "{\"a\": 1} trailing", "{\"prompt\": \"\\ud800\"}"] {
        let reply = harness.post("/v1/completions", body).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
    }
    harness.post("/v1/completions", "{\"prompt\": ").await.error(400, "invalid_json", None);
    harness.post("/v1/completions", &b"\xff\xfe"[..]).await.error(400, "invalid_json", None);
    harness.post("/v1/completions", "[1]").await.error(400, "invalid_type", Some("body"));
}

#[tokio::test]
async fn an_error_says_what_was_expected_and_what_came() {
    let harness = Harness::answering("x");
    let message =
        harness.chat(json!({"temperature": "hot"})).await.error(400, "invalid_type", Some("temperature"));
    assert_eq!(message, "'temperature' must be a number, got \"hot\"");
    let message =
        harness.chat(json!({"temperature": 3})).await.error(400, "invalid_value", Some("temperature"));
    assert_eq!(message, "'temperature' must be from 0 to 2, got 3");
    let message = harness.chat(json!({"n": 1.5})).await.error(400, "invalid_type", Some("n"));
    assert_eq!(message, "'n' must be a whole number, got 1.5");
    let long = "x".repeat(1000);
    let message = harness.chat(json!({"n": long})).await.error(400, "invalid_type", Some("n"));
    assert!(message.len() < 200, "{message}");
    harness.chat(json!({"": 1})).await.error(400, "unknown_parameter", Some("\"\""));
    let long = "é".repeat(1000);
    for fields in [
        json!({"model": long}),
        json!({"logit_bias": {&long: 1}}),
        json!({"messages": [{"role": long, "content": "a"}]}),
        json!({"messages": [{"role": "user", "content": [{"type": long}]}]}),
        json!({&long: 1}),
    ] {
        let reply = harness.chat(fields).await;
        assert!(reply.status.is_client_error() && reply.body.len() < 600, "{}", reply.text());
    }
}

#[tokio::test]
async fn every_value_out_of_range_names_its_field() {
    let harness = Harness::answering("x");
    for (field, value) in [
        ("temperature", json!(-0.1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.1)),
        ("top_k", json!(-2)),
        ("min_p", json!(2)),
        ("presence_penalty", json!(2.5)),
        ("frequency_penalty", json!(-3)),
        ("repetition_penalty", json!(0)),
        ("n", json!(0)),
        ("n", json!(129)),
        ("n", json!(9)),
        ("max_tokens", json!(0)),
        ("max_completion_tokens", json!(-1)),
        ("min_tokens", json!(-1)),
        ("top_logprobs", json!(21)),
        ("logit_bias", json!({"a": 1})),
        ("logit_bias", json!({"264": 1})),
        ("logit_bias", json!({"1": 101})),
        ("logit_bias", json!({"1": 1, "01": 1})),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("stop", json!("")),
        ("stop", json!("x".repeat(2000))),
        ("stop_token_ids", json!([264])),
        ("messages", json!([])),
    ] {
        harness.chat(json!({field: value})).await.error(400, "invalid_value", Some(field));
    }
    let biases: serde_json::Map<String, Value> = (0..1025).map(|id| (id.to_string(), json!(1))).collect();
    harness.chat(json!({"logit_bias": biases})).await.error(400, "invalid_value", Some("logit_bias"));
}

#[tokio::test]
async fn fields_that_contradict_each_other_are_refused() {
    let harness = Harness::answering("x");
    for (fields, param) in [
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"top_logprobs": 1}), "top_logprobs"),
        (json!({"max_tokens": 3, "max_completion_tokens": 4}), "max_tokens"),
        (json!({"max_tokens": 3, "min_tokens": 4}), "min_tokens"),
        (json!({"continue_final_message": true, "add_generation_prompt": true}), "continue_final_message"),
    ] {
        harness.chat(fields).await.error(400, "invalid_value", Some(param));
    }
    harness.complete("x", json!({"max_tokens": 0})).await.error(400, "invalid_value", Some("max_tokens"));
    harness.complete("x", json!({"n": 2, "best_of": 1})).await.error(400, "invalid_value", Some("best_of"));
}

#[tokio::test]
async fn unknown_fields_are_refused_by_name_wherever_they_are() {
    let harness = Harness::answering("x");
    harness.chat(json!({"temprature": 1})).await.error(400, "unknown_parameter", Some("temprature"));
    harness.complete("x", json!({"messages": []})).await.error(400, "unknown_parameter", Some("messages"));
    let options = json!({"stream": true, "stream_options": {"include_usages": true}});
    harness.chat(options).await.error(400, "unknown_parameter", Some("stream_options.include_usages"));
    let message = json!({"messages": [{"role": "user", "content": "a", "mood": "b"}]});
    harness.chat(message).await.error(400, "unknown_parameter", Some("messages[0].mood"));
    let twice = r#"{"messages": [{"role": "user", "content": "a"}], "n": 1, "n": 2}"#;
    harness.post("/v1/chat/completions", twice).await.error(400, "invalid_value", Some("n"));
}

#[tokio::test]
async fn what_is_not_supported_yet_is_refused_by_name() {
    let harness = Harness::answering("x");
    for (field, value) in [
        ("functions", json!([{"name": "f"}])),
        ("guided_json", json!({"type": "object"})),
        ("audio", json!({"voice": "x"})),
        ("modalities", json!(["text", "audio"])),
        ("prediction", json!({"type": "content", "content": "a"})),
        ("web_search_options", json!({})),
        ("reasoning_effort", json!("low")),
        ("echo", json!(true)),
        ("cache_salt", json!("salt")),
    ] {
        harness.chat(json!({field: value})).await.error(400, "unsupported_parameter", Some(field));
    }
    harness.complete("x", json!({"suffix": "a"})).await.error(400, "unsupported_parameter", Some("suffix"));
    harness.complete("x", json!({"best_of": 2})).await.error(400, "unsupported_parameter", Some("best_of"));
}

#[tokio::test]
async fn messages_are_checked_one_by_one() {
    let harness = Harness::answering("x");
    let image = json!({"type": "image_url", "image_url": {"url": "http://a/b.png"}});
    let call = json!({"role": "assistant", "content": "", "function_call": {"name": "f"}});
    for (message, code, param) in [
        (json!("text"), "invalid_type", "messages[1]"),
        (json!({"content": "a"}), "missing_required_parameter", "messages[1].role"),
        (json!({"role": "user"}), "missing_required_parameter", "messages[1].content"),
        (json!({"role": 3, "content": "a"}), "invalid_type", "messages[1].role"),
        (json!({"role": "wizard", "content": "a"}), "invalid_value", "messages[1].role"),
        (json!({"role": "function", "content": "a"}), "unsupported_parameter", "messages[1].role"),
        (json!({"role": "user", "content": 3}), "invalid_type", "messages[1].content"),
        (json!({"role": "user", "content": ["a"]}), "invalid_type", "messages[1].content[0]"),
        (json!({"role": "user", "content": [image]}), "unsupported_parameter", "messages[1].content[0].type"),
        (
            json!({"role": "user", "content": [{"type": "text"}]}),
            "missing_required_parameter",
            "messages[1].content[0].text",
        ),
        (call, "unsupported_parameter", "messages[1].function_call"),
    ] {
        let messages = json!([{"role": "user", "content": "ok"}, message]);
        harness.chat(json!({"messages": messages})).await.error(400, code, Some(param));
    }
    harness.chat(json!({"messages": "Hi"})).await.error(400, "invalid_type", Some("messages"));
    let nothing = harness.post_json("/v1/chat/completions", &json!({})).await;
    nothing.error(400, "missing_required_parameter", Some("messages"));
}

#[tokio::test]
async fn prompts_are_checked_one_by_one() {
    let harness = Harness::answering("x");
    for (prompt, code, param) in [
        (json!(null), "missing_required_parameter", "prompt"),
        (json!(""), "invalid_value", "prompt"),
        (json!([]), "invalid_value", "prompt"),
        (json!(["a", ""]), "invalid_value", "prompt[1]"),
        (json!([[97], []]), "invalid_value", "prompt[1]"),
        (json!(3), "invalid_type", "prompt"),
        (json!({"text": "a"}), "invalid_type", "prompt"),
        (json!([true]), "invalid_type", "prompt"),
        (json!(["a", 3]), "invalid_type", "prompt"),
        (json!([1, "a"]), "invalid_type", "prompt"),
        (json!([-1]), "invalid_type", "prompt"),
        (json!([264]), "invalid_value", "prompt"),
    ] {
        harness.complete(prompt, json!({})).await.error(400, code, Some(param));
    }
    let many: Vec<&str> = vec!["a"; 1025];
    harness.complete(json!(many), json!({})).await.error(400, "invalid_value", Some("prompt"));
}

#[tokio::test]
async fn a_context_that_is_too_long_is_400_and_names_the_numbers() {
    let harness = Harness::answering("x");
    let code = "context_length_exceeded";
    let long = "y".repeat(300);
    let message = harness.complete(long.clone(), json!({})).await.error(400, code, Some("prompt"));
    assert!(message.contains("256") && message.contains("300"), "{message}");
    let messages = json!([{"role": "user", "content": long}]);
    harness.chat(json!({"messages": messages})).await.error(400, code, Some("messages"));
    let message =
        harness.complete("abc", json!({"max_tokens": 254})).await.error(400, code, Some("max_tokens"));
    assert!(message.contains("256") && message.contains("254"), "{message}");
    harness.chat(json!({"max_completion_tokens": 256})).await.error(400, code, Some("max_completion_tokens"));
    // Exactly full is allowed.
    harness.complete("abc", json!({"max_tokens": 253})).await.json();
}

#[tokio::test]
async fn an_unknown_model_is_404() {
    let harness = Harness::answering("x");
    let message = harness.chat(json!({"model": "gpt-4"})).await.error(404, "model_not_found", Some("model"));
    assert!(message.contains("gpt-4") && message.contains(MODEL), "{message}");
    harness.chat(json!({"model": 3})).await.error(400, "invalid_type", Some("model"));
    harness.get("/v1/models/gpt-4").await.error(404, "model_not_found", Some("model"));
}

#[tokio::test]
async fn unknown_routes_and_methods_are_answered_in_json() {
    let harness = Harness::answering("x");
    harness.get("/v1/rerank").await.error(404, "unknown_url", None);
    harness.get("/nothing").await.error(404, "unknown_url", None);
    harness.get("/v1/chat/completions").await.error(405, "method_not_allowed", None);
    harness.post("/v1/models", "{}").await.error(405, "method_not_allowed", None);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_413_announced_or_not() {
    let harness = Harness::new(executor("x"), |config| config.limits.max_body_bytes = 100);
    let body = json!({"prompt": "y".repeat(200)}).to_string();
    harness.post("/v1/completions", body.clone()).await.error(413, "request_too_large", None);
    let chunks = futures::stream::iter(
        body.into_bytes().chunks(50).map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec())).collect::<Vec<_>>(),
    );
    harness.post("/v1/completions", Body::from_stream(chunks)).await.error(413, "request_too_large", None);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_408() {
    let harness =
        Harness::new(executor("x"), |config| config.limits.body_timeout = Duration::from_millis(20));
    let never = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
    harness.post("/v1/completions", Body::from_stream(never)).await.error(408, "body_timeout", None);
}

#[tokio::test]
async fn a_body_of_another_type_is_415() {
    let harness = Harness::answering("x");
    for (value, allowed) in [
        (Some("application/json; charset=utf-8"), true),
        (Some("APPLICATION/JSON"), true),
        (Some("text/plain"), false),
        (Some("application/x-www-form-urlencoded"), false),
        (None, false),
    ] {
        let mut request = Request::builder().method(Method::POST).uri("/v1/chat/completions");
        if let Some(value) = value {
            request = request.header(header::CONTENT_TYPE, value);
        }
        let reply = harness.send(request.body(Body::from(chat_body(json!({})).to_string())).unwrap()).await;
        if allowed {
            reply.json();
        } else {
            reply.error(415, "unsupported_media_type", None);
        }
    }
}

/// One request runs and one waits; the third is refused.
#[tokio::test]
async fn a_full_queue_is_429_with_retry_after() {
    let limits = oxide_infer_engine::ExecutorLimits { max_sequences: 1, ..LIMITS };
    let slow = ScriptedExecutor::new(limits).step_time(Duration::from_millis(20));
    let engine = EngineConfig { max_waiting: 1, prefix_cache: PrefixCache::Enabled };
    let harness = Harness::with_engine(slow, engine, |_| {});
    let request = || harness.chat(json!({"max_tokens": 20, "ignore_eos": true}));
    let refused = async {
        // Until the first request has left the queue, the second is refused, too.
        while harness.engine.metrics().snapshot().running == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::join!(request(), async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            request().await
        })
    };
    let (first, (second, third)) = tokio::join!(request(), refused);
    first.json();
    second.json();
    third.error(429, "rate_limit_exceeded", None);
    let seconds: u64 = third.headers[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!(seconds >= 1);
}

/// It could never be admitted, so the client is not told to try again.
#[tokio::test]
async fn more_prompts_than_the_queue_holds_are_400() {
    let engine = EngineConfig { max_waiting: 2, prefix_cache: PrefixCache::Enabled };
    let harness = Harness::with_engine(endless(Duration::from_millis(20)), engine, |_| {});
    let prompts: Vec<&str> = vec!["a"; 20];
    harness.complete(json!(prompts), json!({})).await.error(400, "invalid_value", Some("prompt"));
}

#[tokio::test]
async fn too_many_requests_in_flight_are_429() {
    let harness = Harness::new(endless(Duration::from_millis(2)), |config| {
        config.limits.max_requests_in_flight = 1;
    });
    let (first, second) = tokio::join!(harness.chat(json!({"max_tokens": 30})), async {
        while harness.engine.metrics().snapshot().running == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        harness.chat(json!({})).await
    });
    first.json();
    second.error(429, "rate_limit_exceeded", None);
    harness.chat(json!({"max_tokens": 1})).await.json();
}

#[tokio::test]
async fn a_failing_engine_is_told_to_requests_in_flight_and_to_later_ones() {
    let failing = endless(Duration::from_millis(1)).failing_at(5, "device lost");
    let harness = Harness::new(failing, |_| {});
    let (whole, stream) = tokio::join!(harness.chat(json!({})), harness.chat(json!({"stream": true})));
    let message = whole.error(503, "engine_failed", None);
    assert!(message.contains("device lost"), "{message}");
    // The stream's head was sent already, so the error is its last event.
    let last = stream.events().pop().unwrap();
    assert_eq!(
        (&last["error"]["code"], &last["error"]["type"]),
        (&json!("engine_failed"), &json!("service_unavailable_error"))
    );
    harness.chat(json!({})).await.error(503, "engine_failed", None);
    let health = harness.get("/health").await;
    assert_eq!(health.status, 503);
    assert!(health.text().contains("device lost"));
    assert_eq!(harness.get("/ready").await.status, 503);
}

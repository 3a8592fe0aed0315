//! What holds for every request field, and for any JSON at all.

use crate::harness::{Harness, MODEL, chat_body, merged};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// The fields that `docs/api.md` lists for a route in the table under a heading.
fn documented(heading: &str, route: &str) -> Vec<String> {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md")).unwrap();
    let section = docs.split("\n### ").find(|section| section.starts_with(heading)).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let fields = rows.filter_map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        cells[2].split(", ").any(|cell| cell == route).then(|| cells[1].trim_matches('`').to_owned())
    });
    let fields: Vec<String> = fields.collect();
    assert!(!fields.is_empty(), "no fields of {route} under {heading}");
    fields
}

/// A value that no accepted field admits: every field is read, none is dropped.
#[tokio::test]
async fn every_accepted_field_is_read() {
    let harness = Harness::answering("x");
    let bad = json!([[{"not": "a value"}]]);
    for field in documented("Accepted", "chat") {
        let reply = harness.chat(json!({&field: bad, "stream": true})).await;
        let reply = if field == "stream" { harness.chat(json!({"stream": bad})).await } else { reply };
        let error: Value = serde_json::from_slice(&reply.body).unwrap();
        let param = error["error"]["param"].as_str().unwrap();
        assert_eq!(reply.status, 400, "{field}");
        assert!(param.starts_with(&field), "{field}: {error}");
    }
    for field in documented("Accepted", "completion") {
        let reply = harness.complete("x", json!({&field: bad})).await;
        let error: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(
            (reply.status.as_u16(), error["error"]["param"].as_str()),
            (400, Some(field.as_str())),
            "{error}"
        );
    }
}

#[tokio::test]
async fn every_field_of_messages_is_read_ignored_or_refused_by_name() {
    let harness = Harness::answering("x");
    let bad = json!([[{"not": "a value"}]]);
    for (route, path) in [("messages", "/v1/messages"), ("count tokens", "/v1/messages/count_tokens")] {
        let send = async |field: &str, value: &Value| {
            let mut body = chat_body(json!({}));
            if route == "messages" {
                body["max_tokens"] = json!(2);
            }
            body[field] = value.clone();
            harness.post_json(path, &body).await
        };
        for field in documented("Accepted", route) {
            let message = send(&field, &bad).await.anthropic_error(400, "invalid_request_error");
            assert!(message.starts_with(&format!("'{field}")), "{field}: {message}");
        }
        for field in documented("Ignored", route) {
            send(&field, &bad).await.json();
        }
        for field in documented("Not supported", route) {
            let message = send(&field, &bad).await.anthropic_error(400, "invalid_request_error");
            assert!(message.starts_with(&format!("'{field}' is not supported")), "{message}");
            send(&field, &Value::Null).await.json();
        }
        let message = send("n", &json!(2)).await.anthropic_error(400, "invalid_request_error");
        assert_eq!(message, "'n' is not a field of this request");
    }
}

#[tokio::test]
async fn every_field_of_responses_is_read_ignored_or_refused_by_name() {
    let harness = Harness::answering("x");
    let bad = json!([[{"not": "a value"}]]);
    let send = async |field: &str, value: &Value| {
        let body = merged(json!({"input": "Hi", "stream": false}), json!({field: value}));
        harness.post_json("/v1/responses", &body).await
    };
    for field in documented("Accepted", "responses") {
        let reply = send(&field, &bad).await;
        let error: Value = serde_json::from_slice(&reply.body).unwrap();
        let param = error["error"]["param"].as_str().unwrap();
        assert!(reply.status == 400 && param.starts_with(&field), "{field}: {error}");
    }
    for field in documented("Ignored", "responses") {
        send(&field, &bad).await.json();
    }
    for field in documented("Not supported", "responses") {
        send(&field, &bad).await.error(400, "unsupported_parameter", Some(&field));
        send(&field, &Value::Null).await.json();
    }
}

#[tokio::test]
async fn every_ignored_field_is_ignored_whatever_it_is() {
    let harness = Harness::answering("x");
    for field in documented("Ignored", "chat") {
        harness.chat(json!({&field: {"any": ["thing"]}})).await.json();
    }
    for field in documented("Ignored", "completion") {
        harness.complete("a", json!({&field: {"any": ["thing"]}})).await.json();
    }
}

#[tokio::test]
async fn every_unsupported_field_is_refused_by_name_and_taken_as_null() {
    let harness = Harness::answering("x");
    for field in documented("Not supported", "chat") {
        let refused = harness.chat(json!({&field: {"any": ["thing"]}})).await;
        refused.error(400, "unsupported_parameter", Some(&field));
        harness.chat(json!({&field: null})).await.json();
    }
    for field in documented("Not supported", "completion") {
        let refused = harness.complete("a", json!({&field: {"any": ["thing"]}})).await;
        refused.error(400, "unsupported_parameter", Some(&field));
        harness.complete("a", json!({&field: null})).await.json();
    }
}

/// The routes that take a body.
const PATHS: [&str; 8] = [
    "/v1/embeddings",
    "/v1/responses",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
];

/// Any JSON value, small.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-3_i64..300).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(json!(MODEL)),
        prop::sample::select(vec![
            "user",
            "assistant",
            "text",
            "tool_use",
            "tool_result",
            "thinking",
            "function_call",
            "reasoning",
            "function_call_output",
            "input_text",
            "function",
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let keys = prop_oneof![
            "[a-z_]{1,8}",
            Just("role".to_owned()),
            Just("content".to_owned()),
            Just("type".to_owned()),
            Just("text".to_owned()),
            Just("input".to_owned())
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys, inner), 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// A body for any route: sensible fields with a few replaced by anything.
fn any_body() -> impl Strategy<Value = Value> {
    let names: Vec<String> = ["Accepted", "Not supported"]
        .into_iter()
        .flat_map(|heading| {
            ["chat", "completion", "messages", "responses"]
                .into_iter()
                .flat_map(move |route| documented(heading, route))
        })
        .chain(["tokens".to_owned()])
        .collect();
    let fields = prop::collection::vec((prop::sample::select(names), any_json()), 0..4);
    (0..5_usize, fields, any_json()).prop_map(|(kind, fields, other)| {
        let replaced = Value::Object(fields.into_iter().collect());
        match kind {
            0 => merged(chat_body(json!({"max_tokens": 2})), replaced),
            1 => merged(json!({"prompt": "a", "max_tokens": 2}), replaced),
            2 => merged(json!({"tokens": [97]}), replaced),
            3 => merged(json!({"input": "a", "max_output_tokens": 2}), replaced),
            _ => other,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// No body makes a route panic, fail with 5xx or answer with anything but JSON or a stream.
    #[test]
    fn any_json_is_answered(body in any_body()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let harness = Harness::answering("ok");
            for path in PATHS {
                let reply = harness.post_json(path, &body).await;
                let status = reply.status.as_u16();
                assert!(matches!(status, 200 | 400 | 404), "{path} {body}: {status} {}", reply.text());
                if status == 200 && body["stream"] == true && !path.contains("completions") {
                    assert!(!reply.named_events().is_empty());
                } else if status == 200 && body["stream"] == true {
                    reply.events();
                } else {
                    let parsed: Value = serde_json::from_slice(&reply.body).unwrap();
                    // A response of the Responses API has null.
                    assert_eq!(parsed["error"].is_null(), status == 200);
                }
            }
        });
    }
}

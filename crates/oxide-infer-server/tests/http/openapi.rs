//! The OpenAPI document against the routes and the documentation.

use crate::harness::{Harness, endless, executor};
use axum::body::Body;
use axum::http::{Method, Request, header};
use oxide_infer_server::ApiKey;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// Method and path of each operation, in the document's notation.
fn operations(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone()))
        })
        .collect()
}

#[tokio::test]
async fn the_document_and_the_documentation_list_the_same_routes() {
    let document = Harness::answering("x").get("/openapi.json").await.json();
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md")).unwrap();
    let rows = docs
        .lines()
        .skip_while(|line| !line.starts_with("| route |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let documented: BTreeSet<(String, String)> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap().split(','))
        .map(|route| {
            let (method, path) = route.trim().trim_matches('`').split_once(' ').unwrap();
            (method.to_owned(), path.to_owned())
        })
        .collect();
    assert_eq!(operations(&document), documented);
}

/// A path with its parameters filled in.
fn example(path: &str) -> String {
    path.replace("{id}", "tiny").replace("{file}", "main.js")
}

#[tokio::test]
async fn every_operation_is_a_route_and_takes_no_other_method() {
    let harness = Harness::answering("x");
    let document = harness.get("/openapi.json").await.json();
    for (method, path) in operations(&document) {
        for tried in [Method::GET, Method::POST, Method::PUT, Method::DELETE] {
            let request = Request::builder().method(&tried).uri(example(&path));
            let request =
                request.header(header::CONTENT_TYPE, "application/json").body(Body::from("{}")).unwrap();
            let reply = harness.send(request).await;
            assert_ne!(reply.status, 404, "{tried} {path}: {}", reply.text());
            assert_eq!(reply.status == 405, tried.as_str() != method, "{tried} {path}: {}", reply.text());
        }
    }
}

#[tokio::test]
async fn references_lead_to_something() {
    fn check(value: &Value, document: &Value) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| match value.as_str() {
                Some(target) if name == "$ref" => {
                    let found = document.pointer(target.strip_prefix('#').unwrap());
                    assert!(found.is_some(), "{target}");
                }
                _ => check(value, document),
            }),
            Value::Array(items) => items.iter().for_each(|item| check(item, document)),
            _ => {}
        }
    }
    let document = Harness::answering("x").get("/openapi.json").await.json();
    check(&document, &document);
}

/// Paths of operations that take a body; those that generate also send events.
fn with_body(document: &Value) -> Vec<(String, bool)> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .filter(|(_, methods)| !methods["post"].is_null())
        .map(|(path, methods)| {
            let content = &methods["post"]["responses"]["200"]["content"];
            (path.clone(), content.get("text/event-stream").is_some())
        })
        .collect()
}

/// A request that every route with a body takes, but for the field that is not its own.
fn body_for(path: &str) -> Value {
    match path {
        "/v1/completions" | "/tokenize" => json!({"prompt": "a"}),
        "/detokenize" => json!({"tokens": [97]}),
        "/v1/responses" | "/v1/embeddings" => json!({"input": "a"}),
        "/v1/messages" => json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}),
        _ => json!({"messages": [{"role": "user", "content": "a"}]}),
    }
}

#[tokio::test]
async fn limits_hold_on_every_route_that_takes_a_body() {
    let harness = Harness::new(endless(Duration::from_millis(5)), |config| {
        config.limits.max_body_bytes = 200;
        config.limits.max_requests_in_flight = 1;
    });
    let document = harness.get("/openapi.json").await.json();
    let routes = with_body(&document);
    assert_eq!(routes.iter().filter(|(_, generates)| *generates).count(), 4);
    for (path, _) in &routes {
        let plain = Request::post(path).body(Body::from(body_for(path).to_string())).unwrap();
        assert_eq!(harness.send(plain).await.status, 415, "{path}");
        assert_eq!(harness.post(path, " ".repeat(201)).await.status, 413, "{path}");
    }
    let stream = json!({"prompt": "a", "stream": true, "max_tokens": 200});
    let held = Request::post("/v1/completions").header(header::CONTENT_TYPE, "application/json");
    let held = harness.respond(held.body(Body::from(stream.to_string())).unwrap()).await;
    for (path, generates) in &routes {
        let computes = *generates || path == "/v1/embeddings";
        let reply = harness.post_json(path, &body_for(path)).await;
        assert_eq!(reply.status.as_u16(), if computes { 429 } else { 200 }, "{path}: {}", reply.text());
        assert_eq!(reply.headers.contains_key(header::RETRY_AFTER), computes, "{path}");
    }
    drop(held);
    harness.server.begin_drain();
    for (path, _) in &routes {
        assert_eq!(harness.post_json(path, &body_for(path)).await.status, 503, "{path}");
    }
}

#[tokio::test]
async fn keys_are_asked_for_where_they_are_needed() {
    let guarded = Harness::new(executor("x"), |config| config.api_keys = vec![ApiKey::new("sk")]);
    let document = guarded.get("/openapi.json").await.json();
    for (method, path) in operations(&document) {
        let request = Request::builder().method(method.as_str()).uri(example(&path));
        let refused = guarded.send(request.body(Body::empty()).unwrap()).await.status == 401;
        let operation = &document["paths"][&path][method.to_lowercase()];
        assert_eq!(operation.get("security").is_some(), refused, "{method} {path}");
    }
    let open = Harness::answering("x").get("/openapi.json").await;
    assert!(!open.text().contains("\"security\""));
}

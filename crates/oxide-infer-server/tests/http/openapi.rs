//! The OpenAPI document against the routes and the documentation.

use crate::harness::{Harness, executor};
use axum::body::Body;
use axum::http::{Method, Request, header};
use oxide_infer_server::ApiKey;
use serde_json::Value;
use std::collections::BTreeSet;

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

#[tokio::test]
async fn every_operation_is_a_route_and_takes_no_other_method() {
    let harness = Harness::answering("x");
    let document = harness.get("/openapi.json").await.json();
    for (method, path) in operations(&document) {
        for tried in [Method::GET, Method::POST, Method::PUT, Method::DELETE] {
            let request = Request::builder().method(&tried).uri(path.replace("{id}", "tiny"));
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

#[tokio::test]
async fn keys_are_asked_for_where_they_are_needed() {
    let guarded = Harness::new(executor("x"), |config| config.api_keys = vec![ApiKey::new("sk")]);
    let document = guarded.get("/openapi.json").await.json();
    for (method, path) in operations(&document) {
        let request = Request::builder().method(method.as_str()).uri(path.replace("{id}", "tiny"));
        let refused = guarded.send(request.body(Body::empty()).unwrap()).await.status == 401;
        let operation = &document["paths"][&path][method.to_lowercase()];
        assert_eq!(operation.get("security").is_some(), refused, "{method} {path}");
    }
    let open = Harness::answering("x").get("/openapi.json").await;
    assert!(!open.text().contains("\"security\""));
}

//! Who is let in, and under which id.

use crate::harness::{Harness, Reply, executor};
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, header};
use oxide_infer_server::{ApiKey, Cors};

async fn send(harness: &Harness, method: Method, path: &str, headers: &[(&str, &str)]) -> Reply {
    let request =
        headers.iter().fold(Request::builder().method(method).uri(path), |request, (name, value)| {
            request.header(*name, *value)
        });
    harness.send(request.body(Body::empty()).unwrap()).await
}

fn guarded() -> Harness {
    Harness::new(executor("x"), |config| {
        config.api_keys = vec![ApiKey::new("sk-one"), ApiKey::new("sk-two")];
    })
}

#[tokio::test]
async fn with_keys_set_the_api_opens_only_to_them() {
    let harness = guarded();
    let missing = send(&harness, Method::GET, "/v1/models", &[]).await;
    missing.error(401, "missing_api_key", None);
    assert_eq!(missing.headers[header::WWW_AUTHENTICATE], "Bearer");
    let wrong = send(&harness, Method::GET, "/v1/models", &[("authorization", "Bearer sk-three")]).await;
    wrong.error(401, "invalid_api_key", None);
    for key in ["Bearer sk-one", "Bearer sk-two"] {
        send(&harness, Method::GET, "/v1/models", &[("authorization", key)]).await.json();
    }
    for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/v1/nothing"] {
        send(&harness, Method::POST, path, &[]).await.error(401, "missing_api_key", None);
    }
}

#[tokio::test]
async fn health_readiness_metrics_and_version_are_open_to_all() {
    let harness = guarded();
    for path in
        ["/health", "/ready", "/metrics", "/version", "/get_load", "/get_server_info", "/get_model_info"]
    {
        assert_eq!(send(&harness, Method::GET, path, &[]).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_request_id_is_sent_back_and_a_bad_or_missing_one_replaced() {
    let harness = Harness::answering("x");
    let id = async |given: Option<&str>| {
        let headers: Vec<(&str, &str)> = given.map(|id| ("x-request-id", id)).into_iter().collect();
        let reply = send(&harness, Method::GET, "/v1/nothing", &headers).await;
        reply.headers["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(id(Some("client-17")).await, "client-17");
    for bad in ["has space", &"x".repeat(200), ""] {
        assert_eq!(id(Some(bad)).await.len(), 32, "{bad}");
    }
    assert_ne!(id(None).await, id(None).await);
}

#[tokio::test]
async fn the_request_id_names_the_answer() {
    let harness = Harness::answering("x");
    let request = Request::post("/v1/completions")
        .header("x-request-id", "abc")
        .header("content-type", "application/json");
    let reply = harness.send(request.body(Body::from(r#"{"prompt": "a"}"#)).unwrap()).await.json();
    assert_eq!(reply["id"], "cmpl-abc");
}

#[tokio::test]
async fn without_cors_no_origin_is_allowed() {
    let harness = Harness::answering("x");
    let reply = send(&harness, Method::GET, "/v1/models", &[("origin", "https://a.example")]).await;
    assert!(!reply.headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
}

#[tokio::test]
async fn cors_allows_its_origins_and_answers_preflights_without_a_key() {
    let harness = Harness::new(executor("x"), |config| {
        config.api_keys = vec![ApiKey::new("sk")];
        config.cors = Cors::Origins(vec![HeaderValue::from_static("https://a.example")]);
    });
    let preflight = [
        ("origin", "https://a.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
    ];
    let reply = send(&harness, Method::OPTIONS, "/v1/chat/completions", &preflight).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
    assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_HEADERS], "authorization,content-type");
    let other = [("origin", "https://b.example"), ("authorization", "Bearer sk")];
    let reply = send(&harness, Method::GET, "/v1/models", &other).await;
    assert!(!reply.headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
    // Errors are readable by the page, too.
    let reply = send(&harness, Method::GET, "/v1/models", &[("origin", "https://a.example")]).await;
    reply.error(401, "missing_api_key", None);
    assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
}

#[tokio::test]
async fn cors_can_allow_every_origin() {
    let harness = Harness::new(executor("x"), |config| config.cors = Cors::AnyOrigin);
    let reply = send(&harness, Method::GET, "/v1/models", &[("origin", "https://b.example")]).await;
    assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "*");
}

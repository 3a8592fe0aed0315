//! `/v1/models`, `/health`, `/ready`, `/version`, and the configuration's own errors.

use crate::harness::{Harness, LIMITS, MAX_MODEL_LEN, executor};
use oxide_infer_engine::ExecutorLimits;
use oxide_infer_engine::testing::scripted::ScriptedExecutor;
use oxide_infer_server::{ServeError, Server, ServerConfig};
use serde_json::json;

#[tokio::test]
async fn a_model_id_that_is_no_text_does_not_exist() {
    let harness = Harness::answering("x");
    harness.get("/v1/models/%ff").await.error(404, "model_not_found", Some("model"));
}

#[tokio::test]
async fn every_name_of_the_model_is_listed_and_works() {
    let harness = Harness::new(executor("x"), |config| {
        config.served_model_names = vec!["org/first".into(), "second".into()];
        config.model_source = "/models/tiny".into();
    });
    let reply = harness.get("/v1/models").await.json();
    assert_eq!(reply["object"], "list");
    let created = &reply["data"][0]["created"];
    assert!(created.as_u64().unwrap() > 1_700_000_000);
    let card = |id: &str| {
        json!({"id": id, "object": "model", "created": created, "owned_by": "oxide-infer", "root": "/models/tiny",
               "parent": null, "max_model_len": MAX_MODEL_LEN})
    };
    assert_eq!(reply["data"], json!([card("org/first"), card("second")]));
    assert_eq!(harness.get("/v1/models/org/first").await.json(), card("org/first"));
    let reply = harness.chat(json!({"model": "second"})).await.json();
    // Responses carry the first name, whichever was used.
    assert_eq!(reply["model"], "org/first");
}

#[tokio::test]
async fn a_healthy_server_is_live_and_ready() {
    let harness = Harness::answering("x");
    assert_eq!(harness.get("/health").await.json(), json!({"status": "ok"}));
    assert_eq!(harness.get("/ready").await.json(), json!({"status": "ready"}));
    assert_eq!(harness.get("/version").await.json(), json!({"version": env!("CARGO_PKG_VERSION")}));
}

#[tokio::test]
async fn a_draining_server_is_live_but_not_ready_and_refuses_new_requests() {
    let harness = Harness::answering("x");
    harness.server.begin_drain();
    assert_eq!(harness.get("/health").await.status, 200);
    let ready = harness.get("/ready").await;
    assert_eq!((ready.status.as_u16(), ready.text()), (503, "{\"status\":\"draining\"}"));
    for reply in [harness.chat(json!({})).await, harness.get("/v1/models").await] {
        reply.error(503, "shutting_down", None);
        assert!(reply.headers.contains_key("retry-after"));
    }
    assert_eq!(harness.get("/metrics").await.status, 200);
}

#[tokio::test]
async fn settings_that_make_no_sense_are_named() {
    let limits = ExecutorLimits { max_logprobs: 32, ..LIMITS };
    let harness = Harness::new(ScriptedExecutor::new(limits), |_| {});
    let refused = |configure: fn(&mut ServerConfig)| {
        let mut config = ServerConfig::new("tiny");
        configure(&mut config);
        match Server::new(config, harness.engine.clone(), crate::harness::text()) {
            Err(ServeError::Config { setting, .. }) => setting,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(|config| config.served_model_names.clear()), "served_model_names");
    assert_eq!(refused(|config| config.served_model_names.push(String::new())), "served_model_names");
    assert_eq!(refused(|config| config.api_keys.push(oxide_infer_server::ApiKey::new(""))), "api_keys");
    assert_eq!(refused(|config| config.metrics_prefix = "9 lives".into()), "metrics_prefix");
    assert_eq!(refused(|config| config.limits.max_requests_in_flight = 0), "max_requests_in_flight");
    assert_eq!(refused(|config| config.limits.max_logprobs = 33), "max_logprobs");
}

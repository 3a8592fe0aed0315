//! `/v1/models`, `/health`, `/ready`, `/version`, and the configuration's own errors.

use crate::harness::{Harness, LIMITS, MAX_MODEL_LEN, MODEL, endless, executor, merged};
use axum::body::Body;
use axum::http::{Request, header};
use oxide_infer_engine::ExecutorLimits;
use oxide_infer_engine::testing::scripted::ScriptedExecutor;
use oxide_infer_server::{ServeError, Server, ServerConfig};
use serde_json::{Value, json};
use std::time::Duration;

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
async fn routers_are_told_what_runs_waits_and_is_free() {
    let harness = Harness::new(endless(Duration::from_millis(5)), |config| {
        config.model_source = "/secret/place".into();
    });
    let limits = harness.engine.limits();
    let model = json!({"model_path": MODEL, "served_model_name": MODEL, "is_generation": true,
                       "max_context_length": MAX_MODEL_LEN, "vocab_size": limits.vocab_size});
    assert_eq!(harness.get("/get_model_info").await.json(), model);
    let idle = json!({"load": 0, "num_running_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0});
    assert_eq!(harness.get("/get_load").await.json(), idle);
    let info = |status: &str, free: usize, load: &Value| {
        let fixed = json!({"status": status, "version": env!("CARGO_PKG_VERSION"), "model_id": MODEL, "dp_size": 1,
               "context_length": MAX_MODEL_LEN, "max_total_num_tokens": limits.num_pages * limits.page_size,
               "max_running_requests": limits.max_sequences, "max_prefill_tokens": limits.max_batch_tokens,
               "page_size": limits.page_size, "num_pages": limits.num_pages, "num_free_pages": free});
        merged(fixed, load.clone())
    };
    assert_eq!(harness.get("/get_server_info").await.json(), info("ready", limits.num_pages, &idle));

    // Two answers more than there are slots.
    let body = |n: usize| json!({"prompt": "a", "n": n, "stream": true, "max_tokens": 200});
    let hold = |n: usize| {
        let request = Request::post("/v1/completions").header(header::CONTENT_TYPE, "application/json");
        harness.respond(request.body(Body::from(body(n).to_string())).unwrap())
    };
    let running = hold(limits.max_sequences).await;
    // Every running answer comes to have a page of its own to write into.
    let owned_by_all = (limits.max_sequences * limits.page_size) as u64;
    let busy = async {
        loop {
            let now = harness.get("/get_load").await.json();
            if now["load"] == limits.max_sequences + 2 && now["num_tokens"].as_u64() >= Some(owned_by_all) {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let busy = tokio::select! {
        waiting = hold(2) => panic!("there was no place, and yet it was answered: {waiting:?}"),
        busy = busy => busy,
    };
    assert_eq!(busy["num_running_reqs"], limits.max_sequences);
    assert_eq!(busy["num_waiting_reqs"], 2);
    let now = harness.get("/get_server_info").await.json();
    let owned = limits.num_pages as u64 - now["num_free_pages"].as_u64().unwrap();
    assert_eq!(now["num_tokens"], owned * limits.page_size as u64);
    drop(running);
    while harness.get("/get_load").await.json() != idle {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    harness.server.begin_drain();
    assert_eq!(harness.get("/get_server_info").await.json(), info("draining", limits.num_pages, &idle));
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

//! The page, its files and its numbers; `tests/clients/test_page.py` uses it in a browser.

use crate::harness::{Harness, LIMITS, MODEL, executor, sample};
use axum::http::header;
use oxide_infer_engine::testing::scripted::ScriptedExecutor;
use oxide_infer_server::{ApiKey, Page, SamplingDefaults};
use serde_json::json;

/// What a page of another origin, or one with injected content, could make use of.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[tokio::test]
async fn the_page_and_its_files_come_with_their_types_and_a_strict_policy_and_without_a_key() {
    let harness = Harness::new(executor("x"), |config| config.api_keys = vec![ApiKey::new("sk")]);
    let files = [
        ("/", "text/html; charset=utf-8"),
        ("/page/files/style.css", "text/css; charset=utf-8"),
        ("/page/files/main.js", "text/javascript; charset=utf-8"),
        ("/page/files/icon.svg", "image/svg+xml; charset=utf-8"),
    ];
    for (path, kind) in files {
        let reply = harness.get(path).await;
        assert_eq!(reply.status, 200, "{path}");
        assert_eq!(reply.headers[header::CONTENT_TYPE], kind, "{path}");
        assert_eq!(reply.headers[header::CONTENT_SECURITY_POLICY], POLICY, "{path}");
        assert_eq!(reply.headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
    }
}

#[tokio::test]
async fn a_file_that_there_is_not_is_no_route() {
    let harness = Harness::answering("x");
    for path in
        ["/page/files/other.js", "/page/files/..%2fpage.rs", "/page/files/%ff", "/page/files/", "/page"]
    {
        harness.get(path).await.error(404, "unknown_url", None);
    }
}

#[tokio::test]
async fn without_a_page_its_routes_do_not_exist() {
    let harness = Harness::new(executor("x"), |config| config.page = Page::Off);
    for path in ["/", "/page/files/main.js", "/page/stats"] {
        harness.get(path).await.error(404, "unknown_url", None);
    }
    let document = harness.get("/openapi.json").await.json();
    let paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    assert!(paths.iter().all(|path| *path != "/" && !path.starts_with("/page")), "{paths:?}");
    assert_eq!(harness.get("/v1/models").await.status, 200);
}

#[tokio::test]
async fn the_numbers_are_those_of_the_metrics() {
    let harness = Harness::answering("Hello");
    let before = harness.get("/page/stats").await.json();
    assert_eq!((&before["first_tokens"], &before["first_token_seconds"]), (&json!(0), &json!(0.0)));
    for _ in 0..3 {
        harness.chat(json!({})).await.json();
    }
    let stats = harness.get("/page/stats").await.json();
    let metrics = harness.get("/metrics").await;
    let metric_of = |name: &str| {
        sample(metrics.text(), &format!("oxide_infer_{name}{{model_name=\"{MODEL}\",engine=\"0\"}}"))
    };
    for (name, metric) in [
        ("requests_running", "num_requests_running"),
        ("requests_waiting", "num_requests_waiting"),
        ("kv_usage", "kv_cache_usage_perc"),
        ("prompt_tokens", "prompt_tokens_total"),
        ("generation_tokens", "generation_tokens_total"),
        ("prefix_cache_queries", "prefix_cache_queries_total"),
        ("prefix_cache_hits", "prefix_cache_hits_total"),
        ("first_tokens", "time_to_first_token_seconds_count"),
    ] {
        assert!(stats[name].is_number() && stats[name].as_f64() == metric_of(metric), "{name}");
    }
    // The same durations, added up as whole nanoseconds there and as fractions of a second here.
    let sum = metric_of("time_to_first_token_seconds_sum").unwrap();
    assert!((stats["first_token_seconds"].as_f64().unwrap() - sum).abs() < 1e-6);
    // Three answers of five letters and an end.
    assert_eq!((&stats["generation_tokens"], &stats["first_tokens"]), (&json!(18), &json!(3)));
    assert!(stats["uptime_seconds"].as_f64() > before["uptime_seconds"].as_f64());
}

#[tokio::test]
async fn the_numbers_name_the_model_the_device_and_the_defaults() {
    let harness = Harness::new(ScriptedExecutor::new(LIMITS), |config| {
        config.device = "cuda:0 H200".into();
        config.sampling_defaults = SamplingDefaults { temperature: Some(0.5), ..Default::default() };
        config.api_keys = vec![ApiKey::new("sk")];
    });
    let stats = harness.get("/page/stats").await.json();
    assert_eq!((&stats["model"], &stats["device"]), (&json!("tiny"), &json!("cuda:0 H200")));
    assert_eq!(stats["api_key_needed"], true);
    assert_eq!(stats["max_model_len"], LIMITS.max_model_len);
    assert_eq!(stats["plan_artifacts"], 0);
    let defaults =
        json!({"temperature": 0.5, "top_p": null, "top_k": null, "min_p": null, "repetition_penalty": null});
    assert_eq!(stats["sampling_defaults"], defaults);
}

//! `/metrics`.

use crate::harness::{Harness, LIMITS, MODEL, chat_prompt, executor, executor_with, sample};
use axum::body::Body;
use axum::http::{Request, header};
use oxide_infer_engine::{ExecutorLimits, StepMix};
use serde_json::json;

/// The names that vLLM's V1 engine exports for what this server has, without prefix, as they are in the text format.
/// From vLLM's `v1/metrics/loggers.py`; the last two are older names that dashboards and autoscalers still read.
const VLLM_NAMES: &[(&str, &str)] = &[
    ("num_requests_running", "gauge"),
    ("num_requests_waiting", "gauge"),
    ("num_requests_waiting_by_reason", "gauge"),
    ("kv_cache_usage_perc", "gauge"),
    ("prefix_cache_queries_total", "counter"),
    ("prefix_cache_hits_total", "counter"),
    ("num_preemptions_total", "counter"),
    ("prompt_tokens_total", "counter"),
    ("prompt_tokens_by_source_total", "counter"),
    ("prompt_tokens_cached_total", "counter"),
    ("prompt_tokens_recomputed_total", "counter"),
    ("generation_tokens_total", "counter"),
    ("request_success_total", "counter"),
    ("iteration_tokens_total", "histogram"),
    ("request_prompt_tokens", "histogram"),
    ("request_generation_tokens", "histogram"),
    ("request_max_num_generation_tokens", "histogram"),
    ("request_params_n", "histogram"),
    ("request_params_max_tokens", "histogram"),
    ("request_prefill_kv_computed_tokens", "histogram"),
    ("time_to_first_token_seconds", "histogram"),
    ("inter_token_latency_seconds", "histogram"),
    ("request_time_per_output_token_seconds", "histogram"),
    ("e2e_request_latency_seconds", "histogram"),
    ("request_queue_time_seconds", "histogram"),
    ("request_inference_time_seconds", "histogram"),
    ("request_prefill_time_seconds", "histogram"),
    ("request_decode_time_seconds", "histogram"),
    ("cache_config_info", "gauge"),
    ("time_per_output_token_seconds", "histogram"),
    ("gpu_cache_usage_perc", "gauge"),
];

#[tokio::test]
async fn vllms_names_come_under_either_prefix() {
    for prefix in ["oxide_infer_", "vllm:"] {
        let harness = Harness::new(executor("x"), |config| config.metrics_prefix = prefix.into());
        let reply = harness.get("/metrics").await;
        assert_eq!(reply.headers[header::CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
        for (name, kind) in VLLM_NAMES {
            let line = format!("# TYPE {prefix}{name} {kind}\n");
            assert!(reply.text().contains(&line), "{line}{}", reply.text());
        }
    }
}

#[tokio::test]
async fn requests_are_counted_as_vllm_counts_them() {
    let harness = Harness::new(executor("Hello"), |config| config.metrics_prefix = "vllm:".into());
    harness.chat(json!({})).await.json();
    harness.chat(json!({"max_tokens": 2, "n": 2})).await.json();
    let metrics = harness.get("/metrics").await;
    let labels = format!("model_name=\"{MODEL}\",engine=\"0\"");
    let value = |name: &str, more: &str| {
        let found = [format!("vllm:{name}{{{labels}{more}}}"), format!("vllm:{name}{{{more}{labels}}}")];
        let found = found.iter().find_map(|series| sample(metrics.text(), series));
        found.unwrap_or_else(|| panic!("{name}{more}\n{}", metrics.text()))
    };
    let prompt = chat_prompt().len() as f64;
    let cached = (chat_prompt().len() - 1) / 4 * 4;
    assert_eq!(value("num_requests_running", ""), 0.0);
    assert_eq!(value("num_requests_waiting", ""), 0.0);
    assert_eq!(value("kv_cache_usage_perc", ""), 0.0);
    assert_eq!(value("num_requests_waiting_by_reason", ",reason=\"capacity\""), 0.0);
    // Once for each prompt, however many answers it has.
    assert_eq!(value("prompt_tokens_total", ""), 2.0 * prompt);
    assert_eq!(value("prompt_tokens_cached_total", ""), cached as f64);
    let but_for_the_last = chat_prompt().len() - cached == 1;
    assert_eq!(value("prompt_tokens_recomputed_total", ""), f64::from(u8::from(but_for_the_last)));
    assert_eq!(value("generation_tokens_total", ""), 6.0 + 2.0 * 2.0);
    assert_eq!(value("request_success_total", ",finished_reason=\"stop\""), 1.0);
    assert_eq!(value("request_success_total", ",finished_reason=\"length\""), 2.0);
    assert_eq!(value("request_success_total", ",finished_reason=\"abort\""), 0.0);
    // Three answers, of 6, 2 and 2 tokens.
    for histogram in
        ["time_to_first_token_seconds", "e2e_request_latency_seconds", "request_decode_time_seconds"]
    {
        assert_eq!(value(&format!("{histogram}_count"), ""), 3.0);
    }
    assert_eq!(value("inter_token_latency_seconds_count", ""), 5.0 + 1.0 + 1.0);
    assert_eq!(value("request_generation_tokens_sum", ""), 10.0);
    assert_eq!(value("request_max_num_generation_tokens_sum", ""), 6.0 + 2.0);
    assert_eq!(value("request_params_n_sum", ""), 3.0);
    assert_eq!(value("request_prompt_tokens_sum", ""), 3.0 * prompt);
}

#[tokio::test]
async fn the_plans_goal_is_told() {
    for (step_mix, goal) in [(StepMix::Mixed, "fastest"), (StepMix::Apart, "deterministic")] {
        let executor = executor_with("x", &[], ExecutorLimits { step_mix, ..LIMITS });
        let metrics = Harness::new(executor, |_| {}).get("/metrics").await;
        let labels = format!("model_name=\"{MODEL}\",engine=\"0\"");
        let series = [
            format!("oxide_infer_plan_info{{goal=\"{goal}\",{labels}}}"),
            format!("oxide_infer_plan_info{{{labels},goal=\"{goal}\"}}"),
        ];
        let found = series.iter().find_map(|series| sample(metrics.text(), series));
        assert_eq!(found, Some(1.0), "{}", metrics.text());
    }
}

#[tokio::test]
async fn http_requests_are_counted_by_route_and_not_by_path() {
    let harness = Harness::answering("x");
    harness.get("/v1/models/a").await;
    harness.get("/v1/models/b").await;
    harness.get("/secret/17").await;
    let metrics = harness.get("/metrics").await;
    let series = "http_requests_total{method=\"GET\",status=\"4xx\",handler=\"/v1/models/{*id}\"}";
    assert_eq!(sample(metrics.text(), series), Some(2.0));
    let unknown = "http_requests_total{method=\"GET\",status=\"4xx\",handler=\"none\"}";
    assert_eq!(sample(metrics.text(), unknown), Some(1.0));
    assert!(!metrics.text().contains("secret"));
}

#[tokio::test]
async fn openmetrics_comes_to_those_who_ask_for_it() {
    let harness = Harness::answering("x");
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
    let request = Request::get("/metrics").header(header::ACCEPT, accept).body(Body::empty()).unwrap();
    let reply = harness.send(request).await;
    assert!(
        reply.headers[header::CONTENT_TYPE].to_str().unwrap().starts_with("application/openmetrics-text")
    );
    assert!(reply.text().ends_with("# EOF\n"));
}

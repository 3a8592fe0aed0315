//! `oxide-infer bench --url` against a server with known timings and counts.

mod common;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use common::{dead_address, oxide_infer, run, serve};
use futures::StreamExt;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(60);
const GAP: Duration = Duration::from_millis(20);

/// What the fake server saw.
#[derive(Default)]
struct Seen {
    bodies: Mutex<Vec<Value>>,
    arrivals: Mutex<Vec<Instant>>,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

fn fake_openai(seen: &Arc<Seen>) -> String {
    let router = Router::new()
        .route("/v1/models", get(async || Json(json!({"data": [{"id": "fake-model"}]}))))
        .route("/v1/completions", post(answer))
        .route("/v1/chat/completions", post(answer))
        .with_state(Arc::clone(seen));
    format!("http://{}", serve(router))
}

/// Streams `max_tokens` pieces: the first after [`FIRST`], the next each after [`GAP`]. Every fifth request fails.
async fn answer(State(seen): State<Arc<Seen>>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let number = {
        let mut bodies = seen.bodies.lock().unwrap();
        bodies.push(body.clone());
        bodies.len()
    };
    seen.arrivals.lock().unwrap().push(Instant::now());
    if headers.get("authorization").is_some_and(|key| key == "Bearer flaky") && number % 5 == 0 {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let running = seen.running.fetch_add(1, Ordering::SeqCst) + 1;
    seen.most_running.fetch_max(running, Ordering::SeqCst);
    let count = body["max_tokens"].as_u64().unwrap();
    let prompt = body["prompt"].as_array().map_or(11, Vec::len);
    let chat = body.get("messages").is_some();
    let pieces = (0..count + 2).map(move |i| match i {
        i if i < count && chat => json!({"choices": [{"delta": {"content": "x"}}]}).to_string(),
        i if i < count => json!({"choices": [{"text": "x"}]}).to_string(),
        i if i == count => {
            json!({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": count}}).to_string()
        }
        _ => "[DONE]".to_owned(),
    });
    let stream = futures::stream::iter(pieces.enumerate()).then(move |(i, piece)| {
        let seen = Arc::clone(&seen);
        async move {
            match i as u64 {
                0 => tokio::time::sleep(FIRST).await,
                i if i < count => tokio::time::sleep(GAP).await,
                i if i == count + 1 => {
                    seen.running.fetch_sub(1, Ordering::SeqCst);
                }
                _ => {}
            }
            Ok::<_, std::io::Error>(Bytes::from(format!("data: {piece}\n\n")))
        }
    });
    Response::builder().header("content-type", "text/event-stream").body(Body::from_stream(stream)).unwrap()
}

fn bench(url: &str, args: &[&str]) -> (i32, Value, String) {
    let home = tempfile::tempdir().unwrap();
    let mut command = oxide_infer(home.path());
    command.args(["bench", "--url", url, "--json", "-"]).args(args);
    let (code, stdout, stderr) = run(&mut command);
    (code, serde_json::from_str(&stdout).unwrap_or(Value::Null), stderr)
}

fn assert_near(value: &Value, expected: f64, over: f64) {
    let found = value.as_f64().unwrap();
    assert!(found >= expected - 1.0 && found <= expected + over, "{found} is not about {expected}");
}

#[test]
fn a_closed_loop_measures_the_servers_times_and_keeps_its_concurrency() {
    let seen = Arc::new(Seen::default());
    let url = fake_openai(&seen);
    let args = ["--num-requests", "8", "--concurrency", "4", "--input-len", "17", "--output-len", "5"];
    let (code, result, stderr) = bench(&url, &args);
    assert_eq!(code, 0, "{stderr}");
    let summary = &result["runs"][0]["summary"];
    assert_eq!(summary["completed"], 8);
    assert_eq!(summary["failed"], 0);
    assert_eq!(summary["input_tokens"], 8 * 17);
    assert_eq!(summary["output_tokens"], 8 * 5);
    // 60 ms, then four gaps of 20 ms; the machine may add to it.
    assert_near(&summary["ttft_ms"]["p50"], 60.0, 60.0);
    assert_near(&summary["itl_ms"]["p50"], 20.0, 20.0);
    assert_near(&summary["tpot_ms"]["p50"], 20.0, 20.0);
    assert_near(&summary["e2e_ms"]["p50"], 140.0, 120.0);
    assert_eq!(seen.most_running.load(Ordering::SeqCst), 4);

    let bodies = seen.bodies.lock().unwrap();
    assert_eq!(bodies.len(), 9, "one to warm up and eight to measure");
    let body = &bodies[1];
    assert_eq!(body["model"], "fake-model");
    assert_eq!(body["ignore_eos"], true);
    assert_eq!(body["stream_options"]["include_usage"], true);
    assert!(body["prompt"].as_array().unwrap().iter().all(|id| id.as_u64().unwrap() < 30_000));
    assert_ne!(bodies[1]["prompt"], bodies[2]["prompt"], "a prefix cache must not answer the second");
}

#[test]
fn an_open_loop_sends_at_its_rate_without_waiting_for_answers() {
    let seen = Arc::new(Seen::default());
    let url = fake_openai(&seen);
    let args =
        ["--num-requests", "40", "--request-rate", "80", "--output-len", "2", "--warmup", "0", "--seed", "5"];
    let (code, result, stderr) = bench(&url, &args);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(result["runs"][0]["summary"]["completed"], 40);
    let arrivals = seen.arrivals.lock().unwrap();
    let span = (*arrivals.last().unwrap() - arrivals[0]).as_secs_f64();
    // 39 gaps of mean 1/80 s are about 0.49 s; a closed loop of one would take 40 × 80 ms = 3.2 s.
    assert!((0.2..1.5).contains(&span), "{span}");
    assert!(seen.most_running.load(Ordering::SeqCst) > 1);
}

#[test]
fn failed_requests_are_counted_by_reason_and_fail_the_command() {
    let seen = Arc::new(Seen::default());
    let url = fake_openai(&seen);
    let args = ["--num-requests", "10", "--warmup", "0", "--output-len", "1", "--api-key", "flaky"];
    let (code, result, _) = bench(&url, &args);
    assert_eq!(code, 1);
    assert_eq!(result["runs"][0]["summary"]["completed"], 8);
    assert_eq!(result["runs"][0]["summary"]["failed"], 2);
    assert_eq!(result["runs"][0]["failures"], json!({"HTTP status 503": 2}));
}

#[test]
fn chat_and_prompt_files_send_what_they_say() {
    let seen = Arc::new(Seen::default());
    let url = fake_openai(&seen);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.txt");
    std::fs::write(&file, "first\nsecond\n").unwrap();
    let path = file.to_str().unwrap();
    let args = [
        "--endpoint",
        "chat",
        "--prompts",
        path,
        "--num-requests",
        "3",
        "--warmup",
        "0",
        "--output-len",
        "1",
    ];
    let (code, result, stderr) = bench(&format!("{url}/v1/"), &args);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(result["runs"][0]["summary"]["input_tokens"], 33);
    let bodies = seen.bodies.lock().unwrap();
    let sent: Vec<_> = bodies.iter().map(|body| body["messages"][0]["content"].as_str().unwrap()).collect();
    assert_eq!(sent, ["first", "second", "first"]);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let url = format!("http://{}", dead_address());
    let (code, _, stderr) = bench(&url, &[]);
    assert_eq!(code, 1);
    assert!(stderr.contains(&format!("cannot ask {url}/v1/models")), "{stderr}");
    let (code, _, stderr) = bench(&url, &["--request-rate", "0", "--model", "m"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("--request-rate 0"), "{stderr}");
}

/// A model directory with a configuration and nothing else.
fn bare_directory() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 256
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

#[test]
fn random_weights_are_measured_with_nothing_but_a_configuration() {
    let folder = bare_directory();
    let model = folder.path().to_str().unwrap();
    let args = ["--weights", "random:7", "--input-len", "100", "--output-len", "20", "--repeat", "2"];
    let mut command = oxide_infer(folder.path());
    command.args(["bench", "--model", model, "--json", "-", "--kv-memory", "1MiB"]).args(args);
    let (code, stdout, stderr) = run(&mut command);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("the weights are random, made from the seed 7"), "{stderr}");
    let result: Value = serde_json::from_str(&stdout).unwrap();
    assert!(result["speed"]["decode_tokens_per_s"]["p50"].as_f64().unwrap() > 0.0, "{stdout}");
}

#[test]
fn random_weights_without_a_directory_or_a_tokenizer_are_refused() {
    let folder = bare_directory();
    let refused = |model: &str| {
        let args = ["serve", "--model", model, "--weights", "random:7", "--port", "0"];
        let (code, _, stderr) = run(oxide_infer(folder.path()).args(args));
        assert_eq!(code, 1, "{stderr}");
        stderr
    };
    let bare = refused(folder.path().to_str().unwrap());
    assert!(bare.contains("no tokenizer.json in") && bare.contains("a model directory needs one"), "{bare}");
    assert!(refused("org/repo").contains("the model org/repo is not a directory here"));
    std::fs::write(folder.path().join("tiny.gguf"), "").unwrap();
    assert!(refused("tiny.gguf").contains("the model tiny.gguf is not a directory here"));
}

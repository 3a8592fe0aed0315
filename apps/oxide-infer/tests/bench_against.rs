//! `oxide-infer bench --url A --against B` and several concurrencies, against servers whose answers are known.

mod common;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use common::{oxide_infer, run, serve};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Every request that any of the servers got: which one, and the body.
type Log = Arc<Mutex<Vec<(&'static str, Value)>>>;

/// A server whose answers are known.
#[derive(Clone)]
struct Fake {
    name: &'static str,
    log: Log,
    /// Before each answer.
    delay: Duration,
    /// Tokens that it counts in a prompt beyond those that were sent.
    more_input: usize,
    /// Tokens that its answers are short of what was asked for.
    fewer_output: u64,
    key: Option<&'static str>,
}

impl Fake {
    fn new(name: &'static str, log: &Log) -> Self {
        Self { name, log: Arc::clone(log), delay: Duration::ZERO, more_input: 0, fewer_output: 0, key: None }
    }

    fn start(self) -> String {
        let model = self.name;
        let router = Router::new()
            .route("/v1/models", get(async move || Json(json!({"data": [{"id": model}]}))))
            .route("/v1/completions", post(answer))
            .with_state(self);
        format!("http://{}", serve(router))
    }
}

/// Answers with a text made of the prompt's first token, so that the same request has the same answer everywhere, but for
/// prompts that begin with an odd one: those are answered with the server's name.
async fn answer(State(fake): State<Fake>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    if let Some(key) = fake.key
        && headers.get("authorization").is_none_or(|given| given != &format!("Bearer {key}"))
    {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    fake.log.lock().unwrap().push((fake.name, body.clone()));
    tokio::time::sleep(fake.delay).await;
    let prompt = body["prompt"].as_array().unwrap();
    let first = prompt[0].as_u64().unwrap();
    let count = body["max_tokens"].as_u64().unwrap() - fake.fewer_output;
    let word = if first % 2 == 0 { first.to_string() } else { fake.name.to_owned() };
    let mut stream = String::new();
    for _ in 0..count {
        stream.push_str(&format!("data: {}\n\n", json!({"choices": [{"text": word}]})));
    }
    let usage = json!({"prompt_tokens": prompt.len() + fake.more_input, "completion_tokens": count});
    stream.push_str(&format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [], "usage": usage})));
    ([("content-type", "text/event-stream")], stream).into_response()
}

fn bench(args: &[&str]) -> (i32, String, String) {
    let home = tempfile::tempdir().unwrap();
    let mut command = oxide_infer(home.path());
    command.args(["bench", "--output-len", "3", "--input-len", "5"]).args(args);
    run(&mut command)
}

fn record(args: &[&str]) -> Value {
    let (code, stdout, stderr) = bench(&[args, &["--json", "-"]].concat());
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn two_servers_take_turns_with_the_same_requests_in_the_same_order() {
    let log = Log::default();
    let (a, b) = (Fake::new("a", &log).start(), Fake::new("b", &log).start());
    let result = record(&["--url", &a, "--against", &b, "--num-requests", "4", "--repeat", "3"]);

    let seen = log.lock().unwrap();
    let servers: Vec<_> = seen.iter().map(|(server, _)| *server).collect();
    // One each to warm up, then turns of four.
    let turns: Vec<_> = servers[2..].chunks(4).map(|turn| turn.join("")).collect();
    assert_eq!(servers[..2], ["a", "b"]);
    assert_eq!(turns, ["aaaa", "bbbb", "bbbb", "aaaa", "aaaa", "bbbb"]);

    let prompts = |server: &str| -> Vec<&Value> {
        seen.iter().filter(|(name, _)| *name == server).map(|(_, body)| &body["prompt"]).collect()
    };
    assert_eq!(prompts("a"), prompts("b"));
    let mut distinct: Vec<_> = prompts("a").iter().map(|prompt| prompt.to_string()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 1 + 3 * 4, "no prompt is sent to a server twice");
    assert!(seen.iter().all(|(name, body)| body["model"] == *name));

    let row = &result["rows"][0];
    assert_eq!(result["runs"].as_array().unwrap().len(), 6);
    let even = prompts("a")[1..].iter().filter(|prompt| prompt[0].as_u64().unwrap() % 2 == 0).count();
    assert!((1..12).contains(&even), "some answers are equal and some are not: {even}");
    let tokens = json!({"input": 12 * 5, "output": 12 * 3, "answers_of_another_length": 0});
    let expected = json!({
        "answered_by_both": 12, "not_answered_by_both": 0, "url": tokens, "against": tokens,
        "prompts_that_differ_in_length": 0, "answers_that_differ_in_length": 0, "answers_that_are_equal": even
    });
    assert_eq!(row["work"], expected);
}

#[test]
fn the_slower_server_has_the_worse_numbers_whichever_it_is() {
    let log = Log::default();
    let quick = Fake::new("quick", &log).start();
    let slow = Fake { delay: Duration::from_millis(400), ..Fake::new("slow", &log) }.start();
    let ratio = |url: &str, against: &str, name: &str| {
        let result = record(&["--url", url, "--against", against, "--num-requests", "1", "--repeat", "1"]);
        let metrics = result["rows"][0]["metrics"].as_array().unwrap();
        metrics.iter().find(|metric| metric["name"] == name).unwrap()["ratio"].as_f64().unwrap()
    };
    for name in ["ttft_p50_ms", "output_tokens_per_s", "e2e_p99_ms"] {
        assert!(ratio(&quick, &slow, name) > 1.0, "{name}");
    }
    assert!(ratio(&slow, &quick, "requests_per_s") < 1.0);
}

#[test]
fn work_that_is_not_the_same_is_said_plainly_and_does_not_fail_the_command() {
    let log = Log::default();
    let ours = Fake::new("ours", &log).start();
    let other = Fake { more_input: 1, fewer_output: 1, ..Fake::new("other", &log) }.start();
    let args = ["--url", &ours, "--against", &other, "--num-requests", "2", "--repeat", "2"];
    let (code, stdout, stderr) = bench(&args);
    assert_eq!(code, 0, "{stderr}");
    let expected = "NOT THE SAME WORK: of 4 requests that both answered, 20 tokens in and 12 out on --url, 24 in and 8 out on \
                    --against";
    for line in [
        expected,
        "4 prompts have another number",
        "4 answers of --against are not as long",
        "answers: 0 of 4",
    ] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
    let (_, stdout, _) = bench(&["--url", &ours, "--against", &ours, "--num-requests", "2", "--repeat", "2"]);
    assert!(stdout.contains("same work: 4 requests, 20 tokens in and 12 out on each"), "{stdout}");
    assert!(stdout.contains("answers: 4 of 4 have the same text on both"), "{stdout}");
}

#[test]
fn the_second_server_has_a_key_and_a_model_of_its_own_and_its_failures_fail_the_command() {
    let log = Log::default();
    let ours = Fake { key: Some("one"), ..Fake::new("ours", &log) }.start();
    let other = Fake { key: Some("two"), ..Fake::new("other", &log) }.start();
    let args =
        ["--url", &ours, "--api-key", "one", "--against", &other, "--against-model", "big", "--repeat", "1"];
    let home = tempfile::tempdir().unwrap();
    let mut command = oxide_infer(home.path());
    command.args(["bench", "--num-requests", "1"]).args(args).env("OXIDE_INFER_AGAINST_API_KEY", "two");
    let (code, _, stderr) = run(&mut command);
    assert_eq!(code, 0, "{stderr}");
    assert!(log.lock().unwrap().iter().any(|(name, body)| *name == "other" && body["model"] == "big"));

    let (code, _, stderr) = bench(&args);
    assert_eq!(code, 1);
    assert!(
        stderr.contains(&format!("a request to warm up {other}/v1/completions failed: HTTP status 401")),
        "{stderr}"
    );
    let (code, stdout, _) = bench(&[&args[..], &["--warmup", "0", "--num-requests", "2"]].concat());
    assert_eq!(code, 1);
    assert!(stdout.contains("FAILED in round 1 of --against: 2 × HTTP status 401"), "{stdout}");
    assert!(stdout.contains("2 requests were not answered in full by both"), "{stdout}");
}

#[test]
fn several_concurrencies_are_measured_one_after_another_with_the_first_wave_apart() {
    let log = Log::default();
    let url = Fake::new("a", &log).start();
    let result = record(&["--url", &url, "--concurrency", "1,3", "--num-requests", "4x", "--warmup", "1x"]);
    let runs = result["runs"].as_array().unwrap();
    let of = |key: &str| runs.iter().map(|run| run[key].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((of("concurrency"), of("num_requests")), (vec![1, 3], vec![4, 12]));
    assert_eq!(log.lock().unwrap().len(), 1 + 4 + 3 + 12);
    for run in runs {
        let summary = &run["summary"];
        let of = |part: &str| summary[part]["max"].as_f64().unwrap();
        let slowest = of("ttft_first_wave_ms").max(of("ttft_afterwards_ms"));
        assert!((slowest - of("ttft_ms")).abs() < 1e-9, "the two parts are the whole: {summary}");
    }
    let (_, stdout, _) = bench(&["--url", &url, "--concurrency", "2", "--num-requests", "2x"]);
    assert!(stdout.contains("  first wave ") && stdout.contains("  afterwards "), "{stdout}");
    let (_, stdout, _) = bench(&["--url", &url, "--concurrency", "2", "--num-requests", "1x"]);
    assert!(!stdout.contains("first wave"), "there is nothing afterwards: {stdout}");
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    for (args, code, reason) in [
        (&["--model", "m", "--against", "http://127.0.0.1:1"][..], 2, "--url <URL>"),
        (&["--url", "http://127.0.0.1:1", "--num-requests", "0x"], 2, "there must be a request to measure"),
        (&["--url", "http://127.0.0.1:1", "--concurrency", "1,0"], 2, "'0' for '--concurrency"),
        (
            &["--url", "http://127.0.0.1:1", "--model", "m", "--request-rate", "1", "--num-requests", "4x"],
            1,
            "--num-requests 4x counts by --concurrency",
        ),
    ] {
        let (found, _, stderr) = bench(args);
        assert_eq!(found, code, "{args:?}: {stderr}");
        assert!(stderr.contains(reason), "{args:?}: {stderr}");
    }
}

//! The demo model through the binary: one answer, a chat, and the server's life. Expected texts come from
//! `testdata/cases/smollm2.json`, which two other engines made.

mod common;

use common::{oxide_infer, run};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn demo_model() -> String {
    let given = std::env::var_os("OXIDE_INFER_TEST_MODEL").map(PathBuf::from);
    let path = given.unwrap_or_else(|| workspace().join("models/SmolLM2-135M-Instruct.Q4_1.gguf"));
    assert!(path.is_file(), "{} is not there; `make model` fetches it", path.display());
    path.to_str().unwrap().to_owned()
}

/// A case of the oracle.
fn case(find: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let text = std::fs::read_to_string(workspace().join("testdata/cases/smollm2.json")).unwrap();
    let mut cases: serde_json::Value = serde_json::from_str(&text).unwrap();
    let cases = cases["cases"].as_array_mut().unwrap();
    std::mem::take(cases.iter_mut().find(|case| find(case)).unwrap())
}

fn ask(home: &Path, args: &[&str]) -> Command {
    let mut command = oxide_infer(home);
    command.args(["run", "--model", &demo_model(), "--max-model-len", "512"]).args(args);
    command
}

const QUESTION: &str = "What is the capital of France?";

#[test]
fn run_answers_as_other_engines_do_and_says_where_it_runs() {
    let home = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run(&mut ask(home.path(), &["--temperature", "0", QUESTION]));
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout, "The capital of France is Paris.\n");
    let first = stderr.lines().next().unwrap();
    assert!(first.contains("runs on the CPU: no GPU can be used"), "{stderr}");
    assert!(stderr.contains("KV memory"), "the KV memory taken must be printed: {stderr}");
}

#[test]
fn raw_prompts_are_continued_without_a_template() {
    let case =
        case(|case| case.get("prompt").is_some_and(|prompt| prompt.as_str().unwrap().starts_with("Once")));
    let home = tempfile::tempdir().unwrap();
    let prompt = case["prompt"].as_str().unwrap();
    let args = ["--raw", "--temperature", "0", "--max-tokens", "20", "--device", "cpu", prompt];
    let (code, stdout, stderr) = run(&mut ask(home.path(), &args));
    assert_eq!(code, 0, "{stderr}");
    let expected = case["text"].as_str().unwrap();
    let answer = stdout.trim_end_matches('\n');
    assert!(answer.len() > 40 && expected.starts_with(answer), "{answer:?} does not start {expected:?}");
    assert!(stderr.contains("--device cpu was given"), "{stderr}");
}

#[test]
fn stop_strings_end_an_answer_and_the_prompt_may_come_from_standard_input() {
    let home = tempfile::tempdir().unwrap();
    let mut command = ask(home.path(), &["--temperature", "0", "--stop", "Paris", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(QUESTION.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "The capital of France is \n");
}

#[test]
fn one_seed_gives_one_answer() {
    let home = tempfile::tempdir().unwrap();
    let sample = |seed: &str| {
        let args = ["--temperature", "1.5", "--seed", seed, "--max-tokens", "16", "Tell me a story."];
        run(&mut ask(home.path(), &args)).1
    };
    assert_eq!(sample("7"), sample("7"));
    assert_ne!(sample("7"), sample("8"));
}

#[test]
fn what_cannot_be_run_fails_with_one_clear_message() {
    let home = tempfile::tempdir().unwrap();
    let model = demo_model();
    for (args, expected) in [
        (vec!["run", "--model", "./none.gguf", "x"], "./none.gguf does not exist"),
        (vec!["run", "--model", &model, "--temperature", "-1", "x"], "temperature"),
        (vec!["run", "--model", &model, "--top-p", "2", "x"], "top_p"),
        (vec!["run", "--model", &model, "--chat-template", "none.jinja", "x"], "none.jinja"),
        (vec!["run", "--model", &model, "--log-level", "loud=very", "x"], "--log-level"),
        (vec!["run", "--model", &model, "--kv-memory", "1KiB", "x"], "--kv-memory"),
        (vec!["serve", "--model", &model, "--api-key="], "--api-key"),
        (vec!["serve", "--model", &model, "--host", "not a host"], "not a host"),
    ] {
        let (code, _, stderr) = run(oxide_infer(home.path()).args(&args));
        let errors: Vec<_> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(code == 1 || code == 2, "{args:?}: {stderr}");
        assert_eq!(errors.len(), 1, "{args:?}: {stderr}");
        assert!(errors[0].contains(expected), "{args:?}: {stderr}");
    }
}

#[test]
fn an_explicit_gpu_that_cannot_be_used_fails_before_anything_is_loaded() {
    let home = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run(&mut ask(home.path(), &["--device", "cuda:7", QUESTION]));
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("--device cuda:7 cannot be used"), "{stderr}");
}

#[test]
fn a_chat_goes_on_until_the_end_of_input_and_knows_its_commands() {
    let home = tempfile::tempdir().unwrap();
    let mut command = oxide_infer(home.path());
    command.args(["chat", "--model", &demo_model(), "--temperature", "0", "--max-model-len", "512"]);
    command.args(["--max-tokens", "24", "--log-level", "warn"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = [QUESTION, "And of Italy?", "/reset", QUESTION, "/fly", "/help", "/quit", "never read"];
    child.stdin.take().unwrap().write_all((lines.join("\n") + "\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer = "The capital of France is Paris.\n";
    assert!(stdout.starts_with(answer), "{stdout}");
    assert_eq!(
        stdout.matches(answer).count(),
        2,
        "after /reset the first question has its first answer: {stdout}"
    );
    assert!(stdout.contains("there is no /fly") && stdout.contains("/system TEXT"), "{stdout}");
}

struct Server {
    child: Child,
    url: String,
    /// Lines of standard error up to the one with the address.
    log: String,
}

impl Server {
    fn start(home: &Path, args: &[&str]) -> Self {
        let mut command = oxide_infer(home);
        command.args(["serve", "--model", &demo_model(), "--port", "0", "--max-model-len", "256"]).args(args);
        let child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut server = Self { child, url: String::new(), log: String::new() };
        let mut lines = BufReader::new(server.child.stderr.take().unwrap());
        while server.url.is_empty() {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "the server ended: {}", server.log);
            if let Some(at) = line.find("http://127.0.0.1:") {
                line[at..].split([' ', '"', '\n', ',']).next().unwrap().clone_into(&mut server.url);
            }
            server.log.push_str(&line);
        }
        // What comes later must not block the server.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        server
    }

    /// Sends a request and gives the status and the body.
    fn request(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> (u16, String) {
        let address = self.url.trim_start_matches("http://");
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{key}\
             content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let status = response.split(' ').nth(1).unwrap().parse().unwrap();
        (status, response.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        let limit = Instant::now() + Duration::from_secs(20);
        while Instant::now() < limit {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the server did not end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn serve_answers_under_its_names_and_ends_with_0_on_sigterm() {
    let home = tempfile::tempdir().unwrap();
    let mut server =
        Server::start(home.path(), &["--served-model-name", "first,second", "--log-format", "json"]);
    assert!(server.log.lines().all(|line| line.starts_with('{')), "{}", server.log);
    let (status, models) = server.request("GET", "/v1/models", None, "");
    assert_eq!(status, 200);
    assert!(models.contains("first") && models.contains("second"), "{models}");
    let body = serde_json::json!({
        "model": "second", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 16
    });
    let (status, answer) = server.request("POST", "/v1/chat/completions", None, &body.to_string());
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains("The capital of France is Paris."), "{answer}");
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn serve_asks_for_one_of_its_keys() {
    let home = tempfile::tempdir().unwrap();
    let mut server = Server::start(home.path(), &["--api-key", "one", "--api-key", "two"]);
    assert!(!server.log.contains("one"), "keys must not be logged: {}", server.log);
    assert_eq!(server.request("GET", "/v1/models", None, "").0, 401);
    assert_eq!(server.request("GET", "/v1/models", Some("three"), "").0, 401);
    assert_eq!(server.request("GET", "/v1/models", Some("two"), "").0, 200);
    server.signal("INT");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn an_address_in_use_is_named() {
    let home = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, _, stderr) =
        run(oxide_infer(home.path()).args(["serve", "--model", &demo_model(), "--port", &port]));
    assert_eq!(code, 1);
    assert!(
        stderr.contains(&format!("cannot listen on 127.0.0.1:{port}: Address already in use")),
        "{stderr}"
    );
}

#[test]
fn the_engine_is_measured_in_process() {
    let home = tempfile::tempdir().unwrap();
    let mut command = oxide_infer(home.path());
    command.args([
        "bench",
        "--model",
        &demo_model(),
        "--input-len",
        "32",
        "--output-len",
        "4",
        "--batch",
        "3",
        "--repeat",
        "2",
    ]);
    let (code, stdout, stderr) = run(command.args(["--json", "-", "--max-model-len", "64"]));
    assert_eq!(code, 0, "{stderr}");
    let result: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let median = |what: &str| result["speed"][what]["p50"].as_f64().unwrap();
    for what in ["prefill_tokens_per_s", "decode_tokens_per_s", "output_tokens_per_s"] {
        assert!(median(what) > 1.0, "{stdout}");
    }
    // A step gives each of the three sequences a token: the quickest is where the rate was highest.
    let step_s = result["speed"]["decode_step_ms"]["min"].as_f64().unwrap() / 1e3;
    let rate = result["speed"]["decode_tokens_per_s"]["max"].as_f64().unwrap();
    assert!((rate * step_s / 3.0 - 1.0).abs() < 1e-6, "{stdout}");
    assert_eq!(result["batch"], 3);
    assert!(result["speed"]["peak_rss_bytes"].as_u64().unwrap() > 90_000_000, "{stdout}");
}

//! One streamed request, timed.

use super::workload::{Prompt, Request};
use crate::cli::options::BenchEndpoint;
use futures::StreamExt;
use serde::Deserialize;
use std::fmt;
use std::time::{Duration, Instant};

/// Times and counts of one request that was answered in full.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    /// From sending the request to the first piece with text.
    pub(crate) ttft: Duration,
    /// From sending the request to the end of the stream.
    pub(crate) e2e: Duration,
    /// From each piece with text to the next.
    pub(crate) gaps: Vec<Duration>,
    pub(crate) input_tokens: usize,
    pub(crate) output_tokens: usize,
    /// The whole answer.
    pub(crate) text: String,
}

/// Why a request was not answered in full. Requests that failed for the same reason are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// Another status than 200.
    Status(u16),
    Connect,
    Timeout,
    /// The connection broke within the answer.
    Broken,
    /// The server sent an error in the stream.
    Server(String),
    /// The stream ended without `[DONE]`.
    Truncated,
    /// No piece of the stream had text.
    Empty,
    /// No piece of the stream said how many tokens there are.
    NoUsage,
    /// What came is not the OpenAI API.
    Protocol(String),
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Status(status) => write!(f, "HTTP status {status}"),
            Failure::Connect => f.write_str("cannot connect"),
            Failure::Timeout => f.write_str("timed out"),
            Failure::Broken => f.write_str("connection broke"),
            Failure::Server(message) => write!(f, "error in the stream: {message}"),
            Failure::Truncated => f.write_str("stream ended without [DONE]"),
            Failure::Empty => f.write_str("no text in the stream"),
            Failure::NoUsage => f.write_str("no usage in the stream"),
            Failure::Protocol(message) => write!(f, "not the OpenAI API: {message}"),
            Failure::Other(message) => f.write_str(message),
        }
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        if error.is_timeout() {
            Failure::Timeout
        } else if error.is_connect() {
            Failure::Connect
        } else {
            Failure::Broken
        }
    }
}

/// Sends requests to one endpoint of one server.
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    endpoint: BenchEndpoint,
    model: String,
    api_key: Option<String>,
}

impl Client {
    /// Finds the model's name if none is given. `base` is the server's URL, with or without `/v1`.
    pub(crate) async fn connect(
        base: &str,
        endpoint: BenchEndpoint,
        model: Option<String>,
        api_key: Option<String>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let base = base.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let http = reqwest::Client::builder().timeout(timeout).pool_max_idle_per_host(1024).build()?;
        let model = match model {
            Some(model) => model,
            None => first_model(&http, base, api_key.as_deref()).await?,
        };
        let path = match endpoint {
            BenchEndpoint::Completions => "completions",
            BenchEndpoint::Chat => "chat/completions",
        };
        Ok(Self { http, url: format!("{base}/v1/{path}"), endpoint, model, api_key })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The model's name in requests.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// Sends a request and reads its stream to the end.
    pub(crate) async fn send(&self, request: &Request) -> Result<Sample, Failure> {
        let post = authorize(self.http.post(&self.url), self.api_key.as_deref()).json(&self.body(request));
        let sent = Instant::now();
        let response = post.send().await?;
        if response.status() != reqwest::StatusCode::OK {
            return Err(Failure::Status(response.status().as_u16()));
        }
        let mut bytes = response.bytes_stream();
        let mut events = SseReader::default();
        let mut progress = Progress::default();
        while let Some(chunk) = bytes.next().await {
            events.push(&chunk?);
            while let Some(data) = events.next() {
                progress.take(&data, Instant::now())?;
            }
        }
        progress.finish(sent)
    }

    fn body(&self, request: &Request) -> serde_json::Value {
        let mut body = serde_json::json!({
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        match (self.endpoint, &request.prompt) {
            (BenchEndpoint::Completions, Prompt::Tokens(tokens)) => body["prompt"] = tokens.as_slice().into(),
            (BenchEndpoint::Completions, Prompt::Text(text)) => body["prompt"] = text.as_str().into(),
            (BenchEndpoint::Chat, Prompt::Text(text)) => {
                body["messages"] = serde_json::json!([{"role": "user", "content": text}]);
            }
            (BenchEndpoint::Chat, Prompt::Tokens(tokens)) => {
                body["messages"] = serde_json::json!([{"role": "user", "content": format!("{tokens:?}")}]);
            }
        }
        body
    }
}

fn authorize(request: reqwest::RequestBuilder, api_key: Option<&str>) -> reqwest::RequestBuilder {
    match api_key {
        Some(key) => request.bearer_auth(key),
        None => request,
    }
}

async fn first_model(http: &reqwest::Client, base: &str, api_key: Option<&str>) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
    }
    use anyhow::Context;
    let url = format!("{base}/v1/models");
    let response = authorize(http.get(&url), api_key).send().await;
    let response = response.and_then(reqwest::Response::error_for_status);
    let response =
        response.with_context(|| format!("cannot ask {url} for its models; is the server running?"))?;
    let models: Models =
        response.json().await.with_context(|| format!("{url} does not answer as OpenAI does"))?;
    let first = models.data.into_iter().next().with_context(|| format!("{url} lists no model"))?;
    Ok(first.id)
}

/// Splits a byte stream into the `data` of server-sent events.
#[derive(Default)]
struct SseReader {
    buffer: Vec<u8>,
}

impl SseReader {
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole `data:` line. (Servers of this API send one line an event.)
    fn next(&mut self) -> Option<String> {
        while let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                return Some(data.trim_start().to_owned());
            }
        }
        None
    }
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<ErrorBody>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
    #[serde(default)]
    completion_tokens: usize,
}

#[derive(Deserialize)]
struct ErrorBody {
    message: String,
}

/// What a stream has brought so far.
#[derive(Default)]
struct Progress {
    first: Option<Instant>,
    last: Option<Instant>,
    gaps: Vec<Duration>,
    text: String,
    usage: Option<Usage>,
    done: Option<Instant>,
}

impl Progress {
    fn take(&mut self, data: &str, now: Instant) -> Result<(), Failure> {
        if data == "[DONE]" {
            self.done = Some(now);
            return Ok(());
        }
        let chunk: Chunk = serde_json::from_str(data).map_err(|e| Failure::Protocol(e.to_string()))?;
        if let Some(error) = chunk.error {
            return Err(Failure::Server(error.message));
        }
        let before = self.text.len();
        for choice in &chunk.choices {
            let delta = choice.delta.as_ref().and_then(|delta| delta.content.as_deref());
            self.text.push_str(choice.text.as_deref().or(delta).unwrap_or_default());
        }
        if self.text.len() > before {
            if let Some(last) = self.last {
                self.gaps.push(now - last);
            }
            self.first.get_or_insert(now);
            self.last = Some(now);
        }
        if chunk.usage.is_some() {
            self.usage = chunk.usage;
        }
        Ok(())
    }

    fn finish(self, sent: Instant) -> Result<Sample, Failure> {
        let done = self.done.ok_or(Failure::Truncated)?;
        let first = self.first.ok_or(Failure::Empty)?;
        let usage = self.usage.ok_or(Failure::NoUsage)?;
        Ok(Sample {
            ttft: first - sent,
            e2e: done - sent,
            gaps: self.gaps,
            input_tokens: usage.prompt_tokens,
            output_tokens: usage.completion_tokens,
            text: self.text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
        let stream = b"data: {\"a\": \"\xc3\xa9\"}\r\n\r\n: comment\n\ndata:[DONE]\n\n";
        for size in 1..stream.len() {
            let mut reader = SseReader::default();
            let mut found = Vec::new();
            for piece in stream.chunks(size) {
                reader.push(piece);
                while let Some(data) = reader.next() {
                    found.push(data);
                }
            }
            assert_eq!(found, ["{\"a\": \"é\"}", "[DONE]"], "pieces of {size} bytes");
        }
    }

    #[test]
    fn times_are_those_of_pieces_with_text() {
        let sent = Instant::now();
        let at = |ms| sent + Duration::from_millis(ms);
        let mut progress = Progress::default();
        for (ms, data) in [
            (10, r#"{"choices": [{"delta": {"role": "assistant", "content": ""}}]}"#),
            (40, r#"{"choices": [{"delta": {"content": "a"}}]}"#),
            (60, r#"{"choices": [{"delta": {"content": "b"}}]}"#),
            (65, r#"{"choices": [{"delta": {}, "finish_reason": "length"}]}"#),
            (90, r#"{"choices": [{"delta": {"content": "c"}}]}"#),
            (95, r#"{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}"#),
            (100, "[DONE]"),
        ] {
            progress.take(data, at(ms)).unwrap();
        }
        let sample = progress.finish(sent).unwrap();
        let ms = Duration::from_millis;
        let expected = Sample {
            ttft: ms(40),
            e2e: ms(100),
            gaps: vec![ms(20), ms(30)],
            input_tokens: 7,
            output_tokens: 3,
            text: "abc".to_owned(),
        };
        assert_eq!(sample, expected);
    }

    #[test]
    fn what_is_wrong_with_a_stream_is_named() {
        let now = Instant::now();
        let run = |lines: &[&str]| {
            let mut progress = Progress::default();
            for line in lines {
                progress.take(line, now)?;
            }
            progress.finish(now)
        };
        let text = r#"{"choices": [{"text": "a"}]}"#;
        assert_eq!(run(&[text]), Err(Failure::Truncated));
        assert_eq!(run(&[text, "[DONE]"]), Err(Failure::NoUsage));
        assert_eq!(run(&["[DONE]"]), Err(Failure::Empty));
        assert_eq!(run(&[r#"{"error": {"message": "boom"}}"#]), Err(Failure::Server("boom".into())));
        assert!(matches!(run(&["<html>"]), Err(Failure::Protocol(_))));
    }
}

//! As much HTTP as it takes to see what a client of the server sees.

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A response, read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: String,
}

/// What an answer of `/v1/completions` came to, streamed or whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Events with text, or 1 of a whole answer.
    pub(super) pieces: usize,
    pub(super) finish_reason: Option<String>,
    pub(super) error: Option<ApiError>,
}

/// The API's error object.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) message: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) code: String,
}

/// Sends a request and reads what comes until the server closes, for at most `patience`.
pub(super) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
    patience: Duration,
) -> Result<Reply> {
    let until = Instant::now() + patience;
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes())?;
    let bytes = read_until(&mut stream, until)
        .with_context(|| format!("{method} {path} has no end within {patience:?}"))?;
    Reply::parse(&bytes)
}

/// Reads to the end, unless that comes too late.
fn read_until(stream: &mut TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let (mut bytes, mut part) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Ok(bytes),
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
}

impl Reply {
    fn parse(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes)?;
        let (head, body) = text.split_once("\r\n\r\n").context("the response has no end of its head")?;
        let status = head.split(' ').nth(1).context("the response has no status")?.parse()?;
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { dechunked(body)? } else { body.to_owned() };
        Ok(Self { status, body })
    }
}

/// A body in HTTP's chunks, put together. A body without the last chunk is cut off.
fn dechunked(mut body: &str) -> Result<String> {
    let mut whole = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").context("the response was cut off")?;
        let size = usize::from_str_radix(size, 16).with_context(|| format!("{size:?} is no chunk's size"))?;
        if size == 0 {
            return Ok(whole);
        }
        let chunk = rest.get(..size).context("the response was cut off in a chunk")?;
        whole.push_str(chunk);
        body = rest[size..].strip_prefix("\r\n").context("a chunk has no end")?;
    }
}

impl Answer {
    pub(super) fn of(reply: &Reply) -> Result<Self> {
        let mut answer = Self { status: reply.status, pieces: 0, finish_reason: None, error: None };
        if let Ok(whole) = serde_json::from_str(&reply.body) {
            answer.take(&whole)?;
            return Ok(answer);
        }
        let mut done = false;
        for data in reply.body.lines().filter_map(|line| line.strip_prefix("data: ")) {
            ensure!(!done, "an event comes after [DONE]");
            match data {
                "[DONE]" => done = true,
                event => answer.take(&serde_json::from_str(event)?)?,
            }
        }
        ensure!(done, "the stream has no [DONE]");
        Ok(answer)
    }

    /// Takes an event, or a whole answer.
    fn take(&mut self, event: &Value) -> Result<()> {
        if let Some(error) = event.get("error") {
            self.error = Some(serde_json::from_value(error.clone())?);
            return Ok(());
        }
        let choice = &event["choices"][0];
        let Some(text) = choice["text"].as_str() else { bail!("an event has no text: {event}") };
        self.pieces += usize::from(!text.is_empty());
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
        Ok(())
    }
}

/// The value of a metric that has one sample, by its name.
pub(super) fn sample(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics
        .lines()
        .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(text: &str) -> Result<Reply> {
        Reply::parse(text.as_bytes())
    }

    #[test]
    fn a_response_is_read_whole_or_in_chunks_and_one_that_is_cut_off_is_an_error() {
        let whole = reply("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        assert_eq!(whole, Reply { status: 503, body: "{}".to_owned() });
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let chunked = reply(&format!("{head}4\r\ndata\r\na\r\n: [DONE]\n\n\r\n0\r\n\r\n")).unwrap();
        assert_eq!(chunked.body, "data: [DONE]\n\n");
        for cut in ["4\r\nda", "4\r\ndata\r\n", "4\r\ndataX"] {
            assert!(reply(&format!("{head}{cut}")).is_err(), "{cut:?}");
        }
    }

    #[test]
    fn an_answer_is_its_pieces_and_its_end_or_its_error() {
        let of = |status, body: &str| Answer::of(&Reply { status, body: body.to_owned() });
        let event =
            |text: &str| format!(r#"data: {{"choices": [{{"text": "{text}", "finish_reason": null}}]}}"#);
        let error = r#"{"error": {"message": "lost", "type": "service_unavailable_error", "param": null, "code": "engine_failed"}}"#;
        let streamed = format!("{}\n\n{}\n\ndata: {error}\n\ndata: [DONE]\n\n", event("a"), event("b"));
        let streamed = of(200, &streamed).unwrap();
        assert_eq!((streamed.pieces, streamed.finish_reason.as_deref()), (2, None));
        assert_eq!(streamed.error.as_ref().map(|error| error.code.as_str()), Some("engine_failed"));
        let refused = of(503, error).unwrap();
        assert_eq!((refused.status, refused.error), (503, streamed.error));
        let whole = of(200, r#"{"choices": [{"text": "ab", "finish_reason": "length"}]}"#).unwrap();
        assert_eq!((whole.pieces, whole.finish_reason.as_deref(), whole.error), (1, Some("length"), None));
        assert!(of(200, &event("a")).unwrap_err().to_string().contains("no [DONE]"));
    }

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let metrics = "# HELP x_running y\nx_running_old 7\nx_running{model_name=\"m n\"} 3\nx_waiting 4.0\n";
        assert_eq!(sample(metrics, "x_running"), Some(3.0));
        assert_eq!(sample(metrics, "x_waiting"), Some(4.0));
        assert_eq!(sample(metrics, "x"), None);
    }
}

//! What only shows over real connections, or over time: slow and gone clients, drain, the end of the server.

use crate::harness::{Harness, LIMITS, MODEL, chat_body, endless, executor};
use axum::body::Body;
use axum::http::{Request, header};
use futures::StreamExt;
use oxide_infer::TokenId;
use oxide_infer_engine::testing::scripted::ScriptedExecutor;
use oxide_infer_engine::{EngineHandle, ExecutorLimits};
use oxide_infer_server::{ServeError, ServerConfig};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server that listens.
struct Running {
    address: SocketAddr,
    engine: EngineHandle,
    shutdown: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    async fn start(executor: ScriptedExecutor, configure: impl FnOnce(&mut ServerConfig)) -> Self {
        let harness = Harness::new(executor, configure);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, signal) = oneshot::channel();
        let run = harness.server.run(listener, async { signal.await.unwrap() });
        Self { address, engine: harness.engine, shutdown: Some(shutdown), ended: tokio::spawn(run) }
    }

    fn shut_down(&mut self) {
        self.shutdown.take().unwrap().send(()).unwrap();
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection on which a request has been sent.
    async fn request(&self, method: &str, path: &str, body: &Value) -> TcpStream {
        let mut stream = self.connect().await;
        send(&mut stream, method, path, body).await;
        stream
    }

    /// Status line and all that follows until the server closes.
    async fn reply(&self, method: &str, path: &str, body: &Value) -> String {
        read_all(self.request(method, path, body).await).await
    }

    async fn wait_until(&self, what: &str, condition: impl Fn(&EngineHandle) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !condition(&self.engine) {
            assert!(
                Instant::now() < deadline,
                "waited in vain until {what}: {:?}",
                self.engine.metrics().snapshot()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn send(stream: &mut TcpStream, method: &str, path: &str, body: &Value) {
    let body = body.to_string();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
}

async fn read_all(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Reads until `text` has come.
async fn read_until(stream: &mut TcpStream, text: &str) {
    let mut got = Vec::new();
    while !String::from_utf8_lossy(&got).contains(text) {
        assert!(stream.read_buf(&mut got).await.unwrap() > 0, "{}", String::from_utf8_lossy(&got));
    }
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_client_that_goes_away_mid_stream_cancels_its_request() {
    let server = Running::start(endless(Duration::from_millis(5)), |_| {}).await;
    let mut stream = server.request("POST", CHAT, &chat_body(json!({"stream": true}))).await;
    read_until(&mut stream, "\"content\":\"a").await;
    assert_eq!(server.engine.metrics().snapshot().running, 1);
    drop(stream);
    server.wait_until("it is cancelled", |engine| engine.metrics().snapshot().finished_cancelled == 1).await;
    assert_eq!(server.engine.metrics().snapshot().running, 0);
    assert_eq!(server.engine.metrics().snapshot().kv_pages_used, 0);
}

#[tokio::test]
async fn a_client_that_goes_away_while_it_waits_for_a_whole_answer_cancels_its_request() {
    let server = Running::start(endless(Duration::from_millis(5)), |_| {}).await;
    let stream = server.request("POST", CHAT, &chat_body(json!({}))).await;
    server.wait_until("it runs", |engine| engine.metrics().snapshot().running == 1).await;
    drop(stream);
    server.wait_until("it is cancelled", |engine| engine.metrics().snapshot().finished_cancelled == 1).await;
}

/// Enough output to fill every buffer between server and client.
fn bulky() -> (ScriptedExecutor, Value) {
    let limits = ExecutorLimits { max_model_len: 8192, num_pages: 512, page_size: 64, ..LIMITS };
    let fields = json!({"stream": true, "logprobs": true, "top_logprobs": 20, "max_tokens": 4000});
    (ScriptedExecutor::new(limits).answering([TokenId(u32::from(b'a'))]), chat_body(fields))
}

/// A connection that takes a few kilobytes and then nothing.
async fn stalled(server: &Running, body: &Value) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    send(&mut stream, "POST", CHAT, body).await;
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_up_nobody_and_is_cut_off() {
    let (executor, body) = bulky();
    let server = Running::start(executor, |config| {
        config.limits.max_requests_in_flight = 2;
        config.limits.write_timeout = Duration::from_millis(500);
    })
    .await;
    let _stalled = stalled(&server, &body).await;
    server.wait_until("it runs", |engine| engine.metrics().snapshot().running == 1).await;
    // Others are served meanwhile.
    let small = chat_body(json!({"max_tokens": 5}));
    let started = Instant::now();
    let reply = server.reply("POST", CHAT, &small).await;
    assert!(reply.contains("aaaaa"), "{reply}");
    assert!(started.elapsed() < Duration::from_secs(5));
    // Its place is given back: with it cut off, two more fit at once.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let (one, two) = tokio::join!(server.reply("POST", CHAT, &small), server.reply("POST", CHAT, &small));
        if one.starts_with("HTTP/1.1 200") && two.starts_with("HTTP/1.1 200") {
            break;
        }
        assert!(Instant::now() < deadline, "{one}\n{two}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The body of a stream that is not polled formats nothing; then everything comes at once.
#[tokio::test]
async fn what_a_client_did_not_read_in_time_comes_as_one_chunk() {
    let (begun, wait) = std::sync::mpsc::channel();
    // The second token is not there before the response has begun.
    let held = executor(&"abcdefghij".repeat(10)).on_collect(move |step| {
        if step == 1 {
            let _ = wait.recv();
        }
    });
    let harness = Harness::new(held, |_| {});
    let request = Request::post(CHAT).header(header::CONTENT_TYPE, "application/json");
    let body = chat_body(json!({"stream": true})).to_string();
    let response = harness.respond(request.body(Body::from(body)).unwrap()).await;
    begun.send(()).unwrap();
    while harness.engine.metrics().snapshot().finished_stop == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let frames: Vec<_> = response.into_body().into_data_stream().collect().await;
    // What was there when the response began, and all that was made until the client read.
    assert_eq!(frames.len(), 2);
    let text: Vec<u8> = frames.into_iter().flat_map(|frame| frame.unwrap()).collect();
    let text = String::from_utf8(text).unwrap();
    // The role, the first text, all the others with the reason of its end, and the mark of the stream's end.
    assert!((3..=4).contains(&text.matches("data: ").count()), "{text}");
}

#[tokio::test]
async fn silence_is_filled_with_comments() {
    let slow = executor("x").on_collect(|step| {
        if step == 0 {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let harness = Harness::new(slow, |config| config.limits.keep_alive = Duration::from_millis(20));
    let reply = harness.chat(json!({"stream": true})).await;
    let comments = reply.text().matches(": keep-alive\n\n").count();
    assert!((2..=10).contains(&comments), "{comments}");
    assert_eq!(reply.events().last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn a_drain_lets_requests_in_flight_end_and_refuses_new_ones() {
    let mut server = Running::start(endless(Duration::from_millis(10)), |_| {}).await;
    let mut stream =
        server.request("POST", CHAT, &chat_body(json!({"stream": true, "max_tokens": 60}))).await;
    read_until(&mut stream, "\"content\":\"a").await;
    server.shut_down();
    let not_ready = async {
        loop {
            let reply = server.reply("GET", "/ready", &json!({})).await;
            if reply.starts_with("HTTP/1.1 503") {
                break reply;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(not_ready.await.ends_with("{\"status\":\"draining\"}"));
    let refused = server.reply("POST", CHAT, &chat_body(json!({}))).await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("shutting_down"), "{refused}");
    assert!(server.reply("GET", "/health", &json!({})).await.starts_with("HTTP/1.1 200"));
    let rest = read_all(stream).await;
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"), "{rest}");
    server.ended.await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_drain_ends_in_time_and_tells_those_it_cuts_off() {
    let mut server = Running::start(endless(Duration::from_millis(20)), |config| {
        config.drain_timeout = Duration::from_millis(100);
    })
    .await;
    let mut stream = server.request("POST", CHAT, &chat_body(json!({"stream": true}))).await;
    read_until(&mut stream, "\"content\":\"a").await;
    let started = Instant::now();
    server.shut_down();
    let rest = read_all(stream).await;
    assert!(rest.contains("shutting_down") && rest.contains("the answer was not complete"), "{rest}");
    server.ended.await.unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test]
async fn an_idle_server_ends_at_once_despite_open_connections() {
    let mut server = Running::start(executor("x"), |_| {}).await;
    let _idle = server.connect().await;
    let started = Instant::now();
    server.shut_down();
    server.ended.await.unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_failed_engine_ends_the_server_with_an_error() {
    let failing = endless(Duration::from_millis(1)).failing_at(3, "device lost");
    let server = Running::start(failing, |_| {}).await;
    let reply = server.reply("POST", CHAT, &chat_body(json!({}))).await;
    assert!(reply.starts_with("HTTP/1.1 503"), "{reply}");
    assert!(server.reply("GET", "/health", &json!({})).await.starts_with("HTTP/1.1 503"));
    match server.ended.await.unwrap() {
        Err(ServeError::EngineFailed(message)) => assert!(message.contains("device lost"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_requests_at_once_are_all_answered() {
    let server = Running::start(executor("Hello"), |_| {}).await;
    let body = json!({"model": MODEL, "prompt": "a", "stream": true});
    let replies = (0..50).map(|_| server.reply("POST", "/v1/completions", &body));
    for reply in futures::future::join_all(replies).await {
        assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("[DONE]"), "{reply}");
    }
    assert_eq!(server.engine.metrics().snapshot().finished_stop, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_with_256_streams_serves_those_that_read_and_waits_for_nobody_else() {
    let limits = ExecutorLimits { max_sequences: 256, num_pages: 8192, ..LIMITS };
    let endless = ScriptedExecutor::new(limits).answering([TokenId(u32::from(b'a'))]);
    let mut server = Running::start(endless.step_time(Duration::from_millis(5)), |_| {}).await;
    let body = chat_body(json!({"stream": true, "max_tokens": 100}));
    let mut streams = Vec::new();
    for _ in 0..256 {
        streams.push(server.request("POST", CHAT, &body).await);
    }
    server.wait_until("all run", |engine| engine.metrics().snapshot().running == 256).await;
    let (mut readers, mut idle) = (Vec::new(), Vec::new());
    for (index, mut stream) in streams.into_iter().enumerate() {
        match index % 3 {
            0 => readers.push(tokio::spawn(read_all(stream))),
            1 => readers.push(tokio::spawn(async move {
                read_until(&mut stream, "\"content\":\"a").await;
                String::new()
            })),
            // Reads when the server has gone.
            _ => idle.push(stream),
        }
    }
    server.shut_down();
    let ended = tokio::time::timeout(Duration::from_secs(30), server.ended).await;
    ended.expect("the server hangs").unwrap().unwrap();
    let mut whole = 0;
    for reader in readers {
        let text = tokio::time::timeout(Duration::from_secs(5), reader).await.unwrap().unwrap();
        assert!(text.is_empty() || text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{text}");
        whole += usize::from(text.contains("\"finish_reason\":\"length\""));
    }
    for stream in idle {
        let text = tokio::time::timeout(Duration::from_secs(5), read_all(stream)).await.unwrap();
        whole += usize::from(text.contains("\"finish_reason\":\"length\"") && text.contains("[DONE]"));
    }
    let metrics = server.engine.metrics().snapshot();
    assert_eq!(whole as u64, 256 - 85);
    assert_eq!((metrics.running, metrics.waiting, metrics.kv_pages_used), (0, 0, 0));
    assert_eq!(metrics.finished_length + metrics.finished_cancelled, 256);
}

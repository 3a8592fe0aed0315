//! What a token costs the server's process, from the engine to the socket, without a device.
//!
//! Run with `cargo run --release -p oxide-infer-server --example server_cost -- TOKENIZER [STREAMS] [TOKENS] [STEP_MICROSECONDS]`,
//! where TOKENIZER is a model directory or a `.gguf` file, of which only the text part is read. Chats stream from a server
//! whose device is only a clock. The client is another process, so that the time measured is the server's alone: all of it,
//! from the first request to the last token, by thread. Set `TOKIO_WORKER_THREADS` to change the number of its workers.

use oxide_infer_engine::testing::timed::TimedExecutor;
use oxide_infer_engine::{Engine, EngineConfig, ExecutorLimits, StepMix};
use oxide_infer_server::text::{TextModel, TextOptions};
use oxide_infer_server::{Server, ServerConfig, listen};
use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |text| text.parse());
    match arguments.first().map(String::as_str) {
        None => Err("usage: server_cost TOKENIZER [STREAMS] [TOKENS] [STEP_MICROSECONDS]".into()),
        Some("client") => {
            let address = arguments.get(1).ok_or("no address")?.parse()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(load(address, number(2, 1)?, number(3, 1)?))
        }
        Some(tokenizer) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            let step = Duration::from_micros(number(3, 3300)? as u64);
            runtime.block_on(measure(Path::new(tokenizer), number(1, 256)?, number(2, 1000)?, step))
        }
    }
}

/// Serves `streams` chats of `tokens` each and prints what that took.
async fn measure(
    tokenizer: &Path,
    streams: usize,
    tokens: usize,
    step: Duration,
) -> Result<(), Box<dyn Error>> {
    let text = TextModel::load(tokenizer, &TextOptions::default())?;
    let limits = limits(streams, tokens, text.tokenizer().vocab_size());
    let engine = Engine::start(Box::new(TimedExecutor::new(limits, step)), EngineConfig::default())?;
    let config = ServerConfig { port: 0, ..ServerConfig::new("clock") };
    let listener = listen(&config).await?;
    let address = listener.local_addr()?;
    let server = Server::new(config, engine, Arc::new(text))?;
    tokio::spawn(server.run(listener, std::future::pending()));

    let (before, began) = (thread_times()?, Instant::now());
    let mut client = Command::new(std::env::current_exe()?);
    client.args(["client", &address.to_string(), &streams.to_string(), &tokens.to_string()]);
    if !tokio::task::spawn_blocking(move || client.status()).await??.success() {
        return Err("the client failed".into());
    }
    let (after, took) = (thread_times()?, began.elapsed());
    let each = (streams * tokens) as f64;
    println!("{streams} streams of {tokens} tokens, {step:?} a step: {:.2} s", took.as_secs_f64());
    let mut all = 0.0;
    for (name, nanoseconds) in after {
        let spent = nanoseconds.saturating_sub(before.get(&name).copied().unwrap_or(0)) as f64;
        all += spent;
        println!(
            "{name:>20}: {:6.3} us a token, {:5.1}% of a core",
            spent / each / 1e3,
            spent / took.as_nanos() as f64 * 100.0
        );
    }
    println!("{:>20}: {:6.3} us a token", "all", all / each / 1e3);
    Ok(())
}

fn limits(streams: usize, tokens: usize, vocab_size: usize) -> ExecutorLimits {
    let longest = tokens + 256;
    ExecutorLimits {
        page_size: 64,
        num_pages: streams * longest.div_ceil(64),
        max_sequences: streams,
        max_batch_tokens: 8192,
        max_model_len: longest,
        vocab_size,
        max_logprobs: 32,
        hidden_size: None,
        steps_in_flight: 2,
        step_mix: StepMix::Mixed,
    }
}

/// Nanoseconds that this process's threads of each name have had a core.
fn thread_times() -> Result<BTreeMap<String, u64>, Box<dyn Error>> {
    let mut times = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        let name = std::fs::read_to_string(task.join("comm"))?.trim().to_owned();
        let times_of = std::fs::read_to_string(task.join("schedstat"))?;
        let spent: u64 = times_of.split(' ').next().unwrap_or_default().parse()?;
        *times.entry(name).or_default() += spent;
    }
    Ok(times)
}

/// The client: reads every stream to its end.
async fn load(address: SocketAddr, streams: usize, tokens: usize) -> Result<(), Box<dyn Error>> {
    let readers = (0..streams).map(|index| tokio::spawn(read_one(address, index, tokens)));
    for reader in readers.collect::<Vec<_>>() {
        reader.await?.map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn read_one(
    address: SocketAddr,
    index: usize,
    tokens: usize,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let body = serde_json::json!({
        "model": "clock",
        "messages": [{"role": "user", "content": format!("Count to {index}.")}],
        "stream": true,
        "max_completion_tokens": tokens,
        "ignore_eos": true,
    })
    .to_string();
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: clock\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await?;
    let (mut buffer, mut end) = (vec![0; 1 << 16], Vec::new());
    loop {
        let read = stream.read(&mut buffer).await?;
        end.extend_from_slice(&buffer[..read]);
        if end.windows(6).any(|bytes| bytes == b"[DONE]") {
            return Ok(());
        }
        if read == 0 {
            return Err(format!("stream {index} ended early: {}", String::from_utf8_lossy(&end)).into());
        }
        end.drain(..end.len().saturating_sub(5));
    }
}

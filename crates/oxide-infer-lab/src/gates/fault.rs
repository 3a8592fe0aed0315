//! A sticky error in a server with requests in flight: the device writes to an address that is nobody's, and clients and
//! supervisor must be told. Then the same without the fault.

mod client;
mod model;
mod server;
#[cfg(test)]
mod tests;

use crate::record::Finding;
use anyhow::{Context as _, Result, anyhow, ensure};
use client::{Answer, Reply, request, sample};
use model::{LONG, SEQUENCES};
use serde_json::json;
use server::{Process, Server};
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) use server::Supplies;

/// Requests in flight: more than run at once, so that some wait.
const REQUESTS: usize = SEQUENCES + 4;
/// Tokens of an answer that is to end by itself.
const SHORT: u32 = 256;
/// How the server ends when its engine has failed (`oxide-infer serve --help`).
const ENGINE_FAILED: i32 = 70;
/// How an error's text names `CUDA_ERROR_ILLEGAL_ADDRESS`.
const FAULT: &str = "(700)";
/// How long anything may take: the first answers, the end of a request after the fault, the end of the process.
const LIMIT: Duration = Duration::from_secs(10);
/// How often the gate looks.
const POLL: Duration = Duration::from_millis(5);

pub(super) fn run(device: u32, supplies: Option<&Supplies>) -> Finding {
    let mut finding = Finding::of("fault");
    match supplies {
        Some(supplies) => {
            for (name, outcome) in [
                ("a server whose device fails", failing(device, supplies, &mut finding)),
                ("the next server on the device", sound(device, supplies, &mut finding)),
            ] {
                if let Err(error) = outcome {
                    finding.check(name, Err(error));
                }
            }
        }
        None => finding
            .check("set-up", Err(anyhow!("the server's binary and the provoking library are not given"))),
    }
    finding
}

fn failing(device: u32, supplies: &Supplies, finding: &mut Finding) -> Result<()> {
    let mut server = Process::start(supplies, device)?;
    let seen = lose_device(&mut server, finding);
    finding.check("a kernel wrote to an illegal address", server.says("provoked: ", LIMIT));
    seen.with_context(|| format!("the server's log ends with: {}", server.log()))
}

fn sound(device: u32, supplies: &Supplies, finding: &mut Finding) -> Result<()> {
    let mut server = Process::start(supplies, device)?;
    let seen = end_cleanly(&mut server, finding);
    seen.with_context(|| format!("the server's log ends with: {}", server.log()))
}

/// Has the device fail under requests in flight, and checks what everybody is told.
fn lose_device(server: &mut impl Server, finding: &mut Finding) -> Result<()> {
    let address = server.address();
    let clients = Clients::start(address, LONG);
    in_flight(address)?;
    finding.check("/health is 200 before the fault", status(&get(address, "/health")?, 200));
    server.provoke()?;
    let fault = Instant::now();
    let red = red_health(address)?;
    finding.measured.insert("seconds until /health is red".to_owned(), fault.elapsed().as_secs_f64());
    finding.check("/health is 503 and names the fault", names_fault(&red.body));
    finding.check("/ready is 503", status(&get(address, "/ready")?, 503));
    for stream in [true, false] {
        finding.check("a new request is refused", refused(&complete(address, SHORT, stream)?));
    }
    let (mut last, mut begun) = (fault, 0);
    for ended in clients.join() {
        finding.check(
            "a request in flight is told of the fault",
            ended.and_then(|(answer, at)| {
                last = last.max(at);
                begun += usize::from(answer.pieces > 0);
                told(&answer)
            }),
        );
    }
    finding.check("streams had begun", at_least(SEQUENCES - 1, begun));
    let told = last.saturating_duration_since(fault);
    finding.measured.insert("seconds until every request was told".to_owned(), told.as_secs_f64());
    finding.check("every request is told soon", soon(told));
    let code = end(server, |address| match get(address, "/health") {
        Ok(health) => status(&health, 503),
        // The listener closes when the server ends.
        Err(_) => Ok(()),
    })?;
    finding.measured.insert("seconds until the process ended".to_owned(), fault.elapsed().as_secs_f64());
    finding.check("the process ends with the code of a failed engine", exit_code(code, ENGINE_FAILED));
    Ok(())
}

/// The same requests without a fault, and a supervisor's signal.
fn end_cleanly(server: &mut impl Server, finding: &mut Finding) -> Result<()> {
    let address = server.address();
    let clients = Clients::start(address, SHORT);
    for ended in clients.join() {
        finding.check("a request without a fault is answered", ended.and_then(|(answer, _)| whole(&answer)));
    }
    finding.check("/health is 200 without a fault", status(&get(address, "/health")?, 200));
    server.stop()?;
    let code = end(server, |_| Ok(()))?;
    finding.check("without a fault the process ends with 0", exit_code(code, 0));
    Ok(())
}

/// Requests in flight, each with a thread that reads.
struct Clients(Vec<JoinHandle<Result<Ended>>>);

/// An answer, and when it ended.
type Ended = (Answer, Instant);

impl Clients {
    /// The first of them is answered whole, all others as streams.
    fn start(address: SocketAddr, max_tokens: u32) -> Self {
        let client = |index: usize| {
            std::thread::spawn(move || Ok((complete(address, max_tokens, index > 0)?, Instant::now())))
        };
        Self((0..REQUESTS).map(client).collect())
    }

    /// Waits for all of them.
    fn join(self) -> Vec<Result<Ended>> {
        let join =
            |client: JoinHandle<_>| client.join().unwrap_or_else(|_| Err(anyhow!("a client panicked")));
        self.0.into_iter().map(join).collect()
    }
}

fn get(address: SocketAddr, path: &str) -> Result<Reply> {
    request(address, "GET", path, "", LIMIT)
}

/// Asks for a completion of a few tokens.
fn complete(address: SocketAddr, max_tokens: u32, stream: bool) -> Result<Answer> {
    let body = json!({
        "prompt": [3, 1, 4, 1, 5, 9, 2, 6], "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true, "stream": stream
    });
    // Before the fault nobody waits long, and after it nobody may.
    Answer::of(&request(address, "POST", "/v1/completions", &body.to_string(), 3 * LIMIT)?)
}

/// Waits until as many requests as can be are computed, the others wait, and those that are computed have some tokens.
fn in_flight(address: SocketAddr) -> Result<()> {
    let until = Instant::now() + LIMIT;
    let wanted = [
        ("oxide_infer_num_requests_running", SEQUENCES),
        ("oxide_infer_num_requests_waiting", REQUESTS - SEQUENCES),
        ("oxide_infer_generation_tokens_total", 32 * SEQUENCES),
    ];
    loop {
        let metrics = get(address, "/metrics")?.body;
        let counts = wanted.map(|(name, _)| sample(&metrics, name).unwrap_or_default());
        if counts.iter().zip(wanted).all(|(&count, (_, least))| count >= least as f64) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "of {wanted:?} there are {counts:?} after {LIMIT:?}");
        std::thread::sleep(POLL);
    }
}

/// Waits until `/health` is anything but 200.
fn red_health(address: SocketAddr) -> Result<Reply> {
    let until = Instant::now() + LIMIT;
    loop {
        let health = get(address, "/health")?;
        if health.status != 200 {
            return status(&health, 503).map(|()| health);
        }
        ensure!(Instant::now() < until, "/health is still 200 after {LIMIT:?}");
        std::thread::sleep(POLL);
    }
}

/// Waits for the process, looking at the server meanwhile.
fn end(server: &mut impl Server, look: impl Fn(SocketAddr) -> Result<()>) -> Result<i32> {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(code) = server.exit_code()? {
            return Ok(code);
        }
        look(server.address())?;
        ensure!(Instant::now() < until, "the process has not ended after {LIMIT:?}");
        std::thread::sleep(POLL);
    }
}

fn status(reply: &Reply, wanted: u16) -> Result<()> {
    ensure!(reply.status == wanted, "it is {}, must be {wanted}: {}", reply.status, reply.body);
    Ok(())
}

fn names_fault(text: &str) -> Result<()> {
    ensure!(text.contains(FAULT), "the error {FAULT} is not named: {text}");
    Ok(())
}

fn at_least(least: usize, count: usize) -> Result<()> {
    ensure!(count >= least, "{count} had, {least} are the least");
    Ok(())
}

fn soon(took: Duration) -> Result<()> {
    ensure!(took <= LIMIT, "it took {took:?}, more than {LIMIT:?}");
    Ok(())
}

fn exit_code(code: i32, wanted: i32) -> Result<()> {
    ensure!(code == wanted, "it ended with {code}, must be {wanted}");
    Ok(())
}

/// Whether an answer is the error of an engine that has failed, and says why it has. An answer that has begun to stream has the
/// status of its head.
fn told(answer: &Answer) -> Result<()> {
    let error = answer.error.as_ref().with_context(|| format!("there is no error: {answer:?}"))?;
    let (kind, code) = (error.kind.as_str(), error.code.as_str());
    ensure!(
        (kind, code) == ("service_unavailable_error", "engine_failed"),
        "the error is {kind}/{code}, must be service_unavailable_error/engine_failed"
    );
    ensure!(answer.finish_reason.is_none(), "it has an error and the end {:?}", answer.finish_reason);
    names_fault(&error.message)
}

fn refused(answer: &Answer) -> Result<()> {
    ensure!(answer.status == 503, "the status is {}, must be 503", answer.status);
    told(answer)
}

fn whole(answer: &Answer) -> Result<()> {
    ensure!(answer.error.is_none(), "it failed: {:?}", answer.error);
    ensure!(answer.finish_reason.as_deref() == Some("length"), "it ended with {:?}", answer.finish_reason);
    ensure!(answer.pieces > 0, "it has no text");
    Ok(())
}

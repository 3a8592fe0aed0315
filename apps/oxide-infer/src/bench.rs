//! Benchmarks of servers over HTTP.
//!
//! [`workload`] makes the requests and when they are sent, [`client`] sends one and times its stream, [`stats`] sums up,
//! [`turns`] gives one load to one server or to two in turns, [`compare`] sets the two side by side, [`report`] prints.
//! The terms are those of vLLM's `bench serve`.

pub(crate) mod client;
pub(crate) mod compare;
pub(crate) mod offline;
pub(crate) mod report;
pub(crate) mod stats;
pub(crate) mod turns;
pub(crate) mod workload;

use client::{Client, Failure, Sample};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use workload::{Arrivals, Request};

/// What came of sending every request.
pub(crate) struct Outcome {
    /// Answers, or why there is none, in the order in which the requests were sent.
    pub(crate) results: Vec<Result<Sample, Failure>>,
    /// How many of the first requests were sent at once, before any was answered; 0 in an open loop.
    pub(crate) first_wave: usize,
    /// From the first request sent to the last answer's end.
    pub(crate) duration: Duration,
}

impl Outcome {
    /// The requests that were answered in full.
    pub(crate) fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.results.iter().filter_map(|result| result.as_ref().ok())
    }

    /// Why the others failed, one each.
    pub(crate) fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.results.iter().filter_map(|result| result.as_ref().err())
    }
}

/// Sends every request when it is due and waits for all answers.
pub(crate) async fn drive(client: &Arc<Client>, requests: &[Request], arrivals: &Arrivals) -> Outcome {
    let permits = arrivals.concurrency.map(|n| Arc::new(Semaphore::new(n.get())));
    let started = Instant::now();
    let mut running = Vec::with_capacity(requests.len());
    for (request, due) in requests.iter().zip(&arrivals.due) {
        tokio::time::sleep_until((started + *due).into()).await;
        let permit = match &permits {
            // The semaphore is never closed, so there always comes a permit.
            Some(permits) => Arc::clone(permits).acquire_owned().await.ok(),
            None => None,
        };
        let (client, request) = (Arc::clone(client), request.clone());
        running.push(tokio::spawn(async move {
            let result = client.send(&request).await;
            drop(permit);
            result
        }));
    }
    let mut results = Vec::with_capacity(running.len());
    for answer in running {
        results.push(answer.await.unwrap_or_else(|error| Err(Failure::Other(error.to_string()))));
    }
    Outcome { results, first_wave: arrivals.first_wave, duration: started.elapsed() }
}

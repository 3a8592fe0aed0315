//! Benchmarks of servers over HTTP.
//!
//! [`workload`] makes the requests and when they are sent, [`client`] sends one and times its stream, [`stats`] sums up,
//! [`report`] prints. The terms are those of vLLM's `bench serve`.

pub(crate) mod client;
pub(crate) mod offline;
pub(crate) mod report;
pub(crate) mod stats;
pub(crate) mod workload;

use client::{Client, Failure, Sample};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use workload::{Arrivals, Request};

/// What came of sending every request.
pub(crate) struct Outcome {
    /// Requests that were answered in full.
    pub(crate) samples: Vec<Sample>,
    /// Why the others failed, one entry each.
    pub(crate) failures: Vec<Failure>,
    /// From the first request sent to the last answer's end.
    pub(crate) duration: Duration,
}

/// Sends every request when it is due and waits for all answers.
pub(crate) async fn drive(client: &Arc<Client>, requests: Vec<Request>, arrivals: &Arrivals) -> Outcome {
    let permits = arrivals.concurrency.map(|n| Arc::new(Semaphore::new(n.get())));
    let started = Instant::now();
    let mut running = JoinSet::new();
    for (request, due) in requests.into_iter().zip(&arrivals.due) {
        tokio::time::sleep_until((started + *due).into()).await;
        let permit = match &permits {
            // The semaphore is never closed, so there always comes a permit.
            Some(permits) => Arc::clone(permits).acquire_owned().await.ok(),
            None => None,
        };
        let client = Arc::clone(client);
        running.spawn(async move {
            let result = client.send(&request).await;
            drop(permit);
            result
        });
    }
    let mut outcome = Outcome { samples: Vec::new(), failures: Vec::new(), duration: Duration::ZERO };
    while let Some(joined) = running.join_next().await {
        match joined {
            Ok(Ok(sample)) => outcome.samples.push(sample),
            Ok(Err(failure)) => outcome.failures.push(failure),
            Err(error) => outcome.failures.push(Failure::Other(error.to_string())),
        }
    }
    outcome.duration = started.elapsed();
    outcome
}

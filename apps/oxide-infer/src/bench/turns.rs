//! One load for one server, or for two in turns.

use super::client::{Client, Failure};
use super::stats::Summary;
use super::workload::{Arrivals, Request};
use super::{Outcome, drive};
use serde::Serialize;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Which of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Side {
    /// The one of `--url`.
    Url,
    /// The one of `--against`.
    Against,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Url => "--url",
            Side::Against => "--against",
        })
    }
}

/// The servers to measure.
pub(crate) struct Servers {
    pub(crate) url: Arc<Client>,
    pub(crate) against: Option<Arc<Client>>,
}

impl Servers {
    pub(crate) fn get(&self, side: Side) -> Option<&Arc<Client>> {
        match side {
            Side::Url => Some(&self.url),
            Side::Against => self.against.as_ref(),
        }
    }

    /// Each server once: `--url` first in even rounds and last in odd ones, so that A and B take turns as A B B A.
    fn order(&self, round: usize) -> Vec<(Side, &Arc<Client>)> {
        let mut order = vec![(Side::Url, &self.url)];
        order.extend(self.against.as_ref().map(|client| (Side::Against, client)));
        if round % 2 == 1 {
            order.reverse();
        }
        order
    }
}

/// What every server gets.
pub(crate) struct Load {
    pub(crate) concurrency: Option<NonZeroUsize>,
    /// Not measured; as many in flight as of the measured ones.
    pub(crate) warmup: Vec<Request>,
    /// In each round every server has one turn with the same requests in the same order. No two rounds share prompts,
    /// so that a prefix cache has nothing to answer from.
    pub(crate) rounds: Vec<Round>,
}

/// The measured requests of one turn.
pub(crate) struct Round {
    pub(crate) requests: Vec<Request>,
    pub(crate) arrivals: Arrivals,
}

/// One server's turn.
pub(crate) struct Turn {
    pub(crate) round: usize,
    pub(crate) side: Side,
    pub(crate) outcome: Outcome,
    pub(crate) summary: Summary,
}

/// What came of a load.
pub(crate) struct Row {
    pub(crate) load: Load,
    /// In the order in which they ran.
    pub(crate) turns: Vec<Turn>,
}

impl Row {
    /// The turns of one server, in the order of rounds.
    pub(crate) fn turns_of(&self, side: Side) -> impl Iterator<Item = &Turn> {
        self.turns.iter().filter(move |turn| turn.side == side)
    }

    pub(crate) fn failed(&self) -> usize {
        self.turns.iter().map(|turn| turn.summary.failed).sum()
    }
}

/// A request before the measured ones failed, so there is no point in measuring.
#[derive(Debug, thiserror::Error)]
#[error("a request to warm up {url} failed: {failure}")]
pub(crate) struct WarmupError {
    url: String,
    failure: Failure,
}

/// Warms every server up and gives each its turns.
pub(crate) async fn run(servers: &Servers, load: Load) -> Result<Row, WarmupError> {
    for (_, client) in servers.order(0) {
        warm_up(client, &load).await?;
    }
    let mut turns = Vec::new();
    for (round, work) in load.rounds.iter().enumerate() {
        for (side, client) in servers.order(round) {
            tracing::info!(
                "round {} of {}: sending {} requests to {} for {}",
                round + 1,
                load.rounds.len(),
                work.requests.len(),
                client.url(),
                client.model()
            );
            let outcome = drive(client, &work.requests, &work.arrivals).await;
            turns.push(Turn { round, side, summary: Summary::of(&outcome), outcome });
        }
    }
    Ok(Row { load, turns })
}

async fn warm_up(client: &Arc<Client>, load: &Load) -> Result<(), WarmupError> {
    let concurrency = load.concurrency.unwrap_or(NonZeroUsize::MIN);
    let arrivals = Arrivals::closed_loop(load.warmup.len(), concurrency);
    match drive(client, &load.warmup, &arrivals).await.failures().next() {
        Some(failure) => Err(WarmupError { url: client.url().to_owned(), failure: failure.clone() }),
        None => Ok(()),
    }
}

//! What may enter the engine: checks of a request, and the bounded queue.

use crate::batch::ExecutorLimits;
use crate::request::{EngineRequest, SubmitError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Refuses a request that the engine could never finish.
pub(crate) fn check(request: &EngineRequest, limits: &ExecutorLimits) -> Result<(), SubmitError> {
    let prompt = request.prompt.len();
    if prompt == 0 {
        return Err(SubmitError::EmptyPrompt);
    }
    // A prompt of the model's whole length leaves no room for a token, which is right only if none is asked for.
    let room = limits.max_model_len.checked_sub(prompt);
    if room.is_none() || (room == Some(0) && wanted_tokens(request) > 0) {
        return Err(SubmitError::TooLong { prompt, max_model_len: limits.max_model_len });
    }
    if let Some(&token) = request.prompt.iter().find(|token| token.index() >= limits.vocab_size) {
        return Err(SubmitError::UnknownToken { token, vocab_size: limits.vocab_size });
    }
    if request.choices.get() as usize > limits.max_sequences {
        return Err(SubmitError::TooManyChoices {
            choices: request.choices.get(),
            limit: limits.max_sequences,
        });
    }
    let listed = [("logprobs", request.logprobs), ("prompt_logprobs", request.prompt_logprobs)];
    for (field, wanted) in listed.into_iter().filter_map(|(field, wanted)| Some((field, wanted?))) {
        if wanted > limits.max_logprobs {
            return Err(SubmitError::TooManyLogprobs { field, wanted, limit: limits.max_logprobs });
        }
    }
    if request.pooling.is_some() && limits.hidden_size.is_none() {
        return Err(SubmitError::NoHiddenStates);
    }
    let needed = longest_kv(request, limits).div_ceil(limits.page_size);
    if needed > limits.num_pages {
        return Err(SubmitError::TooManyPages { needed, available: limits.num_pages });
    }
    request.sampling.validate(limits.vocab_size)?;
    Ok(())
}

/// Most tokens that one choice of the request can sample.
pub(crate) fn longest_output(request: &EngineRequest, limits: &ExecutorLimits) -> usize {
    (wanted_tokens(request) as usize).min(limits.max_model_len - request.prompt.len())
}

fn wanted_tokens(request: &EngineRequest) -> u32 {
    match request.pooling {
        Some(_) => 0,
        None => request.stop.max_tokens,
    }
}

/// Most tokens that one choice of the request can have in its KV: the last token is never fed back.
pub(crate) fn longest_kv(request: &EngineRequest, limits: &ExecutorLimits) -> usize {
    request.prompt.len() + longest_output(request, limits).saturating_sub(1)
}

/// The bounded queue: how many requests wait for their first step, and how fast they leave.
#[derive(Debug)]
pub(crate) struct Queue {
    limit: usize,
    waiting: AtomicUsize,
    opened: Instant,
    // Microseconds since `opened`; several threads read and write them, and an estimate may be a little off.
    occupied_since: AtomicU64,
    last_start: AtomicU64,
    /// Smoothed microseconds between two starts while requests waited.
    pace: AtomicU64,
}

/// A request's place in the queue; dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Place(Arc<Queue>);

impl Queue {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            waiting: AtomicUsize::new(0),
            opened: Instant::now(),
            occupied_since: AtomicU64::new(0),
            last_start: AtomicU64::new(0),
            pace: AtomicU64::new(0),
        })
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Takes a place, or says how full the queue is.
    pub(crate) fn take_place(self: &Arc<Self>, now: Instant) -> Result<Place, SubmitError> {
        match self
            .waiting
            .fetch_update(Relaxed, Relaxed, |waiting| (waiting < self.limit).then_some(waiting + 1))
        {
            Ok(waiting) => {
                if waiting == 0 {
                    self.occupied_since.store(self.micros(now), Relaxed);
                }
                Ok(Place(self.clone()))
            }
            Err(waiting) => Err(SubmitError::QueueFull {
                waiting,
                limit: self.limit,
                retry_after: self.next_place_in(now),
            }),
        }
    }

    /// Notes that a waiting request has been started. Called by the engine thread only.
    pub(crate) fn note_start(&self, now: Instant) {
        let interval = self.since_start(now);
        self.last_start.store(self.micros(now), Relaxed);
        self.pace.store((self.pace.load(Relaxed) * 7 + interval) / 8, Relaxed);
    }

    fn next_place_in(&self, now: Instant) -> Duration {
        // If nothing has started for longer than usual, the usual pace is no longer true.
        Duration::from_micros(self.pace.load(Relaxed).max(self.since_start(now)))
    }

    /// Microseconds since the last start; time in which nobody waited does not count.
    fn since_start(&self, now: Instant) -> u64 {
        let from = self.last_start.load(Relaxed).max(self.occupied_since.load(Relaxed));
        self.micros(now).saturating_sub(from)
    }

    fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.opened).as_micros() as u64
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(queue: &Arc<Queue>, now: Instant) -> Duration {
        match queue.take_place(now) {
            Err(SubmitError::QueueFull { retry_after, .. }) => retry_after,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_place_is_given_back_when_it_is_dropped() {
        let queue = Queue::new(1);
        let place = queue.take_place(Instant::now()).unwrap();
        refused(&queue, Instant::now());
        drop(place);
        assert!(queue.take_place(Instant::now()).is_ok());
    }

    #[test]
    fn the_time_to_come_back_follows_the_pace_of_the_starts_and_not_the_time_that_nobody_waited() {
        let queue = Queue::new(2);
        let at = |seconds| queue.opened + Duration::from_secs(seconds);
        // Nobody comes for an hour; then a request starts every 8 seconds while others wait.
        let _waits = queue.take_place(at(3600)).unwrap();
        for start in 1..=100 {
            let place = queue.take_place(at(3600 + 8 * (start - 1))).unwrap();
            queue.note_start(at(3600 + 8 * start));
            drop(place);
        }
        let _waits_too = queue.take_place(at(4400)).unwrap();
        let pace = refused(&queue, at(4400));
        assert!((Duration::from_secs(7)..=Duration::from_secs(8)).contains(&pace), "{pace:?}");
        // Nothing has started for longer than that.
        assert_eq!(refused(&queue, at(4430)), Duration::from_secs(30));
    }
}

//! An executor that takes as long as a device would, by the clock and not by computing, to measure everything but the
//! device.

use crate::batch::{EngineBatch, Executor, ExecutorError, ExecutorLimits, Sampled, StepOutput};
use oxide_infer::{TokenId, sampling};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The executor: it samples one token after the other, whatever is asked. Steps are computed one after the other, also while
/// the next is prepared.
#[derive(Debug)]
pub struct TimedExecutor {
    limits: ExecutorLimits,
    step: Duration,
    /// When each step will have been computed, and what it brings.
    in_flight: VecDeque<(Instant, StepOutput)>,
    next_token: u32,
}

impl TimedExecutor {
    /// An executor whose steps take `step`.
    pub fn new(limits: ExecutorLimits, step: Duration) -> Self {
        Self { limits, step, in_flight: VecDeque::new(), next_token: 0 }
    }
}

impl Executor for TimedExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn submit(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        let now = Instant::now();
        let mut token = || {
            self.next_token = (self.next_token + 1) % self.limits.vocab_size as u32;
            TokenId(self.next_token)
        };
        let samples = batch.samples.iter().map(|target| Sampled {
            slot: target.slot,
            outcome: Ok(sampling::Sampled { token: token(), logprobs: None }),
        });
        let output = StepOutput { samples: samples.collect(), ..StepOutput::default() };
        let starts = self.in_flight.back().map_or(now, |(ready, _)| now.max(*ready));
        self.in_flight.push_back((starts + self.step, output));
        Ok(())
    }

    fn collect(&mut self, output: &mut StepOutput) -> Result<(), ExecutorError> {
        let Some((ready, found)) = self.in_flight.pop_front() else {
            return Err(ExecutorError { message: "no step is in flight".to_owned() });
        };
        std::thread::sleep(ready.saturating_duration_since(Instant::now()));
        *output = found;
        Ok(())
    }
}

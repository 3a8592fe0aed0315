//! What a step costs the engine thread, with clients that read every token.
//!
//! Run with `cargo run --release -p oxide-infer-engine --example engine_thread_cost [-- STEP_MICROSECONDS]`. It decodes full
//! batches over an executor that takes as long as a device would, by the clock and not by computing. A step's cost is the
//! time from one result to the next less the time within the executor: commands, scheduling, settling, and handing each
//! token to its stream, which wakes a task. What submitting to a real device costs is not in it. Every stream is read by
//! a task of its own on other threads, as in the server. Steps with prompt tokens are left out.

use oxide_infer::{TokenId, sampling};
use oxide_infer_engine::batch::{
    EngineBatch, Executor, ExecutorError, ExecutorLimits, Sampled, StepMix, StepOutput,
};
use oxide_infer_engine::request::{Masking, StopConditions};
use oxide_infer_engine::{Engine, EngineConfig, EngineRequest};
use std::collections::VecDeque;
use std::error::Error;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const STEPS: u32 = 2000;
const PROMPT: u32 = 512;
const VOCABULARY: u32 = 150_000;

fn main() -> Result<(), Box<dyn Error>> {
    let step = std::env::args().nth(1).map_or(Ok(3300), |text| text.parse())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    println!("a step of the device takes {step} us; host time per step:");
    for sequences in [1, 32, 256] {
        let costs = runtime.block_on(decode(sequences, Duration::from_micros(step)))?;
        let micros = |part: f64| costs[(part * (costs.len() - 1) as f64) as usize].as_secs_f64() * 1e6;
        println!(
            "{sequences:>4} sequences: median {:6.1} us, p90 {:6.1} us, p99 {:6.1} us, of {} steps",
            micros(0.5),
            micros(0.9),
            micros(0.99),
            costs.len()
        );
    }
    Ok(())
}

/// Answers `sequences` requests at once; the cost of every step in which all of them decoded, sorted.
async fn decode(sequences: usize, step: Duration) -> Result<Vec<Duration>, Box<dyn Error>> {
    let costs = Arc::new(Mutex::new(Vec::with_capacity(2 * STEPS as usize)));
    let executor = TimedExecutor::new(sequences, step, Arc::clone(&costs));
    let engine = Engine::start(Box::new(executor), EngineConfig::default())?;
    let streams =
        (0..sequences as u32).map(|id| engine.submit(request(id))).collect::<Result<Vec<_>, _>>()?;
    let readers = streams
        .into_iter()
        .map(|mut stream| tokio::spawn(async move { while stream.next().await.is_some() {} }));
    for reader in readers.collect::<Vec<_>>() {
        reader.await?;
    }
    let mut costs = std::mem::take(&mut *costs.lock().map_err(|_| "the engine thread panicked")?);
    costs.sort_unstable();
    if costs.is_empty() { Err("no step had every sequence".into()) } else { Ok(costs) }
}

fn request(id: u32) -> EngineRequest {
    EngineRequest {
        prompt: (0..PROMPT).map(|at| TokenId((id * 7919 + at) % VOCABULARY)).collect(),
        choices: NonZeroU32::MIN,
        sampling: Default::default(),
        stop: StopConditions { max_tokens: STEPS, ..Default::default() },
        logprobs: None,
        prompt_logprobs: None,
        masking: Masking::None,
        pooling: None,
    }
}

/// Steps that are ready when a device that computes one after another would have them.
struct TimedExecutor {
    sequences: usize,
    step: Duration,
    in_flight: VecDeque<(Instant, StepOutput, Kind)>,
    next_token: u32,
    /// When the last step was collected, and what was spent within the executor since.
    collected: Option<(Instant, Duration)>,
    costs: Arc<Mutex<Vec<Duration>>>,
}

/// Whether a step counts.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    AllDecode,
    Other,
}

impl TimedExecutor {
    fn new(sequences: usize, step: Duration, costs: Arc<Mutex<Vec<Duration>>>) -> Self {
        Self { sequences, step, in_flight: VecDeque::new(), next_token: 0, collected: None, costs }
    }
}

impl Executor for TimedExecutor {
    fn limits(&self) -> ExecutorLimits {
        let longest = (PROMPT + STEPS) as usize;
        ExecutorLimits {
            page_size: 64,
            num_pages: self.sequences * (longest.div_ceil(64) + 1),
            max_sequences: self.sequences,
            max_batch_tokens: 2048,
            max_model_len: longest,
            vocab_size: VOCABULARY as usize,
            max_logprobs: 0,
            hidden_size: None,
            steps_in_flight: 2,
            step_mix: StepMix::Mixed,
        }
    }

    fn submit(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        let began = Instant::now();
        let mut token = || {
            self.next_token = (self.next_token + 1) % VOCABULARY;
            TokenId(self.next_token)
        };
        let samples = batch.samples.iter().map(|target| Sampled {
            slot: target.slot,
            outcome: Ok(sampling::Sampled { token: token(), logprobs: None }),
        });
        let output = StepOutput { samples: samples.collect(), ..StepOutput::default() };
        let decodes = batch.rows.len() == self.sequences && batch.tokens.len() <= self.sequences;
        let kind = if decodes { Kind::AllDecode } else { Kind::Other };
        let starts = self.in_flight.back().map_or(began, |(ready, ..)| began.max(*ready));
        self.in_flight.push_back((starts + self.step, output, kind));
        if let Some((_, within)) = &mut self.collected {
            *within += began.elapsed();
        }
        Ok(())
    }

    fn collect(&mut self, output: &mut StepOutput) -> Result<(), ExecutorError> {
        let began = Instant::now();
        let Some((ready, found, kind)) = self.in_flight.pop_front() else {
            return Err(ExecutorError { message: "no step is in flight".to_owned() });
        };
        if let Some((since, within)) = self.collected
            && kind == Kind::AllDecode
            && let Ok(mut costs) = self.costs.lock()
        {
            costs.push((began - since).saturating_sub(within));
        }
        std::thread::sleep(ready.saturating_duration_since(Instant::now()));
        *output = found;
        self.collected = Some((Instant::now(), Duration::ZERO));
        Ok(())
    }
}

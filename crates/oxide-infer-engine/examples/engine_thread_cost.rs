//! What a step costs the engine thread, with clients that read every token.
//!
//! Run with `cargo run --release -p oxide-infer-engine --example engine_thread_cost [-- STEP_MICROSECONDS]`. It decodes full
//! batches over an executor that takes as long as a device would, by the clock and not by computing. A step's cost is the
//! time from one result to the next less the time within the executor: commands, scheduling, settling, and handing each
//! token to its stream. What submitting to a real device costs is not in it. Every stream is read by a task of its own on
//! other threads, as in the server. Steps with prompt tokens are left out. Beside the time by the clock it prints the time
//! that the thread had a core, which other work on the machine changes less.

use oxide_infer::TokenId;
use oxide_infer_engine::batch::{EngineBatch, Executor, ExecutorError, ExecutorLimits, StepMix, StepOutput};
use oxide_infer_engine::request::{Masking, StopConditions};
use oxide_infer_engine::testing::timed::TimedExecutor;
use oxide_infer_engine::{Engine, EngineConfig, EngineRequest};
use rustix::time::{ClockId, clock_gettime};
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
        for (clock, time) in [("by the clock", Cost::wall as fn(&Cost) -> Duration), ("on a core", Cost::cpu)]
        {
            let mut times: Vec<Duration> = costs.iter().map(time).collect();
            times.sort_unstable();
            let micros = |part: f64| times[(part * (times.len() - 1) as f64) as usize].as_secs_f64() * 1e6;
            println!(
                "{sequences:>4} sequences, {clock:>12}: median {:6.1} us, p90 {:6.1} us, p99 {:6.1} us, of {} steps",
                micros(0.5),
                micros(0.9),
                micros(0.99),
                times.len()
            );
        }
    }
    Ok(())
}

/// Answers `sequences` requests at once; the cost of every step in which all of them decoded.
async fn decode(sequences: usize, step: Duration) -> Result<Vec<Cost>, Box<dyn Error>> {
    let costs = Arc::new(Mutex::new(Vec::with_capacity(2 * STEPS as usize)));
    let executor = Measured::new(sequences, step, Arc::clone(&costs));
    let engine = Engine::start(Box::new(executor), EngineConfig::default())?;
    let streams =
        (0..sequences as u32).map(|id| engine.submit(request(id))).collect::<Result<Vec<_>, _>>()?;
    let readers = streams
        .into_iter()
        .map(|mut stream| tokio::spawn(async move { while stream.next().await.is_some() {} }));
    for reader in readers.collect::<Vec<_>>() {
        reader.await?;
    }
    let costs = std::mem::take(&mut *costs.lock().map_err(|_| "the engine thread panicked")?);
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

/// What a step costs the engine thread.
#[derive(Clone, Copy, Default)]
struct Cost {
    wall: Duration,
    cpu: Duration,
}

impl Cost {
    fn wall(&self) -> Duration {
        self.wall
    }

    fn cpu(&self) -> Duration {
        self.cpu
    }
}

/// A moment of the engine thread.
#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    /// How long the thread has had a core since it began.
    cpu: Duration,
}

impl Moment {
    fn now() -> Self {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        Self { at: Instant::now(), cpu: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32) }
    }

    fn since(self, before: Self) -> Cost {
        Cost { wall: self.at - before.at, cpu: self.cpu.saturating_sub(before.cpu) }
    }
}

/// An executor, and what the thread spends outside of it from one result to the next.
struct Measured {
    executor: TimedExecutor,
    sequences: usize,
    /// Of every step in flight, whether it counts.
    in_flight: VecDeque<Kind>,
    /// When the last step was collected, and what was spent within the executor since.
    collected: Option<(Moment, Cost)>,
    costs: Arc<Mutex<Vec<Cost>>>,
}

/// Whether a step counts.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    AllDecode,
    Other,
}

impl Measured {
    fn new(sequences: usize, step: Duration, costs: Arc<Mutex<Vec<Cost>>>) -> Self {
        let executor = TimedExecutor::new(limits(sequences), step);
        Self { executor, sequences, in_flight: VecDeque::new(), collected: None, costs }
    }
}

fn limits(sequences: usize) -> ExecutorLimits {
    let longest = (PROMPT + STEPS) as usize;
    ExecutorLimits {
        page_size: 64,
        num_pages: sequences * (longest.div_ceil(64) + 1),
        max_sequences: sequences,
        max_batch_tokens: 2048,
        max_model_len: longest,
        vocab_size: VOCABULARY as usize,
        max_logprobs: 0,
        hidden_size: None,
        steps_in_flight: 2,
        step_mix: StepMix::Mixed,
    }
}

impl Executor for Measured {
    fn limits(&self) -> ExecutorLimits {
        self.executor.limits()
    }

    fn submit(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        let began = Moment::now();
        let decodes = batch.rows.len() == self.sequences && batch.tokens.len() <= self.sequences;
        self.in_flight.push_back(if decodes { Kind::AllDecode } else { Kind::Other });
        self.executor.submit(batch)?;
        if let Some((_, within)) = &mut self.collected {
            let here = Moment::now().since(began);
            within.wall += here.wall;
            within.cpu += here.cpu;
        }
        Ok(())
    }

    fn collect(&mut self, output: &mut StepOutput) -> Result<(), ExecutorError> {
        let began = Moment::now();
        let kind = self.in_flight.pop_front();
        if let Some((since, within)) = self.collected
            && kind == Some(Kind::AllDecode)
            && let Ok(mut costs) = self.costs.lock()
        {
            let passed = began.since(since);
            costs.push(Cost {
                wall: passed.wall.saturating_sub(within.wall),
                cpu: passed.cpu.saturating_sub(within.cpu),
            });
        }
        self.executor.collect(output)?;
        self.collected = Some((Moment::now(), Cost::default()));
        Ok(())
    }
}

//! What a step costs the engine thread besides the executor.
//!
//! Run with `cargo run --release -p oxide-infer-engine --example scheduler_cost`. It decodes a full batch in the overlapped
//! order (the next step is scheduled before the last is settled) with an executor that takes no time, and prints
//! percentiles of the time per step.

use oxide_infer::{TokenId, sampling};
use oxide_infer_engine::batch::{EngineBatch, ExecutorLimits, Sampled, StepMix, StepOutput};
use oxide_infer_engine::request::{Masking, StopConditions};
use oxide_infer_engine::scheduler::{Scheduled, Scheduler};
use oxide_infer_engine::{EngineRequest, PrefixCache, RequestId};
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

const STEPS: usize = 4000;

fn main() {
    for (sequences, prompt_len) in [(1, 1000), (32, 1000), (256, 100), (256, 1000), (256, 4000)] {
        let mut decoding = Decoding::new(sequences, prompt_len);
        let mut times: Vec<Duration> = (0..STEPS).map(|_| decoding.step()).collect();
        times.sort();
        let micros = |part: f64| times[(part * (STEPS - 1) as f64) as usize].as_secs_f64() * 1e6;
        println!(
            "{sequences:>4} sequences from {prompt_len:>4} tokens: median {:6.1} us, p90 {:6.1} us, p98 {:6.1} us",
            micros(0.5),
            micros(0.9),
            micros(0.98),
        );
    }
}

/// A full batch of sequences that decode.
struct Decoding {
    scheduler: Scheduler,
    batch: EngineBatch,
    in_flight: VecDeque<StepOutput>,
    next_token: u32,
}

impl Decoding {
    fn new(sequences: usize, prompt_len: usize) -> Self {
        let longest = prompt_len + STEPS + 100;
        let limits = ExecutorLimits {
            page_size: 64,
            num_pages: sequences * (longest.div_ceil(64) + 1),
            max_sequences: sequences,
            max_batch_tokens: 2048.max(sequences),
            max_model_len: longest,
            vocab_size: 150_000,
            max_logprobs: u32::MAX,
            hidden_size: None,
            steps_in_flight: 2,
            step_mix: StepMix::Mixed,
        };
        let mut scheduler = Scheduler::new(limits, PrefixCache::Enabled);
        for id in 0..sequences as u64 {
            scheduler.add(RequestId(id), request(id as u32, prompt_len), Instant::now());
        }
        let mut decoding =
            Self { scheduler, batch: EngineBatch::default(), in_flight: VecDeque::new(), next_token: 0 };
        while decoding.batch.rows.len() < sequences || decoding.batch.tokens.len() > sequences {
            decoding.step();
        }
        decoding
    }

    /// Schedules a step and settles the one before it; returns the time that took.
    fn step(&mut self) -> Duration {
        let began = Instant::now();
        let scheduled = self.scheduler.schedule(&mut self.batch, began);
        let mut took = began.elapsed();
        assert_eq!(scheduled, Scheduled::Step);
        let output = self.compute();
        self.in_flight.push_back(output);
        if self.in_flight.len() == 2
            && let Some(mut output) = self.in_flight.pop_front()
        {
            let began = Instant::now();
            self.scheduler.settle(&mut output, began).expect("the output is made for the step");
            let told = self.scheduler.notices().drain(..).count();
            took += began.elapsed();
            std::hint::black_box(told);
        }
        took
    }

    fn compute(&mut self) -> StepOutput {
        let mut token = || {
            self.next_token = (self.next_token + 1) % 150_000;
            TokenId(self.next_token)
        };
        let samples = self.batch.samples.iter().map(|target| Sampled {
            slot: target.slot,
            outcome: Ok(sampling::Sampled { token: token(), logprobs: None }),
        });
        StepOutput { samples: samples.collect(), ..StepOutput::default() }
    }
}

fn request(first: u32, prompt_len: usize) -> EngineRequest {
    EngineRequest {
        prompt: (0..prompt_len as u32).map(|at| TokenId((first * 31 + at) % 150_000)).collect(),
        choices: NonZeroU32::MIN,
        sampling: Default::default(),
        stop: StopConditions {
            max_tokens: u32::MAX,
            eos_token_ids: [TokenId(150_001)].into(),
            ..Default::default()
        },
        logprobs: None,
        prompt_logprobs: None,
        masking: Masking::None,
        pooling: None,
    }
}

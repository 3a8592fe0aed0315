//! The engine with the CUDA executor: random requests that finish, are cancelled and are preempted, and what is left after.

use crate::record::Finding;
use anyhow::{Context as _, Result, ensure};
use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use oxide_infer_cuda::runtime::Context;
use oxide_infer_engine::cuda::{ArtifactSource, CudaOptions, DecodeLaunch, load_cuda_on};
use oxide_infer_engine::request::{Masking, StopConditions};
use oxide_infer_engine::{
    Engine, EngineConfig, EngineEvent, EngineHandle, EngineRequest, EventStream, Health, ModelSource,
    PlanGoal,
};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{self, Poll, Waker};
use std::time::{Duration, Instant};

/// Requests in all.
const REQUESTS: usize = 1000;
/// Requests that are open at once: more than the pages hold, so that many are preempted.
const OPEN: usize = 24;
/// How long to wait where no request ended: less than a step of the device.
const POLL: Duration = Duration::from_micros(50);
/// What a run must have seen, by the engine's own count: sequences that were cancelled while they waited or ran.
const LEAST_CANCELLED: u64 = 200;
/// Sequences whose pages were taken away.
const LEAST_PREEMPTED: u64 = 100;
/// Tokens of prompts whose keys and values were there already.
const LEAST_CACHED: u64 = 64 * 50;
/// What prompts share is shorter than this.
const MOST_SHARED: u64 = 140;

/// A model in the artifacts' domains that is quick to compute.
const CONFIG: &str = r#"{
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": true, "eos_token_id": 2, "bos_token_id": 1
}"#;

const OPTIONS: CudaOptions = CudaOptions {
    max_model_len: Some(512),
    max_batch_tokens: 256,
    max_sequences: 16,
    // 2 layers × 2 pools × 64 tokens × 2 heads × 64 × 2 bytes = 64 KiB a page; 12 pages, where one sequence may need 6.
    kv_memory: Some(13 << 16),
    decode_launch: DecodeLaunch::Graph,
    artifacts: ArtifactSource::Embedded,
    goal: PlanGoal::Fastest,
};

pub(super) fn run(context: &Context) -> Finding {
    let mut finding = Finding::of("engine");
    match interleavings(context, &mut finding) {
        Ok(()) => {}
        Err(error) => finding.check("random requests", Err(error)),
    }
    finding
}

fn interleavings(context: &Context, finding: &mut Finding) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("oxide-infer-lab-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("config.json"), CONFIG)?;
    let source = ModelSource::open_random(&dir, 1);
    std::fs::remove_dir_all(&dir)?;
    let executor = load_cuda_on(context, &source?, &OPTIONS, &mut |_| ())?;
    let engine = Engine::start(Box::new(executor), EngineConfig::default())?;
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    // The first requests bring up what a context allocates once.
    requests(&engine, &mut random, 50, finding)?;
    let before = context.memory_info()?.free;
    requests(&engine, &mut random, REQUESTS, finding)?;
    let after = context.memory_info()?.free;
    finding.check("device memory is flat", flat(before, after));
    finding.check("every page is given back", idle(&engine));
    let metrics = engine.metrics().snapshot();
    finding.measured.insert("preemptions".to_owned(), metrics.preemptions as f64);
    finding.measured.insert("cancelled sequences".to_owned(), metrics.finished_cancelled as f64);
    finding.measured.insert("prefix cache hits in tokens".to_owned(), metrics.prefix_cache_hits as f64);
    finding.check("many were preempted", at_least(LEAST_PREEMPTED, metrics.preemptions));
    finding
        .check("many prompts began in the prefix cache", at_least(LEAST_CACHED, metrics.prefix_cache_hits));
    finding
        .check("many were cancelled before their end", at_least(LEAST_CANCELLED, metrics.finished_cancelled));
    ensure!(engine.health() == Health::Running, "the engine is {:?}", engine.health());
    drop(engine);
    Ok(())
}

/// Keeps some requests open, reads all of them as they come, drops some at a random token, and checks how the others end.
fn requests(engine: &EngineHandle, random: &mut Random, count: usize, finding: &mut Finding) -> Result<()> {
    let mut open: Vec<Open> = Vec::new();
    let mut sent = 0;
    while sent < count || !open.is_empty() {
        while sent < count && open.len() < OPEN {
            open.push(Open::send(engine, random)?);
            sent += 1;
        }
        let before = open.len();
        open.retain_mut(|request| match request.advance() {
            Progress::Open => true,
            Progress::Ended => {
                finding.check("requests that finished", request.complete());
                false
            }
            Progress::Cancel => {
                finding.check("requests that were dropped", Ok(()));
                false
            }
        });
        if open.len() == before {
            std::thread::sleep(POLL);
        }
    }
    Ok(())
}

struct Open {
    stream: EventStream,
    tokens: usize,
    wanted: usize,
    /// The number of tokens after which the client goes away, if it does.
    cancel_after: Option<usize>,
    failed: Option<String>,
}

enum Progress {
    Open,
    Ended,
    Cancel,
}

impl Open {
    fn send(engine: &EngineHandle, random: &mut Random) -> Result<Self> {
        // Half of the prompts share their beginning: up to two whole pages, and where it ends in a page others go on.
        let shared = random.below(2) * random.below(MOST_SHARED);
        // At most a page of their own, so that many begin and then run out of pages together.
        let len = shared + 1 + random.below(60);
        let max_tokens = 1 + random.below(300 - shared) as u32;
        let choices = 1 + random.below(8).saturating_sub(6) as u32;
        let token = |i: u64| 3 + if i < shared { i as u32 } else { random.below(1000) as u32 };
        let prompt: Vec<_> = (0..len).map(token).map(TokenId).collect();
        let sampling = match random.below(4) {
            0 => SamplingParams { seed: random.next(), top_k: Some(20), top_p: 0.9, ..Default::default() },
            1 => SamplingParams { repetition_penalty: 1.2, temperature: 0.0, ..Default::default() },
            _ => SamplingParams { temperature: 0.0, ..Default::default() },
        };
        let wanted = max_tokens as usize * choices as usize;
        let request = EngineRequest {
            prompt: prompt.into(),
            choices: NonZeroU32::new(choices).context("at least one choice")?,
            sampling: Arc::new(sampling),
            stop: StopConditions { max_tokens, ..Default::default() },
            logprobs: (random.below(8) == 0).then_some(5),
            prompt_logprobs: (random.below(16) == 0).then_some(2),
            masking: Masking::None,
            pooling: None,
        };
        let cancel_after = (random.below(3) == 0).then(|| random.below(wanted as u64) as usize);
        Ok(Self { stream: engine.submit(request)?, tokens: 0, wanted, cancel_after, failed: None })
    }

    /// Takes what has come since, and no more: the engine goes on beside the others that are open.
    fn advance(&mut self) -> Progress {
        let mut nobody = task::Context::from_waker(Waker::noop());
        loop {
            if self.cancel_after.is_some_and(|after| self.tokens >= after) {
                return Progress::Cancel;
            }
            match self.stream.poll_next(&mut nobody) {
                Poll::Pending => return Progress::Open,
                Poll::Ready(None) => return Progress::Ended,
                Poll::Ready(Some(EngineEvent::Token { .. })) => self.tokens += 1,
                Poll::Ready(Some(EngineEvent::Failed(error))) => self.failed = Some(error.to_string()),
                Poll::Ready(Some(_)) => {}
            }
        }
    }

    fn complete(&self) -> Result<()> {
        ensure!(self.failed.is_none(), "it failed: {}", self.failed.as_deref().unwrap_or_default());
        ensure!(self.tokens == self.wanted, "{} tokens came, {} were asked for", self.tokens, self.wanted);
        Ok(())
    }
}

fn flat(before: u64, after: u64) -> Result<()> {
    ensure!(before == after, "{before} bytes were free before, {after} are now");
    Ok(())
}

/// Waits until the engine has nothing to do, and looks at what it still owns.
fn idle(engine: &EngineHandle) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let now = engine.metrics().snapshot();
        if now.running + now.waiting + now.kv_pages_used == 0 {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{} pages are owned by {} sequences", now.kv_pages_used, now.running);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn at_least(least: u64, count: u64) -> Result<()> {
    ensure!(count >= least, "{count} were, {least} are the least");
    Ok(())
}

/// Marsaglia's xorshift64 ("Xorshift RNGs", 2003).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below the bound.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxide_infer_cuda::driver::simulated::SimulatedDriver;

    #[test]
    fn the_gate_passes_on_a_simulated_device_with_preemptions_and_cancellations() {
        let driver = SimulatedDriver::new();
        let context = Context::primary_on(driver.clone(), 0).unwrap();
        let finding = run(&context);
        assert!(finding.is_pass(), "{finding}");
        assert_eq!(driver.violations(), Vec::<String>::new());
    }
}

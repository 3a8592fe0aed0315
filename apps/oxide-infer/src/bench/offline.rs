//! A benchmark of the engine in this process, with no server and no text between.

use super::stats::Distribution;
use super::workload::{self, Rng};
use anyhow::Context;
use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use oxide_infer_engine::request::{EosPolicy, Masking, StopConditions, Timings};
use oxide_infer_engine::{EngineEvent, EngineHandle, EngineRequest};
use serde::Serialize;
use std::num::NonZeroU32;
use std::sync::Arc;

/// What the engine does alone with one sequence at a time. Rates are tokens per second, over the repetitions.
#[derive(Debug, Serialize)]
pub(crate) struct EngineSpeed {
    /// Prompt tokens over the time from the first step to the first token.
    pub(crate) prefill_tokens_per_s: Distribution,
    /// Tokens after the first over the time from the first to the last.
    pub(crate) decode_tokens_per_s: Option<Distribution>,
    /// Most memory that this process has had, mapped files counted, where the system tells.
    pub(crate) peak_rss_bytes: Option<u64>,
}

/// Runs one request to warm up and `repeat` to measure, each with a random prompt of its own.
pub(crate) async fn measure(
    engine: &EngineHandle,
    input_len: usize,
    output_len: u32,
    repeat: usize,
    seed: u64,
) -> anyhow::Result<EngineSpeed> {
    let vocab_size = u32::try_from(engine.limits().vocab_size).context("the vocabulary is too large")?;
    let mut rng = Rng::new(seed);
    let mut prompt = || workload::random_tokens(input_len, vocab_size, &mut rng);
    one(engine, prompt(), output_len).await?;
    let mut prefill = Vec::new();
    let mut decode = Vec::new();
    for _ in 0..repeat {
        let times = one(engine, prompt(), output_len).await?;
        prefill.push(input_len as f64 / (times.first_token - times.scheduled).as_secs_f64());
        if output_len > 1 {
            decode.push(f64::from(output_len - 1) / (times.finished - times.first_token).as_secs_f64());
        }
    }
    Ok(EngineSpeed {
        prefill_tokens_per_s: Distribution::of(prefill).context("there is nothing to measure")?,
        decode_tokens_per_s: Distribution::of(decode),
        peak_rss_bytes: peak_rss(),
    })
}

async fn one(engine: &EngineHandle, prompt: Vec<u32>, max_tokens: u32) -> anyhow::Result<Timings> {
    let prompt: Vec<TokenId> = prompt.into_iter().map(TokenId).collect();
    let request = EngineRequest {
        prompt: prompt.into(),
        choices: NonZeroU32::MIN,
        sampling: Arc::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() }),
        stop: StopConditions { max_tokens, eos: EosPolicy::Ignore, ..StopConditions::default() },
        logprobs: None,
        prompt_logprobs: None,
        masking: Masking::None,
    };
    let mut events = engine.submit(request)?;
    while let Some(event) = events.next().await {
        match event {
            EngineEvent::Finished { timings, .. } => return Ok(timings),
            EngineEvent::Failed(error) => return Err(error.into()),
            EngineEvent::PromptDone { .. } | EngineEvent::Token { .. } => {}
        }
    }
    anyhow::bail!("the engine ended the request without a result")
}

/// The high-water mark of resident memory (`VmHWM`).
fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

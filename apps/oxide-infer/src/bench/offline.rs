//! A benchmark of the engine in this process, with no server and no text between.

use super::stats::Distribution;
use super::workload::{self, Rng};
use anyhow::Context;
use futures::future::try_join_all;
use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use oxide_infer_engine::request::{EosPolicy, Masking, StopConditions};
use oxide_infer_engine::{EngineEvent, EngineHandle, EngineRequest, EventStream};
use serde::Serialize;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

/// What the engine does alone with as many sequences at a time as asked for, over the repetitions.
#[derive(Debug, Serialize)]
pub(crate) struct EngineSpeed {
    /// Prompt tokens over the time from the first step to the last sequence's first token, per second.
    pub(crate) prefill_tokens_per_s: Distribution,
    /// Time from the first step to the last sequence's first token, in milliseconds.
    pub(crate) first_token_ms: Distribution,
    /// Tokens per second while every sequence had its first token and none was at its end.
    pub(crate) decode_tokens_per_s: Option<Distribution>,
    /// Time of a step in which every sequence gets a token, in milliseconds.
    pub(crate) decode_step_ms: Option<Distribution>,
    /// Tokens of all answers over the time from the first step to the last token, per second.
    pub(crate) output_tokens_per_s: Distribution,
    /// Most memory that this process has had, mapped files counted, where the system tells.
    pub(crate) peak_rss_bytes: Option<u64>,
}

/// What is measured: `batch` random prompts at once, each of `input_len` tokens and answered with `output_len`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) batch: usize,
    pub(crate) input_len: usize,
    pub(crate) output_len: u32,
}

/// Does the work once to warm up and `repeat` times to measure, each time with prompts of its own.
pub(crate) async fn measure(
    engine: &EngineHandle,
    work: Work,
    repeat: usize,
    seed: u64,
) -> anyhow::Result<EngineSpeed> {
    let vocab_size = u32::try_from(engine.limits().vocab_size).context("the vocabulary is too large")?;
    let mut rng = Rng::new(seed);
    let mut prompts = || -> Vec<_> {
        (0..work.batch).map(|_| workload::random_tokens(work.input_len, vocab_size, &mut rng)).collect()
    };
    once(engine, prompts(), work.output_len).await?;
    let mut rounds = Vec::new();
    for _ in 0..repeat {
        rounds.push(once(engine, prompts(), work.output_len).await?);
    }
    let of =
        |value: &dyn Fn(&Round) -> Option<f64>| Distribution::of(rounds.iter().filter_map(value).collect());
    let (batch, answers) = (work.batch as f64, work.batch as f64 * f64::from(work.output_len));
    let prompt_tokens = batch * work.input_len as f64;
    let nothing = "there is nothing to measure";
    Ok(EngineSpeed {
        prefill_tokens_per_s: of(&|round| Some(prompt_tokens / round.first_tokens)).context(nothing)?,
        first_token_ms: of(&|round| Some(round.first_tokens * 1e3)).context(nothing)?,
        decode_tokens_per_s: of(&|round| Some(batch / round.step?)),
        decode_step_ms: of(&|round| Some(round.step? * 1e3)),
        output_tokens_per_s: of(&|round| Some(answers / round.whole)).context(nothing)?,
        peak_rss_bytes: peak_rss(),
    })
}

/// Times of one repetition, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Round {
    /// From the first step to the last sequence's first token.
    first_tokens: f64,
    /// Of one step with all sequences, if there was one.
    step: Option<f64>,
    /// From the first step to the last token.
    whole: f64,
}

impl Round {
    /// `None` without answers.
    fn of(answers: &[Times]) -> Option<Self> {
        let start = answers.iter().map(|times| times.scheduled).min()?;
        let last = answers.iter().max_by_key(|times| times.first_token())?;
        let end = answers.iter().map(|times| times.finished).max()?;
        let first_end = answers.iter().map(|times| times.finished).min()?;
        // The sequence that began last tells the steps in which all had begun and none had ended.
        let shared = last.tokens.iter().rev().find(|&&token| token <= first_end);
        let steps = last.tokens.iter().filter(|&&token| token <= first_end).count().saturating_sub(1);
        let step = shared.filter(|_| steps > 0).map(|&token| (token - last.first_token()).as_secs_f64());
        Some(Self {
            first_tokens: (last.first_token() - start).as_secs_f64(),
            step: step.map(|time| time / steps as f64),
            whole: (end - start).as_secs_f64(),
        })
    }
}

/// When things happened to one request.
#[derive(Clone, Debug)]
struct Times {
    scheduled: Instant,
    /// When each token came, one at least.
    tokens: Vec<Instant>,
    finished: Instant,
}

impl Times {
    fn first_token(&self) -> Instant {
        self.tokens[0]
    }
}

async fn once(engine: &EngineHandle, prompts: Vec<Vec<u32>>, max_tokens: u32) -> anyhow::Result<Round> {
    let requests: Vec<_> = prompts
        .into_iter()
        .map(|prompt| engine.submit(request(prompt, max_tokens)))
        .collect::<Result<_, _>>()?;
    let answers = try_join_all(requests.into_iter().map(answer)).await?;
    Round::of(&answers).context("there is nothing to measure")
}

async fn answer(mut events: EventStream) -> anyhow::Result<Times> {
    let mut tokens = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            EngineEvent::Finished { timings, .. } => {
                anyhow::ensure!(!tokens.is_empty(), "the engine ended the request without a token");
                return Ok(Times { scheduled: timings.scheduled, tokens, finished: timings.finished });
            }
            EngineEvent::Failed(error) => return Err(error.into()),
            EngineEvent::Token { at, .. } => tokens.push(at),
            EngineEvent::PromptDone { .. } => {}
        }
    }
    anyhow::bail!("the engine ended the request without a result")
}

fn request(prompt: Vec<u32>, max_tokens: u32) -> EngineRequest {
    let prompt: Vec<TokenId> = prompt.into_iter().map(TokenId).collect();
    EngineRequest {
        prompt: prompt.into(),
        choices: NonZeroU32::MIN,
        sampling: Arc::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() }),
        stop: StopConditions { max_tokens, eos: EosPolicy::Ignore, ..StopConditions::default() },
        logprobs: None,
        prompt_logprobs: None,
        masking: Masking::None,
        pooling: None,
    }
}

/// The high-water mark of resident memory (`VmHWM`).
fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn times(origin: Instant, scheduled: u64, tokens: &[u64]) -> Times {
        let at = |ms| origin + Duration::from_millis(ms);
        Times {
            scheduled: at(scheduled),
            tokens: tokens.iter().map(|&ms| at(ms)).collect(),
            finished: at(tokens[tokens.len() - 1]),
        }
    }

    #[test]
    fn a_step_is_timed_where_every_sequence_has_begun_and_none_has_ended() {
        let origin = Instant::now();
        // The second begins while the first decodes beside its prompt, in slow steps; both then take 2 ms a step.
        let answers = [times(origin, 0, &[10, 30, 50, 52, 54]), times(origin, 10, &[50, 52, 54, 55, 56])];
        let round = Round::of(&answers).unwrap();
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 1e-9;
        assert!(near(round.first_tokens, 0.050));
        assert!(near(round.step.unwrap(), 0.002));
        assert!(near(round.whole, 0.056));
    }

    #[test]
    fn answers_that_never_overlap_have_no_step() {
        let origin = Instant::now();
        assert_eq!(Round::of(&[times(origin, 0, &[1]), times(origin, 0, &[5, 6])]).unwrap().step, None);
        assert_eq!(Round::of(&[]), None);
    }
}

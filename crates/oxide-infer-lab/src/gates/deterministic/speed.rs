//! What deterministic plans cost: of one model the fastest plan, one for as many sequences, and one for a quarter of them, in
//! turns.

use super::random_model;
use crate::parity::greedy_request;
use crate::record::Finding;
use anyhow::{Context as _, Result, bail};
use oxide_infer::TokenId;
use oxide_infer_cuda::runtime::Context;
use oxide_infer_engine::cuda::{CudaOptions, load_cuda_on};
use oxide_infer_engine::{
    Engine, EngineConfig, EngineEvent, EngineHandle, EventStream, PlanGoal, PrefixCache,
};
use std::sync::Arc;
use std::time::Instant;

/// So many prompts at once, each of so many tokens, answered with so many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) batch: usize,
    pub(super) input: usize,
    pub(super) output: usize,
    /// Times in each turn.
    pub(super) repeat: usize,
}

/// Measures the plans, A B C C B A, and notes medians in milliseconds with the least and the greatest.
pub(super) fn run(
    context: &Context,
    config: &str,
    options: CudaOptions,
    works: &[Work],
    finding: &mut Finding,
) -> Result<()> {
    let source = random_model(config)?;
    let engine = |goal: PlanGoal, max_sequences: usize| -> Result<EngineHandle> {
        let options = CudaOptions { goal, max_sequences, ..options.clone() };
        let executor = load_cuda_on(context, &source, &options, &mut |_| ())?;
        let config = EngineConfig { prefix_cache: PrefixCache::Disabled, ..EngineConfig::default() };
        Ok(Engine::start(Box::new(executor), config)?)
    };
    let (most, few) = (options.max_sequences, options.max_sequences / 4);
    let plans = [
        ("fastest plan".to_owned(), engine(PlanGoal::Fastest, most)?),
        ("deterministic plan".to_owned(), engine(PlanGoal::Deterministic, most)?),
        (format!("deterministic plan of {few} sequences"), engine(PlanGoal::Deterministic, few)?),
    ];
    for work in works {
        let admits = |(_, engine): &&(String, EngineHandle)| engine.limits().max_sequences >= work.batch;
        let plans: Vec<_> = plans.iter().filter(admits).collect();
        let mut found = vec![Vec::new(); plans.len()];
        for turn in (0..plans.len()).chain((0..plans.len()).rev()) {
            found[turn].extend(rounds(&plans[turn].1, *work)?);
        }
        let Work { batch, input, output, .. } = work;
        for ((plan, _), rounds) in plans.into_iter().zip(found) {
            let mut note = |what: &str, values: Vec<f64>| {
                let Some([least, median, most]) = spread(values) else { return };
                let name = format!("{what} of {batch} x {input} in {output} out, {plan}, ms");
                finding.measured.insert(name.clone(), median);
                finding.measured.insert(format!("{name}: least"), least);
                finding.measured.insert(format!("{name}: most"), most);
            };
            note("decode step", rounds.iter().filter_map(|round| round.step).collect());
            note("first tokens", rounds.iter().map(|round| round.first_tokens).collect());
        }
    }
    Ok(())
}

/// After one that warms up.
fn rounds(engine: &EngineHandle, work: Work) -> Result<Vec<Round>> {
    once(engine, work)?;
    (0..work.repeat).map(|_| once(engine, work)).collect()
}

fn spread(mut values: Vec<f64>) -> Option<[f64; 3]> {
    values.sort_by(f64::total_cmp);
    Some([*values.first()?, values[values.len() / 2], *values.last()?])
}

/// Milliseconds of one repetition.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// From the first step to the last sequence's first token.
    first_tokens: f64,
    /// Of one step with all sequences, if there was one.
    step: Option<f64>,
}

/// When things happened to one request.
struct Times {
    scheduled: Instant,
    tokens: Vec<Instant>,
    finished: Instant,
}

fn once(engine: &EngineHandle, work: Work) -> Result<Round> {
    let vocab = engine.limits().vocab_size as u64 - 3;
    let prompt = |one: usize| -> Arc<[TokenId]> {
        (0..work.input).map(|at| TokenId((3 + ((one * 131 + at) as u64 * 7919) % vocab) as u32)).collect()
    };
    let streams = (0..work.batch).map(|one| Ok(engine.submit(greedy_request(prompt(one), work.output))?));
    let answers = streams.collect::<Result<Vec<_>>>()?.into_iter().map(times).collect::<Result<Vec<_>>>()?;
    let start = answers.iter().map(|times| times.scheduled).min().context("no requests")?;
    let last = answers.iter().max_by_key(|times| times.tokens.first()).context("no requests")?;
    let first = last.tokens.first().context("no tokens")?;
    let first_end = answers.iter().map(|times| times.finished).min().context("no requests")?;
    let shared: Vec<_> = last.tokens.iter().filter(|&&token| token <= first_end).collect();
    let ms = |from: &Instant, to: &Instant| to.duration_since(*from).as_secs_f64() * 1e3;
    let step =
        shared.last().filter(|_| shared.len() > 8).map(|end| ms(first, end) / (shared.len() - 1) as f64);
    Ok(Round { first_tokens: ms(&start, first), step })
}

fn times(mut stream: EventStream) -> Result<Times> {
    let mut tokens = Vec::new();
    while let Some(event) = stream.blocking_next() {
        match event {
            EngineEvent::Token { at, .. } => tokens.push(at),
            EngineEvent::Finished { timings, .. } => {
                return Ok(Times { scheduled: timings.scheduled, tokens, finished: timings.finished });
            }
            EngineEvent::Failed(error) => bail!(error),
            EngineEvent::PromptDone { .. } => {}
        }
    }
    bail!("a request ended without a word")
}

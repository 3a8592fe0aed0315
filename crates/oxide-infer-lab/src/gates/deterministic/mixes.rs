//! Requests alone, and again in random mixes of company, budgets, pages and caches.

use super::Random;
use super::workload::{Answer, answer, follow_up, greedy, request};
use crate::record::Finding;
use anyhow::{Result, ensure};
use oxide_infer_engine::batch::ExecutorLimits;
use oxide_infer_engine::{
    Engine, EngineBatch, EngineConfig, EngineHandle, EngineRequest, Executor, ExecutorError, PrefixCache,
    StepKind, StepOutput,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Requests that are asked again and again.
const REQUESTS: usize = 48;
/// One mix of greedy requests that ask for tokens alone comes to so many of all kinds: a step of many such rows may have no
/// logits in memory.
const GREEDY: usize = 4;
/// Sequences that run at once in the largest mixes.
const MOST: usize = 64;

/// What is claimed of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// Every answer is the same.
    SameBits,
    /// Nothing: answers that differ are counted.
    None,
}

/// Asks every request alone, then so many mixes of them, and compares.
pub(super) fn run(
    executor: Box<dyn Executor>,
    mixes: usize,
    claim: Claim,
    finding: &mut Finding,
) -> Result<()> {
    let limits = executor.limits();
    let shared = Arc::new(Mutex::new(Shared { executor, counts: Counts::default() }));
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let longest = (limits.max_model_len / 2).min(900);
    let mut asked: Vec<_> = (0..REQUESTS).map(|_| request(&mut random, &limits, longest)).collect();
    let mut expected = asked.iter().map(|one| alone(&shared, one)).collect::<Result<Vec<_>>>()?;
    // Second turns of the conversations that the first ones began.
    for first in 0..REQUESTS / 4 {
        if let Some(next) = follow_up(&asked[first], &expected[first], &limits) {
            expected.push(alone(&shared, &next)?);
            asked.push(next);
        }
    }
    lock(&shared).counts = Counts::default();
    let mut gate =
        Gate { shared, limits, asked, expected, random, same: 0, different: 0, preempted: 0, cached: 0 };
    for mix in 0..mixes {
        let company = 1 + gate.random.below(2 << (mix % 7)) as usize;
        gate.mix(company, claim, finding)?;
    }
    gate.asked.clear();
    gate.expected.clear();
    for _ in 0..REQUESTS {
        let one = greedy(&mut gate.random, &limits, longest);
        gate.expected.push(alone(&gate.shared, &one)?);
        gate.asked.push(one);
    }
    let before = by_tiles(&gate.shared);
    (0..mixes.div_ceil(GREEDY)).try_for_each(|_| gate.mix(MOST, claim, finding))?;
    let without_logits = by_tiles(&gate.shared) - before;
    gate.note(without_logits, claim, finding)
}

fn alone(shared: &SharedExecutor, request: &EngineRequest) -> Result<Answer> {
    let limits = lock(shared).executor.limits();
    let engine = start(shared, limits, PrefixCache::Disabled)?;
    answer(engine.submit(request.clone())?, request)
}

/// Heads that an executor has computed without logits.
fn by_tiles(shared: &SharedExecutor) -> u64 {
    let counters = lock(shared).executor.operator_counters();
    counters.snapshot().filter(|(name, _)| name.starts_with("candidates.")).map(|(_, count)| count).sum()
}

struct Gate {
    shared: SharedExecutor,
    limits: ExecutorLimits,
    asked: Vec<EngineRequest>,
    expected: Vec<Answer>,
    random: Random,
    same: usize,
    different: usize,
    preempted: u64,
    cached: u64,
}

impl Gate {
    /// So many requests at once, twice where the cache is to be warm.
    fn mix(&mut self, company: usize, claim: Claim, finding: &mut Finding) -> Result<()> {
        let chosen: Vec<_> =
            (0..company).map(|_| self.random.below(self.asked.len() as u64) as usize).collect();
        let cached = self.random.below(2) == 0;
        let limits = self.limits_of(&chosen);
        let cache = if cached { PrefixCache::Enabled } else { PrefixCache::Disabled };
        let engine = start(&self.shared, limits, cache)?;
        for _ in 0..=usize::from(cached) {
            let streams = chosen.iter().map(|&one| Ok((one, engine.submit(self.asked[one].clone())?)));
            for (one, stream) in streams.collect::<Result<Vec<_>>>()? {
                let same = answer(stream, &self.asked[one])? == self.expected[one];
                self.same += usize::from(same);
                self.different += usize::from(!same);
                if claim == Claim::SameBits {
                    finding.check("answers in random mixes", verdict(same, one, &self.asked[one], &limits));
                }
            }
        }
        let metrics = engine.metrics().snapshot();
        self.preempted += metrics.preemptions;
        self.cached += metrics.prefix_cache_hits;
        Ok(())
    }

    /// Budgets that cut prompts, and pages for all of a mix or for little more than the longest of it.
    fn limits_of(&mut self, chosen: &[usize]) -> ExecutorLimits {
        let page_size = self.limits.page_size;
        let pages = |one: &usize| {
            let request = &self.asked[*one];
            let tokens = request.prompt.len() + request.stop.max_tokens as usize;
            tokens.div_ceil(page_size) * request.choices.get() as usize
        };
        let longest = chosen.iter().map(pages).max().unwrap_or(1);
        let all: usize = chosen.iter().map(pages).sum();
        let max_sequences = [4, 16, MOST][self.random.below(3) as usize].min(self.limits.max_sequences);
        let budget = [max_sequences, 96, 500, usize::MAX][self.random.below(4) as usize];
        let few = longest + 1 + self.random.below((all / 8) as u64 + 2) as usize;
        let num_pages = if self.random.below(2) == 0 { few } else { usize::MAX };
        ExecutorLimits {
            num_pages: num_pages.min(self.limits.num_pages),
            max_sequences,
            max_batch_tokens: budget.clamp(max_sequences, self.limits.max_batch_tokens),
            ..self.limits
        }
    }

    fn note(self, without_logits: u64, claim: Claim, finding: &mut Finding) -> Result<()> {
        let Self { same, different, preempted, cached, shared, .. } = self;
        let counts = std::mem::take(&mut lock(&shared).counts);
        let mut measured = |what: &str, value: f64| finding.measured.insert(what.to_owned(), value);
        if claim == Claim::None {
            measured("answers of the fastest plan that were the same", same as f64);
            measured("answers of the fastest plan that were others", different as f64);
            return Ok(());
        }
        measured("steps", counts.steps as f64);
        measured("steps whose tokens were chosen without logits", without_logits as f64);
        measured("most rows in a step", counts.most_rows as f64);
        measured("chunks that did not end their prompt", counts.inner_chunks as f64);
        measured("generated tokens that were computed again", counts.again as f64);
        measured("sequences that lost their pages", preempted as f64);
        measured("prompt tokens that were cached", cached as f64);
        ensure!(counts.most_rows > 1, "no two sequences were in one step");
        ensure!(
            counts.inner_chunks > 0 && preempted > 0 && cached > 0,
            "not everything has happened: {counts:?}"
        );
        Ok(())
    }
}

fn verdict(same: bool, number: usize, request: &EngineRequest, limits: &ExecutorLimits) -> Result<()> {
    let ExecutorLimits { num_pages, max_sequences, max_batch_tokens, .. } = limits;
    ensure!(
        same,
        "request {number} ({} tokens and {} more, {} choices) has another answer among at most {max_sequences} with \
         {num_pages} pages and {max_batch_tokens} tokens a step",
        request.prompt.len(),
        request.stop.max_tokens,
        request.choices
    );
    Ok(())
}

fn start(shared: &SharedExecutor, limits: ExecutorLimits, prefix_cache: PrefixCache) -> Result<EngineHandle> {
    // The thread of the engine before may not have given its executor back yet.
    let until = Instant::now() + Duration::from_secs(30);
    while Arc::strong_count(shared) > 1 {
        ensure!(Instant::now() < until, "an engine that was dropped does not end");
        std::thread::sleep(Duration::from_micros(100));
    }
    let config = EngineConfig { prefix_cache, ..EngineConfig::default() };
    Ok(Engine::start(Box::new(Borrowed { shared: shared.clone(), limits }), config)?)
}

/// An executor that one engine after the other uses.
type SharedExecutor = Arc<Mutex<Shared>>;

struct Shared {
    executor: Box<dyn Executor>,
    counts: Counts,
}

/// What was in the steps.
#[derive(Debug, Default)]
struct Counts {
    steps: usize,
    most_rows: usize,
    inner_chunks: usize,
    again: usize,
}

/// The executor under an engine's own limits.
struct Borrowed {
    shared: SharedExecutor,
    limits: ExecutorLimits,
}

impl Executor for Borrowed {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn submit(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        let shared = &mut *lock(&self.shared);
        let counts = &mut shared.counts;
        counts.steps += 1;
        counts.most_rows = counts.most_rows.max(batch.rows.len());
        let undrawn = batch.rows.iter().filter(|row| row.samples.is_empty()).count();
        match batch.kind {
            StepKind::Generated => counts.again += undrawn,
            StepKind::Prompt | StepKind::Mixed => counts.inner_chunks += undrawn,
        }
        shared.executor.submit(batch)
    }

    fn collect(&mut self, output: &mut StepOutput) -> Result<(), ExecutorError> {
        lock(&self.shared).executor.collect(output)
    }
}

/// Steps that an engine left in flight when it ended are none of the next one's.
impl Drop for Borrowed {
    fn drop(&mut self) {
        let mut left = StepOutput::default();
        while lock(&self.shared).executor.collect(&mut left).is_ok() {}
    }
}

fn lock(shared: &SharedExecutor) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

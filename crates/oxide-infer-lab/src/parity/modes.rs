//! How each mode has the engine compute the cases.

use super::Mode;
use super::cases::Cases;
use super::teacher::{SharedExecutor, Sink, Teacher, lock};
use anyhow::{Result, bail, ensure};
use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use oxide_infer_engine::request::{EosPolicy, Masking, StopConditions};
use oxide_infer_engine::{
    Engine, EngineConfig, EngineEvent, EngineHandle, EngineRequest, EventStream, ExecutorLimits, PrefixCache,
};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

/// Runs cases in engines over one executor.
pub(super) struct Runner {
    executor: SharedExecutor,
    limits: ExecutorLimits,
    cases: Arc<Cases>,
    sink: Arc<Mutex<Sink>>,
    preemptions: u64,
    cached_tokens: u64,
}

impl Runner {
    pub(super) fn new(
        executor: SharedExecutor,
        limits: ExecutorLimits,
        cases: Arc<Cases>,
        sink: Arc<Mutex<Sink>>,
    ) -> Self {
        Self { executor, limits, cases, sink, preemptions: 0, cached_tokens: 0 }
    }

    /// Computes every case, and makes sure that it was in the company that the mode promises.
    pub(super) fn run(&mut self, mode: Mode, chunk: usize) -> Result<()> {
        match mode {
            Mode::Alone | Mode::Eager => self.alone(self.limits),
            Mode::Batched => self.batched(),
            Mode::Chunked => self.chunked(chunk),
            Mode::Preempted => self.preempted(),
            Mode::Warm => self.warm(),
        }
    }

    /// Sequences that lost their pages.
    pub(super) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Prompt tokens that the prefix cache had.
    pub(super) fn cached_tokens(&self) -> u64 {
        self.cached_tokens
    }

    fn alone(&mut self, limits: ExecutorLimits) -> Result<()> {
        let engine = self.engine(limits, PrefixCache::Disabled)?;
        for case in 0..self.cases.len() {
            finish(self.submit(&engine, case)?)?;
        }
        self.note(&engine);
        Ok(())
    }

    fn batched(&mut self) -> Result<()> {
        let engine = self.engine(self.limits, PrefixCache::Disabled)?;
        let streams =
            (0..self.cases.len()).map(|case| self.submit(&engine, case)).collect::<Result<Vec<_>>>()?;
        streams.into_iter().try_for_each(finish)?;
        self.note(&engine);
        let most_rows = lock(&self.sink).counts().most_rows;
        ensure!(most_rows > 1, "no two of the cases were in one step");
        Ok(())
    }

    fn chunked(&mut self, chunk: usize) -> Result<()> {
        let most = self.limits.max_batch_tokens;
        ensure!((1..=most).contains(&chunk), "--chunk {chunk} is not from 1 to {most}");
        self.alone(ExecutorLimits { max_batch_tokens: chunk, max_sequences: 1, ..self.limits })?;
        ensure!(
            lock(&self.sink).counts().inner_chunks > 0,
            "no prompt is longer than the chunk of {chunk} tokens"
        );
        Ok(())
    }

    /// Each case in an engine with so few pages that an older sequence takes them away: both need one more page along the
    /// way, and there is one.
    fn preempted(&mut self) -> Result<()> {
        let (page_size, new_tokens) = (self.limits.page_size, self.cases.new_tokens());
        // The older sequence crosses into its second page after a third of the continuation, and outlives the case.
        let third = new_tokens.div_ceil(3).min(page_size - 1);
        let older: Arc<[TokenId]> = vec![TokenId(0); page_size - third].into();
        ensure!(self.cases.find(&older).is_none(), "a case has the prompt of the sequence beside it");
        for case in 0..self.cases.len() {
            let len = self.cases.get(case).prompt.len();
            let prompt_steps = len.div_ceil(self.limits.max_batch_tokens - 1) + 1;
            let num_pages = len.div_ceil(page_size) + 2;
            ensure!(
                num_pages <= self.limits.num_pages,
                "the KV memory does not hold case {case} and another"
            );
            let engine = self.engine(ExecutorLimits { num_pages, ..self.limits }, PrefixCache::Disabled)?;
            // The older sequence must not get ahead before the case is there.
            let held = lock(&self.executor);
            let beside = engine.submit(greedy_request(older.clone(), new_tokens + prompt_steps + 1))?;
            let stream = self.submit(&engine, case)?;
            drop(held);
            finish(beside)?;
            finish(stream)?;
            self.note(&engine);
        }
        ensure!(self.preemptions > 0, "no case was preempted");
        Ok(())
    }

    fn warm(&mut self) -> Result<()> {
        let engine = self.engine(self.limits, PrefixCache::Enabled)?;
        for case in 0..self.cases.len() {
            finish(engine.submit(greedy_request(self.cases.get(case).prompt.clone(), 1))?)?;
            lock(&self.sink).forget(case);
            finish(self.submit(&engine, case)?)?;
        }
        self.note(&engine);
        ensure!(self.cached_tokens > 0, "no prompt was found in the prefix cache");
        Ok(())
    }

    fn engine(&self, limits: ExecutorLimits, prefix_cache: PrefixCache) -> Result<EngineHandle> {
        let teacher = Teacher::new(self.executor.clone(), limits, self.cases.clone(), self.sink.clone());
        let config = EngineConfig { prefix_cache, max_waiting: self.cases.len() + 1 };
        Ok(Engine::start(Box::new(teacher), config)?)
    }

    fn submit(&self, engine: &EngineHandle, case: usize) -> Result<EventStream> {
        Ok(engine.submit(greedy_request(self.cases.get(case).prompt.clone(), self.cases.new_tokens()))?)
    }

    /// Adds up what an engine has counted.
    fn note(&mut self, engine: &EngineHandle) {
        let counts = engine.metrics().snapshot();
        self.preemptions += counts.preemptions;
        self.cached_tokens += counts.prefix_cache_hits;
    }
}

/// One greedy answer of exactly so many tokens.
pub(crate) fn greedy_request(prompt: Arc<[TokenId]>, max_tokens: usize) -> EngineRequest {
    EngineRequest {
        prompt,
        choices: NonZeroU32::MIN,
        sampling: Arc::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() }),
        stop: StopConditions {
            max_tokens: max_tokens as u32,
            eos: EosPolicy::Ignore,
            ..StopConditions::default()
        },
        logprobs: None,
        prompt_logprobs: None,
        masking: Masking::None,
        pooling: None,
    }
}

/// Waits for the end of a request.
fn finish(mut stream: EventStream) -> Result<()> {
    while let Some(event) = stream.blocking_next() {
        if let EngineEvent::Failed(error) = event {
            bail!(error);
        }
    }
    Ok(())
}

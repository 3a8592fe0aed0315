//! An executor that follows a script instead of a model and checks everything it is given.
//!
//! Its "KV" holds, for every position, the token and a digest of all tokens up to it. So a page that was lost, mixed up,
//! written by another sequence or reused too early shows at the first step that reads it, as an [`ExecutorError`].

mod answer;
mod check;

use crate::batch::{
    BatchRow, EngineBatch, Executor, ExecutorError, ExecutorLimits, RowInput, SampleTarget, Sampled,
    SlotStart, StepKind, StepMix, StepOutput,
};
use crate::request::ChoiceIndex;
use oxide_infer::TokenId;
use oxide_infer::sampling::{self, SamplingError, SamplingParams};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub use answer::{expected_answer, expected_pooled, expected_prompt_logprobs};

/// Limits that small tests can start from: pages of 4 tokens, 64 of them, 8 sequences, 32 tokens in a step, 128 tokens in
/// a sequence, a vocabulary of 1,000.
pub const SMALL_LIMITS: ExecutorLimits = ExecutorLimits {
    page_size: 4,
    num_pages: 64,
    max_sequences: 8,
    max_batch_tokens: 32,
    max_model_len: 128,
    vocab_size: 1000,
    max_logprobs: u32::MAX,
    hidden_size: Some(answer::HIDDEN_SIZE),
    steps_in_flight: 1,
    step_mix: StepMix::Mixed,
};

/// What a script may look at to choose the next token.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// The prompt.
    pub prompt: &'a [TokenId],
    /// What the choice has sampled so far.
    pub output: &'a [TokenId],
    /// Which choice.
    pub choice: ChoiceIndex,
    /// How it samples.
    pub sampling: &'a SamplingParams,
    /// Digest of the tokens in the sequence's KV.
    pub context: u64,
}

type Script = Box<dyn FnMut(Draw<'_>) -> TokenId + Send>;

/// The executor. See the [module](self).
pub struct ScriptedExecutor {
    limits: ExecutorLimits,
    script: Script,
    /// `[num_pages, page_size]`.
    kv: Vec<Option<Cell>>,
    /// `[max_sequences]`.
    slots: Vec<Option<SlotContent>>,
    in_flight: VecDeque<InFlight>,
    collected: u64,
    step_time: Duration,
    failure: Option<(u64, String)>,
    on_submit: Box<dyn FnMut(&EngineBatch) + Send>,
    on_collect: Box<dyn FnMut(u64) + Send>,
}

/// What one position of a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    token: TokenId,
    position: usize,
    /// Of the tokens up to and with this one.
    digest: u64,
    /// As what it was computed.
    computed: StepKind,
}

/// What a slot knows.
struct SlotContent {
    start: SlotStart,
    /// `start.output` and what has been sampled since.
    output: Vec<TokenId>,
}

/// A step that is computed and waits to be collected.
struct InFlight {
    output: StepOutput,
    ready: Instant,
}

impl ScriptedExecutor {
    /// An executor whose next token is a hash of all that it may depend on: the sequence, and, unless greedy, the seed,
    /// the choice and the position.
    pub fn new(limits: ExecutorLimits) -> Self {
        Self {
            limits,
            script: Box::new(move |draw| answer::hash_token(draw, limits.vocab_size)),
            kv: vec![None; limits.num_pages * limits.page_size],
            slots: (0..limits.max_sequences).map(|_| None).collect(),
            in_flight: VecDeque::new(),
            collected: 0,
            step_time: Duration::ZERO,
            failure: None,
            on_submit: Box::new(|_| {}),
            on_collect: Box::new(|_| {}),
        }
    }

    /// Chooses tokens with this function. A token that a mask or `min_tokens` forbids is replaced by the next allowed one.
    pub fn script(mut self, script: impl FnMut(Draw<'_>) -> TokenId + Send + 'static) -> Self {
        self.script = Box::new(script);
        self
    }

    /// Answers every prompt with these tokens, the last of them again and again.
    ///
    /// # Panics
    /// If there are none.
    pub fn answering(self, answer: impl Into<Vec<TokenId>>) -> Self {
        let answer = answer.into();
        assert!(!answer.is_empty(), "an answer needs at least one token");
        self.script(move |draw| answer[draw.output.len().min(answer.len() - 1)])
    }

    /// Lets every step take this long.
    pub fn step_time(mut self, step_time: Duration) -> Self {
        self.step_time = step_time;
        self
    }

    /// Fails when step `step` (from 0) is collected.
    pub fn failing_at(mut self, step: u64, message: impl Into<String>) -> Self {
        self.failure = Some((step, message.into()));
        self
    }

    /// Calls this with every step that is submitted.
    pub fn on_submit(mut self, hook: impl FnMut(&EngineBatch) + Send + 'static) -> Self {
        self.on_submit = Box::new(hook);
        self
    }

    /// Calls this before step `step` (from 0) is collected; it may wait, or panic.
    pub fn on_collect(mut self, hook: impl FnMut(u64) + Send + 'static) -> Self {
        self.on_collect = Box::new(hook);
        self
    }

    /// Writes the row's tokens and returns the digest up to each of them.
    fn compute_row(&mut self, batch: &EngineBatch, row: &BatchRow) -> Result<Vec<u64>, ExecutorError> {
        let pages = &batch.pages[row.pages.clone()];
        let slot = check::started(&self.slots, row.slot)?;
        let first = row.kv_len - row.tokens.len();
        let mut digest = answer::EMPTY_CONTEXT;
        let mut digests = Vec::with_capacity(row.tokens.len());
        for position in 0..row.kv_len {
            let page = pages[position / self.limits.page_size].index();
            let cell = &mut self.kv[page * self.limits.page_size + position % self.limits.page_size];
            if position >= first {
                let token = match row.input {
                    RowInput::Host => batch.tokens[row.tokens.start + position - first],
                    RowInput::LastSampled => check::last_sampled(slot, row.slot)?,
                };
                let digest = answer::extend(digest, token);
                *cell = Some(Cell { token, position, digest, computed: batch.kind });
            }
            let page = pages[position / self.limits.page_size];
            digest = check::cell(*cell, position, digest, slot, page, self.limits.step_mix)?;
            if position >= first {
                digests.push(digest);
            }
        }
        Ok(digests)
    }

    fn sample(&mut self, target: &SampleTarget, context: u64) -> Result<Sampled, ExecutorError> {
        let slot = self.slots[target.slot.0 as usize].as_mut();
        let slot =
            slot.ok_or_else(|| check::error(format!("slot {} is sampled before it starts", target.slot.0)))?;
        check::sample_position(slot, target)?;
        let wanted = (self.script)(Draw {
            prompt: &slot.start.prompt,
            output: &slot.output,
            choice: slot.start.choice,
            sampling: &slot.start.sampling,
            context,
        });
        let vocab_size = self.limits.vocab_size;
        let token = answer::allowed(wanted, vocab_size, target.mask.as_deref(), &target.forbidden);
        slot.output.push(token.unwrap_or_default());
        let outcome = token.ok_or(SamplingError::NoCandidate).map(|token| {
            let logprobs = target.logprobs.map(|top| answer::logprobs(token, context, top, vocab_size));
            sampling::Sampled { token, logprobs }
        });
        Ok(Sampled { slot: target.slot, outcome })
    }
}

impl Executor for ScriptedExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn submit(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        (self.on_submit)(batch);
        if self.in_flight.len() == self.limits.steps_in_flight {
            return Err(check::error(format!("{} steps are in flight already", self.in_flight.len())));
        }
        check::batch(batch, &self.limits)?;
        for copy in &batch.page_copies {
            let (from, to) =
                (copy.from.index() * self.limits.page_size, copy.to.index() * self.limits.page_size);
            self.kv.copy_within(from..from + self.limits.page_size, to);
        }
        for start in &batch.slot_starts {
            let content = SlotContent { start: start.clone(), output: start.output.clone() };
            self.slots[start.slot.0 as usize] = Some(content);
        }

        let mut output = StepOutput::default();
        for row in &batch.rows {
            let digests = self.compute_row(batch, row)?;
            if let Some(asked) = &row.prompt_logprobs {
                let next = asked.next_tokens.iter().zip(&digests);
                let found = next.map(|(token, digest)| {
                    answer::logprobs(*token, *digest, asked.top, self.limits.vocab_size)
                });
                output.prompt_logprobs.push(Ok(found.collect()));
            }
            if let Some(asked) = row.hidden_states.of(0..digests.len()) {
                let states = digests[asked].iter().flat_map(|digest| answer::hidden_state(*digest));
                output.hidden_states.push(states.collect());
            }
            let context = digests.last().copied().unwrap_or(answer::EMPTY_CONTEXT);
            for target in &batch.samples[row.samples.clone()] {
                output.samples.push(self.sample(target, context)?);
            }
        }
        // Steps run one after the other, as on a device's stream.
        let begins = self.in_flight.back().map_or(Instant::now(), |before| before.ready.max(Instant::now()));
        self.in_flight.push_back(InFlight { output, ready: begins + self.step_time });
        Ok(())
    }

    fn collect(&mut self, output: &mut StepOutput) -> Result<(), ExecutorError> {
        (self.on_collect)(self.collected);
        let step = self.in_flight.pop_front().ok_or_else(|| check::error("no step is in flight".into()))?;
        std::thread::sleep(step.ready.saturating_duration_since(Instant::now()));
        if let Some((_, message)) = self.failure.take_if(|(at, _)| *at == self.collected) {
            return Err(ExecutorError { message });
        }
        self.collected += 1;
        *output = step.output;
        Ok(())
    }
}

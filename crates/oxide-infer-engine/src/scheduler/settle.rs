//! What becomes of a step's output.

use super::pool::Pool;
use super::sequence::{Prompt, SequenceKey, Stage};
use super::step::{Step, StepRow};
use super::{Notice, Scheduler, live};
use crate::batch::{ExecutorError, StepOutput};
use crate::request::{ChoiceIndex, EngineEvent, FinishReason, RequestError, RequestId};
use oxide_infer::sampling::{self, LogProbs, SamplingError};
use std::hint::black_box;
use std::time::Instant;

impl Scheduler {
    /// Takes in what the oldest step in flight brought: indexes the pages it filled, hands out its tokens, ends what they
    /// end. Tokens of sequences that have ended since are dropped.
    ///
    /// # Errors
    /// The output does not fit the step; the executor cannot be trusted any more.
    pub fn settle(&mut self, output: &mut StepOutput, now: Instant) -> Result<(), ExecutorError> {
        let Some(mut step) = self.in_flight.pop_front() else {
            return Err(misfit("an output", 1, 0));
        };
        let asked_prompts = step.rows.iter().filter(|row| row.prompt_logprobs.is_some()).count();
        if output.samples.len() != step.samples.len() {
            return Err(misfit("samples", output.samples.len(), step.samples.len()));
        }
        if output.prompt_logprobs.len() != asked_prompts {
            return Err(misfit("prompt log-probabilities", output.prompt_logprobs.len(), asked_prompts));
        }

        let asked_states = step.rows.iter().filter(|row| row.hidden_states.is_some()).count();
        if output.hidden_states.len() != asked_states {
            return Err(misfit("rows of hidden states", output.hidden_states.len(), asked_states));
        }

        self.warm(&step);
        let mut samples = step.samples.iter().zip(output.samples.drain(..));
        let mut prompts = output.prompt_logprobs.drain(..);
        let mut states = output.hidden_states.drain(..);
        for row in &step.rows {
            if let Some(from) = row.hidden_states
                && let Some(states) = states.next()
            {
                self.settle_states(row, from, &states)?;
            }
            let found = row.prompt_logprobs.and_then(|_| prompts.next());
            self.settle_row(row, found, now);
            for (key, sampled) in samples.by_ref().take(row.samples.len()) {
                self.settle_sample(*key, sampled.outcome, now)?;
            }
        }
        step.clear();
        self.spare_steps.push(step);
        Ok(())
    }

    /// Reads a little of all that settling this step and scheduling the next read. The thread has slept for as long as a step
    /// takes, so the caches have others' data, and one row's misses wait for each other: request, sequence, tokens and pages.
    /// Here those of different rows overlap (docs/performance.md, "The engine thread").
    fn warm(&self, step: &Step) {
        let requests =
            || step.rows.iter().filter_map(|row| Some((self.requests.get(&row.key.request)?, row)));
        let sequences = || requests().map(|(request, row)| request.sequence(row.key.choice));
        black_box(requests().fold(0, |sum, (request, _)| sum ^ request.touch()));
        black_box(sequences().fold(0, |sum, sequence| sum ^ sequence.touch()));
        let tokens = sequences().filter_map(|sequence| sequence.output.last());
        black_box(tokens.fold(0, |sum, token| sum ^ token.0));
        let pages = sequences().filter_map(|sequence| sequence.pages.last());
        black_box(pages.fold(0, |sum, page| sum ^ self.pager.owners(*page)));
    }

    /// Takes in the hidden states of a row's tokens from position `from` on.
    fn settle_states(&mut self, row: &StepRow, from: usize, states: &[f32]) -> Result<(), ExecutorError> {
        let pool = self.requests.get_mut(&row.key.request).and_then(|request| request.pool.as_mut());
        // A request that has ended since wants none of them.
        let Some(pool) = pool else { return Ok(()) };
        let expected = (row.kv_len - from) * pool.hidden_size();
        if states.len() != expected {
            return Err(misfit("elements of hidden states", states.len(), expected));
        }
        pool.add(from, states);
        Ok(())
    }

    fn settle_row(&mut self, row: &StepRow, found: Option<PromptOutcome>, now: Instant) {
        let SequenceKey { request: id, choice } = row.key;
        let Some(request) = self.requests.get_mut(&id) else { return };
        if let (Some(start), Some(found)) = (row.prompt_logprobs, found) {
            let found = match found {
                Ok(found) => found,
                Err(error) => return self.fail(id, RequestError::Sampling(error)),
            };
            // After a preemption some may be found again.
            let known = request.prompt_logprobs.len().saturating_sub(start);
            request.prompt_logprobs.extend(found.into_iter().skip(known));
        }
        let prompt_only = request.max_output == 0 && row.kv_len == request.spec.prompt.len();
        let choices = request.sequences.len() as u32;
        let reason = if request.pool.is_some() { FinishReason::Pooled } else { FinishReason::Length };
        let sequence = request.sequence_mut(choice);
        sequence.rows_in_flight -= 1;
        let stage = sequence.stage;
        if stage == Stage::Running && row.kv_len / self.limits.page_size > sequence.published.0 {
            self.publish_filled(row.key, row.kv_len);
        }
        if prompt_only && stage != Stage::Ended {
            self.prompt_done(id);
            for choice in (0..choices).map(ChoiceIndex) {
                self.finish(SequenceKey { request: id, choice }, reason, now);
            }
        }
    }

    fn settle_sample(
        &mut self,
        key: SequenceKey,
        outcome: Result<sampling::Sampled, SamplingError>,
        now: Instant,
    ) -> Result<(), ExecutorError> {
        let Some(request) = self.requests.get_mut(&key.request) else { return Ok(()) };
        let sequence = request.sequence_mut(key.choice);
        sequence.pending -= 1;
        if sequence.stage == Stage::Ended {
            return Ok(());
        }
        let sampled = match outcome {
            Ok(sampled) => sampled,
            Err(error) => {
                self.fail(key.request, RequestError::Sampling(error));
                return Ok(());
            }
        };
        let vocab_size = self.limits.vocab_size;
        if sampled.token.index() >= vocab_size {
            let message =
                format!("the executor sampled token {} of a vocabulary of {vocab_size}", sampled.token);
            return Err(ExecutorError { message });
        }
        sequence.output.push(sampled.token);
        sequence.first_token.get_or_insert(now);
        self.stats.generation_tokens += 1;
        let ending = request.ending(key.choice);
        if request.prompt == Prompt::Scheduled {
            self.prompt_done(key.request);
        }
        let sampling::Sampled { token, logprobs } = sampled;
        let event = EngineEvent::Token { choice: key.choice, token, logprobs, at: now };
        self.notices.push(Notice::Event(key.request, event));
        if let Some(reason) = ending {
            self.finish(key, reason, now);
        }
        Ok(())
    }

    fn prompt_done(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.prompt = Prompt::Done;
        self.stats.prompt_tokens += request.spec.prompt.len() as u64;
        let logprobs = request.spec.prompt_logprobs.map(|_| std::mem::take(&mut request.prompt_logprobs));
        let pooled = request.pool.as_ref().map(Pool::pooled);
        let event = EngineEvent::PromptDone { cached_tokens: request.cached_tokens as u32, logprobs, pooled };
        self.notices.push(Notice::Event(id, event));
    }

    /// Indexes the pages that are full now, so that later sequences can start from them.
    fn publish_filled(&mut self, key: SequenceKey, kv_len: usize) {
        let page_size = self.limits.page_size;
        let full = kv_len.min(self.sharable(key)) / page_size;
        let request = live(&mut self.requests, key);
        let (mut published, mut prefix) = request.sequence(key.choice).published;
        while let Some(before) = prefix
            && published < full
        {
            let page = request.sequence(key.choice).pages[published];
            let from = published * page_size;
            prefix = self.pager.publish(page, before, |buffer| request.copy_tokens(key.choice, from, buffer));
            published += 1;
        }
        request.sequence_mut(key.choice).published = (published, prefix);
    }
}

type PromptOutcome = Result<Vec<LogProbs>, SamplingError>;

fn misfit(what: &str, came: usize, expected: usize) -> ExecutorError {
    ExecutorError {
        message: format!("the executor's output has {came} {what} where the step asked for {expected}"),
    }
}

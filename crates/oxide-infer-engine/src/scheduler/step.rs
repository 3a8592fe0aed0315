//! How a sequence becomes a row of a step.

use super::sequence::{Prompt, Request, SequenceKey, SlotState, Stage};
use super::{Scheduler, live};
use crate::batch::{
    BatchRow, EngineBatch, HiddenStates, PageCopy, PromptLogprobs, RowInput, SampleTarget, SlotId, SlotStart,
};
use crate::request::ChoiceIndex;
use oxide_infer::TokenId;
use oxide_infer::sampling::TokenMask;
use std::ops::Range;
use std::sync::Arc;

/// What the scheduler must know of a step when its output comes.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) rows: Vec<StepRow>,
    /// Who takes the tokens that it samples, in order.
    pub(super) samples: Vec<SequenceKey>,
    /// Sequences whose other choices join the running ones with this step.
    forks: Vec<SequenceKey>,
}

#[derive(Debug)]
pub(super) struct StepRow {
    pub(super) key: SequenceKey,
    /// Tokens in the sequence's KV once the step is done.
    pub(super) kv_len: usize,
    /// Indices into `Step::samples`.
    pub(super) samples: Range<usize>,
    /// If the row finds log-probabilities of prompt tokens: the position of the first of them, less one.
    pub(super) prompt_logprobs: Option<usize>,
    /// If the row brings hidden states: the position of the first.
    pub(super) hidden_states: Option<usize>,
}

impl Step {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.samples.clear();
        self.forks.clear();
    }
}

impl Scheduler {
    /// Sees to it that the sequence can write its next token: allocates the page if it has none, copies the page if it is
    /// shared. False if the pool is empty.
    pub(super) fn make_writable(&mut self, key: SequenceKey, batch: &mut EngineBatch) -> bool {
        let sequence = live(&mut self.requests, key).sequence_mut(key.choice);
        let index = sequence.scheduled / self.limits.page_size;
        let page = sequence.pages.get(index).copied();
        if page.is_some_and(|page| self.pager.owners(page) == 1) {
            return true;
        }
        let Some(own) = self.pager.allocate() else { return false };
        match page {
            None => sequence.pages.push(own),
            Some(shared) => {
                batch.page_copies.push(PageCopy { from: shared, to: own });
                self.pager.release(shared);
                sequence.pages[index] = own;
            }
        }
        true
    }

    /// Adds a row that computes the sequence's next `count` tokens, and samples if they are all it has.
    pub(super) fn place(&mut self, key: SequenceKey, count: usize, batch: &mut EngineBatch, step: &mut Step) {
        let request = live(&mut self.requests, key);
        let sequence = request.sequence_mut(key.choice);
        let (start, end) = (sequence.scheduled, sequence.scheduled + count);
        sequence.scheduled = end;
        sequence.rows_in_flight += 1;
        let input = if sequence.pending > 0 { RowInput::LastSampled } else { RowInput::Host };
        let first_page = batch.pages.len();
        batch.pages.extend_from_slice(&sequence.pages[..self.pager.pages_for(end)]);
        let first_token = batch.tokens.len();
        batch.tokens.resize(first_token + count, TokenId(0));
        if input == RowInput::Host {
            request.copy_tokens(key.choice, start, &mut batch.tokens[first_token..]);
        }
        batch.positions.extend(start as u32..end as u32);

        let slot = started_slot(request, key.choice, batch);
        let prompt_logprobs = prompt_logprobs(request, start, end);
        let prompt_len = request.spec.prompt.len();
        let hidden_states =
            request.pool.as_ref().map_or(HiddenStates::None, |pool| pool.wanted(end, prompt_len));
        let first_sample = batch.samples.len();
        if end == request.len(key.choice) && request.max_output > 0 {
            let forks = request.prompt == Prompt::Ahead;
            for choice in request.sampled_by(key.choice).map(|choice| ChoiceIndex(choice as u32)) {
                let target = sample_target(request, choice, end, batch);
                batch.samples.push(target);
                step.samples.push(SequenceKey { request: key.request, choice });
            }
            if forks {
                self.fork(key, end);
                step.forks.push(key);
            }
        }

        let samples = first_sample..batch.samples.len();
        step.rows.push(StepRow {
            key,
            kv_len: end,
            samples: samples.clone(),
            prompt_logprobs: prompt_logprobs.as_ref().map(|_| start),
            hidden_states: hidden_states.of(start..end).map(|tokens| tokens.start),
        });
        batch.rows.push(BatchRow {
            slot,
            tokens: first_token..batch.tokens.len(),
            pages: first_page..batch.pages.len(),
            kv_len: end,
            input,
            samples,
            prompt_logprobs,
            hidden_states,
        });
    }

    /// Lets the other choices share all pages of the first, which has scheduled the whole prompt.
    fn fork(&mut self, key: SequenceKey, prompt_len: usize) {
        let request = live(&mut self.requests, key);
        request.prompt = Prompt::Scheduled;
        let Some((first, others)) = request.sequences.split_first_mut() else { return };
        for other in others {
            other.pages.clone_from(&first.pages);
            other.pages.iter().for_each(|page| self.pager.retain(*page));
            other.scheduled = prompt_len;
            other.published = first.published;
            other.stage = Stage::Running;
        }
    }

    /// Puts the choices that have forked in this step behind their first. Only now, so that none gets a row in it.
    pub(super) fn join_forks(&mut self, step: &mut Step) {
        for first in step.forks.drain(..) {
            let choices = self.requests[&first.request].sequences.len() as u32;
            let others = (1..choices).map(|choice| SequenceKey { choice: ChoiceIndex(choice), ..first });
            let at =
                self.running.iter().position(|key| *key == first).map_or(self.running.len(), |at| at + 1);
            self.running.splice(at..at, others);
        }
    }
}

/// The choice's slot, after its `SlotStart` if the executor does not know it yet.
fn started_slot(request: &mut Request, choice: ChoiceIndex, batch: &mut EngineBatch) -> SlotId {
    let sequence = &mut request.sequences[choice.0 as usize];
    let slot = sequence.slot.as_mut().expect("a sequence gets its slot when it starts to run");
    if slot.state == SlotState::Assigned {
        slot.state = SlotState::Started;
        batch.slot_starts.push(SlotStart {
            slot: slot.id,
            choice,
            sampling: request.spec.sampling.clone(),
            prompt: request.spec.prompt.clone(),
            output: sequence.output.clone(),
        });
    }
    slot.id
}

/// The draw of a choice's next token, which will stand at `position`.
fn sample_target(
    request: &mut Request,
    choice: ChoiceIndex,
    position: usize,
    batch: &mut EngineBatch,
) -> SampleTarget {
    let slot = started_slot(request, choice, batch);
    let index = position - request.spec.prompt.len();
    let early = index < request.spec.stop.min_tokens as usize;
    let sequence = &mut request.sequences[choice.0 as usize];
    sequence.pending += 1;
    let mask = sequence.mask.take();
    // A mask that allows only endings says that the answer is complete; then `min_tokens` must give way.
    let forbids = early && mask.as_ref().is_none_or(|mask| allows_other(mask, &request.endings));
    SampleTarget {
        slot,
        position: position as u32,
        logprobs: request.spec.logprobs,
        mask,
        forbidden: if forbids { request.endings.clone() } else { Arc::default() },
    }
}

fn allows_other(mask: &TokenMask, tokens: &[TokenId]) -> bool {
    let allowed: usize = mask.words().iter().map(|word| word.count_ones() as usize).sum();
    allowed > tokens.iter().filter(|token| mask.allows(**token)).count()
}

/// The prompt tokens after those at `start..end`, if their log-probabilities are still to be found.
fn prompt_logprobs(request: &Request, start: usize, end: usize) -> Option<PromptLogprobs> {
    let top = request.spec.prompt_logprobs?;
    let prompt = &request.spec.prompt;
    if start + 1 >= prompt.len() || !request.missing_prompt_logprobs() {
        return None;
    }
    // Allocates; only rows of such prompts do.
    let next_tokens = prompt[start + 1..prompt.len().min(end + 1)].to_vec();
    Some(PromptLogprobs { next_tokens, top })
}

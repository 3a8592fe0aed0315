//! A request inside the scheduler, and its sequences: one per choice.

use super::pool::Pool;
use crate::admission::longest_output;
use crate::batch::{ExecutorLimits, SlotId};
use crate::kv::PrefixId;
use crate::request::{ChoiceIndex, EngineRequest, EosPolicy, FinishReason, Masking, RequestId, Timings};
use oxide_infer::sampling::{LogProbs, TokenMask};
use oxide_infer::{PageId, TokenId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Names a sequence: a request and one of its choices. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SequenceKey {
    pub(super) request: RequestId,
    pub(super) choice: ChoiceIndex,
}

/// A request with at least one choice that has not ended.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) spec: EngineRequest,
    /// One per choice.
    pub(super) sequences: Vec<Sequence>,
    pub(super) prompt: Prompt,
    /// Most tokens that a choice may sample.
    pub(super) max_output: usize,
    /// What may not be sampled before `min_tokens`.
    pub(super) endings: Arc<[TokenId]>,
    pub(super) arrived: Instant,
    /// First put into a step.
    pub(super) scheduled: Option<Instant>,
    /// Prompt tokens that the prefix cache had when the request was first scheduled.
    pub(super) cached_tokens: usize,
    /// Log-probabilities of the prompt tokens after the first, as far as they have been computed.
    pub(super) prompt_logprobs: Vec<LogProbs>,
    /// If its hidden states are pooled.
    pub(super) pool: Option<Pool>,
}

/// How far the prompt is, which choice 0 computes for all choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// Its last token is in no step yet.
    Ahead,
    /// A step with its last token has been scheduled: the other choices have forked.
    Scheduled,
    /// That step has been collected.
    Done,
}

/// One choice: its tokens, and what it holds.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) stage: Stage,
    /// Its place in the executor, while it runs.
    pub(super) slot: Option<Slot>,
    /// Its block table. Empty unless it runs.
    pub(super) pages: Vec<PageId>,
    /// What it has sampled, as far as the host knows.
    pub(super) output: Vec<TokenId>,
    /// Tokens that it samples in steps that are in flight.
    pub(super) pending: usize,
    /// Tokens whose KV the submitted steps write.
    pub(super) scheduled: usize,
    /// Rows of it in steps that are in flight.
    pub(super) rows_in_flight: usize,
    /// How many of its pages are indexed for reuse, and the prefix that they hold; `None` if the chain is cut.
    pub(super) published: (usize, Option<PrefixId>),
    /// The mask for its next token.
    pub(super) mask: Option<Arc<TokenMask>>,
    pub(super) first_token: Option<Instant>,
}

/// Where a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// In the waiting queue: new or preempted.
    Waiting,
    /// In the running list.
    Running,
    /// In neither: choice 0 computes its prompt. It has a slot while choice 0 has one.
    AwaitsFork,
    /// In neither: it has its finish reason.
    Ended,
}

/// A place in the executor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) id: SlotId,
    pub(super) state: SlotState,
}

/// Whether the executor knows whom a slot belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Its `SlotStart` goes out with its first row.
    Assigned,
    /// It has gone out.
    Started,
}

impl Sequence {
    /// Reads every cache line that a step needs.
    pub(super) fn touch(&self) -> usize {
        self.pending ^ self.output.len() ^ self.pages.len() ^ usize::from(self.first_token.is_some())
    }

    /// Whether a step that uses it is in flight.
    pub(super) fn is_in_flight(&self) -> bool {
        self.rows_in_flight > 0 || self.pending > 0
    }
}

impl Request {
    pub(super) fn new(spec: EngineRequest, arrived: Instant, limits: &ExecutorLimits) -> Self {
        let max_output = longest_output(&spec, limits);
        let sequences = (0..spec.choices.get())
            .map(|choice| Sequence {
                stage: if choice == 0 { Stage::Waiting } else { Stage::AwaitsFork },
                slot: None,
                pages: Vec::new(),
                output: Vec::new(),
                pending: 0,
                scheduled: 0,
                rows_in_flight: 0,
                published: (0, Some(PrefixId::ROOT)),
                mask: None,
                first_token: None,
            })
            .collect();
        let endings = endings(&spec, limits.vocab_size);
        let pool = spec.pooling.zip(limits.hidden_size).map(|(pooling, size)| Pool::new(pooling, size));
        Self {
            spec,
            sequences,
            prompt: Prompt::Ahead,
            max_output,
            endings,
            arrived,
            scheduled: None,
            cached_tokens: 0,
            prompt_logprobs: Vec::new(),
            pool,
        }
    }

    /// Reads every cache line that a step needs.
    pub(super) fn touch(&self) -> usize {
        let (spec, stop) = (&self.spec, &self.spec.stop);
        let lengths = spec.prompt.len() ^ stop.eos_token_ids.len() ^ stop.stop_token_ids.len();
        let asked = usize::from(spec.prompt_logprobs.is_some()) ^ usize::from(self.pool.is_some());
        lengths ^ asked ^ self.max_output ^ self.cached_tokens ^ self.sequences.len()
    }

    /// The choices that take a token from the logits at the end of what this choice computes.
    pub(super) fn sampled_by(&self, choice: ChoiceIndex) -> std::ops::Range<usize> {
        match self.prompt {
            Prompt::Ahead => 0..self.sequences.len(),
            Prompt::Scheduled | Prompt::Done => choice.0 as usize..choice.0 as usize + 1,
        }
    }

    /// Tokens of a choice, prompt and answer, those that are being sampled included.
    pub(super) fn len(&self, choice: ChoiceIndex) -> usize {
        self.spec.prompt.len() + self.known_output(choice).len() + self.sequence(choice).pending
    }

    /// How many tokens of a choice the next step can compute, budget aside.
    pub(super) fn ready_tokens(&self, choice: ChoiceIndex) -> usize {
        let len = self.len(choice);
        // The last token that a choice may sample is never fed back.
        let last = self.spec.prompt.len() + self.max_output.saturating_sub(1);
        let held = len <= last && self.max_output > 0 && !self.may_sample(choice);
        len.min(last).saturating_sub(usize::from(held)).saturating_sub(self.sequence(choice).scheduled)
    }

    /// Whether every token that would be sampled after this choice's last one has the mask that it waits for.
    fn may_sample(&self, choice: ChoiceIndex) -> bool {
        match self.spec.masking {
            Masking::None => true,
            Masking::PerToken => self.sampled_by(choice).all(|choice| self.sequences[choice].mask.is_some()),
        }
    }

    /// Tokens at the start of a choice that may come from the prefix cache. The last token is always computed, for its
    /// logits or its hidden state, and so are those of which something is still to be found.
    pub(super) fn reusable_tokens(&self, choice: ChoiceIndex) -> usize {
        let before_last = self.len(choice) - 1;
        self.known_of_each().map_or(before_last, |known| before_last.min(known))
    }

    /// If something is asked of every prompt token and not all of it is known: the tokens, from the first on, of which it
    /// is.
    pub(super) fn known_of_each(&self) -> Option<usize> {
        let logprobs = self.missing_prompt_logprobs().then_some(self.prompt_logprobs.len());
        let pooled = self.pool.as_ref().and_then(Pool::known_of_each);
        [logprobs, pooled].into_iter().flatten().min()
    }

    /// Whether log-probabilities of prompt tokens are asked for and not complete.
    pub(super) fn missing_prompt_logprobs(&self) -> bool {
        self.spec.prompt_logprobs.is_some()
            && self.prompt != Prompt::Done
            && self.prompt_logprobs.len() + 1 < self.spec.prompt.len()
    }

    /// Fills the buffer with the tokens from position `from` on, which the host knows.
    pub(super) fn copy_tokens(&self, choice: ChoiceIndex, from: usize, buffer: &mut [TokenId]) {
        let (prompt, output) = (&self.spec.prompt, self.known_output(choice));
        let in_prompt = prompt.len().saturating_sub(from).min(buffer.len());
        let (from_prompt, from_output) = buffer.split_at_mut(in_prompt);
        if !from_prompt.is_empty() {
            from_prompt.copy_from_slice(&prompt[from..from + in_prompt]);
        }
        if !from_output.is_empty() {
            let start = from + in_prompt - prompt.len();
            from_output.copy_from_slice(&output[start..start + from_output.len()]);
        }
    }

    /// Why the choice ends with the token that it has just taken, if it does.
    pub(super) fn ending(&self, choice: ChoiceIndex) -> Option<FinishReason> {
        let output = self.known_output(choice);
        let token = output.last().copied()?;
        let stop = &self.spec.stop;
        if stop.eos == EosPolicy::Stop && stop.eos_token_ids.contains(&token) {
            return Some(FinishReason::EndOfSequence);
        }
        if stop.stop_token_ids.contains(&token) {
            return Some(FinishReason::StopToken(token));
        }
        (output.len() >= self.max_output).then_some(FinishReason::Length)
    }

    /// When things happened to a choice that ends now.
    pub(super) fn timings(&self, choice: ChoiceIndex, now: Instant) -> Timings {
        let scheduled = self.scheduled.unwrap_or(now);
        let first_token = self.sequence(choice).first_token.unwrap_or(now);
        Timings { arrived: self.arrived, scheduled, first_token, finished: now }
    }

    pub(super) fn sequence(&self, choice: ChoiceIndex) -> &Sequence {
        &self.sequences[choice.0 as usize]
    }

    pub(super) fn sequence_mut(&mut self, choice: ChoiceIndex) -> &mut Sequence {
        &mut self.sequences[choice.0 as usize]
    }

    fn known_output(&self, choice: ChoiceIndex) -> &[TokenId] {
        &self.sequence(choice).output
    }
}

/// The tokens that end an answer, ascending, each once; those outside the vocabulary can never be sampled.
fn endings(spec: &EngineRequest, vocab_size: usize) -> Arc<[TokenId]> {
    let eos = match spec.stop.eos {
        EosPolicy::Stop => &spec.stop.eos_token_ids[..],
        EosPolicy::Ignore => &[],
    };
    let tokens: BTreeSet<_> = eos.iter().chain(spec.stop.stop_token_ids.iter()).copied().collect();
    tokens.into_iter().filter(|token| token.index() < vocab_size).collect()
}

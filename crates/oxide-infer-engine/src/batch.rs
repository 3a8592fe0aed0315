//! One step of work, as the scheduler hands it to an executor.

use crate::metrics::OperatorCounters;
use crate::request::ChoiceIndex;
use oxide_infer::sampling::{self, LogProbs, SamplingError, SamplingParams, TokenMask};
use oxide_infer::{PageId, TokenId};
use std::ops::Range;
use std::sync::Arc;

/// A place for one running sequence's state in the executor (penalty counts, last sampled token), from 0 up to but not
/// including [`ExecutorLimits::max_sequences`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// What an executor was planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorLimits {
    /// Tokens in a KV page.
    pub page_size: usize,
    /// Pages in the pool, all of them for sequences; a null page for padding is the executor's own and not among them.
    pub num_pages: usize,
    /// Sequences that may have a slot at once.
    pub max_sequences: usize,
    /// Tokens in one step; at least `max_sequences`, so that every running sequence can have one.
    pub max_batch_tokens: usize,
    /// Tokens in one sequence, prompt and answer.
    pub max_model_len: usize,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Best tokens that log-probabilities can list; `u32::MAX` if as many as are asked for.
    pub max_logprobs: u32,
    /// Elements of a final hidden state, `[hidden_size]`; `None` of an executor that hands out none.
    pub hidden_size: Option<usize>,
    /// Steps that may be submitted before the oldest is collected: 1 computes one after the other, 2 overlaps.
    pub steps_in_flight: usize,
    /// Which tokens may share a step.
    pub step_mix: StepMix,
}

/// What an executor's operators were chosen for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanGoal {
    /// Speed. A token's last bits may depend on the size of the step that it is computed in, and so on its company.
    #[default]
    Fastest,
    /// The same bits: a request has the same tokens and log-probabilities, bit for bit, alone, in any batch, in chunks,
    /// preempted, and with a warm prefix cache, under one set of options.
    Deterministic,
}

/// Which tokens may share a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepMix {
    /// Chunks of prompts and generated tokens, side by side.
    #[default]
    Mixed,
    /// Chunks of prompts, or generated tokens: never both, and what was generated is never computed as a prompt's chunk, not
    /// even after a preemption. For an executor that computes the two by different operators: keys and values of a token
    /// then have the same bits whenever they are computed.
    Apart,
}

/// What a step's tokens are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepKind {
    /// Any ([`StepMix::Mixed`]).
    #[default]
    Mixed,
    /// Tokens of prompts.
    Prompt,
    /// Generated tokens, one a row. Of a sequence that is computed again after a preemption there may be several rows, at
    /// neighbouring positions in one page, all but the last without a draw.
    Generated,
}

/// Work for one step. Reused between steps: [`EngineBatch::clear`] keeps the allocations.
///
/// Rows are in step order; a row's tokens are contiguous in `tokens`.
#[derive(Clone, Debug, Default)]
pub struct EngineBatch {
    /// What its tokens are.
    pub kind: StepKind,
    /// Slots that begin with this step, before anything else happens.
    pub slot_starts: Vec<SlotStart>,
    /// Pages to copy in every layer before the step writes (copy on write).
    pub page_copies: Vec<PageCopy>,
    /// Sequences that compute tokens in this step.
    pub rows: Vec<BatchRow>,
    /// `[num_tokens]` input tokens of all rows; a row whose input is [`RowInput::LastSampled`] has a placeholder.
    pub tokens: Vec<TokenId>,
    /// `[num_tokens]` position of every token in its sequence.
    pub positions: Vec<u32>,
    /// Pages of all rows, one after the other; see [`BatchRow::pages`].
    pub pages: Vec<PageId>,
    /// Draws of all rows, one row after the other; see [`BatchRow::samples`].
    pub samples: Vec<SampleTarget>,
}

impl EngineBatch {
    /// Empties the batch and keeps its allocations.
    pub fn clear(&mut self) {
        self.kind = StepKind::default();
        self.slot_starts.clear();
        self.page_copies.clear();
        self.rows.clear();
        self.tokens.clear();
        self.positions.clear();
        self.pages.clear();
        self.samples.clear();
    }
}

/// A sequence takes a slot: new, resumed after preemption, or forked from a prompt.
#[derive(Clone, Debug)]
pub struct SlotStart {
    /// The slot.
    pub slot: SlotId,
    /// The answer's index, a part of the generator's key.
    pub choice: ChoiceIndex,
    /// How it samples.
    pub sampling: Arc<SamplingParams>,
    /// The prompt, for the repetition penalty.
    pub prompt: Arc<[TokenId]>,
    /// What it has generated already (after a preemption), for the penalties.
    pub output: Vec<TokenId>,
}

/// Copies one page over another, in every layer, keys and values.
///
/// Within a step no page is written twice, and no page that is copied from is copied to, so that the copies may run in
/// any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Read.
    pub from: PageId,
    /// Written.
    pub to: PageId,
}

/// One sequence's part of a step.
#[derive(Clone, Debug)]
pub struct BatchRow {
    /// Its slot.
    pub slot: SlotId,
    /// Its tokens: indices into `tokens` and `positions`.
    pub tokens: Range<usize>,
    /// Its block table: indices into `pages`. Holds every page up to `kv_len`.
    pub pages: Range<usize>,
    /// Tokens in its KV once this row is written.
    pub kv_len: usize,
    /// Where its tokens come from.
    pub input: RowInput,
    /// Draws from the logits of its last token: indices into `samples`. Empty for a prompt's inner chunk, several for a
    /// prompt with several choices.
    pub samples: Range<usize>,
    /// Log-probabilities of the prompt tokens that follow this chunk's tokens, if asked for.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// Which of its tokens' final hidden states are handed out.
    pub hidden_states: HiddenStates,
}

/// Which final hidden states of a row are handed out: what the model's last norm gives, before the logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HiddenStates {
    /// None.
    #[default]
    None,
    /// That of its last token.
    Last,
    /// Those of all its tokens.
    All,
}

impl HiddenStates {
    /// Which of a row's tokens, if any.
    pub fn of(self, tokens: Range<usize>) -> Option<Range<usize>> {
        match self {
            Self::None => None,
            Self::Last => Some(tokens.end.saturating_sub(1).max(tokens.start)..tokens.end),
            Self::All => Some(tokens),
        }
    }
}

/// Where a row's tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowInput {
    /// `tokens`.
    Host,
    /// The one token that the slot sampled last, which the host may not know yet.
    LastSampled,
}

/// Log-probabilities of given next tokens.
#[derive(Clone, Debug)]
pub struct PromptLogprobs {
    /// The tokens that follow: as many as the row has tokens, or one fewer when the row ends the prompt.
    pub next_tokens: Vec<TokenId>,
    /// How many of the best tokens to report.
    pub top: u32,
}

/// One draw from a row's logits.
#[derive(Clone, Debug)]
pub struct SampleTarget {
    /// Whose parameters and counts are used, and where the token goes.
    pub slot: SlotId,
    /// Position of the new token in its sequence, a part of the generator's key.
    pub position: u32,
    /// Report log-probabilities, and of this many best tokens.
    pub logprobs: Option<u32>,
    /// Which tokens may be sampled.
    pub mask: Option<Arc<TokenMask>>,
    /// Tokens that may not be sampled yet (`min_tokens`), ascending.
    pub forbidden: Arc<[TokenId]>,
}

/// What a step brought.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// In the order of the rows and of their sample targets.
    pub samples: Vec<Sampled>,
    /// In the order of the rows that asked for it. An error fails that row's request alone.
    pub prompt_logprobs: Vec<Result<Vec<LogProbs>, SamplingError>>,
    /// In the order of the rows that asked for it: `[states, hidden_size]`, in the order of the row's tokens.
    pub hidden_states: Vec<Vec<f32>>,
}

/// What one [`SampleTarget`] brought.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// The slot.
    pub slot: SlotId,
    /// Its token. An error fails this request alone; the slot may feed back any token until it starts anew.
    pub outcome: Result<sampling::Sampled, SamplingError>,
}

/// A failure that ends the executor: no later step can be trusted.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ExecutorError {
    /// What happened.
    pub message: String,
}

/// A batch that draws for a slot that has not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {0} is drawn for and has not started")]
pub(crate) struct NoSlot(pub(crate) u32);

/// Computes steps of one model on one device.
///
/// `submit` starts a step and `collect` waits for the oldest step that was submitted. At most
/// [`ExecutorLimits::steps_in_flight`] steps are in flight.
///
/// Steps take effect in the order of submission: a step reads the pages and slots that earlier steps left, whether or
/// not they were collected. The scheduler relies on it: it gives a page or a slot to another sequence as soon as its
/// owner ends, while a step that still uses it may be in flight. An executor may be dropped with steps in flight.
pub trait Executor: Send {
    /// What it was planned for.
    fn limits(&self) -> ExecutorLimits;

    /// Starts a step. The batch may be reused as soon as this returns.
    fn submit(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError>;

    /// Waits for the oldest step in flight and overwrites `output` with what it brought.
    fn collect(&mut self, output: &mut StepOutput) -> Result<(), ExecutorError>;

    /// What its operators were chosen for. One that computes prompts and generated tokens apart does so for the same bits.
    fn goal(&self) -> PlanGoal {
        match self.limits().step_mix {
            StepMix::Mixed => PlanGoal::Fastest,
            StepMix::Apart => PlanGoal::Deterministic,
        }
    }

    /// How often each operator artifact has been executed, of an executor that computes with artifacts.
    fn operator_counters(&self) -> Arc<OperatorCounters> {
        Arc::default()
    }
}

/// An executor that can show the logits it drew from, for parity runs: serving never copies them.
pub trait LogitsTap: Executor {
    /// Keeps the logits of every step that is submitted from now on.
    fn keep_logits(&mut self);

    /// The logits of the step that was collected last, before temperature, penalties, bias and masks:
    /// `[rows, vocab_size]` of the rows that drew ([`BatchRow::samples`] not empty), in their order, each row once however
    /// many draws it had.
    ///
    /// They are there from `collect` to the next `submit`; a caller that wants every step's has one step in flight.
    ///
    /// # Errors
    /// No step has been collected since [`Self::keep_logits`], or the device cannot be read.
    fn logits(&mut self) -> Result<Vec<f32>, ExecutorError>;
}

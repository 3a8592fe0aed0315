//! An executor that answers with given tokens, and the file that its logits go to.

use super::cases::Cases;
use anyhow::{Context as _, Result, ensure};
use oxide_infer::{TokenId, sampling};
use oxide_infer_engine::batch::{RowInput, SlotId};
use oxide_infer_engine::{EngineBatch, Executor, ExecutorError, ExecutorLimits, LogitsTap, StepOutput};
use serde::Serialize;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An executor that several engines use, one after the other.
pub(super) type SharedExecutor = Arc<Mutex<Box<dyn LogitsTap>>>;

/// Stands between an engine and an executor: whatever the executor draws for a case, the engine gets the case's next token,
/// and the logits go to a [`Sink`]. Sequences that are no case's pass through.
pub(super) struct Teacher {
    executor: SharedExecutor,
    limits: ExecutorLimits,
    cases: Arc<Cases>,
    sink: Arc<Mutex<Sink>>,
    /// The case of every slot that has one.
    slots: HashMap<SlotId, usize>,
    step: Vec<Row>,
}

/// A row of the step in flight that draws.
struct Row {
    /// Which case, and which of its tokens is drawn.
    answers: Option<(usize, usize)>,
    draws: usize,
}

impl Teacher {
    /// A teacher whose engine is to keep to these limits.
    pub(super) fn new(
        executor: SharedExecutor,
        limits: ExecutorLimits,
        cases: Arc<Cases>,
        sink: Arc<Mutex<Sink>>,
    ) -> Self {
        // The logits of a step are gone once the next is submitted.
        let limits = ExecutorLimits { steps_in_flight: 1, ..limits };
        Self { executor, limits, cases, sink, slots: HashMap::new(), step: Vec::new() }
    }
}

impl Executor for Teacher {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn submit(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        let mut batch = batch.clone();
        for start in &batch.slot_starts {
            match self.cases.find(&start.prompt) {
                Some(case) => self.slots.insert(start.slot, case),
                None => self.slots.remove(&start.slot),
            };
        }
        self.step.clear();
        let mut rows = 0;
        let mut inner_chunks = 0;
        for row in &mut batch.rows {
            let case = self.slots.get(&row.slot).copied();
            rows += usize::from(case.is_some());
            inner_chunks += usize::from(case.is_some() && row.samples.is_empty());
            if let Some(case) = case
                && row.input == RowInput::LastSampled
            {
                // The executor drew a token of its own; the case goes on with another.
                let position = batch.positions[row.tokens.start] as usize;
                batch.tokens[row.tokens.start] = self.answer(case, position)?;
                row.input = RowInput::Host;
            }
            if !row.samples.is_empty() {
                let answers = case.map(|case| (case, row.kv_len - self.cases.get(case).prompt.len()));
                self.step.push(Row { answers, draws: row.samples.len() });
            }
        }
        lock(&self.sink).count(rows, inner_chunks);
        lock(&self.executor).submit(&batch)
    }

    fn collect(&mut self, output: &mut StepOutput) -> Result<(), ExecutorError> {
        let mut executor = lock(&self.executor);
        executor.collect(output)?;
        let logits = executor.logits()?;
        drop(executor);
        let (vocab_size, rows) = (self.limits.vocab_size, self.step.len());
        if logits.len() != rows * vocab_size {
            let found = logits.len();
            return Err(failure(format!("{found} logits for {rows} rows of {vocab_size}")));
        }
        let mut samples = output.samples.iter_mut();
        for (row, logits) in self.step.iter().zip(logits.chunks_exact(vocab_size)) {
            let draws = samples.by_ref().take(row.draws);
            let Some((case, index)) = row.answers else {
                draws.for_each(drop);
                continue;
            };
            lock(&self.sink).write(case, index, logits).map_err(failure)?;
            let token = self.cases.get(case).continuation[index];
            draws.filter_map(|sample| sample.outcome.as_mut().ok()).for_each(|sampled| {
                *sampled = sampling::Sampled { token, logprobs: None };
            });
        }
        Ok(())
    }
}

impl Teacher {
    /// The token of a case at a position of its sequence.
    fn answer(&self, case: usize, position: usize) -> Result<TokenId, ExecutorError> {
        let case = self.cases.get(case);
        let answer = position.checked_sub(case.prompt.len()).and_then(|index| case.continuation.get(index));
        answer.copied().ok_or_else(|| failure(format!("no token was drawn at position {position}")))
    }
}

fn failure(message: impl ToString) -> ExecutorError {
    ExecutorError { message: message.to_string() }
}

/// A lock that a panic elsewhere does not take away: what it guards is written whole or not at all.
pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file of logits, `[cases, new_tokens, vocab_size]` little-endian f32.
#[derive(Debug)]
pub(super) struct Sink {
    file: File,
    vocab_size: usize,
    new_tokens: usize,
    /// `[cases, new_tokens]`
    written: Vec<bool>,
    counts: SinkCounts,
}

/// What the steps of a run were like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct SinkCounts {
    /// Steps that the executor computed.
    pub(super) steps: usize,
    /// Most rows of cases in one step.
    pub(super) most_rows: usize,
    /// Rows of cases that drew no token: parts of prompts.
    pub(super) inner_chunks: usize,
}

impl Sink {
    pub(super) fn create(path: &Path, cases: &Cases, vocab_size: usize) -> Result<Self> {
        let (count, new_tokens) = (cases.len(), cases.new_tokens());
        let bytes = (count * new_tokens * vocab_size * size_of::<f32>()) as u64;
        let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
        file.set_len(bytes).with_context(|| format!("{} cannot have {bytes} bytes", path.display()))?;
        let written = vec![false; count * new_tokens];
        Ok(Self { file, vocab_size, new_tokens, written, counts: SinkCounts::default() })
    }

    /// Forgets that logits of a case were written: only what is written from now on counts.
    pub(super) fn forget(&mut self, case: usize) {
        self.written[case * self.new_tokens..][..self.new_tokens].fill(false);
    }

    fn write(&mut self, case: usize, index: usize, logits: &[f32]) -> Result<()> {
        ensure!(index < self.new_tokens, "token {index} of a continuation of {} was drawn", self.new_tokens);
        let row = case * self.new_tokens + index;
        let offset = (row * self.vocab_size * size_of::<f32>()) as u64;
        self.file.write_all_at(bytemuck::cast_slice(logits), offset).context("writing logits")?;
        self.written[row] = true;
        Ok(())
    }

    fn count(&mut self, rows: usize, inner_chunks: usize) {
        self.counts.steps += 1;
        self.counts.most_rows = self.counts.most_rows.max(rows);
        self.counts.inner_chunks += inner_chunks;
    }

    /// What the steps have been like so far.
    pub(super) fn counts(&self) -> SinkCounts {
        self.counts
    }

    /// Makes sure that everything was written.
    pub(super) fn finish(&self) -> Result<SinkCounts> {
        let missing = self.written.iter().filter(|written| !**written).count();
        ensure!(missing == 0, "the logits of {missing} tokens were not computed");
        Ok(self.counts)
    }
}

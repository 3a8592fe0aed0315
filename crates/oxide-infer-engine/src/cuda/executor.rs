use super::bind::{BoundBody, BoundDecode, BoundHead, Sequence};
use super::body::BodyTables;
use super::classes::{Classes, StepClass};
use super::head::{self, Chunk, ChunkReader, ChunkWriter, HeadRow, Sampling};
use super::history;
use super::inputs::HeadOutputLayout;
use super::memory::DeviceBuffers;
use super::options::STEPS_IN_FLIGHT;
use super::slots::Slots;
use super::staging::Staging;
use super::tap::KeptLogits;
use super::writers::Writers;
use crate::batch::{
    BatchRow, EngineBatch, Executor, ExecutorError, ExecutorLimits, RowInput, Sampled, SlotId, SlotStart,
    StepKind, StepMix, StepOutput,
};
use crate::metrics::OperatorCounters;
use oxide_infer::sampling;
use oxide_infer_cuda::runtime::{CommandScope, Completion, CompletionError, PinnedMemory, Stream};
use std::collections::VecDeque;
use std::sync::Arc;

/// Computes steps of one model on one GPU. Two steps may be in flight.
pub struct CudaExecutor {
    pub(super) limits: ExecutorLimits,
    pub(super) classes: Classes,
    pub(super) bodies: Bodies,
    pub(super) heads: Vec<BoundHead>,
    pub(super) record_history: Sequence,
    pub(super) buffers: DeviceBuffers,
    pub(super) stream: Stream,
    /// What brings the tables of a decode step to the device while the step before it runs.
    pub(super) copies: Stream,
    pub(super) slots: Slots,
    pub(super) counters: Arc<OperatorCounters>,
    pub(super) num_pools: usize,
    pub(super) rings: Rings,
    /// Steps that were submitted and not collected, oldest first.
    pub(super) in_flight: VecDeque<InFlight>,
    /// Whether a step was enqueued in part: the device may still read what its ring has, and nothing waits for it.
    pub(super) broken: bool,
    /// Lists of steps that were collected, whose allocations are used again.
    pub(super) spare: Vec<StepLists>,
    pub(super) writers: Writers,
    /// What it takes to show logits, if they are kept.
    pub(super) kept: Option<KeptLogits>,
}

/// The bodies of every class.
pub(super) struct Bodies {
    /// By the index of the decode class, then of the ring.
    pub(super) decode: Vec<[BoundDecode; STEPS_IN_FLIGHT]>,
    /// By the index of the token class, then of the sequence class.
    pub(super) mixed: Vec<Vec<BoundBody>>,
}

/// Pinned memory of the steps in flight, used in turns.
pub(super) struct Rings {
    pub(super) rings: [Ring; STEPS_IN_FLIGHT],
    pub(super) next: usize,
}

/// Pinned memory of one step: what it copies to the device, and what it copies back.
pub(super) struct Ring {
    pub(super) inputs: Staging,
    pub(super) outputs: Staging,
    /// The tables of a decode step.
    pub(super) tables: PinnedMemory<u32>,
    /// What a decode step drew.
    pub(super) drawn: PinnedMemory<u32>,
}

/// A step that was submitted.
pub(super) struct InFlight {
    /// Of a decode step, that its tables are on the device.
    copied: Option<Completion>,
    completion: Completion,
    lists: StepLists,
}

impl InFlight {
    /// Waits for all of it, whatever the first part says.
    fn wait(self) -> Result<StepLists, CompletionError> {
        let ended = self.completion.wait();
        let copied = self.copied.map_or(Ok(()), Completion::wait);
        ended.and(copied).map(|()| self.lists)
    }
}

/// What the device brought of one chunk.
struct Brought {
    layout: HeadOutputLayout,
    words: PinnedMemory<u32>,
}

/// What it takes to read a step's outputs.
#[derive(Default)]
pub(super) struct StepLists {
    pub(super) rows: Vec<HeadRow>,
    pub(super) chunks: Vec<Chunk>,
    /// Of every chunk.
    outputs: Vec<Brought>,
    /// Slot and wanted log-probabilities of every draw, in the order of the batch.
    draws: Vec<(SlotId, Option<u32>)>,
    prompt_lists: usize,
}

impl StepLists {
    fn clear(&mut self) {
        self.rows.clear();
        self.chunks.clear();
        self.outputs.clear();
        self.draws.clear();
        self.prompt_lists = 0;
    }
}

impl std::fmt::Debug for CudaExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaExecutor").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Executor for CudaExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn submit(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        if self.in_flight.len() == STEPS_IN_FLIGHT {
            return Err(failure(format!("{STEPS_IN_FLIGHT} steps are in flight already")));
        }
        if self.broken {
            return Err(failure("a step before could be enqueued only in part"));
        }
        self.check(batch)?;
        self.broken = true;
        let mut lists = self.spare.pop().unwrap_or_default();
        lists.clear();
        // The step that used this ring before has been collected.
        let ring = &mut self.rings.rings[self.rings.next];
        ring.inputs.reset();
        ring.outputs.reset();
        let mut scope = CommandScope::new(&self.stream).map_err(failure)?;
        for start in &batch.slot_starts {
            scope = self.start(start, scope)?;
        }
        self.copy_pages(batch, &mut scope)?;
        let (scope, copied) = self.run(batch, scope, &mut lists)?;
        let completion = scope.finish().map_err(failure)?;
        self.in_flight.push_back(InFlight { copied, completion, lists });
        self.broken = false;
        self.rings.next = (self.rings.next + 1) % STEPS_IN_FLIGHT;
        Ok(())
    }

    fn collect(&mut self, output: &mut StepOutput) -> Result<(), ExecutorError> {
        let step = self.in_flight.pop_front().ok_or_else(|| failure("no step is in flight"))?;
        let lists = step.wait().map_err(failure)?;
        if let Some(kept) = &mut self.kept {
            kept.note(&lists)?;
        }
        self.read(&lists, output);
        self.spare.push(lists);
        Ok(())
    }

    fn operator_counters(&self) -> Arc<OperatorCounters> {
        self.counters.clone()
    }
}

impl CudaExecutor {
    /// Bytes of the KV pages.
    pub fn kv_bytes(&self) -> u64 {
        self.buffers.pool_bytes()
    }

    /// Operators that are planned over all classes, and the artifacts that compute them.
    pub fn plan_size(&self) -> (usize, usize) {
        // A class of decodes has the same operators for every ring.
        let steps = self.bodies.decode.iter().map(|[step, _]| step);
        let ends = steps.clone().flat_map(|step| [&step.logits].into_iter().chain(&step.candidates));
        let bodies = steps.map(|step| &step.body).chain(self.bodies.mixed.iter().flatten());
        let heads = self.heads.iter().flat_map(|head| head.sequences());
        let sequences = bodies.map(|body| &body.operators).chain(ends).chain(heads);
        let operators = sequences.map(Sequence::len).sum::<usize>();
        (operators + self.record_history.len(), self.counters.snapshot().count())
    }

    /// Refuses a batch whose indices would lead past what was planned for, or whose rows would write where they must not.
    fn check(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        let (tokens, limit) = (batch.tokens.len(), self.limits.max_batch_tokens);
        if tokens > limit || batch.positions.len() != tokens {
            let positions = batch.positions.len();
            return Err(failure(format!(
                "{tokens} tokens with {positions} positions in a step; at most {limit} were planned for"
            )));
        }
        if batch.rows.len() > self.limits.max_sequences {
            let (rows, limit) = (batch.rows.len(), self.limits.max_sequences);
            return Err(failure(format!("{rows} rows in a step; at most {limit} were planned for")));
        }
        let copied = batch.page_copies.iter().flat_map(|copy| [copy.from, copy.to]);
        if let Some(page) = copied.into_iter().find(|page| page.index() >= self.limits.num_pages) {
            return Err(failure(format!("page {page} is copied; the pool has {}", self.limits.num_pages)));
        }
        if self.limits.step_mix == StepMix::Apart {
            let decodes = self.decode_class(batch).is_some() || batch.rows.is_empty();
            if batch.kind == StepKind::Mixed || (batch.kind == StepKind::Generated && !decodes) {
                return Err(failure(format!("a step of {:?} tokens that is none", batch.kind)));
            }
        }
        let mut next = 0;
        for (index, row) in batch.rows.iter().enumerate() {
            let wrong = |what: &str| failure(format!("row {index} of the step {what}"));
            if row.tokens.start != next || row.tokens.end < row.tokens.start {
                return Err(wrong("does not begin where the row before it ends"));
            }
            next = row.tokens.end;
            let pages = batch.pages.get(row.pages.clone()).ok_or_else(|| wrong("has pages past the list"))?;
            if pages.len() > self.limits.max_model_len.div_ceil(self.limits.page_size) {
                return Err(wrong("has more pages than the longest sequence"));
            }
            if pages.iter().any(|page| page.index() >= self.limits.num_pages) {
                return Err(wrong("has a page that the pool has not"));
            }
            let samples = batch.samples.get(row.samples.clone());
            let samples = samples.ok_or_else(|| wrong("has draws past the list"))?;
            let listed = samples.iter().filter_map(|target| target.logprobs);
            let listed = listed.chain(row.prompt_logprobs.iter().map(|asked| asked.top)).max();
            if let Some(wanted) = listed.filter(|&wanted| wanted > self.limits.max_logprobs) {
                let limit = self.limits.max_logprobs;
                return Err(wrong(&format!("asks for the {wanted} best tokens; at most {limit} are listed")));
            }
            if row.input == RowInput::LastSampled && row.tokens.len() != 1 {
                return Err(wrong("goes on with a sampled token and does not have one token"));
            }
        }
        if next != tokens {
            return Err(failure("the rows of the step are not all of its tokens"));
        }
        self.writers.check(batch, self.limits.page_size).map_err(failure)
    }

    /// Starts a slot. Its history is written on the device if its penalties read it.
    fn start(&mut self, start: &SlotStart, scope: CommandScope) -> Result<CommandScope, ExecutorError> {
        self.slots.start(start).ok_or_else(|| failure(format!("there is no slot {}", start.slot.0)))?;
        if !start.sampling.reads_history() {
            return Ok(scope);
        }
        let (vocab_size, slot) = (self.limits.vocab_size, start.slot.0 as usize);
        let history = self.buffers.history.slice(slot * vocab_size..(slot + 1) * vocab_size);
        let mut scope = scope;
        scope.fill(&history.map_err(failure)?, 0).map_err(failure)?;
        for entries in history::entries(start).chunks(history::MAX_ENTRIES) {
            scope = self.room(history::WORDS, scope)?;
            let staged = self.ring().inputs.take(history::WORDS).map_err(failure)?;
            history::write(&staged, start.slot, entries).map_err(failure)?;
            scope.copy_in(&staged, &self.buffers.history_entries).map_err(failure)?;
            self.record_history.enqueue(&mut scope).map_err(failure)?;
            self.record_history.count(&self.counters);
        }
        Ok(scope)
    }

    /// Makes room in the step's pinned memory. Only steps that start many long sequences with penalties, or that carry
    /// very many biases, ever fill it; they wait here for what was enqueued so far.
    fn room(&mut self, words: usize, scope: CommandScope) -> Result<CommandScope, ExecutorError> {
        if self.ring().inputs.has(words) {
            return Ok(scope);
        }
        scope.finish().map_err(failure)?.wait().map_err(failure)?;
        self.ring().inputs.reset();
        CommandScope::new(&self.stream).map_err(failure)
    }

    fn ring(&mut self) -> &mut Ring {
        &mut self.rings.rings[self.rings.next]
    }

    fn copy_pages(&self, batch: &EngineBatch, scope: &mut CommandScope) -> Result<(), ExecutorError> {
        for copy in &batch.page_copies {
            for pool in 0..self.num_pools {
                let page = |page: usize| self.buffers.page(pool, page).map_err(failure);
                let (from, to) = (page(copy.from.index())?, page(copy.to.index())?);
                scope.copy(&from, &to).map_err(failure)?;
            }
        }
        Ok(())
    }

    /// Enqueues the body over all tokens and the head over the rows that need logits. Of a decode step it also says when
    /// its tables are on the device.
    fn run(
        &mut self,
        batch: &EngineBatch,
        scope: CommandScope,
        lists: &mut StepLists,
    ) -> Result<(CommandScope, Option<Completion>), ExecutorError> {
        head::list_rows(batch, &mut lists.rows);
        let most = self.classes.head.last().copied().unwrap_or(1);
        head::cut(&lists.rows, most, batch, &self.slots, &mut lists.chunks).map_err(failure)?;
        lists.draws.extend(batch.samples.iter().map(|target| (target.slot, target.logprobs)));
        lists.prompt_lists = batch.rows.iter().filter(|row| row.prompt_logprobs.is_some()).count();
        let (mut scope, mut copied) = (scope, None);
        // A decode step's logits are there, in the order of its rows. Where some of them have no draw the others are picked.
        let mut left = Left::Attention;
        match self.decode_class(batch) {
            Some(index) => {
                let all_draw = lists.rows.len() == batch.rows.len() && lists.chunks.len() == 1;
                copied = Some(self.decode(index, all_draw, batch, lists, &mut scope)?);
                left = if all_draw { Left::Logits } else { Left::Hidden };
            }
            None if batch.tokens.is_empty() => {}
            None => scope = self.mixed(batch, scope)?,
        }
        if lists.outputs.is_empty() {
            for chunk in &lists.chunks {
                let (output, next) = self.chunk(chunk, &lists.rows, batch, left, scope)?;
                lists.outputs.push(output);
                scope = next;
            }
        }
        Ok((scope, copied))
    }

    /// Enqueues a decode step: its body and, if `all_draw`, logits or, where nothing but tokens is asked for, those. Its tables
    /// come by a stream of their own, while the step before runs, and tokens go to pinned memory as they are drawn: between two
    /// such steps the device has nothing to copy.
    fn decode(
        &self,
        index: usize,
        all_draw: bool,
        batch: &EngineBatch,
        lists: &mut StepLists,
        scope: &mut CommandScope,
    ) -> Result<Completion, ExecutorError> {
        // The step that used the ring before has been collected, so nothing reads its tables on either side.
        let (turn, class) = (self.rings.next, self.classes.decode[index]);
        let (ring, step) = (&self.rings.rings[turn], &self.bodies.decode[index][turn]);
        self.tables(&step.body, StepClass::Decode(class), &ring.tables).write(batch).map_err(failure)?;
        let drawn = lists.chunks.first().filter(|chunk| all_draw && chunk.draws_only());
        let start = step.body.layout.words();
        if drawn.is_some() {
            let nothing = ring.tables.slice(0..0).map_err(failure)?;
            let writer = ChunkWriter {
                layout: &step.draws,
                tables: &ring.tables.slice(start..step.words()).map_err(failure)?,
                adjustments: &nothing,
                masks: &nothing,
                mask_words: 0,
            };
            writer.write(&lists.rows, class.rows, batch, &self.slots).map_err(failure)?;
        }
        let words = if drawn.is_some() { step.words() } else { start };
        let copied = self.bring(&ring.tables, words, turn)?;
        copied.before(&self.stream).map_err(failure)?;
        match &step.body.graph {
            Some(graph) => graph.replay(scope).map_err(failure)?,
            None => step.body.operators.enqueue(scope).map_err(failure)?,
        }
        step.body.operators.count(&self.counters);
        // Where some rows have no draw, those that have are picked.
        if all_draw {
            self.draw(step, drawn.map(|chunk| chunk.sampling), scope)?;
        }
        if drawn.is_some() {
            lists.outputs.push(Brought { layout: step.outputs.clone(), words: ring.drawn.clone() });
        }
        Ok(copied)
    }

    /// Enqueues a decode step from what its body leaves to the tokens of `drawn` rows, or to logits.
    fn draw(
        &self,
        step: &BoundDecode,
        drawn: Option<Sampling>,
        scope: &mut CommandScope,
    ) -> Result<(), ExecutorError> {
        // Logits that are kept must be there.
        let candidates = step.candidates.as_ref().filter(|_| self.kept.is_none());
        let (head, sampler) = match (drawn, candidates) {
            (Some(Sampling::Greedy), Some(candidates)) => (candidates, None),
            (Some(Sampling::Greedy), None) => (&step.logits, Some(&step.samplers.greedy)),
            (Some(Sampling::None | Sampling::Full), _) => (&step.logits, Some(&step.samplers.full)),
            (None, _) => (&step.logits, None),
        };
        [head].into_iter().chain(sampler).try_for_each(|sequence| {
            sequence.count(&self.counters);
            sequence.enqueue(scope).map_err(failure)
        })
    }

    /// Copies a decode step's tables to the device, beside whatever runs there.
    fn bring(
        &self,
        tables: &PinnedMemory<u32>,
        words: usize,
        turn: usize,
    ) -> Result<Completion, ExecutorError> {
        let target = self.buffers.step_tables(turn).and_then(|region| region.slice(0..words));
        let mut scope = CommandScope::new(&self.copies).map_err(failure)?;
        scope
            .copy_in(&tables.slice(0..words).map_err(failure)?, &target.map_err(failure)?)
            .map_err(failure)?;
        scope.finish().map_err(failure)
    }

    fn tables<'a>(
        &self,
        body: &'a BoundBody,
        class: StepClass,
        words: &'a PinnedMemory<u32>,
    ) -> BodyTables<'a> {
        let null_page = self.limits.num_pages as u32;
        let max_pages = self.limits.max_model_len.div_ceil(self.limits.page_size);
        BodyTables { layout: &body.layout, words, class, null_page, max_pages }
    }

    /// Enqueues the body of a step that is no decode step.
    fn mixed(&mut self, batch: &EngineBatch, scope: CommandScope) -> Result<CommandScope, ExecutorError> {
        let (tokens, rows) = (batch.tokens.len(), batch.rows.len());
        let index = Classes::index(&self.classes.tokens, tokens);
        let Some((index, sequences)) = index.zip(Classes::index(&self.classes.sequences, rows)) else {
            return Err(failure(format!("{tokens} tokens of {rows} rows are in no class")));
        };
        let class = StepClass::Mixed {
            tokens: self.classes.tokens[index],
            sequences: self.classes.sequences[sequences],
        };
        let words = self.bodies.mixed[index][sequences].layout.words();
        let mut scope = self.room(words, scope)?;
        let staged = self.ring().inputs.take(words).map_err(failure)?;
        let body = &self.bodies.mixed[index][sequences];
        self.tables(body, class, &staged).write(batch).map_err(failure)?;
        let target = self.buffers.body_inputs.slice(0..words).map_err(failure)?;
        scope.copy_in(&staged, &target).map_err(failure)?;
        body.operators.enqueue(&mut scope).map_err(failure)?;
        body.operators.count(&self.counters);
        Ok(scope)
    }

    /// The class of a step of generated tokens. Where steps are mixed those are steps in which every row has one token and
    /// one draw and nothing else.
    fn decode_class(&self, batch: &EngineBatch) -> Option<usize> {
        let draws = match batch.kind {
            StepKind::Mixed => 1..=1,
            StepKind::Generated => 0..=1,
            StepKind::Prompt => return None,
        };
        let decodes = |row: &BatchRow| {
            row.tokens.len() == 1 && draws.contains(&row.samples.len()) && row.prompt_logprobs.is_none()
        };
        let longest = batch.rows.iter().map(|row| row.kv_len).max()?;
        let index = self.classes.decode_index(batch.rows.len(), longest)?;
        batch.rows.iter().all(decodes).then_some(index)
    }

    /// Enqueues what one chunk of rows needs, and says where its outputs come back.
    fn chunk(
        &mut self,
        chunk: &Chunk,
        rows: &[HeadRow],
        batch: &EngineBatch,
        left: Left,
        scope: CommandScope,
    ) -> Result<(Brought, CommandScope), ExecutorError> {
        let rows = &rows[chunk.rows.clone()];
        let class = Classes::index(&self.classes.head, rows.len())
            .ok_or_else(|| failure(format!("{} rows of logits are in no class", rows.len())))?;
        let mask_words = self.limits.vocab_size.div_ceil(32);
        let table_words = self.heads[class].inputs.words();
        let words = table_words + 2 * chunk.adjustments + chunk.masks * mask_words;
        let mut scope = self.room(words, scope)?;
        let inputs = &mut self.rings.rings[self.rings.next].inputs;
        let mut take = |words: usize| inputs.take(words).map_err(failure);
        let tables = take(table_words)?;
        let (adjustments, masks) = (take(2 * chunk.adjustments)?, take(chunk.masks * mask_words)?);
        let head = &self.heads[class];
        let writer = ChunkWriter {
            layout: &head.inputs,
            tables: &tables,
            adjustments: &adjustments,
            masks: &masks,
            mask_words,
        };
        writer.write(rows, head.rows, batch, &self.slots).map_err(failure)?;
        self.copy_tables(&writer, chunk, &mut scope)?;
        let run = |sequence: &Sequence, scope: &mut CommandScope| {
            sequence.count(&self.counters);
            sequence.enqueue(scope).map_err(failure)
        };
        let sequences = match left {
            Left::Logits => &[][..],
            Left::Hidden => &[&head.picked, &head.logits],
            Left::Attention => &[&head.last, &head.logits],
        };
        sequences.iter().try_for_each(|sequence| run(sequence, &mut scope))?;
        match chunk.sampling {
            Sampling::None => run(&head.given_logprobs, &mut scope)?,
            Sampling::Greedy => run(&head.samplers.greedy, &mut scope)?,
            Sampling::Full => run(&head.samplers.full, &mut scope)?,
        }
        if chunk.logprobs && chunk.sampling != Sampling::None {
            run(&head.sampled_logprobs, &mut scope)?;
        }
        let words = if chunk.logprobs { head.outputs.words() } else { head.outputs.sampled_words() };
        let brought = self.rings.rings[self.rings.next].outputs.take(words).map_err(failure)?;
        let source = self.buffers.head_outputs.slice(0..words).map_err(failure)?;
        scope.copy_out(&source, &brought).map_err(failure)?;
        Ok((Brought { layout: head.outputs.clone(), words: brought }, scope))
    }

    fn copy_tables(
        &self,
        writer: &ChunkWriter<'_>,
        chunk: &Chunk,
        scope: &mut CommandScope,
    ) -> Result<(), ExecutorError> {
        let buffers = &self.buffers;
        let target = buffers.head_inputs.slice(0..writer.tables.len()).map_err(failure)?;
        scope.copy_in(writer.tables, &target).map_err(failure)?;
        if chunk.adjustments > 0 {
            let count = chunk.adjustments;
            let half = |range| writer.adjustments.slice(range).map_err(failure);
            let tokens = buffers.adjust_tokens.slice(0..count).map_err(failure)?;
            scope.copy_in(&half(0..count)?, &tokens).map_err(failure)?;
            let values = buffers.adjust_values.cast().and_then(|words| words.slice(0..count));
            scope.copy_in(&half(count..2 * count)?, &values.map_err(failure)?).map_err(failure)?;
        }
        if chunk.masks > 0 {
            let target = buffers.masks.slice(0..writer.masks.len()).map_err(failure)?;
            scope.copy_in(writer.masks, &target).map_err(failure)?;
        }
        Ok(())
    }

    /// Reads the outputs of a step that has ended.
    fn read(&self, lists: &StepLists, output: &mut StepOutput) {
        output.samples.clear();
        output.prompt_logprobs.clear();
        output.prompt_logprobs.resize_with(lists.prompt_lists, || Ok(Vec::new()));
        for (chunk, Brought { layout, words }) in lists.chunks.iter().zip(&lists.outputs) {
            let reader = ChunkReader { layout, words, vocab_size: self.limits.vocab_size };
            for (index, row) in lists.rows[chunk.rows.clone()].iter().enumerate() {
                match *row {
                    HeadRow::Draw { target, .. } => {
                        let (slot, top) = lists.draws[target];
                        let outcome = reader.token(index).and_then(|token| {
                            let logprobs = top.map(|top| reader.logprobs(index, token, top)).transpose()?;
                            Ok(sampling::Sampled { token, logprobs })
                        });
                        output.samples.push(Sampled { slot, outcome });
                    }
                    HeadRow::Prompt { next, list, top, .. } => {
                        let found = reader.logprobs(index, next, top);
                        match (&mut output.prompt_logprobs[list], found) {
                            (Ok(list), Ok(logprobs)) => list.push(logprobs),
                            (failed @ Ok(_), Err(error)) => *failed = Err(error),
                            (Err(_), _) => {}
                        }
                    }
                }
            }
        }
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        // Steps in flight keep their leases; waiting here lets their memory be freed with the rest.
        for step in self.in_flight.drain(..) {
            let _ = step.wait();
        }
    }
}

/// How far a step's body has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// To the logits of its rows, in their order.
    Logits,
    /// To the residual stream.
    Hidden,
    /// To the last layer's attention.
    Attention,
}

pub(super) fn failure(message: impl ToString) -> ExecutorError {
    ExecutorError { message: message.to_string() }
}

use super::forward::{Forward, StepTables};
use super::lower::{CpuModel, lower};
use super::plan::{CpuOptions, ExecutorPlan, page_bytes};
use super::pools::Pools;
use super::sample::{RowDraw, draw};
use super::slots::Slots;
use super::workspace::{Slab, Slabs};
use crate::batch::{
    BatchRow, EngineBatch, Executor, ExecutorError, ExecutorLimits, HiddenStates, LogitsTap, PlanGoal,
    RowInput, StepOutput,
};
use crate::load::{LoadError, LoadProgress};
use crate::model::DenseDecoder;
use crate::source::ModelSource;
use crate::weights::ModelWeights;
use oxide_infer::sampling;
use oxide_infer_cpu::{CpuProvider, GivenToken, Plan, Team, log_probabilities};
use std::num::NonZeroUsize;
use std::ops::Range;

/// Computes steps of one model on the CPU: each inside `submit`, so that `collect` only hands out what it brought.
#[derive(Debug)]
pub struct CpuExecutor {
    provider: CpuProvider,
    state: State,
    /// What the step that was submitted last brought, until it is collected.
    output: Option<StepOutput>,
    /// An output whose allocations the next step uses.
    spare: StepOutput,
}

/// Everything of the executor but its threads.
#[derive(Debug)]
struct State {
    model: CpuModel,
    sampling: Plan<sampling::Spec>,
    limits: ExecutorLimits,
    logit_rows: usize,
    hidden_size: usize,
    slabs: Slabs,
    pools: Pools,
    slots: Slots,
    tables: StepTables,
    /// In the order of the step's tokens.
    wanted: Vec<Wanted>,
    /// Of the step's rows that draw, one row after the other, if they are kept.
    kept_logits: Option<Vec<f32>>,
}

/// Logits that are needed of one token of a step.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// Which token.
    token: usize,
    /// Of which row of the batch.
    row: usize,
    /// For the log-probability of a prompt token: which of the step's lists, and which token of the row's list.
    prompt: Option<(usize, usize)>,
    /// For the row's draws.
    draws: bool,
}

impl CpuExecutor {
    pub(crate) fn load(
        source: &ModelSource,
        options: &CpuOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let config = source.config();
        let decoder = DenseDecoder::new(config);
        let weights = ModelWeights::new(source.checkpoint(), config, &decoder)?;
        let ExecutorPlan { limits, logit_rows } =
            ExecutorPlan::new(config, options, source.checkpoint().file_bytes())?;
        let threads = options.threads.or_else(|| std::thread::available_parallelism().ok());
        let provider = CpuProvider::new(threads.unwrap_or(NonZeroUsize::MIN))?;
        let pools = Pools::new(config, limits.num_pages).map_err(|source| LoadError::KvPages {
            bytes: limits.num_pages as u64 * page_bytes(config),
            source,
        })?;
        let state = State {
            model: lower(config, &decoder, &weights, progress)?,
            sampling: Plan::new(sampling::Spec::new(sampling::Config { vocab_size: config.vocab_size })?),
            limits,
            logit_rows,
            hidden_size: config.hidden_size,
            slabs: Slabs::new(config, &limits, logit_rows),
            pools,
            slots: Slots::new(limits.max_sequences),
            tables: StepTables::default(),
            wanted: Vec::with_capacity(limits.max_batch_tokens),
            kept_logits: None,
        };
        Ok(Self { provider, state, output: None, spare: StepOutput::default() })
    }

    /// Threads that compute.
    pub fn threads(&self) -> NonZeroUsize {
        self.provider.threads()
    }
}

impl Executor for CpuExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.state.limits
    }

    fn submit(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        if self.output.is_some() {
            return Err(failure("a step is in flight already; this executor takes one at a time"));
        }
        let mut output = std::mem::take(&mut self.spare);
        output.samples.clear();
        output.prompt_logprobs.clear();
        output.hidden_states.clear();
        let state = &mut self.state;
        self.provider.step(|team| state.compute(team, batch, &mut output))?;
        self.output = Some(output);
        Ok(())
    }

    fn collect(&mut self, output: &mut StepOutput) -> Result<(), ExecutorError> {
        let brought = self.output.take().ok_or_else(|| failure("no step is in flight"))?;
        self.spare = std::mem::replace(output, brought);
        Ok(())
    }

    /// The order of its sums never depends on a step's size.
    fn goal(&self) -> PlanGoal {
        PlanGoal::Deterministic
    }
}

impl LogitsTap for CpuExecutor {
    fn keep_logits(&mut self) {
        self.state.kept_logits.get_or_insert_default();
    }

    fn logits(&mut self) -> Result<Vec<f32>, ExecutorError> {
        match &self.state.kept_logits {
            Some(logits) if self.output.is_none() => Ok(logits.clone()),
            Some(_) => Err(failure("the step in flight must be collected before its logits are read")),
            None => Err(failure("the logits of this step were not kept")),
        }
    }
}

impl State {
    fn compute(
        &mut self,
        team: &Team<'_>,
        batch: &EngineBatch,
        output: &mut StepOutput,
    ) -> Result<(), ExecutorError> {
        self.prepare(batch)?;
        self.pools.copy_pages(&batch.page_copies);
        self.want(batch, output);
        self.kept_logits.iter_mut().for_each(Vec::clear);
        let tokens = self.tables.tokens.len();
        if tokens > 0 {
            self.forward(team, Part::Body, tokens)?;
        }
        self.hand_out_states(team, batch, output)?;
        for first in (0..self.wanted.len()).step_by(self.logit_rows) {
            let end = self.wanted.len().min(first + self.logit_rows);
            for (row, wanted) in self.wanted[first..end].iter().enumerate() {
                // Tokens ascend, so no row that is still wanted lies before the place of this one.
                self.slabs.move_row(Slab::Hidden, wanted.token, row, self.hidden_size);
            }
            self.forward(team, Part::Head, end - first)?;
            self.use_logits(team, first..end, batch, output)?;
        }
        Ok(())
    }

    fn forward(&mut self, team: &Team<'_>, part: Part, rows: usize) -> Result<(), ExecutorError> {
        let operators = match part {
            Part::Body => &self.model.body,
            Part::Norm => self.model.last_norm(),
            Part::Head => &self.model.head,
        };
        let mut forward = Forward {
            team,
            slabs: &mut self.slabs,
            pools: &mut self.pools,
            tables: &self.tables,
            num_pages: self.limits.num_pages,
        };
        forward.run(operators, rows).map_err(failure)
    }

    /// Starts slots and lays the batch out as the contracts want it.
    fn prepare(&mut self, batch: &EngineBatch) -> Result<(), ExecutorError> {
        for start in &batch.slot_starts {
            self.slots.start(start).ok_or_else(|| failure(format!("there is no slot {}", start.slot.0)))?;
        }
        let limit = self.limits.num_pages;
        let copied = batch.page_copies.iter().flat_map(|copy| [copy.from, copy.to]);
        if let Some(page) = copied.into_iter().find(|page| page.index() >= limit) {
            return Err(failure(format!("page {page} is copied; the pool has {limit}")));
        }
        if batch.tokens.len() > self.limits.max_batch_tokens || batch.positions.len() != batch.tokens.len() {
            return Err(failure(format!(
                "{} tokens with {} positions in a step; at most {} were planned for",
                batch.tokens.len(),
                batch.positions.len(),
                self.limits.max_batch_tokens
            )));
        }
        let tables = &mut self.tables;
        tables.clear(batch.rows.iter().map(|row| row.pages.len()).max().unwrap_or(0));
        tables.tokens.extend_from_slice(&batch.tokens);
        // Positions and lengths that do not fit are refused by the operators.
        tables.positions.extend(batch.positions.iter().map(|&position| position as i32));
        for (index, row) in batch.rows.iter().enumerate() {
            let wrong = |what: &str| failure(format!("row {index} of the step {what}"));
            if row.tokens.start as i32 != tables.query_start[index] || row.tokens.end < row.tokens.start {
                return Err(wrong("does not begin where the row before it ends"));
            }
            let pages = batch.pages.get(row.pages.clone()).ok_or_else(|| wrong("has pages past the list"))?;
            tables.add_row(row, pages);
            if row.samples.end > batch.samples.len() {
                return Err(wrong("has draws past the list"));
            }
            if row.input == RowInput::LastSampled {
                let last = self.slots.get(row.slot).and_then(|slot| slot.last);
                match (last, tables.tokens.get_mut(row.tokens.clone())) {
                    (Some(last), Some([token])) => *token = last,
                    _ => return Err(wrong("goes on with a token that was not sampled")),
                }
            }
        }
        match tables.query_start.last() {
            Some(&end) if end as usize == batch.tokens.len() => Ok(()),
            _ => Err(failure("the rows of the step are not all of its tokens")),
        }
    }

    /// Lists the logits that are needed, and begins a list of log-probabilities for every row that asks for one.
    fn want(&mut self, batch: &EngineBatch, output: &mut StepOutput) {
        self.wanted.clear();
        for (index, row) in batch.rows.iter().enumerate() {
            let next = row.prompt_logprobs.as_ref().map_or(0, |asked| asked.next_tokens.len());
            let list = output.prompt_logprobs.len();
            if row.prompt_logprobs.is_some() {
                output.prompt_logprobs.push(Ok(Vec::with_capacity(next)));
            }
            self.wanted.extend(row.tokens.clone().enumerate().filter_map(|(i, token)| {
                let prompt = (i < next).then_some((list, i));
                let draws = token + 1 == row.tokens.end && !row.samples.is_empty();
                (prompt.is_some() || draws).then_some(Wanted { token, row: index, prompt, draws })
            }));
        }
    }

    /// Copies the final hidden states that rows ask for. Before the logits, which move the rows that they need.
    fn hand_out_states(
        &mut self,
        team: &Team<'_>,
        batch: &EngineBatch,
        output: &mut StepOutput,
    ) -> Result<(), ExecutorError> {
        if batch.rows.iter().all(|row| row.hidden_states == HiddenStates::None) {
            return Ok(());
        }
        let tokens = self.tables.tokens.len();
        self.forward(team, Part::Norm, tokens)?;
        let states = self.slabs.rows(Slab::Normed, tokens, self.hidden_size);
        let of = |tokens: Range<usize>| {
            states[tokens.start * self.hidden_size..tokens.end * self.hidden_size].to_vec()
        };
        let asked = batch.rows.iter().filter_map(|row| row.hidden_states.of(row.tokens.clone()));
        output.hidden_states.extend(asked.map(of));
        Ok(())
    }

    /// Takes what is wanted from the logits at hand, those of a range of `wanted`.
    fn use_logits(
        &mut self,
        team: &Team<'_>,
        range: Range<usize>,
        batch: &EngineBatch,
        output: &mut StepOutput,
    ) -> Result<(), ExecutorError> {
        let vocab_size = self.limits.vocab_size;
        let logits = self.slabs.rows(Slab::Logits, range.len(), vocab_size);
        let (mut given, mut lists, mut draws) = (Vec::new(), Vec::new(), Vec::new());
        for (row, wanted) in self.wanted[range].iter().enumerate() {
            let BatchRow { prompt_logprobs, samples, .. } = &batch.rows[wanted.row];
            if let (Some((list, token)), Some(asked)) = (wanted.prompt, prompt_logprobs) {
                let logits = &logits[row * vocab_size..][..vocab_size];
                given.push(GivenToken { logits, token: asked.next_tokens[token], top_n: asked.top as usize });
                lists.push(list);
            }
            if wanted.draws {
                if let Some(kept) = &mut self.kept_logits {
                    kept.extend_from_slice(&logits[row * vocab_size..][..vocab_size]);
                }
                draws.extend(samples.clone().map(|target| RowDraw { row, target }));
            }
        }
        for (list, found) in lists.into_iter().zip(log_probabilities(team, &given)) {
            match (&mut output.prompt_logprobs[list], found) {
                (Ok(list), Ok(logprobs)) => list.push(logprobs),
                (failed @ Ok(_), Err(error)) => *failed = Err(error),
                (Err(_), _) => {}
            }
        }
        let drawn = draw(team, &self.sampling, logits, &draws, batch, &mut self.slots).map_err(failure)?;
        output.samples.extend(drawn);
        Ok(())
    }
}

/// Which of the model's operators.
#[derive(Clone, Copy, Debug)]
enum Part {
    Body,
    /// The head up to the hidden states.
    Norm,
    Head,
}

fn failure(message: impl ToString) -> ExecutorError {
    ExecutorError { message: message.to_string() }
}

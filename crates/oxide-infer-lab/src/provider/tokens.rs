//! `sampling.sample` by the artifacts that choose tokens, and by those that give log-probabilities: rows of the contract
//! as the tables of `docs/artifacts.md`, and everything that a call leaves behind checked against the contract.

mod candidates;

use super::{OxideTile, with};
use crate::call::{Call, failed};
use oxide_infer::conformance::{Drawn, Refusal, compare_drawn};
use oxide_infer::sampling::{
    self, LogProbs, LogitsRow, RowError, Sampled, SamplingError, SamplingParams, TokenLogProb,
    log_probabilities,
};
use oxide_infer::{Spec as _, TokenId};
use oxide_infer_cuda::artifact::Request;

/// Columns of `row_ints` and `row_floats`.
const COLUMNS: usize = 8;
/// The slot of a row that pads the batch.
const NO_SLOT: u32 = u32::MAX;
/// Most probable tokens that `log_probabilities` gives.
const TOP: usize = 32;
const NO_TOKEN: u32 = u32::MAX;
/// Codes of `row_status`.
const OUT_OF_RANGE: i32 = 1;
const NO_CANDIDATE: i32 = 5;
const NOT_A_NUMBER: i32 = 6;

/// Sequences that have a slot and no row.
const SPARE_SLOTS: usize = 3;

pub(super) fn sample(
    tile: &mut OxideTile,
    spec: &sampling::Spec,
    rows: &[LogitsRow<'_>],
) -> Result<Vec<Sampled>, Refusal> {
    let sizes = [("rows", rows.len() as u64 + 1), ("vocab_size", spec.config().vocab_size as u64)];
    tile.check_shape(&sizes.map(|(name, size)| (name.to_owned(), size)).into())?;
    // The contract's own judgement. What a device cannot meet (a row of another size, parameters out of range) ends here.
    let judged = sampling::reference(spec, rows);
    match judged {
        Err(RowError { error: SamplingError::Logit { .. } | SamplingError::NoCandidate, .. }) | Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let expected: Vec<_> = rows.iter().map(sampling::sample).collect();
    let batch = Batch { rows, expected: &expected, vocab_size: spec.config().vocab_size };
    let sampled = match tile.artifact.manifest().contract.as_str() {
        "sampling.log_probabilities" => batch.log_probabilities(tile)?,
        "sampling.candidates" => batch.candidates(tile)?,
        _ if tile.has("logits", "candidates") => batch.pick(tile)?,
        _ if tile.has("method", "full") => batch.full(tile, Request::from(spec))?,
        _ => batch.greedy(tile, Request::from(spec))?,
    };
    judged?;
    Ok(sampled)
}

/// Rows, and what the contract makes of each by itself.
struct Batch<'a> {
    rows: &'a [LogitsRow<'a>],
    expected: &'a [Result<Sampled, SamplingError>],
    vocab_size: usize,
}

impl Batch<'_> {
    /// Where the row that pads the batch is, among the device's rows.
    fn padding(&self) -> usize {
        self.rows.len() / 2
    }

    fn device_rows(&self) -> usize {
        self.rows.len() + 1
    }

    /// For each row of the device, the row of the batch; the row that pads it has none.
    fn each(&self) -> impl Iterator<Item = Option<usize>> {
        let padding = self.padding();
        (0..self.device_rows()).map(move |row| match row.cmp(&padding) {
            std::cmp::Ordering::Less => Some(row),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(row - 1),
        })
    }

    /// Rows of the batch have slots in no order, and some sequences have no row.
    fn slot(&self, row: usize) -> usize {
        self.max_sequences() - 1 - row
    }

    fn max_sequences(&self) -> usize {
        self.rows.len() + SPARE_SLOTS
    }

    /// NaN in the row that pads the batch: it is not looked at.
    fn logits(&self) -> Vec<f32> {
        let nothing = vec![f32::NAN; self.vocab_size];
        self.each()
            .flat_map(|row| row.map_or(nothing.clone(), |row| self.rows[row].logits.to_vec()))
            .collect()
    }

    fn greedy(&self, tile: &mut OxideTile, asked: Request) -> Result<Vec<Sampled>, Refusal> {
        self.check_plain()?;
        let (logits, tables) = (self.logits(), Tables::new(self)?);
        let mut left = Left::new(self, &tables);
        let sizes = [("rows", self.device_rows()), ("max_sequences", self.max_sequences())];
        let mut call = Call::new(with(asked.property("method", "greedy"), &sizes));
        call.read_list("logits", &logits);
        call.read_list("row_ints", &tables.ints);
        left.bind(&mut call);
        tile.run(call)?;
        left.check(self, &tables)
    }

    fn full(&self, tile: &mut OxideTile, asked: Request) -> Result<Vec<Sampled>, Refusal> {
        let (logits, tables) = (self.logits(), Tables::new(self)?);
        let (mut left, mut history) = (Left::new(self, &tables), tables.history.clone());
        let sizes = [
            ("rows", self.device_rows()),
            ("max_sequences", self.max_sequences()),
            ("mask_rows", tables.masks.len() / self.vocab_size.div_ceil(32)),
            ("max_adjust", tables.adjust_tokens.len()),
        ];
        let mut call = Call::new(with(asked.property("method", "full"), &sizes));
        call.read_list("logits", &logits);
        call.read_list("row_ints", &tables.ints);
        call.read_list("row_floats", &tables.floats);
        call.read_list("masks", &tables.masks);
        call.read_list("adjust_start", &tables.adjust_start);
        call.read_list("adjust_tokens", &tables.adjust_tokens);
        call.read_list("adjust_values", &tables.adjust_values);
        call.read_write_list("history", &mut history);
        left.bind(&mut call);
        tile.run(call)?;
        let sampled = left.check(self, &tables)?;
        self.check_history(&tables, &left, &history)?;
        Ok(sampled)
    }

    /// A row that penalizes adds its token to the history of its slot; nothing else changes.
    fn check_history(&self, tables: &Tables, left: &Left, history: &[u32]) -> Result<(), Refusal> {
        let mut want = tables.history.clone();
        for (device, row) in self.each().enumerate() {
            let Some(row) = row.filter(|&row| self.expected[row].is_ok()) else { continue };
            if self.rows[row].params.reads_history() {
                want[self.slot(row) * self.vocab_size + left.tokens[device] as usize] += 1;
            }
        }
        match want.iter().zip(history).position(|(want, got)| want != got) {
            None => Ok(()),
            Some(at) => {
                let (slot, token) = (at / self.vocab_size, at % self.vocab_size);
                let (want, got) = (want[at], history[at]);
                fail(format!("history[{slot}][{token}] should be {want:#x}, got {got:#x}"))
            }
        }
    }

    /// Tokens by the reference, their log-probabilities by the device; and a row more whose token is not in the vocabulary.
    fn log_probabilities(&self, tile: &mut OxideTile) -> Result<Vec<Sampled>, Refusal> {
        let rows = self.device_rows();
        let mut logits = self.logits();
        // The row more takes the place of the one that pads, with logits of its own.
        let at = self.padding() * self.vocab_size;
        logits[at..at + self.vocab_size].fill(0.5);
        let chosen = |row: Option<usize>| match row {
            Some(row) => self.expected[row].as_ref().map_or(0, |sampled| sampled.token.0),
            None => self.vocab_size as u32 + 7,
        };
        let tokens: Vec<u32> = self.each().map(chosen).collect();
        let (mut chosen_logprob, mut chosen_rank) = (vec![0.0_f32; rows], vec![0_u32; rows]);
        let (mut top_tokens, mut top_logprobs) = (vec![0_u32; rows * TOP], vec![0.0_f32; rows * TOP]);
        let mut row_status = vec![0_i32; rows];
        let asked = Request::new("sampling.log_probabilities", 1)
            .property("logits", "f32")
            .property("top", TOP as u64);
        let mut call = Call::new(with(asked, &[("rows", rows), ("vocab_size", self.vocab_size)]));
        call.read_list("logits", &logits);
        call.read_list("tokens", &tokens);
        call.write_list("chosen_logprob", &mut chosen_logprob);
        call.write_list("chosen_rank", &mut chosen_rank);
        call.write_list("top_tokens", &mut top_tokens);
        call.write_list("top_logprobs", &mut top_logprobs);
        call.write_list("row_status", &mut row_status);
        tile.run(call)?;

        let mut sampled = Vec::new();
        for (device, row) in self.each().enumerate() {
            let logits = &logits[device * self.vocab_size..][..self.vocab_size];
            let judged = log_probabilities(logits, TokenId(tokens[device]), TOP);
            let want = judged.as_ref().map_or_else(code, |_| 0);
            if row_status[device] != want {
                return fail(format!("row_status[{device}] should be {want}, got {}", row_status[device]));
            }
            let (tops, logprobs) = (&top_tokens[device * TOP..][..TOP], &top_logprobs[device * TOP..][..TOP]);
            let there = if judged.is_ok() { self.vocab_size.min(TOP) } else { 0 };
            let empty = |i: &usize| tops[*i] == NO_TOKEN && logprobs[*i] == f32::NEG_INFINITY;
            if let Some(at) = (there..TOP).find(|i| !empty(i)) {
                return fail(format!("place {at} of row {device} should hold no token, got {}", tops[at]));
            }
            if judged.is_err() && (chosen_rank[device], chosen_logprob[device]) != (0, f32::NEG_INFINITY) {
                return fail(format!("row {device} should have no rank, got {}", chosen_rank[device]));
            }
            let Some(row) = row else { continue };
            let of =
                |token: u32, logprob: f32, rank: u32| TokenLogProb { token: TokenId(token), logprob, rank };
            let logprobs = self.rows[row].top_logprobs.map(|top_n| LogProbs {
                chosen: of(tokens[device], chosen_logprob[device], chosen_rank[device]),
                top: (0..top_n.min(there)).map(|i| of(tops[i], logprobs[i], i as u32 + 1)).collect(),
            });
            sampled.push(Sampled { token: TokenId(tokens[device]), logprobs });
        }
        Ok(sampled)
    }
}

/// What rows ask for, as the kernels read it.
struct Tables {
    /// `[rows, 8]`
    ints: Vec<u32>,
    /// `[rows, 8]`
    floats: Vec<f32>,
    /// `[mask_rows, ceil(vocab_size / 32)]`
    masks: Vec<u32>,
    /// `[rows + 1]`
    adjust_start: Vec<i32>,
    /// `[max_adjust]`
    adjust_tokens: Vec<u32>,
    /// `[max_adjust]`
    adjust_values: Vec<f32>,
    /// `[max_sequences, vocab_size]`
    history: Vec<u32>,
    /// `[max_sequences]`, something that no token is.
    last_tokens: Vec<u32>,
}

impl Tables {
    fn new(batch: &Batch<'_>) -> Result<Self, Refusal> {
        let mut tables = Self {
            ints: Vec::new(),
            floats: Vec::new(),
            // One that no row asks for and that would forbid everything.
            masks: vec![0; batch.vocab_size.div_ceil(32)],
            adjust_start: vec![0],
            adjust_tokens: Vec::new(),
            adjust_values: Vec::new(),
            history: vec![0; batch.max_sequences() * batch.vocab_size],
            last_tokens: vec![0xABCD_EF01; batch.max_sequences()],
        };
        for row in batch.each() {
            match row {
                Some(row) => tables.push(batch, row)?,
                None => tables.pad(),
            }
            tables.adjust_start.push(tables.adjust_tokens.len() as i32);
        }
        // A token that is not there, past the last row's.
        tables.adjust_tokens.push(NO_TOKEN);
        tables.adjust_values.push(f32::NAN);
        Ok(tables)
    }

    fn pad(&mut self) {
        self.ints.extend([7, 7, 0, 9, 1, NO_SLOT, 1, 1]);
        self.floats.extend([1.0; COLUMNS]);
    }

    fn push(&mut self, batch: &Batch<'_>, row: usize) -> Result<(), Refusal> {
        let LogitsRow { params, history, mask, choice, position, .. } = batch.rows[row];
        let slot = batch.slot(row);
        let position = u32::try_from(position)
            .map_err(|_| Refusal::NotAdmitted(format!("position {position} is past 32 bits")))?;
        let mask_row = mask.map_or(0, |mask| {
            self.masks.extend(mask.words());
            (self.masks.len() / batch.vocab_size.div_ceil(32)) as u32
        });
        let [low, high] = [params.seed as u32, (params.seed >> 32) as u32];
        let flags = u32::from(params.reads_history());
        let top_k = params.top_k.unwrap_or(0);
        self.ints.extend([low, high, choice, position, top_k, slot as u32, mask_row, flags]);
        let SamplingParams { temperature, top_p, min_p, .. } = *params;
        let penalties = [params.repetition_penalty, params.presence_penalty, params.frequency_penalty];
        self.floats.extend([temperature, top_p, min_p].into_iter().chain(penalties).chain([0.0; 2]));
        let mut biases = params.logit_bias.to_vec();
        // Stable: biases of one token are added in the order that they were given in.
        biases.sort_by_key(|&(token, _)| token);
        self.adjust_tokens.extend(biases.iter().map(|(token, _)| token.0));
        self.adjust_values.extend(biases.iter().map(|(_, bias)| bias));
        for (token, used) in history.used() {
            let prompt = u32::from(used.prompt > 0) << 31;
            self.history[slot * batch.vocab_size + token.index()] = prompt | used.output;
        }
        Ok(())
    }
}

/// What a call that chooses tokens leaves.
struct Left {
    tokens: Vec<u32>,
    row_status: Vec<i32>,
    last_tokens: Vec<u32>,
}

impl Left {
    fn new(batch: &Batch<'_>, tables: &Tables) -> Self {
        let rows = batch.device_rows();
        Self { tokens: vec![0; rows], row_status: vec![0; rows], last_tokens: tables.last_tokens.clone() }
    }

    fn bind<'a>(&'a mut self, call: &mut Call<'a>) {
        call.write_list("tokens", &mut self.tokens);
        call.write_list("row_status", &mut self.row_status);
        call.read_write_list("last_tokens", &mut self.last_tokens);
    }

    /// Checks the status of every row, that failed rows and those that pad have token 0, that tokens are in their slots and
    /// no others are; and, since one failed row hides the others from the suite, every token.
    fn check(&self, batch: &Batch<'_>, tables: &Tables) -> Result<Vec<Sampled>, Refusal> {
        let mut last_tokens = tables.last_tokens.clone();
        let mut sampled = Vec::new();
        for (device, row) in batch.each().enumerate() {
            let (token, status) = (self.tokens[device], self.row_status[device]);
            let expected = row.map(|row| &batch.expected[row]);
            let want = match expected {
                Some(Err(error)) => code(error),
                Some(Ok(_)) | None => 0,
            };
            if status != want {
                return fail(format!("row_status[{device}] should be {want}, got {status}"));
            }
            if let Some(row) = row {
                last_tokens[batch.slot(row)] = token;
            }
            match row.zip(expected) {
                Some((row, Ok(want))) => {
                    let row = &batch.rows[row];
                    let drawn = compare_drawn(row, want.token, TokenId(token)).map_err(failed)?;
                    if drawn == Drawn::Other {
                        return fail(format!("tokens[{device}] should be {}, got {token}", want.token));
                    }
                    // Not this artifact's: those of its token, whichever of two near ones it is.
                    let logprobs = row.top_logprobs;
                    let logprobs = logprobs.map(|top_n| log_probabilities(row.logits, TokenId(token), top_n));
                    let logprobs = logprobs.transpose().map_err(failed)?;
                    sampled.push(Sampled { token: TokenId(token), logprobs });
                }
                Some((_, Err(_))) | None if token != 0 => {
                    return fail(format!("tokens[{device}] should be 0, got {token}"));
                }
                Some((_, Err(_))) | None => {}
            }
        }
        if self.last_tokens != last_tokens {
            let (want, got) = (&last_tokens, &self.last_tokens);
            return fail(format!("last_tokens should be {want:?}, got {got:?}"));
        }
        Ok(sampled)
    }
}

/// The code in `row_status` of what the contract says of a row.
fn code(error: &SamplingError) -> i32 {
    match error {
        SamplingError::NoCandidate => NO_CANDIDATE,
        SamplingError::Token { .. } => OUT_OF_RANGE,
        _ => NOT_A_NUMBER,
    }
}

fn fail<T>(what: String) -> Result<T, Refusal> {
    Err(Refusal::Failed(what))
}

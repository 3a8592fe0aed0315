use crate::conformance::buffer::Numbers;
use crate::conformance::suite::{Suite, Verdict, named};
use crate::conformance::{Operators, Reference, Refusal};
use crate::sampling::{
    Config, LogProbs, LogitsRow, RowError, Sampled, SamplingError, SamplingParams, Spec, TokenHistory,
    TokenLogProb, TokenMask,
};
use crate::{Contract, TokenId};

const CONTRACT: Contract = Contract::SAMPLE;

/// How far a log-probability may be off.
const LOGPROB_TOLERANCE: f32 = 1e-4;

/// A row that owns what it reads.
#[derive(Clone)]
struct Row {
    logits: Vec<f32>,
    params: SamplingParams,
    history: TokenHistory,
    mask: Option<TokenMask>,
    choice: u32,
    position: u64,
    top_logprobs: Option<usize>,
}

impl Row {
    fn new(vocab_size: usize, seed: u32) -> Self {
        let mut numbers = Numbers::new(seed);
        Self {
            logits: (0..vocab_size).map(|_| 6.0 * numbers.signed()).collect(),
            params: SamplingParams { seed: seed.into(), ..SamplingParams::default() },
            history: TokenHistory::default(),
            mask: None,
            choice: 0,
            position: 17,
            top_logprobs: Some(3),
        }
    }

    fn view(&self) -> LogitsRow<'_> {
        LogitsRow {
            logits: &self.logits,
            params: &self.params,
            history: &self.history,
            mask: self.mask.as_ref(),
            choice: self.choice,
            position: self.position,
            top_logprobs: self.top_logprobs,
        }
    }
}

pub(super) fn run(suite: &mut Suite<'_>) {
    for vocab_size in [1, 2, 33, 1000, 5003] {
        let rows: Vec<Row> = rows(vocab_size);
        batch(suite, vocab_size, &rows, "", format!("vocab_size={vocab_size}, {} rows at once", rows.len()));
        for (i, row) in rows.iter().enumerate() {
            batch(
                suite,
                vocab_size,
                std::slice::from_ref(row),
                "",
                format!("vocab_size={vocab_size}, row {i} alone"),
            );
        }
    }
    batch(suite, 8, &[], "", "no rows".into());
    for (what, fault) in FAULTS {
        let mut rows = [Row::new(40, 1), Row::new(40, 2)];
        fault(&mut rows[1]);
        batch(suite, 40, &rows, what, String::new());
    }
}

/// One row per step of the definition, then several steps together; each with draws of its own.
fn rows(vocab_size: usize) -> Vec<Row> {
    let last = TokenId(vocab_size as u32 - 1);
    let changes: [fn(&mut Row, TokenId); 20] = [
        |_, _| (),
        |row, _| row.params.temperature = 0.0,
        |row, _| row.params.temperature = 0.3,
        |row, _| row.params.temperature = 3.0,
        |row, _| row.params.top_k = Some(1),
        |row, _| row.params.top_k = Some(5),
        |row, _| row.params.top_k = Some(u32::MAX),
        |row, _| row.params.top_p = 0.5,
        |row, _| row.params.top_p = 1e-6,
        |row, _| row.params.min_p = 0.2,
        |row, _| (row.params.top_k, row.params.top_p, row.params.min_p) = (Some(20), 0.8, 0.01),
        |row, last| row.params.logit_bias = [(last, 100.0), (TokenId(0), -100.0)].into(),
        |row, last| (row.params.logit_bias, row.params.temperature) = ([(last, 100.0)].into(), 0.0),
        |row, last| row.mask = Some(only(row.logits.len(), &[TokenId(0), last])),
        |row, last| (row.mask, row.params.temperature) = (Some(only(row.logits.len(), &[last])), 0.0),
        |row, _| row.params.repetition_penalty = 1.7,
        |row, _| (row.params.presence_penalty, row.params.frequency_penalty) = (1.5, -0.7),
        |row, _| {
            row.params.temperature = 0.0;
            (row.params.repetition_penalty, row.params.frequency_penalty) = (0.4, 1.0);
        },
        // Ties: the lowest id is first wherever that matters.
        |row, _| (row.logits.fill(1.0), row.params.top_k = Some(3)).1,
        |row, _| {
            row.logits.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
            row.top_logprobs = None;
        },
    ];
    let mut rows = Vec::new();
    for (change, i) in changes.iter().zip(0u32..) {
        let mut row = Row::new(vocab_size, 100 + i);
        (row.choice, row.position) = (i % 3, u64::from(i) << (i % 40));
        row.top_logprobs = Some([0, 1, 20][i as usize % 3]);
        row.history = TokenHistory::new((0..last.0.min(9)).map(TokenId));
        [last, last, TokenId(0)].into_iter().for_each(|token| row.history.push(token));
        change(&mut row, last);
        rows.push(row);
    }
    rows
}

fn only(vocab_size: usize, tokens: &[TokenId]) -> TokenMask {
    let mut mask = TokenMask::none(vocab_size);
    tokens.iter().for_each(|&token| mask.allow(token));
    mask
}

type Fault = (&'static str, fn(&mut Row));

const FAULTS: [Fault; 11] = [
    ("a row of another vocabulary", |row| row.logits.truncate(39)),
    ("a logit that is NaN", |row| row.logits[7] = f32::NAN),
    ("a logit of +∞", |row| row.logits[39] = f32::INFINITY),
    ("logits that are all −∞", |row| row.logits.fill(f32::NEG_INFINITY)),
    ("a mask that allows nothing", |row| row.mask = Some(TokenMask::none(40))),
    ("a mask of another vocabulary", |row| row.mask = Some(TokenMask::all(41))),
    ("a temperature below 0", |row| row.params.temperature = -1.0),
    ("a top-p of 0", |row| row.params.top_p = 0.0),
    ("a top-k of 0", |row| row.params.top_k = Some(0)),
    ("a bias on a token that is not there", |row| row.params.logit_bias = [(TokenId(40), 1.0)].into()),
    ("a history of a token that is not there", |row| {
        row.params.presence_penalty = 1.0;
        row.history.push(TokenId(40));
    }),
];

fn batch(suite: &mut Suite<'_>, vocab_size: usize, rows: &[Row], fault: &str, case: String) {
    let spec = Spec::new(Config { vocab_size }).expect("a valid spec");
    let rows: Vec<_> = rows.iter().map(Row::view).collect();
    let want = Reference.sample(&spec, &rows);
    let found = suite
        .guarded(|operators: &mut dyn Operators| operators.sample(&spec, &rows))
        .and_then(|got| compare(&want, &got));
    suite.record(CONTRACT, named(fault, case), want.is_err(), found);
}

fn compare(want: &Result<Vec<Sampled>, Refusal>, got: &Result<Vec<Sampled>, Refusal>) -> Result<(), Verdict> {
    let wrong = |what: String| Err(Verdict::Wrong(what));
    match (want, got) {
        (_, Err(refusal @ Refusal::NotAdmitted(_))) => Err(Verdict::NotAdmitted(refusal.clone())),
        (Ok(_), Err(refusal)) => Err(Verdict::of_refusal(refusal.clone())),
        (Err(refusal), Ok(_)) => wrong(format!("it took what the contract refuses: {refusal}")),
        (Err(want), Err(got)) if same_kind(want, got) => Ok(()),
        (Err(want), Err(got)) => wrong(format!("it should refuse with \"{want}\", got \"{got}\"")),
        (Ok(want), Ok(got)) if want.len() != got.len() => {
            wrong(format!("it should give {} tokens, got {}", want.len(), got.len()))
        }
        (Ok(want), Ok(got)) => match want.iter().zip(got).position(|(want, got)| !same(want, got)) {
            Some(row) => wrong(format!("row {row} should be {:?}, got {:?}", want[row], got[row])),
            None => Ok(()),
        },
    }
}

/// The same row for the same kind of reason (a NaN is not equal to itself, so values are not compared).
fn same_kind(want: &Refusal, got: &Refusal) -> bool {
    let kind = std::mem::discriminant::<SamplingError>;
    match (want, got) {
        (Refusal::Sampling(RowError { row, error }), Refusal::Sampling(got)) => {
            *row == got.row && kind(error) == kind(&got.error)
        }
        _ => want == got,
    }
}

fn same(want: &Sampled, got: &Sampled) -> bool {
    want.token == got.token
        && match (&want.logprobs, &got.logprobs) {
            (None, None) => true,
            (Some(want), Some(got)) => same_logprobs(want, got),
            _ => false,
        }
}

fn same_logprobs(want: &LogProbs, got: &LogProbs) -> bool {
    let close = |want: &TokenLogProb, got: &TokenLogProb| {
        want.token == got.token
            && want.rank == got.rank
            && (want.logprob == got.logprob || (want.logprob - got.logprob).abs() <= LOGPROB_TOLERANCE)
    };
    close(&want.chosen, &got.chosen)
        && want.top.len() == got.top.len()
        && want.top.iter().zip(&got.top).all(|(want, got)| close(want, got))
}

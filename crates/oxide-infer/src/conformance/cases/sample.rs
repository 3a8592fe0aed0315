use crate::conformance::buffer::Numbers;
use crate::conformance::suite::{Suite, Verdict, named};
use crate::conformance::{Drawn, Operators, Refusal, compare_drawn};
use crate::sampling::{
    Config, LogProbs, LogitsRow, RowError, Sampled, SamplingError, SamplingParams, Spec, TokenHistory,
    TokenLogProb, TokenMask, log_probabilities,
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
    for (vocab_size, count) in [(257, 256), (4095, 2), (4096, 1), (4097, 37), (12_289, 5)] {
        let rows: Vec<_> = (0..count).map(|row| greedy(vocab_size, row)).collect();
        batch(suite, vocab_size, &rows, "", format!("vocab_size={vocab_size}, {count} greedy rows at once"));
    }
    for (vocab_size, count) in [(33, 64), (1001, 256), (8192, 64), (151_936, 6)] {
        let rows: Vec<_> = (0..count).map(|row| combined(vocab_size, row)).collect();
        batch(
            suite,
            vocab_size,
            &rows,
            "",
            format!("vocab_size={vocab_size}, {count} rows of all sorts at once"),
        );
    }
    batch(suite, 8, &[], "", "no rows".into());
    for (what, fault) in FAULTS {
        // Of a row that is drawn, and of one that takes the argmax.
        for temperature in [1.0, 0.0] {
            let mut rows = [Row::new(40, 1), Row::new(40, 2)];
            rows.iter_mut().for_each(|row| row.params.temperature = temperature);
            fault(&mut rows[1]);
            batch(suite, 40, &rows, what, String::new());
        }
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

/// The argmax, of rows with and without ties for it.
fn greedy(vocab_size: usize, number: u32) -> Row {
    let mut row = Row::new(vocab_size, 1000 + number);
    (row.params.temperature, row.top_logprobs) = (0.0, None);
    if number.is_multiple_of(2) {
        let mut numbers = Numbers::new(number);
        [0, 1, 2].iter().for_each(|_| row.logits[numbers.below(vocab_size)] = 6.5);
    }
    row
}

/// Every combination of parameters, one after another by the bits of the row's number, over logits of several shapes.
fn combined(vocab_size: usize, number: u32) -> Row {
    let mut numbers = Numbers::new(0x5EED + number);
    let mut row = Row::new(vocab_size, 2000 + number);
    row.params.temperature = [1.0, 0.7, 0.05, 3.0, 1.4][number as usize % 5];
    row.params.seed = u64::from(number) << 33 | 0x1234_5678;
    (row.choice, row.position) = (number % 4, u64::from(number) * 977);
    row.top_logprobs = [None, Some(0), Some(5), Some(32)][number as usize % 4];
    shape(&mut row.logits, number, &mut numbers);
    let token = |numbers: &mut Numbers| TokenId(numbers.below(vocab_size) as u32);
    let asks = |bit: u32| number >> bit & 1 == 1;
    if asks(0) {
        let k = [1, 2, 20, 50, vocab_size as u32 / 3 + 1, u32::MAX][number as usize % 6];
        row.params.top_k = Some(k);
    }
    if asks(1) {
        row.params.top_p = [0.95, 0.5, 0.9999, 1e-6, 0.31][number as usize % 5];
    }
    if asks(2) {
        row.params.min_p = [0.05, 0.3, 1.0, 1e-4][number as usize / 8 % 4];
    }
    if asks(3) {
        let mut mask = TokenMask::none(vocab_size);
        (0..vocab_size / 2 + 1).for_each(|_| mask.allow(token(&mut numbers)));
        row.mask = Some(mask);
    }
    if asks(4) {
        // Not in order, and some tokens more than once.
        row.params.logit_bias = (0..23)
            .map(|i| (token(&mut numbers), 4.0 * numbers.signed(), i))
            .map(|(t, b, i)| (if i % 5 == 0 { TokenId(0) } else { t }, b))
            .collect();
    }
    if asks(5) {
        row.history = TokenHistory::new((0..30).map(|_| token(&mut numbers)));
        (0..40).for_each(|_| row.history.push(token(&mut numbers)));
        row.params.repetition_penalty = [1.0, 1.3, 0.8][number as usize % 3];
        row.params.presence_penalty = [0.5, 0.0, -0.4][number as usize / 3 % 3];
        row.params.frequency_penalty = [0.25, -0.1, 0.0][number as usize / 9 % 3];
    }
    row
}

/// Rows like a model's; of few values; almost flat; with one token far ahead and others that are out; mostly equal.
fn shape(logits: &mut [f32], number: u32, numbers: &mut Numbers) {
    match number / 3 % 5 {
        1 => logits.iter_mut().for_each(|logit| *logit = (*logit * 2.0).round() / 2.0),
        2 => logits.iter_mut().for_each(|logit| *logit = 20.0 + *logit * 1e-5),
        3 => {
            logits.iter_mut().skip(1).step_by(3).for_each(|logit| *logit = f32::NEG_INFINITY);
            logits[numbers.below(logits.len())] = 14.0;
        }
        4 => logits.iter_mut().filter(|logit| **logit < 5.0).for_each(|logit| *logit = 0.0),
        _ => {}
    }
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
    let want = suite.reference().sample(&spec, &rows);
    let found = suite
        .guarded(|operators: &mut dyn Operators| operators.sample(&spec, &rows))
        .and_then(|got| compare(&rows, &want, &got));
    let found = found.map(|near| suite.report.add_near(near));
    suite.record(CONTRACT, named(fault, case), want.is_err(), found);
}

/// How many tokens differ where they may.
fn compare(
    rows: &[LogitsRow<'_>],
    want: &Result<Vec<Sampled>, Refusal>,
    got: &Result<Vec<Sampled>, Refusal>,
) -> Result<usize, Verdict> {
    let wrong = |what: String| Err(Verdict::Wrong(what));
    match (want, got) {
        (_, Err(refusal @ Refusal::NotAdmitted(_))) => Err(Verdict::NotAdmitted(refusal.clone())),
        (Ok(_), Err(refusal)) => Err(Verdict::of_refusal(refusal.clone())),
        (Err(refusal), Ok(_)) => wrong(format!("it took what the contract refuses: {refusal}")),
        (Err(want), Err(got)) if same_kind(want, got) => Ok(0),
        (Err(want), Err(got)) => wrong(format!("it should refuse with \"{want}\", got \"{got}\"")),
        (Ok(want), Ok(got)) if want.len() != got.len() => {
            wrong(format!("it should give {} tokens, got {}", want.len(), got.len()))
        }
        (Ok(want), Ok(got)) => {
            let mut near = 0;
            for (number, (row, (want, got))) in rows.iter().zip(want.iter().zip(got)).enumerate() {
                match same(row, want, got) {
                    Drawn::Same => {}
                    Drawn::Near => near += 1,
                    Drawn::Other => return wrong(format!("row {number} should be {want:?}, got {got:?}")),
                }
            }
            Ok(near)
        }
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

fn same(row: &LogitsRow<'_>, want: &Sampled, got: &Sampled) -> Drawn {
    let drawn = compare_drawn(row, want.token, got.token).unwrap_or(Drawn::Other);
    // Those of the token that there is, where it may differ.
    let logprobs = match row.top_logprobs.filter(|_| drawn == Drawn::Near) {
        Some(top_n) => log_probabilities(row.logits, got.token, top_n).ok(),
        None => want.logprobs.clone(),
    };
    let close = match (&logprobs, &got.logprobs) {
        (None, None) => true,
        (Some(want), Some(got)) => same_logprobs(want, got),
        _ => false,
    };
    if close { drawn } else { Drawn::Other }
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

//! `sampling.record_history` against the contract's `TokenHistory`.

use super::{Cases, Found, hold};
use crate::call::{Bench, Call};
use anyhow::Result;
use oxide_infer::TokenId;
use oxide_infer::sampling::{TokenHistory, philox4x32_10};
use oxide_infer_cuda::artifact::status::DeviceStatus;
use oxide_infer_cuda::artifact::{Artifact, Request};

/// Kinds of entries; 3 is none.
const NOTHING: u32 = 0;
const PROMPT: u32 = 1;
const OUTPUT: u32 = 2;

#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u32,
    token: u32,
    kind: u32,
}

/// Batches of entries and tables of several sizes, then entries that have no place.
pub(super) fn run(mut bench: Bench, artifact: &Artifact, cases: Cases) -> Result<Found> {
    let mut found = Found::default();
    let sizes = [(3001, 5, 129), (1, 1, 1), (7, 3, 33), (256, 16, 1000)];
    let count = if cases == Cases::One { 1 } else { sizes.len() };
    for &(count, max_sequences, vocab_size) in &sizes[..count] {
        let table = Table { max_sequences, vocab_size };
        let entries = table.entries(count);
        case(&mut bench, artifact, table, &entries, None, &mut found);
    }
    if cases == Cases::One {
        return Ok(found);
    }
    let table = Table { max_sequences: 3, vocab_size: 33 };
    for (place, bad) in [
        (0, Entry { slot: 3, token: 0, kind: PROMPT }),
        (5, Entry { slot: u32::MAX, token: 0, kind: OUTPUT }),
        (6, Entry { slot: 0, token: 33, kind: OUTPUT }),
        (2, Entry { slot: 1, token: 1, kind: 3 }),
        (2, Entry { slot: 1, token: 1, kind: u32::MAX }),
    ] {
        let mut entries = table.entries(7);
        entries[place] = bad;
        case(&mut bench, artifact, table, &entries, Some(place as u32), &mut found);
    }
    Ok(found)
}

/// `[max_sequences, vocab_size]`
#[derive(Clone, Copy, Debug)]
struct Table {
    max_sequences: usize,
    vocab_size: usize,
}

impl Table {
    /// Entries of every kind, many for one token; those of no kind name places that are not there.
    fn entries(self, count: u32) -> Vec<Entry> {
        let entry = |number| {
            let [slot, token, kind, _] = philox4x32_10([number, 0, 0, 0], [0x4157, count]);
            let slot = slot % self.max_sequences as u32;
            let token = token % (self.vocab_size as u32 / 3).max(1);
            match kind % 3 {
                NOTHING => Entry { slot: u32::MAX, token: u32::MAX, kind: NOTHING },
                kind => Entry { slot, token, kind },
            }
        };
        (0..count).map(entry).collect()
    }

    /// What every sequence has used before.
    fn before(self) -> Vec<TokenHistory> {
        let history = |slot: usize| {
            let mut history = TokenHistory::new((0..self.vocab_size as u32).step_by(slot + 2).map(TokenId));
            (0..self.vocab_size as u32).step_by(slot + 3).for_each(|token| history.push(TokenId(token)));
            history
        };
        (0..self.max_sequences).map(history).collect()
    }

    fn add(self, histories: &mut [TokenHistory], entries: &[Entry]) {
        for &Entry { slot, token, kind } in entries {
            let there = (slot as usize) < self.max_sequences && (token as usize) < self.vocab_size;
            let Some(history) = histories.get_mut(slot as usize).filter(|_| there) else { continue };
            match kind {
                PROMPT => *history = with_prompt(history, TokenId(token)),
                OUTPUT => history.push(TokenId(token)),
                _ => {}
            }
        }
    }

    fn of(self, histories: &[TokenHistory]) -> Vec<u32> {
        let mut table = vec![0; self.max_sequences * self.vocab_size];
        for (slot, history) in histories.iter().enumerate() {
            for (token, used) in history.used() {
                table[slot * self.vocab_size + token.index()] =
                    u32::from(used.prompt > 0) << 31 | used.output;
            }
        }
        table
    }
}

/// The history of a sequence whose prompt has a token more.
fn with_prompt(history: &TokenHistory, token: TokenId) -> TokenHistory {
    let times = |token: TokenId, times: u32| std::iter::repeat_n(token, times as usize);
    let prompt = history.used().flat_map(|(token, used)| times(token, used.prompt));
    let mut more = TokenHistory::new(prompt.chain([token]));
    history.used().flat_map(|(token, used)| times(token, used.output)).for_each(|token| more.push(token));
    more
}

fn case(
    bench: &mut Bench,
    artifact: &Artifact,
    table: Table,
    entries: &[Entry],
    fault: Option<u32>,
    found: &mut Found,
) {
    let name = format!("{} entries, {table:?}, entry {fault:?} bad", entries.len());
    if let Err(error) = compare(bench, artifact, table, entries, fault, &mut found.checks) {
        found.failures.push(format!("{name}: {error:#}"));
    }
}

fn compare(
    bench: &mut Bench,
    artifact: &Artifact,
    table: Table,
    entries: &[Entry],
    fault: Option<u32>,
    runs: &mut usize,
) -> Result<()> {
    let mut histories = table.before();
    let mut history = table.of(&histories);
    table.add(&mut histories, entries);
    let column = |of: fn(&Entry) -> u32| entries.iter().map(of).collect::<Vec<_>>();
    let request = Request::new("sampling.record_history", 1)
        .dimension("entries", entries.len() as u64)
        .dimension("max_sequences", table.max_sequences as u64)
        .dimension("vocab_size", table.vocab_size as u64);
    let mut call = Call::new(request);
    call.read_list("entry_slots", &column(|entry| entry.slot));
    call.read_list("entry_tokens", &column(|entry| entry.token));
    call.read_list("entry_kinds", &column(|entry| entry.kind));
    call.read_write_list("history", &mut history);
    let reported = call.run(bench, artifact)?;
    *runs += 1;
    let want = fault.map(|index| DeviceStatus::IndexOutOfRange { index });
    hold(reported == want, || format!("the device should report {want:?}, got {reported:?}"))?;
    let wanted = table.of(&histories);
    let wrong = wanted.iter().zip(&history).position(|(want, got)| want != got);
    hold(wrong.is_none(), || {
        let at = wrong.unwrap_or_default();
        let (slot, token) = (at / table.vocab_size, at % table.vocab_size);
        format!("history[{slot}][{token}] should be {:#x}, got {:#x}", wanted[at], history[at])
    })
}

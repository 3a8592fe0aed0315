//! What `docs/artifacts.md` says that the kernels of tokens and positions do, on the host, from their operands alone.

mod cache;
mod candidates;
mod products;

use half::bf16;
use oxide_infer::TokenId;
use oxide_infer::sampling::{
    self, LogitsRow, SamplingError, SamplingParams, TokenHistory, TokenMask, log_probabilities,
};
use oxide_infer_cuda::artifact::status::DeviceStatus;
use oxide_infer_cuda::artifact::{Artifact, Dimensions};
use std::collections::BTreeMap;

type Memory = BTreeMap<String, Vec<u8>>;

const NO_SLOT: u32 = u32::MAX;

pub(super) fn documented(
    artifact: &Artifact,
    dimensions: &Dimensions,
    memory: &mut Memory,
) -> Option<DeviceStatus> {
    let manifest = artifact.manifest();
    let has = |property: &str, value: &str| {
        manifest.properties.get(property).is_some_and(|found| found.to_string() == value)
    };
    match manifest.contract.as_str() {
        "embedding.gather" if has("table", "bf16") => {
            let table = list::<bf16>(memory, "table").into_iter().map(bf16::to_f32).collect();
            return gather(memory, dimensions, table);
        }
        "embedding.gather" => {
            let table = list(memory, "table");
            return gather(memory, dimensions, table);
        }
        "sampling.record_history" => return record_history(memory, dimensions),
        "gemm.dense" => products::product(memory, dimensions, manifest),
        "kv_cache.rope_append" => {
            if has("qkv", "projected") {
                products::project(memory, dimensions);
            }
            return cache::append(memory, dimensions, manifest);
        }
        "kv_cache.paged_append" => return cache::append(memory, dimensions, manifest),
        "position.rope" => return cache::rope(memory, dimensions),
        "activation.swiglu" => swiglu(memory, has("dtype", "bf16")),
        "sampling.candidates" => candidates::best_of_tiles(memory, dimensions, manifest),
        "sampling.sample" if has("logits", "candidates") => candidates::pick(memory, dimensions),
        "sampling.sample" => sample(memory, dimensions),
        "sampling.log_probabilities" => top(memory, dimensions),
        other => panic!("{other} is not emulated"),
    }
    None
}

/// Sampled tokens in the slot before their own.
pub(super) fn with_a_neighbours_slot(a: &Artifact, d: &Dimensions, m: &mut Memory) -> Option<DeviceStatus> {
    let fault = documented(a, d, m);
    let mut last_tokens = list::<u32>(m, "last_tokens");
    last_tokens.rotate_left(1);
    put(m, "last_tokens", &last_tokens);
    fault
}

/// Tokens added to the history of rows that have no penalties, too.
pub(super) fn with_a_history_of_every_row(
    a: &Artifact,
    d: &Dimensions,
    m: &mut Memory,
) -> Option<DeviceStatus> {
    let fault = documented(a, d, m);
    let mut history = list::<u32>(m, "history");
    history[0] += 1;
    put(m, "history", &history);
    fault
}

/// A token for rows that pad the batch.
pub(super) fn with_a_token_for_padding(a: &Artifact, d: &Dimensions, m: &mut Memory) -> Option<DeviceStatus> {
    let fault = documented(a, d, m);
    let (ints, mut tokens) = (list::<u32>(m, "row_ints"), list::<u32>(m, "tokens"));
    for (row, token) in tokens.iter_mut().enumerate().filter(|(row, _)| ints[row * 8 + 5] == NO_SLOT) {
        *token = row as u32 + 1;
    }
    put(m, "tokens", &tokens);
    fault
}

/// No row says that it failed.
pub(super) fn with_no_row_status(a: &Artifact, d: &Dimensions, m: &mut Memory) -> Option<DeviceStatus> {
    let fault = documented(a, d, m);
    m.get_mut("row_status").unwrap().fill(0);
    fault
}

/// Of equal tokens of a tile the last.
pub(super) fn with_the_last_of_equal_tokens(
    a: &Artifact,
    d: &Dimensions,
    m: &mut Memory,
) -> Option<DeviceStatus> {
    candidates::last_of_tiles(m, d, a.manifest());
    None
}

/// The weighted stream goes into the product with no scale but that of epsilon.
pub(super) fn with_no_squares(a: &Artifact, d: &Dimensions, m: &mut Memory) -> Option<DeviceStatus> {
    let squares = list::<f32>(m, "squares");
    put(m, "squares", &vec![0.0_f32; squares.len()]);
    let fault = documented(a, d, m);
    put(m, "squares", &squares);
    fault
}

/// Sums of squares are taken for those of the row before.
pub(super) fn with_a_neighbours_squares(
    a: &Artifact,
    d: &Dimensions,
    m: &mut Memory,
) -> Option<DeviceStatus> {
    let size = |names: [&str; 2]| names.iter().find_map(|name| d.get(*name)).copied().unwrap_or(0) as usize;
    let k = size(["k", "hidden_size"]);
    let mut squares = list::<f32>(m, "squares");
    squares.rotate_left(k / 8);
    put(m, "squares", &squares);
    let fault = documented(a, d, m);
    squares.rotate_right(k / 8);
    put(m, "squares", &squares);
    fault
}

/// What leaves beside the residual stream has no weights.
pub(super) fn with_no_weights(a: &Artifact, d: &Dimensions, m: &mut Memory) -> Option<DeviceStatus> {
    let fault = documented(a, d, m);
    let output: Vec<bf16> = list::<f32>(m, "output").into_iter().map(bf16::from_f32).collect();
    put(m, "weighted", &output);
    fault
}

/// Bad indices are met, and not reported.
pub(super) fn with_a_silent_fault(a: &Artifact, d: &Dimensions, m: &mut Memory) -> Option<DeviceStatus> {
    documented(a, d, m);
    None
}

fn list<T: bytemuck::Pod>(memory: &Memory, name: &str) -> Vec<T> {
    memory[name].chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn put<T: bytemuck::Pod>(memory: &mut Memory, name: &str, values: &[T]) {
    memory.insert(name.to_owned(), bytemuck::cast_slice(values).to_vec());
}

fn gather(memory: &mut Memory, dimensions: &Dimensions, table: Vec<f32>) -> Option<DeviceStatus> {
    let (vocab_size, hidden) = (dimensions["vocab_size"] as u32, dimensions["hidden_size"] as usize);
    let mut ids = list::<u32>(memory, "ids");
    if memory.contains_key("slots") {
        let (slots, last) = (list::<i32>(memory, "slots"), list::<u32>(memory, "last_tokens"));
        for (id, slot) in ids.iter_mut().zip(slots).filter(|(_, slot)| *slot >= 0) {
            *id = last.get(slot as usize).copied().unwrap_or(u32::MAX);
        }
    }
    let row = |&id: &u32| match id < vocab_size {
        true => table[id as usize * hidden..][..hidden].to_vec(),
        false => vec![0.0; hidden],
    };
    let output: Vec<f32> = ids.iter().flat_map(row).collect();
    put(memory, "output", &output);
    if memory.contains_key("weighted") {
        products::begin_norm(memory, &output);
    }
    let bad = ids.iter().position(|&id| id >= vocab_size)?;
    Some(DeviceStatus::IndexOutOfRange { index: bad as u32 })
}

fn record_history(memory: &mut Memory, dimensions: &Dimensions) -> Option<DeviceStatus> {
    let (slots, vocab) = (dimensions["max_sequences"] as u32, dimensions["vocab_size"] as u32);
    let column = |name| list::<u32>(memory, name);
    let (entry_slots, tokens, kinds) = (column("entry_slots"), column("entry_tokens"), column("entry_kinds"));
    let mut history = column("history");
    let mut bad = None;
    for (entry, kind) in kinds.into_iter().enumerate().filter(|(_, kind)| *kind != 0) {
        let (slot, token) = (entry_slots[entry], tokens[entry]);
        if kind > 2 || slot >= slots || token >= vocab {
            bad = bad.or(Some(entry as u32));
            continue;
        }
        let at = &mut history[(slot * vocab + token) as usize];
        *at = if kind == 1 { *at | 1 << 31 } else { *at + 1 };
    }
    put(memory, "history", &history);
    bad.map(|index| DeviceStatus::IndexOutOfRange { index })
}

/// The tables of `sampling.sample`; the greedy method has but the first two.
struct Tables {
    vocab: usize,
    ints: Vec<u32>,
    logits: Vec<f32>,
    full: Option<Full>,
}

struct Full {
    floats: Vec<f32>,
    masks: Vec<u32>,
    starts: Vec<i32>,
    tokens: Vec<u32>,
    values: Vec<f32>,
    history: Vec<u32>,
}

impl Tables {
    fn new(memory: &Memory, vocab: usize) -> Self {
        let full = memory.contains_key("history").then(|| Full {
            floats: list(memory, "row_floats"),
            masks: list(memory, "masks"),
            starts: list(memory, "adjust_start"),
            tokens: list(memory, "adjust_tokens"),
            values: list(memory, "adjust_values"),
            history: list(memory, "history"),
        });
        Self { vocab, ints: list(memory, "row_ints"), logits: list(memory, "logits"), full }
    }
}

/// What a row of the tables asks for.
struct Row {
    logits: Vec<f32>,
    params: SamplingParams,
    history: TokenHistory,
    mask: Option<TokenMask>,
    choice: u32,
    position: u64,
    slot: u32,
    penalizes: bool,
}

impl Row {
    fn new(tables: &Tables, row: usize) -> Self {
        let vocab = tables.vocab;
        let logits = tables.logits[row * vocab..][..vocab].to_vec();
        let [low, high, choice, position, top_k, slot, mask, flags] = tables.ints[row * 8..][..8] else {
            unreachable!()
        };
        let mut params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let (mut history, mut allowed, mut penalizes) = (TokenHistory::default(), None, false);
        if let Some(full) = tables.full.as_ref().filter(|_| slot != NO_SLOT) {
            let floats = &full.floats[row * 8..][..8];
            [params.temperature, params.top_p, params.min_p] = [floats[0], floats[1], floats[2]];
            [params.repetition_penalty, params.presence_penalty, params.frequency_penalty] =
                [floats[3], floats[4], floats[5]];
            params.top_k = (top_k > 0).then_some(top_k);
            params.seed = u64::from(high) << 32 | u64::from(low);
            let entries = full.starts[row] as usize..full.starts[row + 1] as usize;
            params.logit_bias = entries.map(|at| (TokenId(full.tokens[at]), full.values[at])).collect();
            let words = vocab.div_ceil(32);
            let of = |mask: usize| full.masks[(mask - 1) * words..][..words].to_vec();
            allowed = (mask > 0).then(|| TokenMask::from_words(of(mask as usize), vocab));
            penalizes = flags & 1 == 1;
            let used = |token: usize| if penalizes { full.history[slot as usize * vocab + token] } else { 0 };
            history =
                TokenHistory::new((0..vocab).filter(|&t| used(t) >> 31 == 1).map(|t| TokenId(t as u32)));
            for token in 0..vocab {
                (0..used(token) & 0x7FFF_FFFF).for_each(|_| history.push(TokenId(token as u32)));
            }
        }
        let position = position.into();
        Self { logits, params, history, mask: allowed, choice, position, slot, penalizes }
    }

    fn token(&self) -> Result<TokenId, SamplingError> {
        let Self { logits, params, history, choice, position, .. } = self;
        let (mask, choice, position, top_logprobs) = (self.mask.as_ref(), *choice, *position, None);
        let row = LogitsRow { logits, params, history, mask, choice, position, top_logprobs };
        sampling::sample(&row).map(|sampled| sampled.token)
    }
}

fn sample(memory: &mut Memory, dimensions: &Dimensions) {
    let (rows, vocab) = (dimensions["rows"] as usize, dimensions["vocab_size"] as usize);
    let (mut tokens, mut status) = (vec![0_u32; rows], vec![0_i32; rows]);
    let mut last_tokens = list::<u32>(memory, "last_tokens");
    let mut tables = Tables::new(memory, vocab);
    for number in 0..rows {
        let row = Row::new(&tables, number);
        if row.slot == NO_SLOT {
            continue;
        }
        match row.token() {
            Ok(token) => tokens[number] = token.0,
            Err(SamplingError::NoCandidate) => status[number] = 5,
            Err(_) => status[number] = 6,
        }
        last_tokens[row.slot as usize] = tokens[number];
        if let Some(full) = tables.full.as_mut().filter(|_| row.penalizes && status[number] == 0) {
            full.history[row.slot as usize * vocab + tokens[number] as usize] += 1;
        }
    }
    if let Some(full) = tables.full {
        put(memory, "history", &full.history);
    }
    put(memory, "tokens", &tokens);
    put(memory, "row_status", &status);
    put(memory, "last_tokens", &last_tokens);
}

fn top(memory: &mut Memory, dimensions: &Dimensions) {
    let (rows, vocab) = (dimensions["rows"] as usize, dimensions["vocab_size"] as usize);
    let (logits, tokens) = (list::<f32>(memory, "logits"), list::<u32>(memory, "tokens"));
    let (mut chosen, mut ranks, mut status) =
        (vec![f32::NEG_INFINITY; rows], vec![0_u32; rows], vec![0; rows]);
    let (mut top_tokens, mut top_logprobs) = (vec![u32::MAX; rows * 32], vec![f32::NEG_INFINITY; rows * 32]);
    for row in 0..rows {
        match log_probabilities(&logits[row * vocab..][..vocab], TokenId(tokens[row]), 32) {
            Ok(found) => {
                (chosen[row], ranks[row]) = (found.chosen.logprob, found.chosen.rank);
                for (i, top) in found.top.iter().enumerate() {
                    (top_tokens[row * 32 + i], top_logprobs[row * 32 + i]) = (top.token.0, top.logprob);
                }
            }
            Err(SamplingError::Token { .. }) => status[row] = 1,
            Err(SamplingError::NoCandidate) => status[row] = 5,
            Err(_) => status[row] = 6,
        }
    }
    put(memory, "chosen_logprob", &chosen);
    put(memory, "chosen_rank", &ranks);
    put(memory, "row_status", &status);
    put(memory, "top_tokens", &top_tokens);
    put(memory, "top_logprobs", &top_logprobs);
}

fn swiglu(memory: &mut Memory, rounds: bool) {
    let floats = |name: &str| -> Vec<f32> {
        if rounds {
            list::<bf16>(memory, name).into_iter().map(bf16::to_f32).collect()
        } else {
            list(memory, name)
        }
    };
    let gated =
        floats("gate").into_iter().zip(floats("up")).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up);
    let gated: Vec<f32> = gated.collect();
    if rounds {
        put(memory, "output", &gated.into_iter().map(bf16::from_f32).collect::<Vec<_>>());
    } else {
        put(memory, "output", &gated);
    }
}

//! What a step must keep to, whatever the model.

use super::{Cell, SlotContent, answer};
use crate::batch::{
    BatchRow, EngineBatch, ExecutorError, ExecutorLimits, RowInput, SampleTarget, SlotId, StepKind, StepMix,
};
use oxide_infer::{PageId, TokenId};
use std::collections::{HashMap, HashSet};

pub(super) fn error(message: String) -> ExecutorError {
    ExecutorError { message: format!("scripted executor: {message}") }
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), ExecutorError> {
    if holds { Ok(()) } else { Err(error(message())) }
}

/// Checks what can be seen from the batch alone.
pub(super) fn batch(batch: &EngineBatch, limits: &ExecutorLimits) -> Result<(), ExecutorError> {
    ensure(!batch.rows.is_empty(), || "the step has no rows".into())?;
    ensure(batch.tokens.len() <= limits.max_batch_tokens, || {
        format!("{} tokens in a step of at most {}", batch.tokens.len(), limits.max_batch_tokens)
    })?;
    ensure(batch.positions.len() == batch.tokens.len(), || "tokens and positions differ in number".into())?;
    let (mut next_token, mut next_page, mut next_sample) = (0, 0, 0);
    ensure(
        match limits.step_mix {
            StepMix::Mixed => batch.kind == StepKind::Mixed,
            StepMix::Apart => batch.kind != StepKind::Mixed,
        },
        || format!("a step of kind {:?} where steps are {:?}", batch.kind, limits.step_mix),
    )?;
    let mut last_pages = HashMap::new();
    for row in &batch.rows {
        self::row(row, batch, limits)?;
        let last_page = (row.kv_len - 1) / limits.page_size;
        let other = last_pages.insert(row.slot, last_page);
        match batch.kind {
            StepKind::Generated => {
                ensure(row.tokens.len() == 1, || format!("slot {} has a row of several tokens", row.slot.0))?;
                ensure(other.is_none_or(|other| other == last_page), || {
                    format!("slot {} has rows that write several pages", row.slot.0)
                })?;
            }
            _ => ensure(other.is_none(), || format!("slot {} has two rows", row.slot.0))?,
        }
        ensure(
            (row.tokens.start, row.pages.start, row.samples.start) == (next_token, next_page, next_sample),
            || format!("the row of slot {} does not begin where the row before it ends", row.slot.0),
        )?;
        (next_token, next_page, next_sample) = (row.tokens.end, row.pages.end, row.samples.end);
    }
    ensure(
        (next_token, next_page, next_sample) == (batch.tokens.len(), batch.pages.len(), batch.samples.len()),
        || "the rows do not cover the batch's arrays".into(),
    )?;
    copies(batch, limits)?;
    shared_pages(batch, limits)
}

fn row(row: &BatchRow, batch: &EngineBatch, limits: &ExecutorLimits) -> Result<(), ExecutorError> {
    let slot = row.slot.0;
    ensure((slot as usize) < limits.max_sequences, || format!("slot {slot} of {}", limits.max_sequences))?;
    ensure(!row.tokens.is_empty() && row.tokens.len() <= row.kv_len, || {
        format!("the row of slot {slot} has {} tokens and {} in its KV", row.tokens.len(), row.kv_len)
    })?;
    ensure(row.kv_len <= limits.max_model_len, || {
        format!("slot {slot} has {} tokens in its KV", row.kv_len)
    })?;
    ensure(row.pages.len() == row.kv_len.div_ceil(limits.page_size), || {
        format!("slot {slot} has {} pages for {} tokens", row.pages.len(), row.kv_len)
    })?;
    let pages = &batch.pages[row.pages.clone()];
    ensure(pages.iter().all(|page| page.index() < limits.num_pages), || {
        format!("slot {slot} has a page outside the pool")
    })?;
    ensure(pages.iter().collect::<HashSet<_>>().len() == pages.len(), || {
        format!("slot {slot} has a page twice")
    })?;
    let first = (row.kv_len - row.tokens.len()) as u32;
    ensure(batch.positions[row.tokens.clone()].iter().copied().eq(first..row.kv_len as u32), || {
        format!("the positions of slot {slot} do not end at its length {}", row.kv_len)
    })?;
    ensure(row.input == RowInput::Host || row.tokens.len() == 1, || {
        format!("slot {slot} feeds back {} tokens", row.tokens.len())
    })
}

fn copies(batch: &EngineBatch, limits: &ExecutorLimits) -> Result<(), ExecutorError> {
    let mut targets = HashSet::new();
    for copy in &batch.page_copies {
        ensure(copy.from.index() < limits.num_pages && copy.to.index() < limits.num_pages, || {
            format!("the copy {copy:?} leaves the pool")
        })?;
        ensure(targets.insert(copy.to), || format!("page {} is copied to twice", copy.to))?;
    }
    match batch.page_copies.iter().find(|copy| targets.contains(&copy.from)) {
        Some(copy) => Err(error(format!("page {} is copied from and to in one step", copy.from))),
        None => Ok(()),
    }
}

/// A page that a row writes is in no other sequence's block table.
fn shared_pages(batch: &EngineBatch, limits: &ExecutorLimits) -> Result<(), ExecutorError> {
    let mut owners: HashMap<PageId, HashSet<SlotId>> = HashMap::new();
    for row in &batch.rows {
        for page in &batch.pages[row.pages.clone()] {
            owners.entry(*page).or_default().insert(row.slot);
        }
    }
    for row in &batch.rows {
        let first_written = (row.kv_len - row.tokens.len()) / limits.page_size;
        let written = &batch.pages[row.pages.clone()][first_written..];
        if let Some(page) = written.iter().find(|page| owners[*page].len() > 1) {
            return Err(error(format!("slot {} writes page {page}, which another row has too", row.slot.0)));
        }
    }
    Ok(())
}

/// The slot's content.
pub(super) fn started(slots: &[Option<SlotContent>], slot: SlotId) -> Result<&SlotContent, ExecutorError> {
    slots[slot.0 as usize]
        .as_ref()
        .ok_or_else(|| error(format!("slot {} has a row before it starts", slot.0)))
}

/// The token that a slot feeds back.
pub(super) fn last_sampled(content: &SlotContent, slot: SlotId) -> Result<TokenId, ExecutorError> {
    content
        .output
        .last()
        .copied()
        .ok_or_else(|| error(format!("slot {} has sampled nothing to feed back", slot.0)))
}

/// Checks one position that a row reads against the sequence in its slot; returns the digest up to it.
pub(super) fn cell(
    cell: Option<Cell>,
    position: usize,
    before: u64,
    slot: &SlotContent,
    page: PageId,
    step_mix: StepMix,
) -> Result<u64, ExecutorError> {
    let prompt = &slot.start.prompt;
    let computed = match step_mix {
        StepMix::Mixed => StepKind::Mixed,
        StepMix::Apart if position < prompt.len() => StepKind::Prompt,
        StepMix::Apart => StepKind::Generated,
    };
    let token = prompt.get(position).or_else(|| slot.output.get(position - prompt.len())).copied();
    let expected =
        token.map(|token| Cell { token, position, digest: answer::extend(before, token), computed });
    match cell {
        Some(cell) if Some(cell) == expected => Ok(cell.digest),
        _ => Err(error(format!("page {page} holds {cell:?} where position {position} needs {expected:?}"))),
    }
}

/// Checks that a draw's position is the next of its sequence.
pub(super) fn sample_position(slot: &SlotContent, target: &SampleTarget) -> Result<(), ExecutorError> {
    let next = slot.start.prompt.len() + slot.output.len();
    ensure(target.position as usize == next, || {
        format!("slot {} samples position {} where {next} is its next", target.slot.0, target.position)
    })
}

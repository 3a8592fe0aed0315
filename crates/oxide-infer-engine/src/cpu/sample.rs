use super::slots::Slots;
use crate::batch::{EngineBatch, NoSlot, SampleTarget, Sampled};
use oxide_infer::TokenId;
use oxide_infer::sampling::{self, LogitsRow, SamplingError, TokenMask};
use oxide_infer_cpu::{Plan, Team};

/// One draw from a row of logits.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowDraw {
    /// The row among the logits at hand.
    pub(super) row: usize,
    /// Index of the target in the batch.
    pub(super) target: usize,
}

/// Draws tokens from rows of `logits`, `[rows, vocab_size]`, and lets their slots go on with them.
///
/// A row that cannot be sampled fails alone. `Err` names a slot that never started.
pub(super) fn draw(
    team: &Team<'_>,
    plan: &Plan<sampling::Spec>,
    logits: &[f32],
    draws: &[RowDraw],
    batch: &EngineBatch,
    slots: &mut Slots,
) -> Result<Vec<Sampled>, NoSlot> {
    let vocab_size = oxide_infer::Spec::config(plan.spec()).vocab_size;
    let masks: Vec<_> = draws.iter().map(|draw| own_mask(&batch.samples[draw.target], vocab_size)).collect();
    let rows = draws.iter().zip(&masks).map(|(draw, own_mask)| {
        let target = &batch.samples[draw.target];
        let slot = slots.get(target.slot).ok_or(NoSlot(target.slot.0))?;
        Ok(LogitsRow {
            logits: &logits[draw.row * vocab_size..][..vocab_size],
            params: &slot.sampling,
            history: &slot.history,
            mask: own_mask.as_ref().or(target.mask.as_deref()),
            choice: slot.choice.0,
            position: target.position.into(),
            top_logprobs: target.logprobs.map(|top| top as usize),
        })
    });
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let outcomes = sample_each(team, plan, &rows);
    let sampled = draws.iter().zip(outcomes).map(|(draw, outcome)| {
        let slot = batch.samples[draw.target].slot;
        if let Some(state) = slots.get_mut(slot) {
            match &outcome {
                Ok(sampled) => state.push(sampled.token),
                // A step that is on its way already feeds back some token; its result is thrown away.
                Err(_) => state.last = state.last.or(Some(TokenId::default())),
            }
        }
        Sampled { slot, outcome }
    });
    Ok(sampled.collect())
}

/// All rows at once; when one of them cannot be sampled, each on its own.
fn sample_each(
    team: &Team<'_>,
    plan: &Plan<sampling::Spec>,
    rows: &[LogitsRow<'_>],
) -> Vec<Result<sampling::Sampled, SamplingError>> {
    match plan.run(team, rows) {
        Ok(sampled) => sampled.into_iter().map(Ok).collect(),
        Err(failed) if rows.len() == 1 => vec![Err(failed.error)],
        Err(_) => rows.iter().flat_map(|row| sample_each(team, plan, std::slice::from_ref(row))).collect(),
    }
}

/// The target's mask without its forbidden tokens, if it has any: only until `min_tokens` is reached.
fn own_mask(target: &SampleTarget, vocab_size: usize) -> Option<TokenMask> {
    if target.forbidden.is_empty() {
        return None;
    }
    let mut mask = match &target.mask {
        Some(mask) => TokenMask::clone(mask),
        None => TokenMask::all(vocab_size),
    };
    target.forbidden.iter().for_each(|&token| mask.forbid(token));
    Some(mask)
}

//! Rows whose logits are needed: which they are, and what is done with them.

use super::inputs::{HeadInputLayout, HeadOutputLayout, ROW_NUMBERS, TOP_TOKENS};
use super::slots::{Slot, Slots};
use crate::batch::{EngineBatch, NoSlot, SampleTarget};
use oxide_infer::TokenId;
use oxide_infer::sampling::{LogProbs, SamplingError, TokenLogProb, TokenMask};
use oxide_infer_cuda::runtime::{PinnedMemory, RegionError};
use std::ops::Range;

/// Biases and forbidden tokens of all rows of a chunk: a row may have one for every token of the largest vocabularies.
pub(super) const MAX_ADJUSTMENTS: usize = 1 << 18;

/// The slot of a padding row.
const NO_SLOT: u32 = u32::MAX;
/// Flag of a row whose penalties read the history.
const READS_HISTORY: u32 = 1;

/// A row of logits that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadRow {
    /// For a draw.
    Draw {
        /// Which token of the step.
        token: usize,
        /// Index into the batch's samples.
        target: usize,
    },
    /// For the log-probability of a prompt token.
    Prompt {
        /// Which token of the step.
        token: usize,
        /// The prompt token that follows.
        next: TokenId,
        /// Which of the step's lists.
        list: usize,
        /// How many of the best tokens are reported.
        top: u32,
    },
}

impl HeadRow {
    /// Which token of the step.
    pub(super) fn token(&self) -> usize {
        match self {
            Self::Draw { token, .. } | Self::Prompt { token, .. } => *token,
        }
    }
}

/// Rows that one launch of each head operator computes.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// Indices into the step's rows; either all draws or all prompt rows.
    pub(super) rows: Range<usize>,
    /// What their sampling needs.
    pub(super) sampling: Sampling,
    /// Whether any row reports log-probabilities.
    pub(super) logprobs: bool,
    /// Entries of the rows' biases and forbidden tokens.
    pub(super) adjustments: usize,
    /// Rows with a mask.
    pub(super) masks: usize,
}

impl Chunk {
    /// Whether its rows are drawn from, with no mask and no bias, and nothing but tokens is asked for.
    pub(super) fn draws_only(&self) -> bool {
        self.sampling != Sampling::None && !self.logprobs && self.adjustments + self.masks == 0
    }
}

/// How the rows of a chunk are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampling {
    /// They are rows of a prompt.
    None,
    /// Every row takes its best token.
    Greedy,
    /// Anything that the contract has.
    Full,
}

/// Lists the rows of a step: all draws in the order of the batch, then all prompt rows.
pub(super) fn list_rows(batch: &EngineBatch, rows: &mut Vec<HeadRow>) {
    rows.clear();
    for row in batch.rows.iter().filter(|row| !row.tokens.is_empty()) {
        let token = row.tokens.end - 1;
        rows.extend(row.samples.clone().map(|target| HeadRow::Draw { token, target }));
    }
    let asked = batch.rows.iter().filter_map(|row| Some((row, row.prompt_logprobs.as_ref()?)));
    for (list, (row, asked)) in asked.enumerate() {
        let top = asked.top;
        let next = row.tokens.clone().zip(&asked.next_tokens);
        rows.extend(next.map(|(token, &next)| HeadRow::Prompt { token, next, list, top }));
    }
}

/// Cuts the rows of a step into chunks of at most `most` rows that sample alike.
pub(super) fn cut(
    rows: &[HeadRow],
    most: usize,
    batch: &EngineBatch,
    slots: &Slots,
    chunks: &mut Vec<Chunk>,
) -> Result<(), NoSlot> {
    chunks.clear();
    for (index, row) in rows.iter().enumerate() {
        let needs = Needs::of(row, batch, slots)?;
        let open = chunks.last_mut().filter(|chunk| {
            let same = (chunk.sampling == Sampling::None) == (needs.sampling == Sampling::None);
            same && chunk.rows.len() < most && chunk.adjustments + needs.adjustments <= MAX_ADJUSTMENTS
        });
        match open {
            Some(chunk) => {
                chunk.rows.end = index + 1;
                if needs.sampling == Sampling::Full {
                    chunk.sampling = Sampling::Full;
                }
                chunk.logprobs |= needs.logprobs;
                chunk.adjustments += needs.adjustments;
                chunk.masks += needs.masks;
            }
            None => chunks.push(Chunk {
                rows: index..index + 1,
                sampling: needs.sampling,
                logprobs: needs.logprobs,
                adjustments: needs.adjustments,
                masks: needs.masks,
            }),
        }
    }
    Ok(())
}

struct Needs {
    sampling: Sampling,
    logprobs: bool,
    adjustments: usize,
    masks: usize,
}

impl Needs {
    fn of(row: &HeadRow, batch: &EngineBatch, slots: &Slots) -> Result<Self, NoSlot> {
        let HeadRow::Draw { target, .. } = row else {
            return Ok(Self { sampling: Sampling::None, logprobs: true, adjustments: 0, masks: 0 });
        };
        let target = &batch.samples[*target];
        let params = &slots.get(target.slot).ok_or(NoSlot(target.slot.0))?.sampling;
        let adjustments = params.logit_bias.len() + target.forbidden.len();
        let masks = usize::from(target.mask.is_some());
        let greedy = params.is_greedy() && !params.reads_history() && adjustments + masks == 0;
        let sampling = if greedy { Sampling::Greedy } else { Sampling::Full };
        Ok(Self { sampling, logprobs: target.logprobs.is_some(), adjustments, masks })
    }
}

/// Writes the tables of a chunk: of its own rows, and padding up to the class.
pub(super) struct ChunkWriter<'a> {
    pub(super) layout: &'a HeadInputLayout,
    pub(super) tables: &'a PinnedMemory<u32>,
    /// `[adjustments]` tokens, then as many values.
    pub(super) adjustments: &'a PinnedMemory<u32>,
    /// `[masks, words of a mask]`
    pub(super) masks: &'a PinnedMemory<u32>,
    pub(super) mask_words: usize,
}

impl ChunkWriter<'_> {
    pub(super) fn write(
        &self,
        rows: &[HeadRow],
        class: usize,
        batch: &EngineBatch,
        slots: &Slots,
    ) -> Result<(), RegionError> {
        let (mut adjusted, mut masked) = (0, 0);
        for (index, row) in rows.iter().enumerate() {
            let adjust_start = [adjusted as u32];
            self.tables.write(self.layout.adjust_start.start + index, &adjust_start)?;
            let (token, given) = match row {
                HeadRow::Draw { token, target } => {
                    let target = &batch.samples[*target];
                    // `cut` has seen the slot.
                    let Some(slot) = slots.get(target.slot) else { continue };
                    self.write_draw(index, slot, target, masked)?;
                    if let Some(mask) = &target.mask {
                        self.write_mask(masked, mask)?;
                        masked += 1;
                    }
                    adjusted = self.write_adjustments(adjusted, slot, target)?;
                    (*token, TokenId::default())
                }
                HeadRow::Prompt { token, next, .. } => (*token, *next),
            };
            self.tables.write(self.layout.rows.start + index, &[token as u32])?;
            self.tables.write(self.layout.given.start + index, &[given.0])?;
        }
        for padding in rows.len()..class {
            self.write_padding(padding, adjusted)?;
        }
        self.tables.write(self.layout.adjust_start.end - 1, &[adjusted as u32])
    }

    fn write_draw(
        &self,
        index: usize,
        slot: &Slot,
        target: &SampleTarget,
        masked: usize,
    ) -> Result<(), RegionError> {
        let params = &*slot.sampling;
        let ints = [
            params.seed as u32,
            (params.seed >> 32) as u32,
            slot.choice.0,
            target.position,
            params.top_k.unwrap_or(0),
            target.slot.0,
            target.mask.as_ref().map_or(0, |_| masked as u32 + 1),
            if params.reads_history() { READS_HISTORY } else { 0 },
        ];
        let floats = [
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            0.0,
            0.0,
        ];
        self.tables.write(self.layout.ints.start + index * ROW_NUMBERS, &ints)?;
        self.tables.write(self.layout.floats.start + index * ROW_NUMBERS, &floats.map(f32::to_bits))
    }

    fn write_mask(&self, index: usize, mask: &TokenMask) -> Result<(), RegionError> {
        self.masks.write(index * self.mask_words, mask.words())
    }

    /// Biases and forbidden tokens in the order of tokens. Both come in that order; which of the two is first for one
    /// token is the same, since its logit ends as minus infinity.
    fn write_adjustments(
        &self,
        from: usize,
        slot: &Slot,
        target: &SampleTarget,
    ) -> Result<usize, RegionError> {
        let (mut at, half) = (from, self.adjustments.len() / 2);
        let mut put = |token: TokenId, value: f32| {
            self.adjustments.write(at, &[token.0])?;
            self.adjustments.write(half + at, &[value.to_bits()])?;
            at += 1;
            Ok(())
        };
        let mut forbidden = target.forbidden.iter().copied().peekable();
        for &(biased, bias) in &slot.biases {
            while let Some(token) = forbidden.next_if(|&token| token < biased) {
                put(token, f32::NEG_INFINITY)?;
            }
            put(biased, bias)?;
        }
        forbidden.try_for_each(|token| put(token, f32::NEG_INFINITY))?;
        Ok(at)
    }

    fn write_padding(&self, index: usize, adjusted: usize) -> Result<(), RegionError> {
        let ints = [0, 0, 0, 0, 0, NO_SLOT, 0, 0];
        self.tables.write(self.layout.ints.start + index * ROW_NUMBERS, &ints)?;
        self.tables.write(self.layout.floats.start + index * ROW_NUMBERS, &[0; ROW_NUMBERS])?;
        self.tables.write(self.layout.rows.start + index, &[0])?;
        self.tables.write(self.layout.given.start + index, &[0])?;
        self.tables.write(self.layout.adjust_start.start + index, &[adjusted as u32])
    }
}

/// What went wrong with a row, in the kernels' codes.
const TOKEN_OUTSIDE: u32 = 1;
const NO_CANDIDATE: u32 = 5;

fn row_error(status: u32, token: TokenId, vocab_size: usize) -> SamplingError {
    match status {
        TOKEN_OUTSIDE => SamplingError::Token { token, vocab_size },
        NO_CANDIDATE => SamplingError::NoCandidate,
        // The kernel says that there is one, not where.
        _ => SamplingError::Logit { token: TokenId::default(), value: f32::NAN },
    }
}

/// Reads what a chunk brought.
pub(super) struct ChunkReader<'a> {
    pub(super) layout: &'a HeadOutputLayout,
    pub(super) words: &'a PinnedMemory<u32>,
    pub(super) vocab_size: usize,
}

impl ChunkReader<'_> {
    /// The token that a row sampled.
    pub(super) fn token(&self, row: usize) -> Result<TokenId, SamplingError> {
        let token = TokenId(self.word(self.layout.tokens.start + row));
        match self.word(self.layout.row_status.start + row) {
            0 => Ok(token),
            status => Err(row_error(status, token, self.vocab_size)),
        }
    }

    /// The log-probabilities of a row at a token, and at the `top` best.
    pub(super) fn logprobs(&self, row: usize, token: TokenId, top: u32) -> Result<LogProbs, SamplingError> {
        let layout = self.layout;
        let status = self.word(layout.logprob_status.start + row);
        if status != 0 {
            return Err(row_error(status, token, self.vocab_size));
        }
        let chosen = TokenLogProb {
            token,
            logprob: f32::from_bits(self.word(layout.chosen_logprob.start + row)),
            rank: self.word(layout.chosen_rank.start + row),
        };
        // The executor has refused more than `TOP_TOKENS`.
        let count = (top as usize).min(self.vocab_size);
        let at = |rank: usize| TokenLogProb {
            token: TokenId(self.word(layout.top_tokens.start + row * TOP_TOKENS + rank)),
            logprob: f32::from_bits(self.word(layout.top_logprobs.start + row * TOP_TOKENS + rank)),
            rank: rank as u32 + 1,
        };
        Ok(LogProbs { chosen, top: (0..count).map(at).collect() })
    }

    fn word(&self, index: usize) -> u32 {
        // The layout is that of the memory.
        self.words.read(index).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{SlotId, SlotStart};
    use crate::request::ChoiceIndex;
    use oxide_infer::sampling::SamplingParams;
    use oxide_infer_cuda::driver::simulated::SimulatedDriver;
    use oxide_infer_cuda::runtime::Context;
    use std::sync::Arc;

    fn target(slot: u32, forbidden: &[u32]) -> SampleTarget {
        let forbidden = forbidden.iter().copied().map(TokenId).collect();
        SampleTarget { slot: SlotId(slot), position: 0, logprobs: None, mask: None, forbidden }
    }

    #[test]
    fn biases_and_forbidden_tokens_of_a_row_are_in_the_order_of_tokens() {
        let biases = [(9, 1.0), (4, -2.0), (9, 0.5), (2, 3.0)].map(|(token, bias)| (TokenId(token), bias));
        let start = |slot, biases: &[(TokenId, f32)]| SlotStart {
            slot: SlotId(slot),
            choice: ChoiceIndex(0),
            sampling: Arc::new(SamplingParams { logit_bias: Arc::from(biases), ..Default::default() }),
            prompt: Arc::from([TokenId(1)]),
            output: Vec::new(),
        };
        let mut slots = Slots::new(2);
        slots.start(&start(0, &biases)).unwrap();
        slots.start(&start(1, &[])).unwrap();
        let samples = vec![target(0, &[1, 4, 7]), target(1, &[]), target(1, &[3, 8])];
        let batch = EngineBatch { samples, ..EngineBatch::default() };
        let rows: Vec<_> = (0..3).map(|target| HeadRow::Draw { token: target, target }).collect();

        let context = Context::primary_on(SimulatedDriver::new(), 0).unwrap();
        let layout = HeadInputLayout::new(4);
        let words = |len| PinnedMemory::<u32>::allocate(&context, len).unwrap();
        let (tables, adjustments, masks) = (words(layout.words()), words(2 * 9), words(0));
        let writer = ChunkWriter {
            layout: &layout,
            tables: &tables,
            adjustments: &adjustments,
            masks: &masks,
            mask_words: 1,
        };
        writer.write(&rows, 4, &batch, &slots).unwrap();

        let read = |memory: &PinnedMemory<u32>, range: Range<usize>| {
            range.filter_map(|index| memory.read(index)).collect::<Vec<_>>()
        };
        assert_eq!(read(&tables, layout.adjust_start.clone()), [0, 7, 7, 9, 9]);
        assert_eq!(read(&adjustments, 0..9), [1, 2, 4, 4, 7, 9, 9, 3, 8]);
        let values: Vec<_> = read(&adjustments, 9..18).into_iter().map(f32::from_bits).collect();
        let never = f32::NEG_INFINITY;
        // Of token 4 the forbidding comes after its bias; of token 9 the biases stay in the order in which they were given.
        assert_eq!(values, [never, 3.0, -2.0, never, never, 1.0, 0.5, never, never]);
    }
}

//! The tables of a step's body: what the batch says, and padding up to its class.

use super::classes::StepClass;
use super::inputs::BodyLayout;
use crate::batch::{EngineBatch, RowInput};
use oxide_infer_cuda::runtime::{PinnedMemory, RegionError};
use std::iter::repeat_n;
use std::ops::Range;

/// The slot of a token that the host knows: -1.
const HOST_INPUT: u32 = u32::MAX;

/// The tables of one step, in the memory that is copied to the device.
pub(super) struct BodyTables<'a> {
    pub(super) layout: &'a BodyLayout,
    pub(super) words: &'a PinnedMemory<u32>,
    pub(super) class: StepClass,
    pub(super) null_page: u32,
    pub(super) max_pages: usize,
}

impl BodyTables<'_> {
    /// Writes a batch that the class holds.
    pub(super) fn write(&self, batch: &EngineBatch) -> Result<(), RegionError> {
        let layout = self.layout;
        self.array(&layout.ids, batch.tokens.iter().map(|token| token.0), 0)?;
        self.array(&layout.positions, batch.positions.iter().copied(), 0)?;
        self.array(&layout.kv_len, batch.rows.iter().map(|row| row.kv_len as u32), 0)?;
        self.slots(batch)?;
        self.query_start(batch)?;
        self.block_table(batch)
    }

    /// Writes an array from its start on and fills its rest.
    fn array(
        &self,
        array: &Range<usize>,
        values: impl ExactSizeIterator<Item = u32>,
        padding: u32,
    ) -> Result<(), RegionError> {
        let rest = array.start + values.len();
        self.words.write_from(array.start, values)?;
        self.words.write_from(rest, repeat_n(padding, array.end.saturating_sub(rest)))
    }

    fn slots(&self, batch: &EngineBatch) -> Result<(), RegionError> {
        let Range { start, end } = self.layout.slots;
        for row in &batch.rows {
            let slot = match row.input {
                RowInput::Host => HOST_INPUT,
                RowInput::LastSampled => row.slot.0,
            };
            self.words.write_from(start + row.tokens.start, repeat_n(slot, row.tokens.len()))?;
        }
        let rest = start + batch.tokens.len();
        self.words.write_from(rest, repeat_n(HOST_INPUT, end.saturating_sub(rest)))
    }

    /// In a decode step every padding row has its token; in others all padding tokens are those of the last row.
    fn query_start(&self, batch: &EngineBatch) -> Result<(), RegionError> {
        let array = &self.layout.query_start;
        match self.class {
            StepClass::Decode(_) => self.words.write_from(array.start, 0..array.len() as u32),
            StepClass::Mixed { tokens, .. } => {
                let starts = batch.rows.iter().map(|row| row.tokens.start as u32);
                self.array(array, starts, batch.tokens.len() as u32)?;
                self.words.write(array.end - 1, &[tokens as u32])
            }
        }
    }

    /// The entries that a length needs, of padding rows one that names the null page; no kernel reads the others.
    fn block_table(&self, batch: &EngineBatch) -> Result<(), RegionError> {
        let row = |index: usize| self.layout.block_table.start + index * self.max_pages;
        for (index, of) in batch.rows.iter().enumerate() {
            let pages = batch.pages[of.pages.clone()].iter();
            self.words.write_from(row(index), pages.map(|page| page.0))?;
        }
        (batch.rows.len()..self.class.table_rows())
            .try_for_each(|index| self.words.write(row(index), &[self.null_page]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchRow, HiddenStates, SlotId};
    use crate::cuda::classes::{DecodeClass, Reach};
    use oxide_infer::{PageId, TokenId};
    use oxide_infer_cuda::driver::simulated::SimulatedDriver;
    use oxide_infer_cuda::runtime::Context;

    const NULL_PAGE: u32 = 90;
    const MAX_PAGES: usize = 3;

    fn row(slot: u32, tokens: Range<usize>, pages: Range<usize>, kv_len: usize, input: RowInput) -> BatchRow {
        BatchRow {
            slot: SlotId(slot),
            tokens,
            pages,
            kv_len,
            input,
            samples: 0..0,
            prompt_logprobs: None,
            hidden_states: HiddenStates::None,
        }
    }

    fn batch(rows: Vec<BatchRow>, tokens: &[u32], positions: &[u32], pages: &[u32]) -> EngineBatch {
        EngineBatch {
            rows,
            tokens: tokens.iter().copied().map(TokenId).collect(),
            positions: positions.to_vec(),
            pages: pages.iter().copied().map(PageId).collect(),
            ..EngineBatch::default()
        }
    }

    /// Ids, slots, positions, query starts, lengths and the block table, whose unwritten entries are 77.
    fn written(class: StepClass, batch: &EngineBatch) -> [Vec<u32>; 6] {
        let context = Context::primary_on(SimulatedDriver::new(), 0).unwrap();
        let layout = BodyLayout::new(class, MAX_PAGES);
        let words = PinnedMemory::allocate(&context, layout.words()).unwrap();
        words.write(0, &vec![77; layout.words()]).unwrap();
        let tables =
            BodyTables { layout: &layout, words: &words, class, null_page: NULL_PAGE, max_pages: MAX_PAGES };
        tables.write(batch).unwrap();
        let BodyLayout { ids, slots, positions, query_start, kv_len, block_table } = layout;
        [ids, slots, positions, query_start, kv_len, block_table]
            .map(|array| array.map(|word| words.read(word).unwrap()).collect())
    }

    #[test]
    fn padding_tokens_of_a_mixed_step_are_one_more_sequence_in_the_null_page() {
        let rows = vec![row(5, 0..1, 0..2, 70, RowInput::LastSampled), row(2, 1..4, 2..3, 3, RowInput::Host)];
        let batch = batch(rows, &[0, 11, 12, 13], &[69, 0, 1, 2], &[8, 9, 4]);
        let class = StepClass::Mixed { tokens: 6, sequences: 3 };
        let [ids, slots, positions, query_start, kv_len, block_table] = written(class, &batch);
        assert_eq!(ids, [0, 11, 12, 13, 0, 0]);
        assert_eq!(slots, [5, HOST_INPUT, HOST_INPUT, HOST_INPUT, HOST_INPUT, HOST_INPUT]);
        assert_eq!(positions, [69, 0, 1, 2, 0, 0]);
        assert_eq!(query_start, [0, 1, 4, 4, 6]);
        assert_eq!(kv_len, [70, 3, 0]);
        assert_eq!(block_table, [8, 9, 77, 4, 77, 77, NULL_PAGE, 77, 77, NULL_PAGE, 77, 77]);
    }

    #[test]
    fn padding_rows_of_a_decode_step_have_a_token_each_no_length_and_the_null_page() {
        let rows =
            vec![row(1, 0..1, 0..1, 5, RowInput::Host), row(0, 1..2, 1..4, 130, RowInput::LastSampled)];
        let batch = batch(rows, &[3, 0], &[4, 129], &[7, 1, 2, 3]);
        let [ids, slots, positions, query_start, kv_len, block_table] =
            written(StepClass::Decode(DecodeClass { rows: 4, reach: Reach::Any }), &batch);
        assert_eq!(ids, [3, 0, 0, 0]);
        assert_eq!(slots, [HOST_INPUT, 0, HOST_INPUT, HOST_INPUT]);
        assert_eq!(positions, [4, 129, 0, 0]);
        assert_eq!(query_start, [0, 1, 2, 3, 4]);
        assert_eq!(kv_len, [5, 130, 0, 0]);
        assert_eq!(block_table, [7, 77, 77, 1, 2, 3, NULL_PAGE, 77, 77, NULL_PAGE, 77, 77]);
    }
}

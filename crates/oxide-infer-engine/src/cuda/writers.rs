//! Where the rows of a step write: each its keys and values up to its last position, no two sequences in one page, and none in
//! several by several rows. So of what a row attends to, only its last page is written in the step: decode attention reads the
//! others before the step has written anything.

use crate::batch::{BatchRow, EngineBatch};
use oxide_infer::PageId;

/// No batch has such a row: nothing writes a page.
const NO_ROW: u32 = u32::MAX;

/// A row that would write where it must not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RowError {
    #[error("row {row} of the step ends at position {position} and has a KV of {kv_len} tokens")]
    Length { row: usize, position: u32, kv_len: usize },
    #[error("row {row} of the step has no page for its last token")]
    NoPage { row: usize },
    #[error("rows {other} and {row} of the step both write page {page}")]
    SharedPage { row: usize, other: usize, page: PageId },
    #[error("rows {other} and {row} of the step are of one sequence and write pages {before} and {page}")]
    SeveralPages { row: usize, other: usize, before: PageId, page: PageId },
}

/// The row whose last token is written, by page of the pool and by slot, while a batch is checked; at other times no row.
#[derive(Debug)]
pub(super) struct Writers {
    row_of_page: Vec<u32>,
    row_of_slot: Vec<u32>,
}

impl Writers {
    pub(super) fn new(num_pages: usize, max_sequences: usize) -> Self {
        Self { row_of_page: vec![NO_ROW; num_pages], row_of_slot: vec![NO_ROW; max_sequences] }
    }

    /// Refuses a batch in which a row's length is not its last position and one, or two rows write their last tokens to one
    /// page. Only rows of one slot may, at different positions, and those must: what a sequence had generated is computed again
    /// in many.
    /// Ranges must be inside their lists and pages in the pool. Takes a look at each row, and allocates nothing.
    pub(super) fn check(&mut self, batch: &EngineBatch, page_size: usize) -> Result<(), RowError> {
        let checked = batch
            .rows
            .iter()
            .enumerate()
            .try_for_each(|(index, row)| self.note(index, row, batch, page_size));
        for row in &batch.rows {
            if let Some(page) = last_page(row, batch, page_size) {
                self.row_of_page[page.index()] = NO_ROW;
            }
            if let Some(writer) = self.row_of_slot.get_mut(row.slot.0 as usize) {
                *writer = NO_ROW;
            }
        }
        checked
    }

    fn note(
        &mut self,
        index: usize,
        row: &BatchRow,
        batch: &EngineBatch,
        page_size: usize,
    ) -> Result<(), RowError> {
        let Some(&position) = batch.positions[row.tokens.clone()].last() else { return Ok(()) };
        if row.kv_len != position as usize + 1 {
            return Err(RowError::Length { row: index, position, kv_len: row.kv_len });
        }
        let page = last_page(row, batch, page_size).ok_or(RowError::NoPage { row: index })?;
        let writer = &mut self.row_of_page[page.index()];
        let beside = |other: &BatchRow| other.slot == row.slot && other.kv_len != row.kv_len;
        if batch.rows.get(*writer as usize).is_some_and(|other| !beside(other)) {
            return Err(RowError::SharedPage { row: index, other: *writer as usize, page });
        }
        *writer = index as u32;
        // A slot that there is not is refused where it is looked up.
        let Some(writer) = self.row_of_slot.get_mut(row.slot.0 as usize) else { return Ok(()) };
        let other = batch.rows.get(*writer as usize).and_then(|other| last_page(other, batch, page_size));
        if let Some(before) = other.filter(|&before| before != page) {
            return Err(RowError::SeveralPages { row: index, other: *writer as usize, before, page });
        }
        *writer = index as u32;
        Ok(())
    }
}

/// The page of a row's last token, if it writes one and has a page for it.
fn last_page(row: &BatchRow, batch: &EngineBatch, page_size: usize) -> Option<PageId> {
    let last = if row.tokens.is_empty() { None } else { row.kv_len.checked_sub(1) }?;
    batch.pages[row.pages.clone()].get(last / page_size).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{HiddenStates, RowInput, SlotId};
    use oxide_infer::TokenId;
    use std::ops::Range;

    const PAGE_SIZE: usize = 4;

    fn row(slot: u32, tokens: Range<usize>, pages: Range<usize>, kv_len: usize) -> BatchRow {
        BatchRow {
            slot: SlotId(slot),
            tokens,
            pages,
            kv_len,
            input: RowInput::Host,
            samples: 0..0,
            prompt_logprobs: None,
            hidden_states: HiddenStates::None,
        }
    }

    fn batch(rows: Vec<BatchRow>, positions: &[u32], pages: &[u32]) -> EngineBatch {
        EngineBatch {
            rows,
            tokens: vec![TokenId(3); positions.len()],
            positions: positions.to_vec(),
            pages: pages.iter().copied().map(PageId).collect(),
            ..EngineBatch::default()
        }
    }

    #[test]
    fn rows_may_share_the_pages_before_their_last() {
        let rows = vec![row(0, 0..1, 0..2, 6), row(1, 1..3, 2..4, 8), row(2, 3..3, 0..2, 8)];
        let mut writers = Writers::new(8, 8);
        let shared = batch(rows, &[5, 6, 7], &[7, 1, 7, 2]);
        assert_eq!(writers.check(&shared, PAGE_SIZE), Ok(()));
        // Nothing is left of a batch that was checked.
        assert_eq!(writers.check(&shared, PAGE_SIZE), Ok(()));
    }

    #[test]
    fn two_rows_that_write_one_page_are_refused_by_name_and_the_next_batch_is_not() {
        let mut writers = Writers::new(8, 8);
        let rows = vec![row(0, 0..1, 0..1, 2), row(1, 1..2, 1..3, 5), row(2, 2..3, 3..4, 1)];
        let wrong = batch(rows, &[1, 4, 0], &[1, 0, 5, 5]);
        let refused = writers.check(&wrong, PAGE_SIZE).unwrap_err();
        assert_eq!(refused, RowError::SharedPage { row: 2, other: 1, page: PageId(5) });
        assert_eq!(refused.to_string(), "rows 1 and 2 of the step both write page 5");
        assert_eq!(writers.check(&batch(vec![row(4, 0..1, 0..1, 1)], &[0], &[5]), PAGE_SIZE), Ok(()));
    }

    #[test]
    fn rows_of_one_sequence_may_write_one_page_but_not_one_position() {
        let rows = |kv_len| vec![row(0, 0..1, 0..1, 2), row(0, 1..2, 0..1, kv_len)];
        let mut writers = Writers::new(8, 8);
        assert_eq!(writers.check(&batch(rows(3), &[1, 2], &[1]), PAGE_SIZE), Ok(()));
        let refused = writers.check(&batch(rows(2), &[1, 1], &[1]), PAGE_SIZE).unwrap_err();
        assert_eq!(refused, RowError::SharedPage { row: 1, other: 0, page: PageId(1) });
    }

    #[test]
    fn rows_of_one_sequence_that_write_several_pages_are_refused() {
        let rows = vec![row(0, 0..1, 0..1, 4), row(0, 1..2, 1..3, 5)];
        let mut writers = Writers::new(8, 8);
        let refused = writers.check(&batch(rows, &[3, 4], &[1, 1, 2]), PAGE_SIZE).unwrap_err();
        let expected = RowError::SeveralPages { row: 1, other: 0, before: PageId(1), page: PageId(2) };
        assert_eq!(refused, expected);
        assert_eq!(writers.check(&batch(vec![row(0, 0..1, 0..1, 1)], &[0], &[2]), PAGE_SIZE), Ok(()));
    }

    #[test]
    fn a_length_that_is_not_the_last_position_and_one_is_refused_as_is_a_missing_page() {
        let mut writers = Writers::new(8, 8);
        for kv_len in [0, 5, 7] {
            let wrong = batch(vec![row(0, 0..1, 0..2, kv_len)], &[5], &[1, 2]);
            let expected = RowError::Length { row: 0, position: 5, kv_len };
            assert_eq!(writers.check(&wrong, PAGE_SIZE), Err(expected));
        }
        let short = batch(vec![row(0, 0..1, 0..1, 6)], &[5], &[1]);
        assert_eq!(writers.check(&short, PAGE_SIZE), Err(RowError::NoPage { row: 0 }));
    }
}

use super::Paging;
use crate::{DataError, View};
use std::ops::Range;

/// A block table seen with the pool it indexes: finds pages, and refuses indices that are not there.
#[derive(Clone, Copy, Debug)]
pub struct PageTables<'a> {
    /// `[batch, max_pages]`.
    pub block_table: View<'a, i32, 2>,
    /// Tokens in a page.
    pub paging: Paging,
    /// Pages in the pool.
    pub num_pages: usize,
}

impl PageTables<'_> {
    /// Tokens that a row of the block table can hold.
    pub fn capacity(&self) -> usize {
        self.block_table.shape()[1].saturating_mul(self.paging.page_size)
    }

    /// Page and slot of one position of a sequence.
    ///
    /// # Errors
    /// [`DataError::Page`] when the entry is not a page of the pool.
    ///
    /// # Panics
    /// When the sequence is not in the table or the position is past [`PageTables::capacity`].
    pub fn locate(&self, sequence: usize, position: usize) -> Result<(usize, usize), DataError> {
        let entry = position / self.paging.page_size;
        let page = self.block_table.at([sequence, entry]);
        match usize::try_from(page) {
            Ok(index) if index < self.num_pages => Ok((index, position % self.paging.page_size)),
            _ => Err(DataError::Page { sequence, entry, page, num_pages: self.num_pages }),
        }
    }

    /// The length of one sequence, after checking that it fits its row.
    ///
    /// # Errors
    /// [`DataError::KvLen`].
    pub fn check_len(&self, sequence: usize, kv_len: i32) -> Result<usize, DataError> {
        let capacity = self.capacity();
        match usize::try_from(kv_len) {
            Ok(len) if len <= capacity => Ok(len),
            _ => Err(DataError::KvLen { sequence, kv_len, capacity }),
        }
    }

    /// Checks every page that a range of positions of one sequence reaches.
    ///
    /// # Errors
    /// [`DataError::Page`].
    pub fn check_pages(&self, sequence: usize, positions: Range<usize>) -> Result<(), DataError> {
        let page_size = self.paging.page_size;
        if positions.is_empty() {
            return Ok(());
        }
        for entry in positions.start / page_size..positions.end.div_ceil(page_size) {
            self.locate(sequence, entry * page_size)?;
        }
        Ok(())
    }

    /// Checks the place of every new token: `query_start` `[batch + 1]` says whose it is, `positions` `[tokens]` where.
    pub(super) fn check_new_tokens(
        &self,
        query_start: View<'_, i32, 1>,
        positions: View<'_, i32, 1>,
    ) -> Result<(), DataError> {
        crate::check::starts("query_start", query_start, positions.shape()[0])?;
        crate::check::positions(positions, self.capacity())?;
        for (sequence, token) in tokens(query_start) {
            self.locate(sequence, positions.at([token]) as usize)?;
        }
        Ok(())
    }
}

/// Every token with its sequence, from checked starts.
pub(crate) fn tokens(query_start: View<'_, i32, 1>) -> impl Iterator<Item = (usize, usize)> {
    let batch = query_start.shape()[0] - 1;
    (0..batch).flat_map(move |sequence| {
        let [start, end] = [sequence, sequence + 1].map(|entry| query_start.at([entry]) as usize);
        (start..end).map(move |token| (sequence, token))
    })
}

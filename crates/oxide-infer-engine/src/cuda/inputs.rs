//! Where a step's tables lie in the memory that is copied to the device, and what comes back.
//!
//! All tables are 32-bit words, one array after the other, each at a multiple of 16 bytes.

use super::classes::StepClass;
use std::ops::Range;

/// Words that arrays are aligned to.
const ALIGNMENT: usize = 4;

#[derive(Default)]
struct Words(usize);

impl Words {
    fn array(&mut self, len: usize) -> Range<usize> {
        let start = self.0;
        self.0 += len.next_multiple_of(ALIGNMENT);
        start..start + len
    }
}

/// The tables of the model's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BodyLayout {
    /// `[tokens]` ids that the host knows.
    pub(super) ids: Range<usize>,
    /// `[tokens]` slots whose last token is the id, or -1.
    pub(super) slots: Range<usize>,
    /// `[tokens]`
    pub(super) positions: Range<usize>,
    /// `[table rows + 1]`
    pub(super) query_start: Range<usize>,
    /// `[sequences]`
    pub(super) kv_len: Range<usize>,
    /// `[table rows, max_pages]`
    pub(super) block_table: Range<usize>,
}

impl BodyLayout {
    pub(super) fn new(class: StepClass, max_pages: usize) -> Self {
        let mut words = Words::default();
        Self {
            ids: words.array(class.tokens()),
            slots: words.array(class.tokens()),
            positions: words.array(class.tokens()),
            query_start: words.array(class.table_rows() + 1),
            kv_len: words.array(class.sequences()),
            block_table: words.array(class.table_rows() * max_pages),
        }
    }

    pub(super) fn words(&self) -> usize {
        self.block_table.end.next_multiple_of(ALIGNMENT)
    }
}

/// Numbers of a row that is sampled, as the kernels have them: 8 integers and 8 floats.
pub(super) const ROW_NUMBERS: usize = 8;

/// The tables of a chunk of rows whose logits are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeadInputLayout {
    /// `[rows, 8]`
    pub(super) ints: Range<usize>,
    /// `[rows, 8]`
    pub(super) floats: Range<usize>,
    /// `[rows]` which token of the step.
    pub(super) rows: Range<usize>,
    /// `[rows]` the tokens whose log-probabilities are asked for, where they are not sampled.
    pub(super) given: Range<usize>,
    /// `[rows + 1]`
    pub(super) adjust_start: Range<usize>,
}

impl HeadInputLayout {
    pub(super) fn new(rows: usize) -> Self {
        let mut words = Words::default();
        Self {
            ints: words.array(rows * ROW_NUMBERS),
            floats: words.array(rows * ROW_NUMBERS),
            rows: words.array(rows),
            given: words.array(rows),
            adjust_start: words.array(rows + 1),
        }
    }

    pub(super) fn words(&self) -> usize {
        self.adjust_start.end.next_multiple_of(ALIGNMENT)
    }
}

/// The most probable tokens that log-probabilities list.
pub(super) const TOP_TOKENS: usize = 32;

/// What a chunk of rows brings: what every step reads first, log-probabilities after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeadOutputLayout {
    /// `[rows]`
    pub(super) tokens: Range<usize>,
    /// `[rows]` what went wrong with a row's sampling, or 0.
    pub(super) row_status: Range<usize>,
    /// `[rows]` what went wrong with a row's log-probabilities, or 0.
    pub(super) logprob_status: Range<usize>,
    /// `[rows]`
    pub(super) chosen_logprob: Range<usize>,
    /// `[rows]`
    pub(super) chosen_rank: Range<usize>,
    /// `[rows, 32]`
    pub(super) top_tokens: Range<usize>,
    /// `[rows, 32]`
    pub(super) top_logprobs: Range<usize>,
}

impl HeadOutputLayout {
    pub(super) fn new(rows: usize) -> Self {
        let mut words = Words::default();
        Self {
            tokens: words.array(rows),
            row_status: words.array(rows),
            logprob_status: words.array(rows),
            chosen_logprob: words.array(rows),
            chosen_rank: words.array(rows),
            top_tokens: words.array(rows * TOP_TOKENS),
            top_logprobs: words.array(rows * TOP_TOKENS),
        }
    }

    /// Words up to the log-probabilities.
    pub(super) fn sampled_words(&self) -> usize {
        self.row_status.end
    }

    pub(super) fn words(&self) -> usize {
        self.top_logprobs.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::classes::{DecodeClass, Reach};

    #[test]
    fn arrays_follow_each_other_at_multiples_of_16_bytes() {
        let layout = BodyLayout::new(StepClass::Mixed { tokens: 5, sequences: 2 }, 3);
        assert_eq!([layout.ids, layout.slots, layout.positions], [0..5, 8..13, 16..21]);
        assert_eq!([layout.query_start, layout.kv_len, layout.block_table], [24..28, 28..30, 32..41]);
        let decode = BodyLayout::new(StepClass::Decode(DecodeClass { rows: 2, reach: Reach::Any }), 3);
        assert_eq!((decode.block_table.clone(), decode.words()), (20..26, 28));
        assert_eq!(decode.query_start, 12..15);
        let output = HeadOutputLayout::new(1);
        assert_eq!((output.sampled_words(), output.words()), (5, 20 + 64));
    }
}

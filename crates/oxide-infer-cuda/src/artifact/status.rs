//! The status word: how a kernel reports bad input that only it can see.
//!
//! A command scope gives every kernel that takes a status operand the address of one `i32` that starts at 0. A kernel that
//! meets bad input leaves every byte outside its output alone and stores, by atomic maximum, `code << 24 | (0xff_ffff - index)`:
//! the highest code wins, among equal codes the lowest index, so that the word does not depend on the order of blocks.

use thiserror::Error;

/// Bits of the index in a status word.
const INDEX_BITS: u32 = 24;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// An error that a kernel found in its input. `docs/artifacts.md` has the table of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeviceStatus {
    /// Code 1: an index into a table of rows (a token id, a row to gather) is outside the table.
    #[error("element {index} of the indices is outside the table")]
    IndexOutOfRange {
        /// Which index, from 0, as far as 24 bits go.
        index: u32,
    },
    /// Code 2: a position is outside the table of rotations.
    #[error("the position of token {token} is outside the rotation table")]
    PositionOutOfRange {
        /// Which token of the batch.
        token: u32,
    },
    /// Code 3: a block table names a page that the pool does not have.
    #[error("the block table of sequence {sequence} names a page outside the pool")]
    PageOutOfRange {
        /// Which sequence (for an append: which token) of the batch.
        sequence: u32,
    },
    /// Code 4: a sequence is longer than its row of the block table, or shorter than its queries.
    #[error("the length of sequence {sequence} does not fit its block table or its queries")]
    LengthOutOfRange {
        /// Which sequence of the batch.
        sequence: u32,
    },
    /// Code 5: every logit of a row is masked or minus infinity.
    #[error("row {row} of the logits has no candidate")]
    NoCandidate {
        /// Which row.
        row: u32,
    },
    /// Code 6: a logit is NaN or plus infinity.
    #[error("row {row} of the logits has a NaN or an infinity")]
    LogitNotANumber {
        /// Which row.
        row: u32,
    },
    /// Code 7: starts do not go from 0 to the number of tokens, or fall.
    #[error("start {entry} of the sequences is not from 0 to the number of tokens, or falls")]
    StartOutOfRange {
        /// Which start, from 0; the last one ends the last sequence.
        entry: u32,
    },
    /// A word that no kernel of this version writes.
    #[error("status word {word:#010x} is of no known code")]
    Unknown {
        /// The word.
        word: u32,
    },
}

impl DeviceStatus {
    /// What a status word says, or `None` if it says that all went well.
    pub const fn decode(word: u32) -> Option<Self> {
        let index = INDEX_MASK - (word & INDEX_MASK);
        Some(match word >> INDEX_BITS {
            0 if word == 0 => return None,
            1 => Self::IndexOutOfRange { index },
            2 => Self::PositionOutOfRange { token: index },
            3 => Self::PageOutOfRange { sequence: index },
            4 => Self::LengthOutOfRange { sequence: index },
            5 => Self::NoCandidate { row: index },
            6 => Self::LogitNotANumber { row: index },
            7 => Self::StartOutOfRange { entry: index },
            _ => Self::Unknown { word },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_decode_to_their_code_and_index() {
        assert_eq!(DeviceStatus::decode(0), None);
        assert_eq!(DeviceStatus::decode(0x01ff_ffff), Some(DeviceStatus::IndexOutOfRange { index: 0 }));
        assert_eq!(DeviceStatus::decode(0x03ff_fffc), Some(DeviceStatus::PageOutOfRange { sequence: 3 }));
        assert_eq!(
            DeviceStatus::decode(0x0400_0000),
            Some(DeviceStatus::LengthOutOfRange { sequence: 0xff_ffff })
        );
        assert_eq!(DeviceStatus::decode(0x07ff_fffd), Some(DeviceStatus::StartOutOfRange { entry: 2 }));
        assert_eq!(DeviceStatus::decode(7), Some(DeviceStatus::Unknown { word: 7 }));
        assert_eq!(DeviceStatus::decode(0x7f00_0001), Some(DeviceStatus::Unknown { word: 0x7f00_0001 }));
    }

    #[test]
    fn the_lowest_index_of_equal_codes_has_the_greatest_word() {
        let word = |code: u32, index: u32| code << INDEX_BITS | (INDEX_MASK - index);
        assert!(word(3, 0) > word(3, 1));
        assert!(word(4, 9) > word(3, 0));
    }
}

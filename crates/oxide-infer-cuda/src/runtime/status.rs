use super::context::Context;
use super::memory::PinnedMemory;
use crate::driver::{CudaError, DevicePtr};
use std::fmt;

/// Words of a status: code, operator, index, value. A kernel claims the first with a compare-and-swap from 0, so that
/// the first fault of a run is the one reported.
const WORDS: usize = 4;

/// Where kernels of one bound plan say what was wrong with their input. It lies in pinned host memory, so that
/// reading it after the work has ended costs no copy.
#[derive(Clone)]
pub struct DeviceStatus {
    words: PinnedMemory<u32>,
}

/// What a kernel found wrong with its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operator {operator}: {kind} at index {index}: {value}")]
pub struct DeviceFault {
    /// What kind of value was wrong.
    pub kind: FaultKind,
    /// Which operator of the plan found it, as numbered when the plan was bound.
    pub operator: u32,
    /// Where: the row, sequence or token.
    pub index: u32,
    /// The value that was wrong.
    pub value: i32,
}

/// Kinds of [`DeviceFault`]; the numbers are what kernels write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// 1: a block table names a page that the pool does not have.
    PageOutOfRange,
    /// 2: a token id is past the vocabulary.
    TokenOutOfRange,
    /// 3: a length is negative or past its block table.
    LengthOutOfRange,
    /// 4: a position is negative or past the sequence.
    PositionOutOfRange,
    /// Any other number: the kernel and this build do not agree.
    Unknown(u32),
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PageOutOfRange => f.write_str("page index out of range"),
            Self::TokenOutOfRange => f.write_str("token id out of range"),
            Self::LengthOutOfRange => f.write_str("length out of range"),
            Self::PositionOutOfRange => f.write_str("position out of range"),
            Self::Unknown(code) => write!(f, "unknown fault code {code}"),
        }
    }
}

impl From<u32> for FaultKind {
    fn from(code: u32) -> Self {
        match code {
            1 => Self::PageOutOfRange,
            2 => Self::TokenOutOfRange,
            3 => Self::LengthOutOfRange,
            4 => Self::PositionOutOfRange,
            code => Self::Unknown(code),
        }
    }
}

impl DeviceStatus {
    /// A status that says nothing is wrong.
    ///
    /// # Errors
    ///
    /// Pinned memory ran out, or the context is poisoned.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self { words: PinnedMemory::allocate(context, WORDS)? })
    }

    /// The first fault that a kernel wrote, if one did. Meaningful once the work that may write it has settled.
    pub fn fault(&self) -> Option<DeviceFault> {
        let word = |index| self.words.read(index).unwrap_or_default();
        let code = word(0);
        (code != 0).then(|| DeviceFault {
            kind: code.into(),
            operator: word(1),
            index: word(2),
            value: word(3).cast_signed(),
        })
    }

    /// Forgets the fault. Call it when no work that may write it is in flight.
    pub fn clear(&self) {
        // All words of a status fit: it was allocated with as many.
        let _ = self.words.write(0, &[0; WORDS]);
    }

    /// What a kernel would write.
    #[cfg(test)]
    pub(super) fn raise_for_test(&self, words: [u32; WORDS]) {
        self.words.write(0, &words).expect("a status has all its words");
    }

    /// Its address, as kernels take it.
    pub fn ptr(&self) -> DevicePtr {
        self.words.device_ptr()
    }
}

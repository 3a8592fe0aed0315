//! The status word, by which a kernel says that its input is bad: `docs/artifacts.md` has the table of codes.

use core::arch::asm;

const INDEX_MASK: u32 = 0xff_ffff;

/// What is wrong, and where.
#[derive(Clone, Copy)]
pub enum Fault {
    Position { token: u32 },
    Page { token: u32 },
    Length { token: u32 },
    Start { entry: u32 },
}

impl Fault {
    #[inline(always)]
    fn word(self) -> u32 {
        let (code, index) = match self {
            Self::Position { token } => (2, token),
            Self::Page { token } => (3, token),
            Self::Length { token } => (4, token),
            Self::Start { entry } => (7, entry),
        };
        code << 24 | (INDEX_MASK - index.min(INDEX_MASK))
    }

    /// Raises the word: the highest code wins, and of equal codes the lowest index, whatever the order of blocks.
    #[inline(always)]
    pub unsafe fn report(self, status: *mut i32) {
        asm!("red.global.max.s32 [{0}], {1};", in(reg64) status, in(reg32) self.word(), options(nostack));
    }
}

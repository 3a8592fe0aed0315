//! Element types of operands, and 16 bytes of them as numbers.
//!
//! Loops here and in the kernels count an index: iterators over arrays leave the arrays in local memory.

use crate::device::Vector;
use core::arch::asm;

/// The most elements that 16 bytes have.
pub const MOST: usize = 8;

/// A floating-point type that is stored in global memory.
pub trait Element: Copy {
    /// Elements of 16 bytes.
    const PER_VECTOR: usize;
    /// The first [`Element::PER_VECTOR`] numbers of the result.
    fn unpack(packed: Vector) -> [f32; MOST];
    /// To the nearest values, ties to even.
    fn pack(numbers: &[f32; MOST]) -> Vector;
    fn to_f32(self) -> f32;
    /// To the nearest value, ties to even.
    fn from_f32(number: f32) -> Self;
}

#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Bf16(u16);

/// The two numbers of a word.
#[inline(always)]
pub fn bf16_pair(word: u32) -> [f32; 2] {
    [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
}

#[inline(always)]
fn packed_bf16(low: f32, high: f32) -> u32 {
    let word: u32;
    // SAFETY: arithmetic.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {0}, {1}, {2};", out(reg32) word, in(reg32) high, in(reg32) low, options(pure, nomem, nostack))
    }
    word
}

impl Element for Bf16 {
    const PER_VECTOR: usize = 8;

    #[inline(always)]
    fn unpack(packed: Vector) -> [f32; MOST] {
        let mut numbers = [0.0; MOST];
        for i in 0..4 {
            let [low, high] = bf16_pair(packed.0[i]);
            (numbers[2 * i], numbers[2 * i + 1]) = (low, high);
        }
        numbers
    }

    #[inline(always)]
    fn pack(numbers: &[f32; MOST]) -> Vector {
        let mut words = [0; 4];
        for i in 0..4 {
            words[i] = packed_bf16(numbers[2 * i], numbers[2 * i + 1]);
        }
        Vector(words)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }

    #[inline(always)]
    fn from_f32(number: f32) -> Self {
        Self(packed_bf16(number, 0.0) as u16)
    }
}

impl Element for f16 {
    const PER_VECTOR: usize = 8;

    #[inline(always)]
    fn unpack(packed: Vector) -> [f32; MOST] {
        let mut numbers = [0.0; MOST];
        for i in 0..4 {
            numbers[2 * i] = f16::from_bits(packed.0[i] as u16) as f32;
            numbers[2 * i + 1] = f16::from_bits((packed.0[i] >> 16) as u16) as f32;
        }
        numbers
    }

    #[inline(always)]
    fn pack(numbers: &[f32; MOST]) -> Vector {
        let mut words = [0; 4];
        for i in 0..4 {
            let half = |number: f32| (number as f16).to_bits() as u32;
            words[i] = half(numbers[2 * i]) | half(numbers[2 * i + 1]) << 16;
        }
        Vector(words)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }

    #[inline(always)]
    fn from_f32(number: f32) -> Self {
        number as f16
    }
}

impl Element for f32 {
    const PER_VECTOR: usize = 4;

    #[inline(always)]
    fn unpack(packed: Vector) -> [f32; MOST] {
        let mut numbers = [0.0; MOST];
        for i in 0..4 {
            numbers[i] = f32::from_bits(packed.0[i]);
        }
        numbers
    }

    #[inline(always)]
    fn pack(numbers: &[f32; MOST]) -> Vector {
        Vector([numbers[0].to_bits(), numbers[1].to_bits(), numbers[2].to_bits(), numbers[3].to_bits()])
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(number: f32) -> Self {
        number
    }
}

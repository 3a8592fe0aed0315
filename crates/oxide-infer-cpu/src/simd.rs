//! One source for every instruction set.
//!
//! A [`Kernel`] is written over the vectors of an [`Isa`]; [`Level::run`] compiles it once per instruction set and calls
//! the one that the machine has. Every level does the same operations in the same order with every multiply-add fused,
//! so the bits do not depend on the machine. Where the hardware has no fused multiply-add the C library emulates it:
//! right, and slow.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

/// Lanes of a vector: two AVX2 registers, or four of NEON.
pub(crate) const LANES: usize = 16;

/// The instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Whatever the target's baseline has.
    Portable,
    /// AVX2 with fused multiply-add and half-precision conversion.
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Present),
}

impl Level {
    /// The best one that this machine has.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(present) = avx2::Present::detect() {
            return Self::Avx2(present);
        }
        Self::Portable
    }

    /// Whether kernels that widen packed weights in registers exist for this level.
    pub(crate) fn fuses(self) -> bool {
        match self {
            Self::Portable => portable::Portable::FUSES,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => avx2::Avx2::FUSES,
        }
    }

    /// Runs the kernel as compiled for this level.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable => kernel.run::<portable::Portable>(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(present) => avx2::run(present, kernel),
        }
    }
}

/// Work to compile for every level. `run` and all that it calls must be `#[inline(always)]`: what is not inlined is
/// compiled for the baseline.
pub(crate) trait Kernel {
    /// What it gives back.
    type Output;
    /// The work.
    fn run<I: Isa>(self) -> Self::Output;
}

/// Vectors of [`LANES`] lanes.
pub(crate) trait Isa {
    /// Whether to compile the kernels that widen packed weights in registers, which are many. Not for the baseline of
    /// x86-64: nearly every such machine has AVX2.
    const FUSES: bool;
    /// Sixteen `f32`.
    type F: Copy;
    /// Sixteen small integers.
    type U: Copy;

    /// Asks for the cache line of a byte that will be read soon.
    fn prefetch(byte: &u8);

    fn splat(value: f32) -> Self::F;
    fn load(lanes: &[f32; LANES]) -> Self::F;
    fn store(value: Self::F, lanes: &mut [f32; LANES]);
    fn add(a: Self::F, b: Self::F) -> Self::F;
    fn sub(a: Self::F, b: Self::F) -> Self::F;
    fn mul(a: Self::F, b: Self::F) -> Self::F;
    fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `b` where the two compare equal or one is NaN.
    fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `b` where the two compare equal or one is NaN.
    fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `then` where `a < b`, otherwise `or`.
    fn select_less(a: Self::F, b: Self::F, then: Self::F, or: Self::F) -> Self::F;
    /// `value · 2^n`, with `n` the low bits of `power`'s representation. Nothing is checked.
    fn scale_by_power(value: Self::F, power: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Widens little-endian binary16.
    fn widen_f16(bytes: &[u8; 2 * LANES]) -> Self::F;
    /// Widens little-endian bfloat16.
    fn widen_bf16(bytes: &[u8; 2 * LANES]) -> Self::F;

    /// Transposes sixteen vectors that lie `stride` vectors apart.
    fn transpose(from: &[[f32; LANES]], stride: usize, to: &mut [[f32; LANES]; LANES]);

    fn unsigned(bytes: &[u8; LANES]) -> Self::U;
    fn signed(bytes: &[u8; LANES]) -> Self::U;
    fn and(a: Self::U, mask: i32) -> Self::U;
    fn or(a: Self::U, b: Self::U) -> Self::U;
    fn shl<const BITS: i32>(a: Self::U) -> Self::U;
    fn shr<const BITS: i32>(a: Self::U) -> Self::U;
    fn float(a: Self::U) -> Self::F;
}

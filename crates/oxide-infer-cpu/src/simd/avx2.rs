use super::{Isa, Kernel, LANES};
use std::arch::x86_64::*;

/// Proof that this machine has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Present(());

impl Present {
    pub(super) fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        present.then_some(Self(()))
    }
}

#[inline]
pub(super) fn run<K: Kernel>(_: Present, kernel: K) -> K::Output {
    // SAFETY: a `Present` exists, so the machine has the features.
    unsafe { with_features(kernel) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn with_features<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

/// Two registers of eight lanes.
///
/// The type is named only by [`with_features`], so its operations are reached on machines with the features alone; each
/// `SAFETY` below refers to that.
pub(super) struct Avx2;

type Pair<T> = [T; 2];

/// An operation on both halves.
macro_rules! both {
    ($op:ident($a:expr $(, $b:expr)*)) => {
        // SAFETY: the features are there (see `Avx2`), and the instruction touches registers only.
        unsafe { [$op($a[0] $(, $b[0])*), $op($a[1] $(, $b[1])*)] }
    };
}

impl Isa for Avx2 {
    const FUSES: bool = true;
    type F = Pair<__m256>;
    type U = Pair<__m256i>;

    #[inline(always)]
    fn prefetch(byte: &u8) {
        // SAFETY: a prefetch has no effect but on time.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) };
    }
    #[inline(always)]
    fn splat(value: f32) -> Self::F {
        // SAFETY: see `Avx2`.
        unsafe { [_mm256_set1_ps(value); 2] }
    }
    #[inline(always)]
    fn load(lanes: &[f32; LANES]) -> Self::F {
        // SAFETY: see `Avx2`; sixteen lanes are there.
        unsafe { [_mm256_loadu_ps(lanes.as_ptr()), _mm256_loadu_ps(lanes.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn store(value: Self::F, lanes: &mut [f32; LANES]) {
        // SAFETY: see `Avx2`; sixteen lanes are there.
        unsafe {
            _mm256_storeu_ps(lanes.as_mut_ptr(), value[0]);
            _mm256_storeu_ps(lanes.as_mut_ptr().add(8), value[1]);
        }
    }
    #[inline(always)]
    fn add(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn max(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn select_less(a: Self::F, b: Self::F, then: Self::F, or: Self::F) -> Self::F {
        // SAFETY: see `Avx2`.
        let less =
            unsafe { [_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])] };
        both!(_mm256_blendv_ps(or, then, less))
    }
    #[inline(always)]
    fn scale_by_power(value: Self::F, power: Self::F) -> Self::F {
        let power = Self::shl::<23>(both!(_mm256_castps_si256(power)));
        let value = both!(_mm256_castps_si256(value));
        let scaled = both!(_mm256_add_epi32(value, power));
        both!(_mm256_castsi256_ps(scaled))
    }
    #[inline(always)]
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn widen_f16(bytes: &[u8; 2 * LANES]) -> Self::F {
        // SAFETY: see `Avx2`; 32 bytes are there.
        let packed = unsafe {
            [_mm_loadu_si128(bytes.as_ptr().cast()), _mm_loadu_si128(bytes.as_ptr().add(16).cast())]
        };
        both!(_mm256_cvtph_ps(packed))
    }
    #[inline(always)]
    fn widen_bf16(bytes: &[u8; 2 * LANES]) -> Self::F {
        // SAFETY: see `Avx2`; 32 bytes are there.
        let packed = unsafe {
            [_mm_loadu_si128(bytes.as_ptr().cast()), _mm_loadu_si128(bytes.as_ptr().add(16).cast())]
        };
        let wide = both!(_mm256_cvtepu16_epi32(packed));
        let bits = Self::shl::<16>(wide);
        both!(_mm256_castsi256_ps(bits))
    }

    #[inline(always)]
    fn transpose(from: &[[f32; LANES]], stride: usize, to: &mut [[f32; LANES]; LANES]) {
        // Four squares of 8 × 8.
        for (row, column) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
            // SAFETY: see `Avx2`; eight lanes from 0 or 8 are inside sixteen.
            unsafe {
                let mut square = [_mm256_setzero_ps(); 8];
                for i in 0..8 {
                    square[i] = _mm256_loadu_ps(from[(row + i) * stride].as_ptr().add(column));
                }
                let square = transpose_8x8(square);
                for i in 0..8 {
                    _mm256_storeu_ps(to[column + i].as_mut_ptr().add(row), square[i]);
                }
            }
        }
    }
    #[inline(always)]
    fn unsigned(bytes: &[u8; LANES]) -> Self::U {
        // SAFETY: see `Avx2`; 16 bytes are there.
        let packed = unsafe {
            [_mm_loadl_epi64(bytes.as_ptr().cast()), _mm_loadl_epi64(bytes.as_ptr().add(8).cast())]
        };
        both!(_mm256_cvtepu8_epi32(packed))
    }
    #[inline(always)]
    fn signed(bytes: &[u8; LANES]) -> Self::U {
        // SAFETY: see `Avx2`; 16 bytes are there.
        let packed = unsafe {
            [_mm_loadl_epi64(bytes.as_ptr().cast()), _mm_loadl_epi64(bytes.as_ptr().add(8).cast())]
        };
        both!(_mm256_cvtepi8_epi32(packed))
    }
    #[inline(always)]
    fn and(a: Self::U, mask: i32) -> Self::U {
        // SAFETY: see `Avx2`.
        let mask = unsafe { [_mm256_set1_epi32(mask); 2] };
        both!(_mm256_and_si256(a, mask))
    }
    #[inline(always)]
    fn or(a: Self::U, b: Self::U) -> Self::U {
        both!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn shl<const BITS: i32>(a: Self::U) -> Self::U {
        // SAFETY: see `Avx2`.
        unsafe { [_mm256_slli_epi32::<BITS>(a[0]), _mm256_slli_epi32::<BITS>(a[1])] }
    }
    #[inline(always)]
    fn shr<const BITS: i32>(a: Self::U) -> Self::U {
        // SAFETY: see `Avx2`.
        unsafe { [_mm256_srli_epi32::<BITS>(a[0]), _mm256_srli_epi32::<BITS>(a[1])] }
    }
    #[inline(always)]
    fn float(a: Self::U) -> Self::F {
        both!(_mm256_cvtepi32_ps(a))
    }
}

#[inline(always)]
fn transpose_8x8(r: [__m256; 8]) -> [__m256; 8] {
    let (mut pairs, mut fours, mut eights) = (r, r, r);
    // SAFETY: see `Avx2`.
    unsafe {
        for i in 0..4 {
            pairs[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            pairs[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..2 {
            for j in 0..2 {
                let (a, b) = (pairs[4 * i + j], pairs[4 * i + j + 2]);
                fours[4 * i + 2 * j] = _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
                fours[4 * i + 2 * j + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
            }
        }
        for i in 0..4 {
            eights[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
            eights[i + 4] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
        }
    }
    eights
}

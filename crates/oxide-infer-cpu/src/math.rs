//! Functions of vectors, and vectors of slices.

use crate::simd::{Isa, LANES};
use std::f32::consts::LOG2_E;

/// Below this, [`exp`] gives 0. (`exp(−87)` is 1.6e-38, about the least normal number.)
const EXP_MIN: f32 = -87.0;

/// Above this, [`exp`] gives `exp(88)`, 1.7e38.
const EXP_MAX: f32 = 88.0;

/// `exp(x)` to about one unit in the last place: `x = n · ln 2 + r`, a polynomial in `r` (that of the Cephes library's
/// `expf`), and `n` added to the exponent. NaN gives NaN.
#[inline(always)]
pub(crate) fn exp<I: Isa>(x: I::F) -> I::F {
    // Adding this leaves the integer nearest to the sum in the low bits.
    let round = I::splat(12_582_912.0);
    let clamped = I::max(I::splat(EXP_MIN), I::min(I::splat(EXP_MAX), x));
    let shifted = I::fma(clamped, I::splat(LOG2_E), round);
    let n = I::sub(shifted, round);
    // ln 2 in two parts, the first with few bits, so that its product with n is exact.
    let r = I::fma(n, I::splat(-0.693_359_4), clamped);
    let r = I::fma(n, I::splat(2.121_944_4e-4), r);
    let mut p = I::splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = I::fma(p, r, I::splat(coefficient));
    }
    let p = I::fma(p, I::mul(r, r), r);
    let p = I::add(p, I::splat(1.0));
    I::select_less(x, I::splat(EXP_MIN), I::splat(0.0), I::scale_by_power(p, shifted))
}

/// `x / (1 + exp(−x))`.
#[inline(always)]
pub(crate) fn silu<I: Isa>(x: I::F) -> I::F {
    let negated = I::sub(I::splat(0.0), x);
    // exp of a number that is not positive does not overflow: 1 / (1 + e) for x ≥ 0, e / (1 + e) for x < 0.
    let e = exp::<I>(I::min(negated, x));
    let numerator = I::select_less(x, I::splat(0.0), e, I::splat(1.0));
    I::div(I::mul(x, numerator), I::add(I::splat(1.0), e))
}

/// The hyperbolic tangent: an odd polynomial near zero (that of the Cephes library's `tanhf`), `1 − 2 / (exp(2x) + 1)`
/// elsewhere.
#[inline(always)]
pub(crate) fn tanh<I: Isa>(x: I::F) -> I::F {
    let (zero, one) = (I::splat(0.0), I::splat(1.0));
    let negated = I::sub(zero, x);
    let size = I::max(negated, x);
    let square = I::mul(x, x);
    let mut p = I::splat(-5.704_988_7e-3);
    for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328_3e-1] {
        p = I::fma(p, square, I::splat(coefficient));
    }
    let near = I::fma(I::mul(p, square), x, x);
    let e = exp::<I>(I::add(size, size));
    let far = I::sub(one, I::div(I::splat(2.0), I::add(e, one)));
    let far = I::select_less(x, zero, I::sub(zero, far), far);
    I::select_less(size, I::splat(0.625), near, far)
}

/// Lanes `at..` of a slice; zeros past its end.
#[inline(always)]
pub(crate) fn load<I: Isa>(slice: &[f32], at: usize) -> I::F {
    match slice[at..].first_chunk() {
        Some(lanes) => I::load(lanes),
        None => {
            let mut lanes = [0.0; LANES];
            lanes[..slice.len() - at].copy_from_slice(&slice[at..]);
            I::load(&lanes)
        }
    }
}

/// Writes lanes to `at..` of a slice; those past its end are dropped.
#[inline(always)]
pub(crate) fn store<I: Isa>(value: I::F, slice: &mut [f32], at: usize) {
    let slice = &mut slice[at..];
    match slice.first_chunk_mut() {
        Some(lanes) => I::store(value, lanes),
        None => {
            let mut lanes = [0.0; LANES];
            I::store(value, &mut lanes);
            slice.copy_from_slice(&lanes[..slice.len()]);
        }
    }
}

/// The greatest lane.
#[inline(always)]
pub(crate) fn maximum<I: Isa>(value: I::F) -> f32 {
    let mut lanes = [0.0; LANES];
    I::store(value, &mut lanes);
    let mut greatest = lanes[0];
    for lane in lanes {
        greatest = if greatest > lane { greatest } else { lane };
    }
    greatest
}

/// The sum of all lanes, halves first.
#[inline(always)]
pub(crate) fn sum<I: Isa>(value: I::F) -> f32 {
    let mut lanes = [0.0; LANES];
    I::store(value, &mut lanes);
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Kernel, Level};

    struct Apply<'a>(&'a [f32], bool);

    impl Kernel for Apply<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<I: Isa>(self) -> Vec<f32> {
            let mut out = vec![0.0; self.0.len()];
            for at in (0..out.len()).step_by(LANES) {
                let x = load::<I>(self.0, at);
                store::<I>(if self.1 { silu::<I>(x) } else { exp::<I>(x) }, &mut out, at);
            }
            out
        }
    }

    fn points() -> Vec<f32> {
        (-8800..=8800).map(|i| i as f32 / 100.0 + 0.0037).chain([0.0, -0.0, 1e-30, -1e-30]).collect()
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let points: Vec<f32> = points().into_iter().filter(|&x| (EXP_MIN..=EXP_MAX).contains(&x)).collect();
        for (x, got) in points.iter().zip(Level::detect().run(Apply(&points, false))) {
            let want = f64::from(*x).exp();
            assert!((f64::from(got) - want).abs() <= 2.4e-7 * want, "exp({x}) = {want}, got {got}");
        }
    }

    #[test]
    fn exp_of_far_numbers_is_zero_large_or_nan() {
        let far = [-87.1, -1e30, f32::NEG_INFINITY, 100.0, f32::INFINITY, f32::NAN];
        let got = Level::detect().run(Apply(&far, false));
        assert_eq!(got[..3], [0.0; 3]);
        assert!(got[3] > 1e38 && got[4] > 1e38 && got[5].is_nan());
    }

    #[test]
    fn silu_is_close_everywhere_and_finite_for_finite_numbers() {
        let mut points = points();
        points.extend([f32::MAX, f32::MIN, 1e20, -1e20]);
        for (x, got) in points.iter().zip(Level::detect().run(Apply(&points, true))) {
            let want = f64::from(*x) / (1.0 + (-f64::from(*x)).exp());
            assert!(
                (f64::from(got) - want).abs() <= 5e-7 * want.abs() + 1e-35,
                "silu({x}) = {want}, got {got}"
            );
        }
        assert!(Level::detect().run(Apply(&[f32::NAN], true))[0].is_nan());
    }

    #[test]
    fn both_levels_give_the_same_bits() {
        let points = points();
        for silu in [false, true] {
            let (a, b) =
                (Level::detect().run(Apply(&points, silu)), Level::Portable.run(Apply(&points, silu)));
            assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}

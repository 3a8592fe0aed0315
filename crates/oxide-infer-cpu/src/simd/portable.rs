use super::{Isa, LANES};
use half::f16;

/// Plain arrays, which the compiler vectorises as far as the target's baseline goes (NEON, for one).
pub(crate) struct Portable;

#[inline(always)]
fn each<A: Copy, B: Copy, C: Copy + Default>(
    a: &[A; LANES],
    b: &[B; LANES],
    f: impl Fn(A, B) -> C,
) -> [C; LANES] {
    let mut c = [C::default(); LANES];
    for lane in 0..LANES {
        c[lane] = f(a[lane], b[lane]);
    }
    c
}

impl Isa for Portable {
    const FUSES: bool = cfg!(not(target_arch = "x86_64"));
    type F = [f32; LANES];
    type U = [i32; LANES];

    #[inline(always)]
    fn prefetch(_: &u8) {}
    #[inline(always)]
    fn splat(value: f32) -> Self::F {
        [value; LANES]
    }
    #[inline(always)]
    fn load(lanes: &[f32; LANES]) -> Self::F {
        *lanes
    }
    #[inline(always)]
    fn store(value: Self::F, lanes: &mut [f32; LANES]) {
        *lanes = value;
    }
    #[inline(always)]
    fn add(a: Self::F, b: Self::F) -> Self::F {
        each(&a, &b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(a: Self::F, b: Self::F) -> Self::F {
        each(&a, &b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(a: Self::F, b: Self::F) -> Self::F {
        each(&a, &b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(a: Self::F, b: Self::F) -> Self::F {
        each(&a, &b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(a: Self::F, b: Self::F) -> Self::F {
        each(&a, &b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(a: Self::F, b: Self::F) -> Self::F {
        each(&a, &b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn select_less(a: Self::F, b: Self::F, then: Self::F, or: Self::F) -> Self::F {
        let mut selected = or;
        for lane in 0..LANES {
            if a[lane] < b[lane] {
                selected[lane] = then[lane];
            }
        }
        selected
    }
    #[inline(always)]
    fn scale_by_power(value: Self::F, power: Self::F) -> Self::F {
        each(&value, &power, |value, power| {
            f32::from_bits(value.to_bits().wrapping_add(power.to_bits() << 23))
        })
    }
    #[inline(always)]
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let mut sum = c;
        for lane in 0..LANES {
            sum[lane] = a[lane].mul_add(b[lane], c[lane]);
        }
        sum
    }
    #[inline(always)]
    fn widen_f16(bytes: &[u8; 2 * LANES]) -> Self::F {
        let pairs = bytes.as_chunks::<2>().0;
        let mut lanes = [0.0; LANES];
        for lane in 0..LANES {
            lanes[lane] = f16::from_le_bytes(pairs[lane]).to_f32();
        }
        lanes
    }
    #[inline(always)]
    fn widen_bf16(bytes: &[u8; 2 * LANES]) -> Self::F {
        let pairs = bytes.as_chunks::<2>().0;
        let mut lanes = [0.0; LANES];
        for lane in 0..LANES {
            lanes[lane] = f32::from_bits(u32::from(u16::from_le_bytes(pairs[lane])) << 16);
        }
        lanes
    }

    #[inline(always)]
    fn transpose(from: &[[f32; LANES]], stride: usize, to: &mut [[f32; LANES]; LANES]) {
        for lane in 0..LANES {
            for (i, to) in to.iter_mut().enumerate() {
                to[lane] = from[lane * stride][i];
            }
        }
    }
    #[inline(always)]
    fn unsigned(bytes: &[u8; LANES]) -> Self::U {
        bytes.map(i32::from)
    }
    #[inline(always)]
    fn signed(bytes: &[u8; LANES]) -> Self::U {
        bytes.map(|byte| i32::from(byte as i8))
    }
    #[inline(always)]
    fn and(a: Self::U, mask: i32) -> Self::U {
        a.map(|a| a & mask)
    }
    #[inline(always)]
    fn or(a: Self::U, b: Self::U) -> Self::U {
        each(&a, &b, |a, b| a | b)
    }
    #[inline(always)]
    fn shl<const BITS: i32>(a: Self::U) -> Self::U {
        a.map(|a| a << BITS)
    }
    #[inline(always)]
    fn shr<const BITS: i32>(a: Self::U) -> Self::U {
        a.map(|a| (a as u32 >> BITS) as i32)
    }
    #[inline(always)]
    fn float(a: Self::U) -> Self::F {
        a.map(|a| a as f32)
    }
}

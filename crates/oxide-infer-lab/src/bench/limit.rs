//! What a row may take, by the rate of the same device's copies in the same run.

use super::matrix::{Product, Work};

/// Bytes of keys and values from which a decode must read them at [`DECODE`] of the device's rate.
const LONG_CACHE: u64 = 100_000_000;
const DECODE: f64 = 0.9;
/// Bytes from which streaming operators must reach [`STREAM`] of it: read and written, 256 MB each.
const LONG_STREAM: u64 = 500_000_000;
const STREAM: f64 = 0.8;
/// Rows of a product up to which reading its weight is what takes the time.
const FEW_ROWS: usize = 16;
const FEW: f64 = 0.9;
/// What such a product may take beside, in microseconds.
const FEW_MORE: f64 = 2.5;

/// Microseconds that a row may take with nothing in the cache; `None` where the device's copies say nothing of it.
pub(super) fn microseconds(work: &Work, bytes_a_second: f64) -> Option<f64> {
    let at = |bytes: u64, share: f64| bytes as f64 / (share * bytes_a_second) * 1e6;
    match work {
        Work::PagedDecode(_) if work.cache_bytes() > LONG_CACHE => Some(at(work.bytes(), DECODE)),
        Work::RopeAppend(_) | Work::RmsNorm(_) if work.bytes() > LONG_STREAM => {
            Some(at(work.bytes(), STREAM))
        }
        Work::Gemm(Product { m, .. }) if *m <= FEW_ROWS => Some(at(work.bytes(), FEW) + FEW_MORE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_of_few_rows_may_take_its_bytes_and_two_and_a_half_microseconds() {
        let work = |m| Work::Gemm(Product { m, n: 1000, k: 900 });
        // 1.8 MB of weight and 1,900 elements more, at 90% of a terabyte a second.
        let expected = 2.0 * (900_000.0 + 900.0 + 1000.0) / 0.9e12 * 1e6 + 2.5;
        assert!((microseconds(&work(1), 1e12).unwrap() - expected).abs() < 1e-9);
        assert!(microseconds(&work(17), 1e12).is_none());
    }
}

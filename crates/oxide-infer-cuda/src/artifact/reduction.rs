//! In which order products add up.
//!
//! Two artifacts of one contract with the same reduction give an element the same bits, whatever their tiles are: tensor
//! cores add slices of k in their order, and neither the rows nor the columns of a tile come into it. That is a claim about
//! the device; `oxide-infer-lab gates deterministic` checks it for every artifact that has a reduction here.

use super::expr::Dimensions;
use super::manifest::{Manifest, Property};

/// How every element of a product is added up over k: ranges of k each by themselves, then these in their order. A bias
/// or a residual comes last.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reduction {
    /// Where each range of k ends.
    pub ends: Vec<u64>,
}

/// Elements of k in a slice of `prefill_gemm.dense`, `joint_gemm.dense` and `chained_tiles.scaled_swiglu`.
const PREFILL_SLICE: u64 = 64;

impl Manifest {
    /// The order in which it adds up, if it is a product whose kernel's order is known, as `docs/artifacts.md` describes them,
    /// from the tile sizes in the manifest. The squares of a norm that products share have one order in all of these.
    pub fn reduction(&self, dimensions: &Dimensions) -> Option<Reduction> {
        let k = *dimensions.get("k").or_else(|| dimensions.get("hidden_size"))?;
        let splits = self.schedule_number("splits").unwrap_or(1);
        let ends = match self.source.kernel.as_str() {
            "gemm.dense_small"
            | "chained_gemm.weighted"
            | "chained_gemm.scaled_swiglu"
            | "chained_gemm.scaled_projected" => whole_slices(k, self.schedule_number("block_k")?, splits)?,
            // A range is a warp's. Without slices warps take spans of k in turns.
            "chained_gemv.weighted" | "chained_gemv.scaled_swiglu" | "chained_gemv.scaled_projected" => {
                whole_slices(k, self.schedule_number("block_k")?, self.schedule_number("warps")?)?
            }
            "prefill_gemm.dense" | "joint_gemm.dense" | "chained_tiles.scaled_swiglu" => {
                as_many_slices(k, splits)?
            }
            _ => return None,
        };
        Some(Reduction { ends })
    }

    fn schedule_number(&self, name: &str) -> Option<u64> {
        match self.source.schedule.get(name)? {
            Property::Number(number) => Some(*number),
            Property::Text(_) => None,
        }
    }
}

/// Ends of ranges that are as equal as whole slices allow.
fn whole_slices(k: u64, slice: u64, ranges: u64) -> Option<Vec<u64>> {
    let slices = k.checked_next_multiple_of(slice)?.checked_div(slice)?;
    (1..=ranges).map(|range| Some((range * slices).checked_div(ranges)?.checked_mul(slice)?.min(k))).collect()
}

/// Ends of ranges that have as many slices each; those after the end of k are zeros.
fn as_many_slices(k: u64, ranges: u64) -> Option<Vec<u64>> {
    let count = k.div_ceil(PREFILL_SLICE).checked_next_multiple_of(ranges)?.checked_div(ranges)?;
    (1..=ranges).map(|range| Some(range.checked_mul(count * PREFILL_SLICE)?.min(k))).collect()
}

#[cfg(test)]
mod tests {
    use crate::artifact::{Registry, Target};

    /// The ends of an artifact's ranges of k.
    fn of(name: &str, k: u64) -> Option<Vec<u64>> {
        let registry = Registry::embedded(Target::hopper()).unwrap();
        let artifact = registry.artifacts().find(|artifact| artifact.manifest().name == name).unwrap();
        Some(artifact.manifest().reduction(&[("k".to_owned(), k)].into())?.ends)
    }

    #[test]
    fn ranges_are_whole_slices_and_cover_k() {
        let residual =
            |algorithm: &str, k| of(&format!("dense_small.bf16.f32.residual.{algorithm}"), k).unwrap();
        // 70 slices of 128: 17, 18, 17 and 18.
        let uneven = vec![2176, 4480, 6656, 8960];
        assert_eq!(residual("m8_64x128_s5_split4", 8960), uneven);
        assert_eq!(residual("m32_64x128_s3_split4", 8960), uneven);
        // 140 slices of 64: 35 each.
        let even = vec![2240, 4480, 6720, 8960];
        assert_eq!(residual("m64_64x64_s4_split4", 8960), even);
        let dense = |algorithm: &str, k| of(&format!("dense.bf16.f32.residual.{algorithm}"), k).unwrap();
        assert_eq!(dense("tile_128x192_split4", 8960), even);
        assert_eq!(dense("tile_128x256", 8960), vec![8960]);
        assert_eq!(of("dense.bf16.bf16.swiglu.joint_pair_128x256", 1536), Some(vec![1536]));
        // 2 slices of 64, the last one of 8 elements, in 4 ranges of one slice: two are empty.
        assert_eq!(dense("tile_128x128_split4", 72), vec![64, 72, 72, 72]);
        assert_eq!(of("dense_small.bf16.bf16.bias.m16_64x128_s5", 1536), Some(vec![1536]));
        // One row, a range for each of eight warps, as the tiles of few rows in as many.
        let eight = residual("m8_64x128_s5_split8", 8960);
        assert_eq!(of("weighted.bf16.m16_64x128_s5_split8", 8960), Some(eight.clone()));
        assert_eq!(of("weighted.bf16.w8_128_s5", 8960), Some(eight));
        assert_eq!(of("scaled_swiglu.bf16.w1_256_s4", 1536), Some(vec![1536]));
        assert_eq!(of("scaled_swiglu.bf16.tile_64x256", 1536), Some(vec![1536]));
        assert_eq!(of("weighted.bf16.w7_s3", 8960), None);
        assert_eq!(of("scaled.bf16.w7_s2", 1536), None);
        assert_eq!(of("rms_norm.bf16.up_to_2k", 1536), None);
    }
}

//! Matrix products with packed weights.
//!
//! # Order of the sum
//!
//! Every output element is one chain of fused multiply-adds over `k` in order, from zero: `acc = input[k] · weight[k] +
//! acc`; then the bias is added, then what the output held. Nothing in that depends on the number of rows, on the other
//! rows, on how the work is split, or on the instruction set, so neither do the bits.

mod dense;
mod kernel;

use crate::disjoint::Disjoint;
use crate::error::check_len;
use crate::packed::{PackedMatrix, Part, with_format};
use crate::simd::Level;
use crate::{CpuError, Team};
pub(crate) use kernel::multiply;
use kernel::{Block, Buffers, Multiply, ROWS};
use std::marker::PhantomData;
use std::ops::Range;

/// What happens to the numbers that the output holds before a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// They are overwritten.
    Overwrite,
    /// The product is added to them: a residual in place.
    Add,
}

/// `output[m, n] = Σ_k input[m, k] · weight[n, k] + bias[n]`, written over the output or added to it.
///
/// `input` is `[m, k]` and `output` `[m, n]`, both row-major with no gaps; `weight` is `[n, k]`, `bias` `[n]`.
///
/// # Errors
/// [`CpuError::Length`] when a slice does not fit the weight.
pub fn gemm(
    team: &Team<'_>,
    input: &[f32],
    weight: &PackedMatrix,
    bias: Option<&[f32]>,
    update: Update,
    output: &mut [f32],
) -> Result<(), CpuError> {
    let [n, k] = weight.shape();
    // Without columns the input says nothing about the rows.
    let m = input.len().checked_div(k).unwrap_or(output.len() / n.max(1));
    check_len("input", m * k, input.len())?;
    check_len("output", m * n, output.len())?;
    if let Some(bias) = bias {
        check_len("bias", n, bias.len())?;
    }
    let product = Product { input, k, n, bias, update, output: Disjoint::new(output) };
    let panels: usize = weight.parts().iter().map(Part::num_panels).sum();
    let row_blocks = m.div_ceil(ROWS);
    // Panels go in pairs, so that one row has four independent chains. Blocks of rows are the outer index: neighbouring
    // tasks share the input, which fits the cache, and stream the weights.
    let pairs = panels.div_ceil(2);
    let chunk = pairs.div_ceil((4 * team.threads()).div_ceil(row_blocks.max(1))).max(1);
    let chunks = pairs.div_ceil(chunk);
    let level = team.level();
    team.run(row_blocks * chunks, &|task| {
        let rows = task / chunks * ROWS..m.min((task / chunks + 1) * ROWS);
        let first = task % chunks * chunk * 2;
        product.block(level, rows, weight.parts(), first..panels.min(first + 2 * chunk));
    });
    Ok(())
}

/// The operands of one product, checked.
struct Product<'a> {
    input: &'a [f32],
    k: usize,
    n: usize,
    bias: Option<&'a [f32]>,
    update: Update,
    output: Disjoint<'a, f32>,
}

impl Product<'_> {
    /// The rows `rows` of the columns that lie in `panels`, counted over all parts.
    fn block(&self, level: Level, rows: Range<usize>, parts: &[Part], panels: Range<usize>) {
        let mut first = 0;
        for part in parts {
            let count = part.num_panels();
            let inside = panels.start.max(first)..panels.end.min(first + count);
            if !inside.is_empty() {
                let panels = inside.start - first..inside.end - first;
                let rows = rows.clone();
                Buffers::with(|buffers| {
                    with_format!(part.format, F => {
                        let block = Block::<F> { product: self, part, rows, panels, format: PhantomData };
                        level.run(Multiply { block, buffers });
                    });
                });
            }
            first += count;
        }
    }
}

#[cfg(test)]
mod tests;

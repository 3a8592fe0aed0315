//! Matrix products with packed weights.
//!
//! # Order of the sum
//!
//! Every output element is one chain of fused multiply-adds over `k` in order, from zero: `acc = input[k] · weight[k] +
//! acc`; then the bias is added, then what the output held. Nothing in that depends on the number of rows, on the other
//! rows, on how the work is split, or on the instruction set, so neither do the bits.

mod dense;
mod dense_swiglu;
mod kernel;

use crate::disjoint::Disjoint;
use crate::error::check_len;
use crate::packed::{PackedMatrix, Part, with_format};
use crate::simd::{LANES, Level};
use crate::{CpuError, Team};
use kernel::{Buffers, CHUNK, Fused, ROWS, Tiles};
pub(crate) use kernel::{Lanes, multiply};
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
    let panels: usize = weight.parts().iter().map(Part::num_panels).sum();
    let row_blocks = m.div_ceil(ROWS);
    // Panels go in pairs, so that one row has four independent chains. Blocks of rows are the outer index: neighbouring
    // tasks share the input, which fits the cache, and stream the weights.
    let pairs = panels.div_ceil(2);
    let chunk = pairs.div_ceil((4 * team.threads()).div_ceil(row_blocks.max(1))).max(1);
    let chunks = pairs.div_ceil(chunk);
    let product = Product { level: team.level(), input, k, n, bias, update, output: Disjoint::new(output) };
    team.run(row_blocks * chunks, &|task| {
        let rows = task / chunks * ROWS..m.min((task / chunks + 1) * ROWS);
        let first = task % chunks * chunk * 2;
        product.block(rows, weight.parts(), first..panels.min(first + 2 * chunk));
    });
    Ok(())
}

/// The operands of one product, checked.
struct Product<'a> {
    level: Level,
    input: &'a [f32],
    k: usize,
    n: usize,
    bias: Option<&'a [f32]>,
    update: Update,
    output: Disjoint<'a, f32>,
}

impl Product<'_> {
    /// The rows `rows`, at most [`ROWS`], of the columns that lie in `panels`, counted over all parts.
    fn block(&self, rows: Range<usize>, parts: &[Part], panels: Range<usize>) {
        let mut first = 0;
        for part in parts {
            let count = part.num_panels();
            let inside = panels.start.max(first)..panels.end.min(first + count);
            if !inside.is_empty() {
                let panels = inside.start - first..inside.end - first;
                Buffers::with(|buffers| self.part(&rows, part, panels, buffers));
            }
            first += count;
        }
    }

    fn part(&self, rows: &Range<usize>, part: &Part, panels: Range<usize>, buffers: &mut Buffers) {
        let mut panels = panels;
        while let Some(panel) = panels.next() {
            match rows.len() {
                _ if !self.level.fuses() => self.widened(rows, part, panel, buffers),
                1 if !panels.is_empty() => {
                    panels.next();
                    self.fused::<1, 2>(rows, part, panel);
                }
                2 => self.fused::<2, 1>(rows, part, panel),
                3 => self.fused::<3, 1>(rows, part, panel),
                4 => self.fused::<4, 1>(rows, part, panel),
                _ => self.widened(rows, part, panel, buffers),
            }
        }
    }

    /// `R` rows with `P` panels from `panel`.
    fn fused<const R: usize, const P: usize>(&self, rows: &Range<usize>, part: &Part, panel: usize) {
        let (k, input) = (self.k, &self.input[rows.start * self.k..rows.end * self.k]);
        let panels = std::array::from_fn(|p| part.panel(panel + p));
        let ahead = part.panels(panel + P..panel + 2 * P);
        let mut sums = [[[0.0; LANES]; P]; R];
        with_format!(part.format, F => {
            let sums = &mut sums;
            self.level.run(Fused::<F, R, P> { input, k, panels, ahead, sums, format: PhantomData });
        });
        for (row, sums) in rows.clone().zip(sums) {
            for (p, sums) in sums.iter().enumerate() {
                self.finish(row, part, panel + p, sums);
            }
        }
    }

    /// Any rows with one panel.
    fn widened(&self, rows: &Range<usize>, part: &Part, panel: usize, buffers: &mut Buffers) {
        let k = self.k;
        let sums = &mut buffers.sums[..rows.len()];
        sums.fill([0.0; LANES]);
        for start in (0..k).step_by(CHUNK) {
            let weights = &mut buffers.weights[..(k - start).min(CHUNK)];
            part.widen(self.level, panel, start, weights);
            let input = &self.input[rows.start * k + start..];
            self.level.run(Tiles { input, stride: k, weights, sums });
        }
        for (row, sums) in rows.clone().zip(sums.iter()) {
            self.finish(row, part, panel, sums);
        }
    }

    /// Bias, update, and the store of the lanes that are columns.
    fn finish(&self, row: usize, part: &Part, panel: usize, sums: &Lanes) {
        let column = part.first_row + panel * LANES;
        let len = (part.rows - panel * LANES).min(LANES);
        // SAFETY: rows and panels of the tasks of a product do not overlap.
        let output = unsafe { self.output.slice(row * self.n + column, len) };
        let mut sums = *sums;
        if let Some(bias) = self.bias {
            sums.iter_mut().zip(&bias[column..column + len]).for_each(|(sum, bias)| *sum += bias);
        }
        match self.update {
            Update::Overwrite => output.copy_from_slice(&sums[..len]),
            Update::Add => output.iter_mut().zip(&sums).for_each(|(output, sum)| *output += sum),
        }
    }
}

#[cfg(test)]
mod tests;

//! `normalization::rms_norm`. The sum of squares has sixteen lanes, so it depends on the row alone.

use crate::math::{load, store, sum};
use crate::rows::{self, SharedRows};
use crate::simd::{Isa, Kernel, LANES};
use crate::{Operator, TASK_ELEMENTS, Team};
use oxide_infer::normalization::rms_norm::{Operands, Spec};
use oxide_infer::{OperandError, Spec as _};

impl Operator for Spec {
    type Operands<'a> = Operands<'a>;
    type Prepared = ();
    type Output = ();
    type Error = OperandError;
    const ALGORITHM: &'static str = "row_by_row";

    fn prepare(&self) {}

    fn run(&self, (): &(), team: &Team<'_>, mut operands: Operands<'_>) -> Result<(), OperandError> {
        operands.check(self)?;
        let config = self.config();
        let hidden_size = config.hidden_size;
        let [tokens, heads, _] = operands.input.shape();
        let mut buffer = Vec::new();
        let weight = rows::read(&operands.weight, [0], hidden_size, &mut buffer);
        let residual = operands.residual.as_mut().map(SharedRows::new);
        let output = SharedRows::new(&mut operands.output);
        let input = operands.input;
        let (level, epsilon) = (team.level(), config.epsilon);

        team.run_ranges(tokens * heads, TASK_ELEMENTS.div_ceil(hidden_size), &|range| {
            let mut buffer = Vec::new();
            for row in range {
                let at = [row / heads, row % heads, 0];
                let input = rows::read(&input, at, hidden_size, &mut buffer);
                let normalize = |values: &[f32]| {
                    // SAFETY: every row is one task's.
                    unsafe {
                        output.update(at, hidden_size, |output| {
                            level.run(Normalize { input: values, weight, epsilon, output });
                        });
                    }
                };
                match &residual {
                    None => normalize(input),
                    // SAFETY: every row is one task's.
                    Some(residual) => unsafe {
                        residual.update(at, hidden_size, |residual| {
                            residual.iter_mut().zip(input).for_each(|(residual, x)| *residual += x);
                        });
                        // Read again: an element type other than f32 has rounded the sum.
                        residual.update(at, hidden_size, |sum| normalize(sum));
                    },
                }
            }
        });
        Ok(())
    }
}

struct Normalize<'a> {
    input: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
    output: &'a mut [f32],
}

impl Kernel for Normalize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let mut squares = I::splat(0.0);
        for at in (0..self.input.len()).step_by(LANES) {
            let x = load::<I>(self.input, at);
            squares = I::fma(x, x, squares);
        }
        let mean = sum::<I>(squares) / self.input.len() as f32;
        let scale = I::splat(1.0 / (mean + self.epsilon).sqrt());
        for at in (0..self.input.len()).step_by(LANES) {
            let x = I::mul(load::<I>(self.input, at), scale);
            store::<I>(I::mul(x, load::<I>(self.weight, at)), self.output, at);
        }
    }
}

//! `normalization::rms_norm`. The sum of squares has sixteen lanes, so it depends on the row alone.

use crate::math::{load, store, sum};
use crate::rows;
use crate::simd::{Isa, Kernel, LANES};
use crate::{Operator, Team};
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
        let (level, len, epsilon) = (team.level(), config.hidden_size, config.epsilon);
        let mut buffer = Vec::new();
        let weight = rows::read(&operands.weight, [0], len, &mut buffer);
        if let Some(residual) = &mut operands.residual {
            rows::for_each(team, residual, &|at, residual| {
                let mut buffer = Vec::new();
                let input = rows::read(&operands.input, at, len, &mut buffer);
                residual.iter_mut().zip(input).for_each(|(residual, x)| *residual += x);
            });
        }
        // The updated residual is read again: an element type other than f32 has rounded it.
        let input = operands.residual.as_ref().map_or(operands.input, |residual| residual.as_view());
        rows::for_each(team, &mut operands.output, &|at, output| {
            let mut buffer = Vec::new();
            let input = rows::read(&input, at, len, &mut buffer);
            level.run(Normalize { input, weight, epsilon, output });
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

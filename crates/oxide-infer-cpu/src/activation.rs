//! `activation::swiglu`.

use crate::math::{load, silu, store};
use crate::rows::{self, SharedRows};
use crate::simd::{Isa, Kernel, LANES};
use crate::{Operator, TASK_ELEMENTS, Team};
use oxide_infer::activation::swiglu::{Operands, Spec};
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
        let size = self.config().size;
        let [num_rows, _] = operands.gate.shape();
        let output = SharedRows::new(&mut operands.output);
        let (gate, up, level) = (operands.gate, operands.up, team.level());

        team.run_ranges(num_rows, TASK_ELEMENTS.div_ceil(size), &|range| {
            let (mut gates, mut ups) = (Vec::new(), Vec::new());
            for row in range {
                let gate = rows::read(&gate, [row, 0], size, &mut gates);
                let up = rows::read(&up, [row, 0], size, &mut ups);
                // SAFETY: every row is one task's.
                unsafe { output.update([row, 0], size, |output| level.run(Gate { gate, up, output })) };
            }
        });
        Ok(())
    }
}

struct Gate<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for at in (0..self.gate.len()).step_by(LANES) {
            let gate = silu::<I>(load::<I>(self.gate, at));
            store::<I>(I::mul(gate, load::<I>(self.up, at)), self.output, at);
        }
    }
}

//! `activation::swiglu`.

use crate::math::{load, silu, store};
use crate::rows;
use crate::simd::{Isa, Kernel, LANES};
use crate::{Operator, Team};
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
        let (level, len) = (team.level(), self.config().size);
        let (gate, up) = (operands.gate, operands.up);
        rows::for_each(team, &mut operands.output, &|at, output| {
            let (mut gates, mut ups) = (Vec::new(), Vec::new());
            let gate = rows::read(&gate, at, len, &mut gates);
            let up = rows::read(&up, at, len, &mut ups);
            level.run(Gate { gate, up, output });
        });
        Ok(())
    }
}

/// `output = silu(gate) · up`, of slices of one length.
pub(crate) struct Gate<'a> {
    pub(crate) gate: &'a [f32],
    pub(crate) up: &'a [f32],
    pub(crate) output: &'a mut [f32],
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

//! `gemm::dense_swiglu` on operands as the contract describes them.

use super::dense::{input_rows, pack};
use super::{Update, gemm};
use crate::activation::Gate;
use crate::rows;
use crate::{CpuError, Operator, Team};
use oxide_infer::Spec as _;
use oxide_infer::gemm::dense_swiglu::{Operands, Spec};

/// One product with a weight that is packed first, in `f32`, and the gate over it. An engine packs its weights once.
impl Operator for Spec {
    type Operands<'a> = Operands<'a>;
    type Prepared = ();
    type Output = ();
    type Error = CpuError;
    const ALGORITHM: &'static str = "packed_panels";

    fn prepare(&self) {}

    fn run(&self, (): &(), team: &Team<'_>, mut operands: Operands<'_>) -> Result<(), CpuError> {
        operands.check(self)?;
        let n = self.config().n;
        let weight = pack(operands.weight)?;
        let input = input_rows(&operands.input);
        let mut sums = vec![0.0; operands.input.shape()[0] * 2 * n];
        gemm(team, &input, &weight, None, Update::Overwrite, &mut sums)?;

        let level = team.level();
        rows::for_each(team, &mut operands.output, &|[row, _], output| {
            let (gate, up) = sums[row * 2 * n..][..2 * n].split_at(n);
            level.run(Gate { gate, up, output });
        });
        Ok(())
    }
}

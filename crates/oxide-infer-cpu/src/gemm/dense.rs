//! `gemm::dense` on operands as the contract describes them: the weight is packed for the one product.

use super::{Update, gemm};
use crate::rows;
use crate::{CpuError, Operator, PackedMatrix, Team};
use oxide_infer::gemm::dense::{Operands, Spec};
use oxide_infer::{DType, FloatView, Spec as _, Weight, WeightFormat};

/// Products with a weight that is packed first. An engine packs its weights once and calls [`gemm`].
impl Operator for Spec {
    type Operands<'a> = Operands<'a>;
    type Prepared = ();
    type Output = ();
    type Error = CpuError;
    const ALGORITHM: &'static str = "packed_panels";

    fn prepare(&self) {}

    fn run(&self, (): &(), team: &Team<'_>, mut operands: Operands<'_>) -> Result<(), CpuError> {
        operands.check(self)?;
        let config = self.config();
        let n = config.n;
        let m = operands.input.shape()[0];
        let weight = pack(operands.weight)?;
        let (mut buffer, mut biases) = (Vec::new(), Vec::new());
        let input = input_rows(&operands.input);
        let mut sums = Vec::with_capacity(m * n);
        if let Some(residual) = &operands.residual {
            for row in 0..m {
                sums.extend_from_slice(rows::read(residual, [row, 0], n, &mut buffer));
            }
        }
        let update = if operands.residual.is_some() { Update::Add } else { Update::Overwrite };
        sums.resize(m * n, 0.0);
        let bias = operands.bias.as_ref().map(|bias| rows::read(bias, [0], n, &mut biases));
        gemm(team, &input, &weight, bias, update, &mut sums)?;

        rows::for_each(team, &mut operands.output, &|[row, _], output| {
            output.copy_from_slice(&sums[row * n..][..n]);
        });
        Ok(())
    }
}

/// The rows of an input, one after another.
pub(super) fn input_rows(input: &FloatView<'_, 2>) -> Vec<f32> {
    let [m, k] = input.shape();
    let (mut all, mut buffer) = (Vec::with_capacity(m * k), Vec::new());
    for row in 0..m {
        all.extend_from_slice(rows::read(input, [row, 0], k, &mut buffer));
    }
    all
}

pub(super) fn pack(weight: Weight<'_>) -> Result<PackedMatrix, CpuError> {
    let [rows, cols] = weight.shape();
    let mut packed = PackedMatrix::new(cols);
    match &weight {
        Weight::Blocks(blocks) => packed.push(weight.format(), rows, blocks.bytes())?,
        Weight::Dense(view) => {
            let (mut bytes, mut buffer) = (Vec::new(), Vec::new());
            for row in 0..rows {
                let row = rows::read(view, [row, 0], cols, &mut buffer);
                bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
            }
            packed.push(WeightFormat::Dense(DType::F32), rows, &bytes)?;
        }
    }
    Ok(packed)
}

//! Several operators in one, of a decode step.

use super::{Binder, PrepareError, Sequence, Tables};
use crate::cuda::fuse::Fused;
use crate::cuda::lower::Activation;
use crate::cuda::memory::DeviceBuffers;
use crate::model::{Matrix, Vector};
use oxide_infer_cuda::artifact::Request;
use oxide_infer_cuda::runtime::{Operands, RegionError};

impl Binder<'_> {
    pub(super) fn fused(
        &mut self,
        request: &Request,
        fused: &Fused,
        layer: usize,
        tables: &Tables,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let buffers = self.buffers;
        match fused {
            Fused::Weighted { input, weight, norm } => self.weighted(request, *input, weight, norm, to),
            Fused::Projection { weights, bias } => {
                let operands = Operands::new().span("input", buffers.step.span(Activation::Normed)?);
                self.projection(request, operands, (weights, bias.as_deref()), layer, tables, to)
            }
            Fused::ScaledProjection { eps, weights, bias } => {
                let operands = scaled(buffers, *eps)?;
                self.projection(request, operands, (weights, bias.as_deref()), layer, tables, to)
            }
            Fused::ScaledSwiGlu { eps, gate, up } => {
                let weight = self.weight(gate.id, gate.rows * gate.cols + up.rows * up.cols)?;
                let operands = scaled(buffers, *eps)?
                    .region("weight", &weight)
                    .span("output", buffers.step.span(Activation::Activated)?);
                self.bind(request, operands, to)
            }
        }
    }

    fn weighted(
        &mut self,
        request: &Request,
        input: Activation,
        weight: &Matrix,
        norm: &Vector,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let (buffers, hidden) = (self.buffers, self.buffers.step.span(Activation::Hidden)?);
        let weight = self.weight(weight.id, weight.rows * weight.cols)?;
        let norm_weight = self.weight(norm.id, norm.len)?;
        let operands = Operands::new()
            .span("input", buffers.step.span(input)?)
            .region("weight", &weight)
            .span("residual", hidden)
            .region("norm_weight", &norm_weight)
            .span("output", hidden)
            .span("weighted", buffers.step.span(Activation::Normed)?)
            .span("squares", buffers.step.span(Activation::Squares)?);
        self.bind(request, operands, to)
    }

    /// Heads of whatever `operands` say is projected.
    fn projection(
        &mut self,
        request: &Request,
        operands: Operands<'_>,
        (weights, bias): (&[Matrix], Option<&[Vector]>),
        layer: usize,
        tables: &Tables,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let buffers = self.buffers;
        let weight =
            self.weight(weights[0].id, weights.iter().map(|weight| weight.rows * weight.cols).sum())?;
        let bias = bias.map(|bias| self.weight(bias[0].id, bias.iter().map(|part| part.len).sum()));
        let bias = bias.transpose()?;
        let [k_pages, v_pages] = buffers.layer(layer)?;
        let mut operands = operands
            .region("weight", &weight)
            .region("positions", &tables.positions)
            .region("block_table", &tables.block_table)
            .region("rotations", &buffers.rotations)
            .span("q_out", buffers.step.span(Activation::Rotated)?)
            .region("k_pages", &k_pages)
            .region("v_pages", &v_pages)
            .status(self.status);
        if let Some(bias) = &bias {
            operands = operands.region("bias", bias);
        }
        self.bind(request, operands, to)
    }

    /// What the last product leaves to logits in one operator.
    pub(super) fn scaled_logits(&mut self, request: &Request, to: &mut Sequence) -> Result<(), PrepareError> {
        let head = &self.requests.model.head;
        let weight = self.weight(head.output.id, head.output.rows * head.output.cols)?;
        let operands = scaled(self.buffers, head.norm.eps)?
            .region("weight", &weight)
            .region("output", &self.buffers.logits);
        self.bind(request, operands, to)
    }
}

/// What a product reads of a norm that the one before it began.
fn scaled(buffers: &DeviceBuffers, eps: f32) -> Result<Operands<'_>, RegionError> {
    Ok(Operands::new()
        .span("input", buffers.step.span(Activation::Normed)?)
        .span("squares", buffers.step.span(Activation::Squares)?)
        .attribute("epsilon", eps))
}

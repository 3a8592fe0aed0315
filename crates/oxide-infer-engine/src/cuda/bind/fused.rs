//! The operators of a decode step of one row.

use super::{Binder, PrepareError, Sequence};
use crate::cuda::fuse::Fused;
use crate::cuda::inputs::BodyLayout;
use crate::cuda::lower::{Activation, Norm};
use crate::model::{Matrix, Vector};
use oxide_infer_cuda::artifact::Request;
use oxide_infer_cuda::runtime::Operands;

impl Binder<'_> {
    pub(super) fn fused(
        &mut self,
        fused: &Fused,
        layer: usize,
        layout: &BodyLayout,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let request = self.requests.fused(fused);
        match fused {
            Fused::Projection { norm, weights, bias } => {
                self.projection(&request, (norm, weights, bias.as_deref()), layer, layout, to)
            }
            Fused::SwiGlu { norm, gate, up } => self.normed_swiglu(&request, norm, [gate, up], to),
        }
    }

    fn projection(
        &mut self,
        request: &Request,
        (norm, weights, bias): (&Norm, &[Matrix], Option<&[Vector]>),
        layer: usize,
        layout: &BodyLayout,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let (buffers, tables) = (self.buffers, self.tables(layout)?);
        let norm_weight = self.weight(norm.weight.id, norm.weight.len)?;
        let weight =
            self.weight(weights[0].id, weights.iter().map(|weight| weight.rows * weight.cols).sum())?;
        let bias = bias.map(|bias| self.weight(bias[0].id, bias.iter().map(|part| part.len).sum()));
        let bias = bias.transpose()?;
        let [k_pages, v_pages] = buffers.layer(layer)?;
        let mut operands = Operands::new()
            .span("input", buffers.activation(Activation::Hidden)?)
            .region("norm_weight", &norm_weight)
            .region("weight", &weight)
            .region("positions", &tables.positions)
            .region("block_table", &tables.block_table)
            .region("rotations", &buffers.rotations)
            .span("q_out", buffers.activation(Activation::Rotated)?)
            .region("k_pages", &k_pages)
            .region("v_pages", &v_pages)
            .attribute("epsilon", norm.eps)
            .status(self.status);
        if let Some(bias) = &bias {
            operands = operands.region("bias", bias);
        }
        self.bind(request, operands, to)
    }

    fn normed_swiglu(
        &mut self,
        request: &Request,
        norm: &Norm,
        [gate, up]: [&Matrix; 2],
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let norm_weight = self.weight(norm.weight.id, norm.weight.len)?;
        let weight = self.weight(gate.id, gate.rows * gate.cols + up.rows * up.cols)?;
        let operands = Operands::new()
            .span("input", self.buffers.activation(Activation::Hidden)?)
            .region("norm_weight", &norm_weight)
            .region("weight", &weight)
            .span("output", self.buffers.activation(Activation::Activated)?)
            .attribute("epsilon", norm.eps);
        self.bind(request, operands, to)
    }

    /// The residual stream to logits in one operator.
    pub(super) fn normed_logits(&mut self, request: &Request, to: &mut Sequence) -> Result<(), PrepareError> {
        let head = &self.requests.model.head;
        let norm_weight = self.weight(head.norm.weight.id, head.norm.weight.len)?;
        let weight = self.weight(head.output.id, head.output.rows * head.output.cols)?;
        let operands = Operands::new()
            .span("input", self.buffers.activation(Activation::Hidden)?)
            .region("norm_weight", &norm_weight)
            .region("weight", &weight)
            .region("output", &self.buffers.logits)
            .attribute("epsilon", head.norm.eps);
        self.bind(request, operands, to)
    }
}

//! Fewer operators for a decode step of few rows: what stands around a product is computed with it.
//!
//! A step of few rows is as long as reading the weights takes, plus what every launch adds. So norms are spread over the
//! products around them ([`chain`]), and heads are turned and appended by the product that projects them; the latter also
//! where norms stay apart. Where that is predicted to take longer, and for models that have no artifacts for it, operators
//! are as they were lowered.

mod chain;
#[cfg(test)]
mod tests;

use super::classes::StepClass;
use super::lower::{Activation, CudaOperator};
use super::plan::{Requests, dense_request, with};
use crate::model::{Matrix, Vector};
use oxide_infer::DType;
use oxide_infer_cuda::artifact::Request;

/// The operators of a step in one class.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) embedding: Embedding,
    /// Of every layer, in order; of a step that is no decode step the last layer up to its attention.
    pub(super) layers: Vec<Vec<CudaOperator>>,
    /// What is asked for to make logits of what the last product leaves of the head's norm, at the end of a decode step; if
    /// there is nothing, they are made by the head's two operators.
    pub(super) logits: Option<Request>,
}

/// What leaves with the residual stream of a step's tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Embedding {
    /// Nothing.
    Plain,
    /// `Normed = Hidden · norm's weight` and `Squares`, as of [`Fused::Weighted`].
    Weighted { norm: Vector },
}

/// Who computes the norm before a product.
#[derive(Clone, Copy)]
enum Norm {
    /// An operator before it.
    Whole,
    /// The products before and after it, each a part.
    Spread,
}

/// Several operators in one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fused {
    /// `Hidden += input · weightᵀ`; `Normed = Hidden · norm's weight` and `Squares` are what the next product needs.
    Weighted { input: Activation, weight: Matrix, norm: Vector },
    /// `Rotated = rope(query)` of heads projected from `Normed`, keys and values into their pages.
    Projection {
        /// Of query, key and value.
        weights: Vec<Matrix>,
        bias: Option<Vec<Vector>>,
    },
    /// The same of `Normed` over the root of the mean of `Squares`.
    ScaledProjection {
        eps: f32,
        /// Of query, key and value.
        weights: Vec<Matrix>,
        bias: Option<Vec<Vector>>,
    },
    /// `Activated = silu(normed · gateᵀ) · (normed · upᵀ)`, `normed` being `Normed` over the root of the mean of `Squares`.
    ScaledSwiGlu { eps: f32, gate: Matrix, up: Matrix },
}

impl Fused {
    /// What errors call it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Projection { .. } | Self::ScaledProjection { .. } => "query, key and value projection",
            Self::ScaledSwiGlu { .. } => "gate and up projection",
            Self::Weighted { input: Activation::Attention, .. } => "attention output projection",
            Self::Weighted { .. } => "down projection",
        }
    }
}

impl<'a> Requests<'a> {
    /// The operators of a class.
    pub(super) fn step(&self, class: StepClass) -> Step {
        match class {
            StepClass::Decode(class) => self.chain(class),
            StepClass::Mixed { .. } => self.lowered(),
        }
    }

    /// As lowered, up to the last attention: few rows of a step that reads prompts need what comes after it.
    fn lowered(&self) -> Step {
        let mut layers = self.model.layers.clone();
        if let Some(last) = layers.last_mut() {
            last.truncate(self.model.last_layer().0.len());
        }
        Step { embedding: Embedding::Plain, layers, logits: None }
    }

    /// Whether an artifact computes it; models outside its domain keep the operators that it stands for.
    fn admitted(&self, request: &Request) -> bool {
        self.registry.select(request).is_ok()
    }

    /// What is asked of the artifacts for it, over so many rows.
    pub(super) fn fused(&self, fused: &Fused, rows: usize) -> Request {
        match fused {
            Fused::Weighted { weight, .. } => {
                let epilogue = [("bias", "absent"), ("residual", "weighted")];
                dense_request(rows, &[*weight], Activation::Hidden.dtype(), &epilogue)
            }
            Fused::Projection { weights, bias } => {
                self.projected(Norm::Whole, weights, bias.as_deref(), rows)
            }
            Fused::ScaledProjection { weights, bias, .. } => {
                self.projected(Norm::Spread, weights, bias.as_deref(), rows)
            }
            Fused::ScaledSwiGlu { gate, .. } => {
                let form = [("activation", "swiglu"), ("input", "weighted_bf16"), ("norm", "squares")];
                dense_request(rows, &[*gate], DType::BF16, &form)
            }
        }
    }

    /// Logits of one row, of `Normed` over the root of the mean of `Squares`.
    fn scaled_logits(&self) -> Request {
        let form =
            [("input", "weighted_bf16"), ("norm", "squares"), ("bias", "absent"), ("residual", "absent")];
        dense_request(1, &[self.model.head.output], DType::F32, &form)
    }

    /// Heads of one token of every sequence, projected, turned and appended.
    fn projected(&self, norm: Norm, weights: &[Matrix], bias: Option<&[Vector]>, rows: usize) -> Request {
        let norm = match norm {
            Norm::Whole => "absent",
            Norm::Spread => "squares",
        };
        let bias = if bias.is_some() { "bf16" } else { "absent" };
        let properties = [("qkv", "projected"), ("norm", norm), ("bias", bias), ("qk_norm", "absent")];
        with(self.rope(rows), &properties, &[("batch", rows), ("hidden_size", weights[0].cols)])
    }
}

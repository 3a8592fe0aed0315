//! Fewer operators for a decode step of few rows: what stands around a product is computed with it.
//!
//! A step of few rows is as long as reading the weights takes, plus what every launch adds. Kernels of one row leave no operator
//! that only norms, turns or appends. At more rows, and for long ones, they lose to the plain ones (see
//! `docs/artifacts.md`); there norms are spread over the products around them ([`chain`]). Classes and models that
//! neither has artifacts for have the operators as they were lowered.

mod chain;
#[cfg(test)]
mod tests;
mod tiles;

use super::classes::{DecodeClass, StepClass};
use super::lower::{Activation, CudaOperator, Norm};
use super::plan::{Requests, dense_request, with};
use crate::batch::PlanGoal;
use crate::model::{Matrix, Vector};
use oxide_infer::DType;
use oxide_infer_cuda::artifact::Request;
use std::borrow::Cow;
use tiles::Tiles;

/// The operators of a step in one class.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step<'a> {
    /// Of every layer, in order.
    pub(super) layers: Cow<'a, [Vec<CudaOperator>]>,
    /// What is asked for to make logits of the residual stream at the end of a decode step, if that is one operator and not
    /// the head's two.
    pub(super) logits: Option<Request>,
}

/// Several operators in one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fused {
    /// `Rotated = rope(query)` of heads projected from `rms_norm(Hidden)`, keys and values into their pages; of one row.
    Projection {
        norm: Norm,
        /// Of query, key and value.
        weights: Vec<Matrix>,
        bias: Option<Vec<Vector>>,
    },
    /// `Activated = silu(normed · gateᵀ) · (normed · upᵀ)`, `normed = rms_norm(Hidden)`; of one row.
    SwiGlu { norm: Norm, gate: Matrix, up: Matrix },
    /// `Hidden += input · weightᵀ`; `Normed = Hidden · norm's weight` and `Squares` are what the next product needs.
    Weighted { input: Activation, weight: Matrix, norm: Vector },
    /// As `Projection`, of `Normed` over the root of the mean of `Squares`.
    ScaledProjection {
        eps: f32,
        /// Of query, key and value.
        weights: Vec<Matrix>,
        bias: Option<Vec<Vector>>,
    },
    /// As `SwiGlu`, of `Normed` over the root of the mean of `Squares`.
    ScaledSwiGlu { eps: f32, gate: Matrix, up: Matrix },
}

impl Fused {
    /// What errors call it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Projection { .. } | Self::ScaledProjection { .. } => "query, key and value projection",
            Self::SwiGlu { .. } | Self::ScaledSwiGlu { .. } => "gate and up projection",
            Self::Weighted { input: Activation::Attention, .. } => "attention output projection",
            Self::Weighted { .. } => "down projection",
        }
    }
}

impl<'a> Requests<'a> {
    /// The operators of a class.
    pub(super) fn step(&self, class: StepClass) -> Step<'a> {
        match class {
            // Kernels that fuse operators round and add up in ways of their own.
            StepClass::Decode(_) if self.sizes.goal == PlanGoal::Deterministic => self.lowered(),
            StepClass::Decode(DecodeClass { rows: 1, .. }) if !self.normalizes_heads() => Step {
                layers: self.model.layers.iter().map(|operators| self.fuse(operators)).collect(),
                logits: Some(self.normed_logits()).filter(|request| self.admitted(request)),
            },
            StepClass::Decode(DecodeClass { rows: 2.., .. }) => {
                Step { layers: Cow::Owned(self.chain(class)), logits: None }
            }
            _ => self.lowered(),
        }
    }

    fn lowered(&self) -> Step<'a> {
        Step { layers: Cow::Borrowed(&self.model.layers), logits: None }
    }

    /// No kernel normalizes heads between their projection and their turn.
    fn normalizes_heads(&self) -> bool {
        let mut operators = self.model.layers.iter().flatten();
        operators.any(|operator| matches!(operator, CudaOperator::RopeAppend { head_norms: Some(_) }))
    }

    fn fuse(&self, operators: &[CudaOperator]) -> Vec<CudaOperator> {
        let (mut rest, mut fused) = (operators, Vec::new());
        while let Some(first) = rest.first() {
            let (operator, used) = match first_fused(rest) {
                Some((made, used)) if self.admitted(&self.fused(&made, 1)) => {
                    (CudaOperator::Fused(made), used)
                }
                _ => (first.clone(), 1),
            };
            fused.push(operator);
            rest = &rest[used..];
        }
        fused
    }

    /// Whether an artifact computes it; models outside its domain keep the operators that it stands for.
    fn admitted(&self, request: &Request) -> bool {
        self.registry.select(request).is_ok()
    }

    /// What is asked of the artifacts for it, over so many rows.
    pub(super) fn fused(&self, fused: &Fused, rows: usize) -> Request {
        match fused {
            Fused::Projection { norm, bias, .. } => self.projection(norm, bias.is_some()),
            Fused::SwiGlu { gate, .. } => {
                let plain = dense_request(rows, &[*gate], DType::BF16, &[("activation", "swiglu")]);
                normed(self.tiled(plain, gate.rows, tiles::PAIRS))
            }
            Fused::Weighted { weight, .. } => {
                let epilogue = [("bias", "absent"), ("residual", "weighted")];
                dense_request(rows, &[*weight], Activation::Hidden.dtype(), &epilogue)
            }
            Fused::ScaledProjection { weights, bias, .. } => {
                self.projected("squares", bias.is_some(), rows, weights[0].cols)
            }
            Fused::ScaledSwiGlu { gate, .. } => {
                let form = [("activation", "swiglu"), ("input", "weighted_bf16"), ("norm", "squares")];
                dense_request(rows, &[*gate], DType::BF16, &form)
            }
        }
    }

    fn normed_logits(&self) -> Request {
        let weight = self.model.head.output;
        let plain = dense_request(1, &[weight], DType::F32, &[("bias", "absent"), ("residual", "absent")]);
        normed(self.tiled(plain, weight.rows, tiles::ROWS))
    }

    fn projection(&self, norm: &Norm, biased: bool) -> Request {
        let width = Activation::Projected.width(self.config);
        let Tiles { blocks, .. } = Tiles::of(width, tiles::ROWS, self.sizes.multiprocessors);
        with(self.projected("rms", biased, 1, norm.weight.len), &[], &[("blocks", blocks)])
    }

    /// Heads of one token of every sequence, projected, turned and appended.
    fn projected(&self, norm: &str, biased: bool, rows: usize, hidden_size: usize) -> Request {
        let properties = [
            ("qkv", "projected"),
            ("norm", norm),
            ("bias", if biased { "bf16" } else { "absent" }),
            ("qk_norm", "absent"),
        ];
        with(self.rope(rows), &properties, &[("batch", rows), ("hidden_size", hidden_size)])
    }

    fn tiled(&self, request: Request, rows: usize, largest: usize) -> Request {
        let tiles = Tiles::choose(rows, largest, self.sizes.multiprocessors);
        with(request, &[], &[("tile_rows", tiles.rows), ("blocks", tiles.blocks)])
    }
}

/// The operator that the first ones make, and how many those are.
fn first_fused(operators: &[CudaOperator]) -> Option<(Fused, usize)> {
    use CudaOperator as O;
    match operators {
        [
            O::RmsNorm(norm),
            O::Dense { weights, bias, output: Activation::Projected, .. },
            O::RopeAppend { head_norms: None },
            ..,
        ] => Some((Fused::Projection { norm: *norm, weights: weights.clone(), bias: bias.clone() }, 3)),
        [O::RmsNorm(norm), O::DenseSwiGlu { gate, up }, ..] => {
            Some((Fused::SwiGlu { norm: *norm, gate: *gate, up: *up }, 2))
        }
        _ => None,
    }
}

/// Of the residual stream, normalized on its way in.
fn normed(request: Request) -> Request {
    let properties = [("input", Activation::Hidden.dtype().name()), ("norm", "rms")];
    with(request, &properties, &[])
}

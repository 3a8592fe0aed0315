//! From the decoder's operators to those that artifacts compute.

use super::fuse::Fused;
use crate::model::{Buffer, DenseDecoder, Matrix, ModelConfig, Operator, Vector, Write};
use oxide_infer::DType;
use std::num::NonZeroU32;

/// A model's operators as artifacts compute them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CudaModel {
    /// Token ids to the residual stream.
    pub(super) embed: Matrix,
    /// Of every layer, in order.
    pub(super) layers: Vec<Vec<CudaOperator>>,
    /// The residual stream to logits.
    pub(super) head: Head,
}

/// The end of the model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    pub(super) norm: Norm,
    pub(super) output: Matrix,
}

/// One operator over the tokens of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CudaOperator {
    /// `Normed = rms_norm(Hidden)`
    RmsNorm(Norm),
    /// `output = input · weightsᵀ + bias + residual`
    Dense {
        input: Activation,
        /// Stacked along their rows.
        weights: Vec<Matrix>,
        /// Of each matrix; all or none.
        bias: Option<Vec<Vector>>,
        residual: Residual,
        output: Activation,
    },
    /// `Activated = silu(Normed · gateᵀ) · (Normed · upᵀ)`
    DenseSwiGlu { gate: Matrix, up: Matrix },
    /// `Rotated = rope(query)`, keys and values into their pages; the heads are normalized before if the model does.
    RopeAppend { head_norms: Option<HeadNorms> },
    /// `Attention = paged attention of Rotated`
    Attention { window: Option<NonZeroU32> },
    /// Several of these in one; made for a class, never by lowering.
    Fused(Fused),
    /// What no artifact computes, in the words of the decoder.
    Other(String),
}

/// A normalization by the root mean square.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Norm {
    pub(super) weight: Vector,
    pub(super) eps: f32,
}

/// The normalizations of query and key heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HeadNorms {
    pub(super) query: Vector,
    pub(super) key: Vector,
    pub(super) eps: f32,
}

/// Whether a product adds to what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Residual {
    Absent,
    /// The output itself, before.
    Present,
}

/// Where operators read and write: `[tokens, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    /// The residual stream, in f32: in bf16 its roundings would be most of a step's error.
    Hidden,
    /// The residual stream normalized, or in a chain weighted only.
    Normed,
    /// Sums of the squares of the residual stream's elements, eight by eight.
    Squares,
    /// Query, key and value heads.
    Projected,
    Rotated,
    Attention,
    Activated,
}

impl Activation {
    pub(super) const ALL: [Self; 7] = [
        Self::Hidden,
        Self::Normed,
        Self::Squares,
        Self::Projected,
        Self::Rotated,
        Self::Attention,
        Self::Activated,
    ];

    /// Type of its elements.
    pub(super) fn dtype(self) -> DType {
        match self {
            Self::Hidden | Self::Squares => DType::F32,
            _ => DType::BF16,
        }
    }

    /// Elements of a token.
    pub(super) fn width(self, config: &ModelConfig) -> usize {
        match self {
            Self::Hidden | Self::Normed => config.hidden_size,
            Self::Squares => config.hidden_size.div_ceil(8),
            Self::Projected => config.query_size() + 2 * config.kv_size(),
            Self::Rotated | Self::Attention => config.query_size(),
            Self::Activated => config.intermediate_size,
        }
    }
}

impl CudaModel {
    /// The last layer in two: up to its attention, and what only rows whose logits are needed need after it.
    pub(super) fn last_layer(&self) -> (&[CudaOperator], &[CudaOperator]) {
        let last = self.layers.last().map_or(&[][..], Vec::as_slice);
        let attention = last.iter().rposition(|operator| matches!(operator, CudaOperator::Attention { .. }));
        last.split_at(attention.map_or(last.len(), |attention| attention + 1))
    }

    pub(super) fn new(decoder: &DenseDecoder) -> Self {
        let Operator::Gather { table, .. } = decoder.embed else {
            unreachable!("a decoder begins with its embedding")
        };
        let [Operator::RmsNorm { weight, eps, .. }, Operator::Dense { weight: output, .. }] =
            decoder.head[..]
        else {
            unreachable!("a decoder ends with a norm and a product")
        };
        Self {
            embed: table,
            layers: decoder.layers.iter().map(|operators| layer(operators)).collect(),
            head: Head { norm: Norm { weight, eps }, output },
        }
    }
}

fn layer(operators: &[Operator]) -> Vec<CudaOperator> {
    let mut rest = operators;
    let mut lowered = Vec::new();
    while !rest.is_empty() {
        let (operator, used) = first(rest);
        lowered.push(operator);
        rest = &rest[used..];
    }
    lowered
}

/// The artifact operator that the first decoder operators make, and how many those are.
fn first(operators: &[Operator]) -> (CudaOperator, usize) {
    use Operator as O;
    match operators {
        [
            O::Dense { weight: query, bias: query_bias, out: Buffer::Query, .. },
            O::Dense { weight: key, bias: key_bias, out: Buffer::Key, .. },
            O::Dense { weight: value, bias: value_bias, out: Buffer::Value, .. },
            ..,
        ] if query_bias.is_some() == key_bias.is_some() && key_bias.is_some() == value_bias.is_some() => {
            let bias = [*query_bias, *key_bias, *value_bias].into_iter().collect();
            let weights = vec![*query, *key, *value];
            let (input, output) = (Activation::Normed, Activation::Projected);
            (CudaOperator::Dense { input, weights, bias, residual: Residual::Absent, output }, 3)
        }
        [
            O::Dense { weight: gate, bias: None, out: Buffer::Gate, .. },
            O::Dense { weight: up, bias: None, out: Buffer::Up, .. },
            O::SwiGlu { .. },
            ..,
        ] => (CudaOperator::DenseSwiGlu { gate: *gate, up: *up }, 3),
        [
            O::RmsNorm { weight: query, eps, out: Buffer::NormedQuery, .. },
            O::RmsNorm { weight: key, out: Buffer::NormedKey, .. },
            O::RopeAppend { .. },
            ..,
        ] => {
            let head_norms = HeadNorms { query: *query, key: *key, eps: *eps };
            (CudaOperator::RopeAppend { head_norms: Some(head_norms) }, 3)
        }
        [O::RopeAppend { query: Buffer::Query, .. }, ..] => {
            (CudaOperator::RopeAppend { head_norms: None }, 1)
        }
        [O::RmsNorm { input: Buffer::Hidden, weight, eps, out: Buffer::Normed }, ..] => {
            (CudaOperator::RmsNorm(Norm { weight: *weight, eps: *eps }), 1)
        }
        [O::Attention { window, .. }, ..] => (CudaOperator::Attention { window: *window }, 1),
        [O::Dense { input, weight, bias, write: Write::Add, out: Buffer::Hidden }, ..] => {
            let input = match input {
                Buffer::Attention => Activation::Attention,
                Buffer::Activated => Activation::Activated,
                _ => return (other(&operators[0]), 1),
            };
            let bias = bias.map(|bias| vec![bias]);
            let (weights, output) = (vec![*weight], Activation::Hidden);
            (CudaOperator::Dense { input, weights, bias, residual: Residual::Present, output }, 1)
        }
        [operator, ..] => (other(operator), 1),
        [] => unreachable!("the caller has seen an operator"),
    }
}

fn other(operator: &Operator) -> CudaOperator {
    CudaOperator::Other(operator.to_string())
}

impl CudaModel {
    /// Matrices in the order in which they lie in device memory: those of one product one after the other.
    pub(super) fn matrices(&self) -> Vec<Vec<Matrix>> {
        let mut groups = vec![vec![self.embed]];
        for operator in self.layers.iter().flatten() {
            match operator {
                CudaOperator::Dense { weights, .. } => groups.push(weights.clone()),
                CudaOperator::DenseSwiGlu { gate, up } => groups.push(vec![*gate, *up]),
                _ => {}
            }
        }
        if self.head.output.id != self.embed.id {
            groups.push(vec![self.head.output]);
        }
        groups
    }

    /// Vectors, those of one operand one after the other.
    pub(super) fn vectors(&self) -> Vec<Vec<Vector>> {
        let mut groups = Vec::new();
        for operator in self.layers.iter().flatten() {
            match operator {
                CudaOperator::RmsNorm(norm) => groups.push(vec![norm.weight]),
                CudaOperator::Dense { bias: Some(bias), .. } => groups.push(bias.clone()),
                CudaOperator::RopeAppend { head_norms: Some(norms) } => {
                    groups.extend([vec![norms.query], vec![norms.key]]);
                }
                _ => {}
            }
        }
        groups.push(vec![self.head.norm.weight]);
        groups
    }
}

//! `kv_cache.rope_append` of heads that are normalized first, as `qk_norm=present` does it: two contracts in one pass.

use crate::call::failed;
use half::bf16;
use oxide_infer::conformance::{Operators, Refusal};
use oxide_infer::kv_cache::rope_append::{self, Operands, Spec};
use oxide_infer::normalization::rms_norm;
use oxide_infer::{DType, FloatView, FloatViewMut, Presence, Spec as _};

/// Added to the mean square.
pub(super) const EPSILON: f32 = 1e-6;

/// Weights of the norms of q and k, so small that a normalized head is under 1 almost everywhere.
pub(super) fn weights(head_dim: usize) -> [Vec<bf16>; 2] {
    let weight = |step: usize, sign: f32| {
        let element = |i: usize| bf16::from_f32(0.2 + 0.03 * sign * (i * step % 11) as f32);
        (0..head_dim).map(element).collect()
    };
    [weight(7, 1.0), weight(3, -1.0)]
}

/// What the artifacts with `qk_norm=present` are compared with: `normalization.rms_norm` of each head of q and k, rounded,
/// and then `kv_cache.rope_append`.
pub(crate) struct NormedReference;

impl Operators for NormedReference {
    fn rope_append(&mut self, spec: &Spec, operands: Operands<'_>) -> Result<(), Refusal> {
        operands.check(spec)?;
        let config = &spec.config().rope;
        if config.dtype != DType::BF16 {
            return Ok(rope_append::reference(spec, operands)?);
        }
        let [q_weight, k_weight] = weights(config.head_dim);
        let (q, k) = (normed(&operands.q, &q_weight)?, normed(&operands.k, &k_weight)?);
        let q = FloatView::contiguous(&q, operands.q.shape()).map_err(failed)?;
        let k = FloatView::contiguous(&k, operands.k.shape()).map_err(failed)?;
        Ok(rope_append::reference(spec, Operands { q, k, ..operands })?)
    }
}

fn normed(heads: &FloatView<'_, 3>, weight: &[bf16]) -> Result<Vec<bf16>, Refusal> {
    let shape @ [.., head_dim] = heads.shape();
    let config = rms_norm::Config {
        dtype: DType::BF16,
        weight_dtype: DType::BF16,
        output_dtype: DType::BF16,
        hidden_size: head_dim,
        epsilon: EPSILON,
        residual: Presence::Absent,
    };
    let mut output = vec![bf16::ZERO; shape.iter().product()];
    let operands = rms_norm::Operands {
        input: *heads,
        weight: FloatView::contiguous(weight, [head_dim]).map_err(failed)?,
        residual: None,
        output: FloatViewMut::contiguous(&mut output, shape).map_err(failed)?,
    };
    rms_norm::reference(&rms_norm::Spec::new(config).map_err(failed)?, operands)?;
    Ok(output)
}

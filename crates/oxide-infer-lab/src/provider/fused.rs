//! Products of the normalized residual stream (`norm=rms`), on the cases of what follows the norm.

use super::cache::{packed, rotations, sizes};
use super::chained;
use super::{Judged, OxideTile, Refusal, failed, with};
use crate::call::Call;
use half::bf16;
use oxide_infer::conformance::Operators;
use oxide_infer::gemm::{dense, dense_swiglu};
use oxide_infer::kv_cache::rope_append;
use oxide_infer::normalization::rms_norm;
use oxide_infer::{Contract, DType, FloatView, FloatViewMut, Presence, Spec as _};
use oxide_infer_cuda::artifact::Request;

/// Added to the mean square of about 1 at most: so large that it shows.
pub(super) const EPSILON: f32 = 0.01;

/// Weights of a norm over `k` elements. They are powers of two, so that a weighted `bf16`, which a kernel rounds, is exact;
/// and so small that a product of `k` of them is about 1.
pub(super) fn weights(k: usize) -> Vec<bf16> {
    let root = (k as f32).sqrt().log2().floor() as i32;
    (0..k).map(|i| bf16::from_f32(2.0_f32.powi((i * 5 % 3) as i32 - 1 - root))).collect()
}

/// A row of any type as the residual stream.
pub(super) fn stream(input: &FloatView<'_, 2>) -> Vec<f32> {
    let [m, k] = input.shape();
    (0..m * k).map(|i| input.at([i / k, i % k])).collect()
}

/// How an artifact comes to a normalized input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputNorm {
    /// `norm=rms`: it normalizes the residual stream.
    Rms,
    /// `norm=squares`: the stream was weighted before, and sums of its squares are given.
    Squares,
}

/// What artifacts of `gemm.dense` with a norm are compared with: the norm in `f32`, and then the product.
pub(crate) struct NormedProducts(pub(crate) InputNorm);

impl NormedProducts {
    fn normed(&self, input: &FloatView<'_, 2>) -> Result<Vec<f32>, Refusal> {
        match self.0 {
            InputNorm::Rms => normed(input),
            InputNorm::Squares => Ok(chained::scaled(input)),
        }
    }
}

impl Operators for NormedProducts {
    fn dense(&mut self, spec: &dense::Spec, operands: dense::Operands<'_>) -> Result<(), Refusal> {
        operands.check(spec)?;
        let input = self.normed(&operands.input)?;
        let input = FloatView::contiguous(&input, operands.input.shape()).map_err(failed)?;
        let config = dense::Config { input: DType::F32, ..spec.config().clone() };
        let spec = dense::Spec::new(config).map_err(failed)?;
        Ok(dense::reference(&spec, dense::Operands { input, ..operands })?)
    }

    fn dense_swiglu(
        &mut self,
        spec: &dense_swiglu::Spec,
        operands: dense_swiglu::Operands<'_>,
    ) -> Result<(), Refusal> {
        operands.check(spec)?;
        let input = self.normed(&operands.input)?;
        let input = FloatView::contiguous(&input, operands.input.shape()).map_err(failed)?;
        let config = dense_swiglu::Config { input: DType::F32, ..spec.config().clone() };
        let spec = dense_swiglu::Spec::new(config).map_err(failed)?;
        Ok(dense_swiglu::reference(&spec, dense_swiglu::Operands { input, ..operands })?)
    }
}

fn normed(input: &FloatView<'_, 2>) -> Result<Vec<f32>, Refusal> {
    let [m, k] = input.shape();
    let config = rms_norm::Config {
        dtype: DType::F32,
        weight_dtype: DType::BF16,
        output_dtype: DType::F32,
        hidden_size: k,
        epsilon: EPSILON,
        residual: Presence::Absent,
    };
    let (input, weight, mut output) = (stream(input), weights(k), vec![0.0; m * k]);
    let operands = rms_norm::Operands {
        input: FloatView::contiguous(&input, [m, 1, k]).map_err(failed)?,
        weight: FloatView::contiguous(&weight, [k]).map_err(failed)?,
        residual: None,
        output: FloatViewMut::contiguous(&mut output, [m, 1, k]).map_err(failed)?,
    };
    rms_norm::reference(&rms_norm::Spec::new(config).map_err(failed)?, operands)?;
    Ok(output)
}

/// `kv_cache.rope_append` with `qkv=projected`: the case's heads are what the projection comes to.
pub(super) fn rope_append(
    tile: &mut OxideTile,
    spec: &rope_append::Spec,
    operands: rope_append::Operands<'_>,
) -> Result<(), Refusal> {
    let ([tokens, _, head_dim], [batch, _]) = (operands.q.shape(), operands.block_table.shape());
    if (tokens, batch) != (1, 1) {
        return Err(Refusal::NotAdmitted(format!("{tokens} tokens of {batch} sequences are not one of one")));
    }
    let judged = Judged(Contract::ROPE_APPEND, operands.check_indices(spec));
    let made = Projection::onto(&packed(&[&operands.q, &operands.k, &operands.v]), tile.has("bias", "bf16"));
    let rotations = rotations(spec.config().rope.clone(), &operands.positions)?;
    let tables = sizes(operands.k_pages.shape(), operands.block_table.shape());
    let more = [
        ("tokens", tokens),
        ("hidden_size", HIDDEN_SIZE),
        ("max_positions", rotations.len() / head_dim.max(1)),
    ];
    let bias = if made.bias.is_some() { "bf16" } else { "absent" };
    let properties = [("qkv", "projected"), ("norm", "rms"), ("bias", bias), ("qk_norm", "absent")];
    let asked =
        properties.iter().fold(Request::from(spec), |asked, (name, value)| asked.property(name, *value));
    let mut call = Call::new(tile.tiled(with(with(asked, &tables), &more)));
    call.read_list("input", &made.input);
    call.read_list("norm_weight", &made.norm_weight);
    call.read_list("weight", &made.weight);
    if let Some(bias) = &made.bias {
        call.read_list("bias", bias);
    }
    call.attribute("epsilon", made.epsilon);
    call.read("positions", &operands.positions)?;
    call.read("block_table", &operands.block_table)?;
    call.read_list("rotations", &rotations);
    call.write_float("q_out", operands.q_out)?;
    call.read_write_float("k_pages", operands.k_pages)?;
    call.read_write_float("v_pages", operands.v_pages)?;
    tile.run_judged(call, judged)
}

/// Elements of the residual stream: more than a stage of the kernels, and no multiple of one.
const HIDDEN_SIZE: usize = 864;

/// A residual stream and weights whose projection is known.
struct Projection {
    input: Vec<f32>,
    norm_weight: Vec<bf16>,
    weight: Vec<bf16>,
    bias: Option<Vec<bf16>>,
    epsilon: f32,
}

impl Projection {
    /// Each row of the weight has `target` at a place of its own, beside it what takes the bias away again, and everywhere
    /// else pairs that cancel. Every number is a `bf16` and every sum exact, so that a projection that is not rounded
    /// is the target.
    fn onto(target: &[bf16], biased: bool) -> Self {
        // The mean square is 4, and with 12 more its root is 4.
        let input: Vec<f32> = (0..HIDDEN_SIZE).map(|i| if i * 7 % 5 < 2 { -2.0 } else { 2.0 }).collect();
        let norm_weight: Vec<f32> = (0..HIDDEN_SIZE).map(|i| [0.5, 1.0, 2.0][i * 5 % 3]).collect();
        let normed: Vec<f32> = input.iter().zip(&norm_weight).map(|(x, w)| x / 4.0 * w).collect();
        let bias = |row: usize| if biased { (row * 3 % 7) as f32 / 4.0 - 0.75 } else { 0.0 };
        let row = |row: usize| {
            let own = row % (HIDDEN_SIZE / 2);
            let normed = &normed;
            (0..HIDDEN_SIZE / 2).flat_map(move |pair| {
                let [first, second] = [normed[2 * pair], normed[2 * pair + 1]];
                if pair == own {
                    return [target[row].to_f32() / first, -bias(row) / second];
                }
                let noise = ((row * 7 + pair * 13) % 15) as f32 / 8.0 - 0.875;
                [noise / first, -noise / second]
            })
        };
        Self {
            input,
            norm_weight: norm_weight.into_iter().map(bf16::from_f32).collect(),
            weight: (0..target.len()).flat_map(row).map(bf16::from_f32).collect(),
            bias: biased.then(|| (0..target.len()).map(bias).map(bf16::from_f32).collect()),
            epsilon: 12.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_projection_comes_to_its_target() {
        let target: Vec<_> = (0..1000).map(|i| bf16::from_f32((i as f32 * 0.37).sin() * 3.0)).collect();
        for biased in [false, true] {
            // Cases of another type are refused by their properties.
            let made = Projection::onto(&target, biased);
            let mean = made.input.iter().map(|x| x * x).sum::<f32>() / HIDDEN_SIZE as f32;
            let scale = 1.0 / (mean + made.epsilon).sqrt();
            for (row, weight) in made.weight.chunks(HIDDEN_SIZE).enumerate() {
                let terms = made.input.iter().zip(&made.norm_weight).zip(weight);
                let sum: f64 = terms.map(|((x, g), w)| f64::from(x * scale * g.to_f32() * w.to_f32())).sum();
                let bias = made.bias.as_ref().map_or(0.0, |bias| bias[row].to_f64());
                assert_eq!(sum + bias, target[row].to_f64(), "row {row}");
            }
        }
    }
}

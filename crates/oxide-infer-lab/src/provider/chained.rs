//! Products with a norm spread over them (`residual=weighted` and `norm=squares`), on the cases of what is around the norm.

use super::cache::{packed, rotations, sizes};
use super::{Judged, OxideTile, Refusal, failed, with};
use crate::call::Call;
use half::bf16;
use oxide_infer::conformance::Operators;
use oxide_infer::gemm::{dense, dense_swiglu};
use oxide_infer::kv_cache::rope_append;
use oxide_infer::{Contract, DType, FloatView, FloatViewMut, Presence, Spec as _};
use oxide_infer_cuda::artifact::Request;

/// Elements of the residual stream whose squares are one sum.
const SQUARES: usize = 8;
/// Added to the mean square of about 1 to 3: so large that it shows.
pub(super) const EPSILON: f32 = 0.25;

/// Sums of squares `[m, k / 8]` that differ from row to row and in it. What they are sums of does not matter to who reads them.
pub(super) fn squares(m: usize, k: usize) -> Vec<f32> {
    let sum = |row: usize, at: usize| SQUARES as f32 * (1.0 + (row * 3 % 5 + at * 7 % 4) as f32 / 4.0);
    (0..m).flat_map(|row| (0..k / SQUARES).map(move |at| sum(row, at))).collect()
}

/// The input as a product that sums `squares` takes it: each row over its root mean square.
pub(super) fn scaled(input: &FloatView<'_, 2>) -> Vec<f32> {
    let [m, k] = input.shape();
    let squares = squares(m, k);
    let scale = |row: usize| {
        let sums = squares[row * (k / SQUARES)..][..k / SQUARES].iter().map(|&sum| f64::from(sum));
        1.0 / (sums.sum::<f64>() / k as f64 + f64::from(EPSILON)).sqrt()
    };
    let row = |row: usize| {
        let scale = scale(row);
        (0..k).map(move |at| (f64::from(input.at([row, at])) * scale) as f32)
    };
    (0..m).flat_map(row).collect()
}

/// What artifacts of `gemm.dense` with `norm=squares` are compared with: the scale in `f32`, and then the product.
pub(crate) struct ScaledProducts;

impl Operators for ScaledProducts {
    fn dense(&mut self, spec: &dense::Spec, operands: dense::Operands<'_>) -> Result<(), Refusal> {
        operands.check(spec)?;
        let input = scaled(&operands.input);
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
        let input = scaled(&operands.input);
        let input = FloatView::contiguous(&input, operands.input.shape()).map_err(failed)?;
        let config = dense_swiglu::Config { input: DType::F32, ..spec.config().clone() };
        let spec = dense_swiglu::Spec::new(config).map_err(failed)?;
        Ok(dense_swiglu::reference(&spec, dense_swiglu::Operands { input, ..operands })?)
    }
}

/// `gemm.dense` with `residual=weighted`: the case's output, and what leaves beside it, which is judged by that output.
pub(super) fn weighted(
    tile: &mut OxideTile,
    spec: &dense::Spec,
    operands: dense::Operands<'_>,
) -> Result<(), Refusal> {
    let ([m, n], [_, k]) = (operands.output.shape(), operands.input.shape());
    let Some(residual) = &operands.residual else {
        return Err(Refusal::NotAdmitted("there is no residual".to_owned()));
    };
    let mut output = vec![0.0_f32; m * n];
    let mut begun = BegunNorm::new(m, n);
    let mut call = Call::new(with(Request::from(spec), &[("m", m)]).property("residual", "weighted"));
    call.read_float("input", &operands.input)?;
    call.read_float("weight", &super::dense_only("weight", &operands.weight)?)?;
    call.read_float("residual", residual)?;
    call.write_list("output", &mut output);
    begun.operands(&mut call);
    tile.run(call)?;
    begun.check(&output).map_err(|what| Refusal::Failed(format!("of {m} rows of {n} by {k}: {what}")))?;
    let mut taken = operands.output;
    (0..m * n).for_each(|i| taken.set([i / n, i % n], output[i]));
    Ok(())
}

/// `embedding.gather` with `norm=weighted`: the case's rows, and what leaves beside them, which is judged by them.
pub(super) fn gathered(
    tile: &mut OxideTile,
    call: Call<'_>,
    judged: Judged,
    rows: FloatViewMut<'_, 2>,
) -> Result<(), Refusal> {
    let [tokens, hidden] = rows.shape();
    let mut output = vec![0.0_f32; tokens * hidden];
    let mut begun = BegunNorm::new(tokens, hidden);
    let mut call = call;
    call.write_list("output", &mut output);
    begun.operands(&mut call);
    tile.run_judged(call, judged)?;
    begun.check(&output).map_err(|what| Refusal::Failed(format!("of {tokens} rows of {hidden}: {what}")))?;
    let mut taken = rows;
    (0..output.len()).for_each(|i| taken.set([i / hidden, i % hidden], output[i]));
    Ok(())
}

/// What leaves beside `n` elements of the residual stream of each of `m` rows, for the norm after it.
pub(crate) struct BegunNorm {
    weight: Vec<bf16>,
    weighted: Vec<bf16>,
    squares: Vec<f32>,
}

impl BegunNorm {
    pub(crate) fn new(m: usize, n: usize) -> Self {
        Self {
            weight: (0..n).map(|i| bf16::from_f32(0.3 + (i * 5 % 11) as f32 * 0.17)).collect(),
            weighted: vec![bf16::ZERO; m * n],
            squares: vec![0.0; m * (n / SQUARES)],
        }
    }

    pub(crate) fn operands<'a>(&'a mut self, call: &mut Call<'a>) {
        call.read_list("norm_weight", &self.weight);
        call.write_list("weighted", &mut self.weighted);
        call.write_list("squares", &mut self.squares);
    }

    /// Whether it follows from the residual stream.
    pub(crate) fn check(&self, output: &[f32]) -> Result<(), String> {
        check_weighted(output, &self.weight, &self.weighted, &self.squares)
    }
}

/// What leaves beside the residual stream follows from it: weighted by one multiplication and one rounding, and squares by
/// eight multiplications and sums.
fn check_weighted(output: &[f32], norm: &[bf16], weighted: &[bf16], squares: &[f32]) -> Result<(), String> {
    let of = |i: usize| bf16::from_f32(output[i] * norm[i % norm.len()].to_f32());
    if let Some(i) = (0..output.len()).find(|&i| weighted[i].to_bits() != of(i).to_bits()) {
        return Err(format!("weighted[{i}] should be {}, got {}", of(i), weighted[i]));
    }
    let sums = output.chunks_exact(SQUARES);
    for (i, (eight, &got)) in sums.zip(squares).enumerate() {
        let want: f64 = eight.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        // Eight roundings of products and eight of sums, all of them of positive numbers.
        if (f64::from(got) - want).abs() > want * 16.0 * f64::from(f32::EPSILON) || got.is_nan() {
            return Err(format!("squares[{i}] should be {want}, got {got}"));
        }
    }
    Ok(())
}

/// `kv_cache.rope_append` with `qkv=projected`: the case's heads are what the projections come to.
pub(super) fn rope_append(
    tile: &mut OxideTile,
    spec: &rope_append::Spec,
    operands: rope_append::Operands<'_>,
) -> Result<(), Refusal> {
    operands.check(spec)?;
    let ([tokens, _, head_dim], [batch, _]) = (operands.q.shape(), operands.block_table.shape());
    if tokens == 0 {
        return Ok(());
    }
    let one_each = (0..=batch).all(|i| operands.query_start.at([i]) == i as i32);
    if tokens != batch || !one_each || tokens > MOST_TOKENS {
        return Err(Refusal::NotAdmitted(format!(
            "{tokens} tokens of {batch} sequences are not one of each, up to {MOST_TOKENS}"
        )));
    }
    // Before weights are made, which takes longer than all other cases do.
    tile.check_shape(with(Request::from(spec), &[("tokens", tokens)]).dimensions())?;
    let judged = Judged(Contract::ROPE_APPEND, operands.check_indices(spec));
    let heads = packed(&[&operands.q, &operands.k, &operands.v]);
    let made = Projections::onto(&heads, tokens, Form::of(tile));
    let rotations = rotations(spec.config().rope.clone(), &operands.positions)?;
    let tables = sizes(operands.k_pages.shape(), operands.block_table.shape());
    let more = [
        ("tokens", tokens),
        ("hidden_size", made.form.hidden_size),
        ("max_positions", rotations.len() / head_dim.max(1)),
    ];
    let property = |presence, value| if presence == Presence::Present { value } else { "absent" };
    let (norm, bias) = (property(made.form.squares, "squares"), property(made.form.bias, "bf16"));
    let properties = [("qkv", "projected"), ("norm", norm), ("bias", bias), ("qk_norm", "absent")];
    let asked =
        properties.iter().fold(Request::from(spec), |asked, (name, value)| asked.property(name, *value));
    let mut call = Call::new(with(with(asked, &tables), &more));
    call.read_list("input", &made.input);
    if let Some((squares, epsilon)) = &made.norm {
        call.read_list("squares", squares);
        call.attribute("epsilon", *epsilon);
    }
    call.read_list("weight", &made.weight);
    if let Some(bias) = &made.bias {
        call.read_list("bias", bias);
    }
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
/// Of an artifact's only case: so many that every range of them takes each stage of the kernels again.
const LONG_HIDDEN_SIZE: usize = 3616;
/// Tokens that have a column of the weight of their own, with room for what all of them share.
const MOST_TOKENS: usize = 512;

/// Which projections an artifact computes.
#[derive(Clone, Copy)]
struct Form {
    hidden_size: usize,
    bias: Presence,
    /// Whether tokens are weighted only, and come with sums of squares.
    squares: Presence,
}

impl Form {
    fn of(tile: &OxideTile) -> Self {
        let presence = |found| if found { Presence::Present } else { Presence::Absent };
        Self {
            hidden_size: if tile.shape.is_some() { LONG_HIDDEN_SIZE } else { HIDDEN_SIZE },
            bias: presence(tile.has("bias", "bf16")),
            squares: presence(tile.has("norm", "squares")),
        }
    }
}

/// Tokens, weighted or normalized, and weights whose projections are known.
struct Projections {
    form: Form,
    input: Vec<bf16>,
    /// Sums of squares and an epsilon, of tokens that are weighted only.
    norm: Option<(Vec<f32>, f32)>,
    weight: Vec<bf16>,
    bias: Option<Vec<bf16>>,
}

impl Projections {
    /// Each token has a column of the weight of its own, which holds its heads; one column takes the bias away again; and
    /// the other columns are pairs that cancel. Every number is a `bf16` and every sum exact, so that projections that are
    /// not rounded are the heads.
    fn onto(heads: &[bf16], tokens: usize, form: Form) -> Self {
        let (width, hidden_size) = (heads.len() / tokens, form.hidden_size);
        let (biased, scaled) = (form.bias == Presence::Present, form.squares == Presence::Present);
        // Mean squares of 4, 52 and 244: with 12 more their roots are 4, 8 and 16.
        let root = |token: usize| if scaled { [4.0_f32, 8.0, 16.0][token % 3] } else { 1.0 };
        let epsilon = 12.0;
        let sum = |token: usize, at: usize| {
            let uneven = if at.is_multiple_of(2) { 1.5 } else { 0.5 };
            SQUARES as f32 * (root(token) * root(token) - epsilon) * uneven
        };
        let input = |token: usize, at: usize| match at {
            _ if at == token || at == MOST_TOKENS => root(token),
            _ if at < MOST_TOKENS + 2 => 0.0,
            _ => [0.5, 1.0, 2.0][at / 2 % 3],
        };
        let bias = |row: usize| if biased { (row * 3 % 7) as f32 / 4.0 - 0.75 } else { 0.0 };
        let weight = |row: usize, at: usize| match at {
            _ if at < tokens => heads[at * width + row],
            _ if at < MOST_TOKENS => bf16::ONE,
            _ if at < MOST_TOKENS + 2 => bf16::from_f32(-bias(row)),
            _ => {
                let noise = ((row * 7 + at / 2 * 13) % 15) as f32 / 8.0 - 0.875;
                bf16::from_f32(if at.is_multiple_of(2) { noise } else { -noise })
            }
        };
        Self {
            form,
            input: grid(tokens, hidden_size, |token, at| bf16::from_f32(input(token, at))),
            norm: scaled.then(|| (grid(tokens, hidden_size / SQUARES, sum), epsilon)),
            weight: grid(width, hidden_size, weight),
            bias: biased.then(|| (0..width).map(bias).map(bf16::from_f32).collect()),
        }
    }
}

fn grid<T>(rows: usize, columns: usize, at: impl Fn(usize, usize) -> T) -> Vec<T> {
    (0..rows * columns).map(|i| at(i / columns, i % columns)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projections_come_to_their_heads() {
        let (tokens, width) = (7, 130);
        let heads: Vec<_> =
            (0..tokens * width).map(|i| bf16::from_f32((i as f32 * 0.37).sin() * 3.0)).collect();
        let (absent, present) = (Presence::Absent, Presence::Present);
        for (hidden_size, bias, squares) in [
            (HIDDEN_SIZE, absent, present),
            (LONG_HIDDEN_SIZE, present, present),
            (LONG_HIDDEN_SIZE, absent, absent),
            (HIDDEN_SIZE, present, absent),
        ] {
            let made = Projections::onto(&heads, tokens, Form { hidden_size, bias, squares });
            for token in 0..tokens {
                let input = &made.input[token * hidden_size..][..hidden_size];
                let scale = made.norm.as_ref().map_or(1.0, |(squares, epsilon)| {
                    let squares = &squares[token * hidden_size / SQUARES..][..hidden_size / SQUARES];
                    let mean = squares.iter().sum::<f32>() / hidden_size as f32;
                    1.0 / f64::from(mean + epsilon).sqrt()
                });
                for row in 0..width {
                    let weight = &made.weight[row * hidden_size..][..hidden_size];
                    let sum: f64 = input.iter().zip(weight).map(|(x, w)| x.to_f64() * w.to_f64()).sum();
                    let bias = made.bias.as_ref().map_or(0.0, |bias| bias[row].to_f64());
                    assert_eq!(sum * scale + bias, heads[token * width + row].to_f64(), "{token}, {row}");
                }
            }
        }
    }

    #[test]
    fn what_leaves_beside_the_stream_must_follow_from_it() {
        let output: Vec<f32> = (0..16).map(|i| i as f32 - 3.0).collect();
        let norm = vec![bf16::from_f32(0.5); 16];
        let weighted: Vec<_> = output.iter().map(|x| bf16::from_f32(x / 2.0)).collect();
        // 9 + 4 + 1 + 0 + 1 + 4 + 9 + 16, and 25 + 36 + 49 + 64 + 81 + 100 + 121 + 144.
        let check = |weighted: &[bf16], squares: [f32; 2]| check_weighted(&output, &norm, weighted, &squares);
        assert_eq!(check(&weighted, [44.0, 620.0]), Ok(()));
        assert!(check(&weighted, [44.0, 620.1]).unwrap_err().contains("squares[1] should be 620"));
        assert!(check(&weighted, [f32::NAN, 620.0]).unwrap_err().contains("squares[0]"));
        let mut wrong = weighted;
        wrong[9] = bf16::ONE;
        assert!(check(&wrong, [44.0, 620.0]).unwrap_err().contains("weighted[9] should be 3, got 1"));
    }
}

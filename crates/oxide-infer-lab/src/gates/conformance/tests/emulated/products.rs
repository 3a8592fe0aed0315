//! Products of a few rows.

use super::{Memory, list, put};
use half::bf16;
use oxide_infer_cuda::artifact::{Dimensions, Manifest};

/// `gemm.dense` of any form in which a norm is part of a product.
pub(super) fn product(memory: &mut Memory, dimensions: &Dimensions, manifest: &Manifest) {
    let has = |name: &str, value: &str| {
        manifest.properties.get(name).is_some_and(|found| found.to_string() == value)
    };
    let (n, k) = (dimensions["n"] as usize, dimensions["k"] as usize);
    let mut sums = sums(memory, k);
    if has("activation", "swiglu") {
        let gated = |(gate, up): (&f32, &f32)| gate / (1.0 + (-gate).exp()) * up;
        sums = sums.chunks_exact(2 * n).flat_map(|row| row[..n].iter().zip(&row[n..]).map(gated)).collect();
    }
    if has("residual", "weighted") {
        let residual = list::<f32>(memory, "residual");
        sums.iter_mut().zip(residual).for_each(|(sum, residual)| *sum += residual);
        begin_norm(memory, &sums);
    }
    match has("output", "f32") {
        true => put(memory, "output", &sums),
        false => put(memory, "output", &rounded(&sums)),
    }
}

/// What leaves beside the residual stream for the norm after it.
pub(super) fn begin_norm(memory: &mut Memory, stream: &[f32]) {
    let norm = list::<bf16>(memory, "norm_weight");
    let weighted = stream.iter().zip(norm.iter().cycle()).map(|(x, norm)| x * norm.to_f32());
    put(memory, "weighted", &rounded(&weighted.collect::<Vec<_>>()));
    let square = |eight: &[f32]| eight.iter().map(|x| x * x).sum();
    put(memory, "squares", &stream.chunks_exact(8).map(square).collect::<Vec<f32>>());
}

/// The heads of `kv_cache.rope_append` with `qkv=projected`, as the packed form has them.
pub(super) fn project(memory: &mut Memory, dimensions: &Dimensions) {
    let mut sums = sums(memory, dimensions["hidden_size"] as usize);
    if memory.contains_key("bias") {
        let bias = list::<bf16>(memory, "bias");
        sums.iter_mut().zip(bias.iter().cycle()).for_each(|(sum, bias)| *sum += bias.to_f32());
    }
    put(memory, "qkv", &rounded(&sums));
    put(memory, "query_start", &(0..=dimensions["tokens"] as i32).collect::<Vec<_>>());
}

/// Each row of the input times each row of the weight. With a norm the input was weighted before, and the sums are
/// scaled.
fn sums(memory: &Memory, k: usize) -> Vec<f32> {
    let weight: Vec<f64> = list::<bf16>(memory, "weight").iter().map(|x| x.to_f64()).collect();
    let projects = memory.contains_key("q_out");
    let given = || list::<bf16>(memory, "input").into_iter().map(bf16::to_f32).collect();
    let (input, scales): (Vec<f32>, Vec<f32>) = if memory.contains_key("squares") && !writes_squares(memory) {
        let squares = list::<f32>(memory, "squares");
        let mean = |row: &[f32]| row.iter().sum::<f32>() / k as f32;
        // Epsilons are the gate's own: what a call stages of attributes is not memory.
        let epsilon = if projects { 12.0 } else { 0.25 };
        let scale = |row: &[f32]| 1.0 / (mean(row) + epsilon).sqrt();
        (given(), squares.chunks_exact(k / 8).map(scale).collect())
    } else {
        let input: Vec<f32> = given();
        let rows = input.len() / k;
        (input, vec![1.0; rows])
    };
    let dot = |row: &[f32], weight: &[f64]| {
        row.iter().zip(weight).map(|(x, w)| f64::from(*x) * w).sum::<f64>() as f32
    };
    let of = |(row, scale): (&[f32], f32)| {
        weight.chunks_exact(k).map(|weight| dot(row, weight) * scale).collect::<Vec<_>>()
    };
    input.chunks_exact(k).zip(scales).flat_map(of).collect()
}

/// Whether the squares are a result.
fn writes_squares(memory: &Memory) -> bool {
    memory.contains_key("weighted")
}

fn rounded(values: &[f32]) -> Vec<bf16> {
    values.iter().copied().map(bf16::from_f32).collect()
}

//! Products of one row.

use super::cache::round;
use super::{Memory, list, put};
use half::bf16;
use oxide_infer_cuda::artifact::{Dimensions, Manifest};

/// `gemm.dense` of any form that a kernel of one row has.
pub(super) fn product(memory: &mut Memory, dimensions: &Dimensions, manifest: &Manifest) {
    let has = |name: &str, value: &str| {
        manifest.properties.get(name).is_some_and(|found| found.to_string() == value)
    };
    let mut sums = sums(memory);
    if has("activation", "swiglu") {
        let up = sums.split_off(dimensions["n"] as usize);
        let gated = |(gate, up): (&f32, f32)| gate / (1.0 + (-gate).exp()) * up;
        sums = sums.iter().zip(up).map(gated).collect();
    }
    if has("residual", "present") {
        let residual = list::<f32>(memory, "residual");
        sums.iter_mut().zip(residual).for_each(|(sum, residual)| *sum += residual);
    }
    match has("output", "f32") {
        true => put(memory, "output", &sums),
        false => put(memory, "output", &rounded(&sums)),
    }
}

/// The heads of `kv_cache.rope_append` with `qkv=projected`, as the packed form has them.
pub(super) fn project(memory: &mut Memory) {
    let mut sums = sums(memory);
    if memory.contains_key("bias") {
        let bias = list::<bf16>(memory, "bias");
        sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias.to_f32());
    }
    put(memory, "qkv", &rounded(&sums));
    put(memory, "query_start", &[0, 1]);
}

/// Each row of the weight times the input; with a norm the input is weighted and rounded, and the sums are scaled.
fn sums(memory: &Memory) -> Vec<f32> {
    let (mut scale, weight) = (1.0, list::<bf16>(memory, "weight"));
    let input: Vec<f32> = if memory.contains_key("norm_weight") {
        let (stream, norm) = (list::<f32>(memory, "input"), list::<bf16>(memory, "norm_weight"));
        let mean = stream.iter().map(|x| x * x).sum::<f32>() / stream.len() as f32;
        // The gate's own: what a call stages of attributes is not memory.
        let epsilon = if memory.contains_key("q_out") { 12.0 } else { 0.01 };
        scale = 1.0 / (mean + epsilon).sqrt();
        stream.iter().zip(norm).map(|(x, weight)| round(x * weight.to_f32())).collect()
    } else {
        list::<bf16>(memory, "input").into_iter().map(bf16::to_f32).collect()
    };
    let dot = |row: &[bf16]| {
        row.iter().zip(&input).map(|(w, x)| f64::from(w.to_f32()) * f64::from(*x)).sum::<f64>()
    };
    weight.chunks_exact(input.len()).map(|row| dot(row) as f32 * scale).collect()
}

fn rounded(values: &[f32]) -> Vec<bf16> {
    values.iter().copied().map(bf16::from_f32).collect()
}

//! Times matrix products at the shapes of a 135M-parameter model (SmolLM2), in the formats of its GGUF file.
//!
//!     cargo run --release -p oxide-infer-cpu --example gemm_bench -- [threads] [rows …]
//!
//! Every shape is timed over enough copies of the weight that they do not fit the caches, as in a model. Of the passes the
//! fastest and the median are printed, in microseconds a product, and billions of multiply-adds a second of the fastest.

use oxide_infer::quantization::BlockFormat;
use oxide_infer::{DType, WeightFormat};
use oxide_infer_cpu::{CpuProvider, PackedMatrix, Update, gemm};
use std::num::NonZeroUsize;
use std::time::Instant;

/// Passes over the copies.
const PASSES: usize = 9;

/// Name, output features, input features, products in one token.
const SHAPES: [(&str, usize, usize, usize); 5] = [
    ("q|k|v", 960, 576, 30),
    ("attention out", 576, 576, 30),
    ("gate|up", 3072, 576, 30),
    ("down", 576, 1536, 30),
    ("logits", 49152, 576, 1),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let threads = arguments.next().transpose()?.unwrap_or(2);
    let mut rows = arguments.collect::<Result<Vec<_>, _>>()?;
    if rows.is_empty() {
        rows = vec![1, 2, 4, 8, 512];
    }
    let mut cpu = CpuProvider::new(NonZeroUsize::new(threads).ok_or("threads must be at least 1")?)?;

    for m in rows {
        let mut token = 0.0;
        for (name, n, k, count) in SHAPES {
            let format = if n == 49152 { BlockFormat::Q8_0 } else { BlockFormat::Q4_1 };
            let micros = time(&mut cpu, &format!("{name:14}"), WeightFormat::Blocks(format), m, n, k)?;
            if m == 1 || n != 49152 {
                token += micros * count as f64;
            }
        }
        println!(
            "m {m:4}  all products of a step {:.2} ms, {:.0} tokens/s\n",
            token / 1e3,
            1e6 * m as f64 / token
        );
    }
    for format in BlockFormat::ALL.map(WeightFormat::Blocks).into_iter().chain([
        WeightFormat::Dense(DType::F32),
        WeightFormat::Dense(DType::F16),
        WeightFormat::Dense(DType::BF16),
    ]) {
        for m in [1, 8] {
            time(&mut cpu, "any", format, m, 2048, 2048)?;
        }
    }
    Ok(())
}

/// Microseconds a product, in the fastest pass.
fn time(
    cpu: &mut CpuProvider,
    name: &str,
    format: WeightFormat,
    m: usize,
    n: usize,
    k: usize,
) -> Result<f64, Box<dyn std::error::Error>> {
    let row_bytes = match format {
        WeightFormat::Dense(dtype) => k * dtype.size(),
        WeightFormat::Blocks(format) => format.bytes_for(k)?,
    };
    let copies = (64 << 20) / (n * row_bytes) + 1;
    let mut weights = Vec::new();
    for _ in 0..copies {
        let mut weight = PackedMatrix::new(k);
        // Bytes of 0x11 are small ordinary numbers in every format.
        weight.push(format, n, &vec![0x11; n * row_bytes])?;
        weights.push(weight);
    }
    let input = vec![0.5; m * k];
    let mut output = vec![0.0; m * n];
    let products = weights.len().min(4096 / m + 1);
    let mut passes: Vec<f64> = Vec::new();
    for _ in 0..PASSES {
        let seconds = cpu.step(|team| {
            let start = Instant::now();
            for weight in &weights[..products] {
                gemm(team, &input, weight, None, Update::Overwrite, &mut output)?;
            }
            Ok::<_, oxide_infer_cpu::CpuError>(start.elapsed().as_secs_f64())
        })?;
        passes.push(seconds / products as f64);
    }
    passes.sort_by(f64::total_cmp);
    let (least, median) = (passes[0] * 1e6, passes[passes.len() / 2] * 1e6);
    let rate = (m * n * k) as f64 / least / 1e3;
    println!(
        "m {m:4}  {name} [{n}, {k}] {:5} {least:10.1} us, median {median:10.1} us {rate:7.2} GFMA/s",
        format.name()
    );
    Ok(least)
}

//! What is timed: sizes of Qwen2.5-1.5B and Llama-3-8B.

use anyhow::Result;
use oxide_infer::attention::{Attention, single_decode};
use oxide_infer::gemm::dense;
use oxide_infer::kv_cache::{PageLayout, Paging, rope_append};
use oxide_infer::normalization::rms_norm;
use oxide_infer::position::rope;
use oxide_infer::{DType, Presence, WeightFormat};
use oxide_infer_cuda::artifact::Request;

/// What an H200 reads and writes in a microsecond, at best.
const BYTES_PER_US: f64 = 4.2e6;
/// Microseconds that a launch takes in a graph.
const LAUNCH_US: f64 = 2.5;
/// Blocks that share the keys of a sequence, where an algorithm leaves that open.
const SPLITS: [u64; 3] = [16, 32, 64];

/// One operator at one size.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) name: String,
    request: Request,
    /// Bytes that it must read and write.
    pub(super) bytes: usize,
    /// Whether some of its algorithms are asked for with a number of shares.
    splits: &'static [u64],
}

pub(super) fn works() -> Result<Vec<Work>> {
    let mut works = Vec::new();
    for (dtype, tokens, hidden_size) in [
        (DType::BF16, 1, 1536),
        (DType::BF16, 256, 1536),
        (DType::BF16, 8192, 1536),
        (DType::BF16, 16_384, 4096),
        (DType::F16, 256, 4096),
        (DType::F32, 256, 1536),
    ] {
        works.push(rms_norm(dtype, tokens, hidden_size)?);
    }
    for [n, k] in [
        [2048, 1536],
        [1536, 1536],
        [17_920, 1536],
        [1536, 8960],
        [6144, 4096],
        [4096, 14_336],
        [151_936, 1536],
    ] {
        works.push(gemv(n, k)?);
    }
    for (tokens, batch, heads) in
        [(1, 1, [12, 2]), (64, 64, [12, 2]), (2048, 1, [12, 2]), (256, 256, [32, 8])]
    {
        works.push(rope_append(tokens, batch, heads)?);
    }
    for (kv_len, heads) in [
        (1024, [12, 2]),
        (4096, [12, 2]),
        (32_768, [12, 2]),
        (1024, [32, 8]),
        (4096, [32, 8]),
        (32_768, [32, 8]),
        (4096, [32, 32]),
    ] {
        works.push(single_decode(kv_len, heads)?);
    }
    Ok(works)
}

impl Work {
    /// Microseconds that its bytes take, and a launch. Launches of a graph that follow each other take less.
    pub(super) fn floor(&self) -> f64 {
        self.bytes as f64 / BYTES_PER_US + LAUNCH_US
    }

    /// The request, with every choice that an algorithm may ask for, and how the choice is named.
    pub(super) fn requests(&self) -> Vec<(String, Request)> {
        let with =
            |splits: &u64| (format!(" splits={splits}"), self.request.clone().dimension("splits", *splits));
        [(String::new(), self.request.clone())].into_iter().chain(self.splits.iter().map(with)).collect()
    }

    /// What an operand that holds indices must hold: sequences of equal length, from their first page on.
    pub(super) fn indices(&self, operand: &str) -> Option<Vec<i32>> {
        let size = |name: &str| self.request.dimensions().get(name).copied().unwrap_or(1) as i32;
        let (tokens, batch) = (size("tokens"), size("batch"));
        let each = tokens / batch;
        match operand {
            "positions" => Some((0..tokens).map(|token| token % each).collect()),
            "query_start" => Some((0..=batch).map(|sequence| sequence * each).collect()),
            "block_table" => Some((0..batch * size("max_pages")).collect()),
            _ => None,
        }
    }
}

fn rms_norm(dtype: DType, tokens: usize, hidden_size: usize) -> Result<Work> {
    let residual = Presence::Absent;
    let config = rms_norm::Config {
        dtype,
        weight_dtype: dtype,
        output_dtype: dtype,
        hidden_size,
        epsilon: 1e-5,
        residual,
    };
    let request = Request::from(&rms_norm::Spec::new(config)?);
    Ok(Work {
        name: format!("rms_norm {dtype} tokens={tokens} hidden_size={hidden_size}"),
        request: request.dimension("tokens", tokens as u64).dimension("heads", 1),
        bytes: 2 * tokens * hidden_size * if dtype == DType::F32 { 4 } else { 2 },
        splits: &[],
    })
}

fn gemv(n: usize, k: usize) -> Result<Work> {
    let dtype = DType::BF16;
    let (weight, residual) = (WeightFormat::Dense(dtype), Presence::Absent);
    let config = dense::Config { input: dtype, weight, output: dtype, n, k, bias: None, residual };
    let request = Request::from(&dense::Spec::new(config)?).dimension("m", 1);
    Ok(Work { name: format!("gemv bf16 n={n} k={k}"), request, bytes: 2 * n * k, splits: &[] })
}

fn rope_append(tokens: usize, batch: usize, [num_q_heads, num_kv_heads]: [usize; 2]) -> Result<Work> {
    let (dtype, head_dim, page_size) = (DType::BF16, 128, 64);
    let rope = rope::Config {
        dtype,
        head_dim,
        rotary_dim: head_dim,
        pairing: rope::Pairing::NeoX,
        theta: 1e6,
        scaling: rope::Scaling::None,
    };
    let paging = Paging { dtype, layout: PageLayout::Hnd, page_size };
    let spec = rope_append::Spec::new(rope_append::Config { rope, num_q_heads, num_kv_heads, paging })?;
    let pages = (tokens / batch).div_ceil(page_size);
    let sizes = [
        ("tokens", tokens),
        ("batch", batch),
        ("num_pages", batch * pages),
        ("max_pages", pages),
        ("max_positions", pages * page_size),
    ];
    let request = Request::from(&spec).property("qkv", "packed").property("qk_norm", "absent");
    Ok(Work {
        name: format!("rope_append bf16 tokens={tokens} batch={batch} heads={num_q_heads}/{num_kv_heads}"),
        request: sizes
            .into_iter()
            .fold(request, |request, (name, size)| request.dimension(name, size as u64)),
        bytes: 2 * 2 * tokens * (num_q_heads + 2 * num_kv_heads) * head_dim,
        splits: &[],
    })
}

fn single_decode(kv_len: usize, [num_q_heads, num_kv_heads]: [usize; 2]) -> Result<Work> {
    let head_dim = 128;
    let attention = Attention {
        dtype: DType::BF16,
        num_q_heads,
        num_kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window: None,
        soft_cap: None,
        lse: Presence::Absent,
    };
    let request = Request::from(&single_decode::Spec::new(attention)?);
    Ok(Work {
        name: format!("single_decode bf16 kv_len={kv_len} heads={num_q_heads}/{num_kv_heads}"),
        request: request.dimension("kv_len", kv_len as u64),
        bytes: 2 * 2 * kv_len * num_kv_heads * head_dim,
        splits: &SPLITS,
    })
}

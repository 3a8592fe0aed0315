//! What specs refuse, in which words, and how they describe themselves.

use oxide_infer::activation::swiglu;
use oxide_infer::attention::{Attention, Mask, paged_decode, paged_prefill, ragged_prefill, single_decode};
use oxide_infer::embedding::gather;
use oxide_infer::gemm::{dense, dense_swiglu};
use oxide_infer::kv_cache::{PageLayout, Paging, paged_append, rope_append};
use oxide_infer::normalization::rms_norm;
use oxide_infer::position::rope::{self, Pairing, Scaling};
use oxide_infer::quantization::BlockFormat;
use oxide_infer::{Contract, DType, Presence, Spec, SpecError, WeightFormat, sampling};

fn says<S: std::fmt::Debug>(spec: Result<S, SpecError>, message: &str) {
    assert_eq!(spec.unwrap_err().to_string(), message);
}

fn norm() -> rms_norm::Config {
    let dtype = DType::BF16;
    rms_norm::Config {
        dtype,
        weight_dtype: dtype,
        output_dtype: dtype,
        hidden_size: 1536,
        epsilon: 1e-6,
        residual: Presence::Present,
    }
}

fn turn() -> rope::Config {
    let (pairing, scaling) = (Pairing::NeoX, Scaling::None);
    rope::Config { dtype: DType::BF16, head_dim: 128, rotary_dim: 128, pairing, theta: 1e6, scaling }
}

fn paging() -> Paging {
    Paging { dtype: DType::BF16, layout: PageLayout::Hnd, page_size: 64 }
}

fn attention() -> Attention {
    Attention {
        dtype: DType::BF16,
        num_q_heads: 12,
        num_kv_heads: 2,
        head_dim: 128,
        scale: 0.088,
        window: None,
        soft_cap: None,
        lse: Presence::Absent,
    }
}

fn linear() -> dense::Config {
    dense::Config {
        input: DType::BF16,
        weight: WeightFormat::Blocks(BlockFormat::Q4_K),
        output: DType::F32,
        n: 10,
        k: 512,
        bias: Some(DType::F32),
        residual: Presence::Absent,
    }
}

#[test]
fn norms_need_floats_a_row_and_an_epsilon() {
    let new = rms_norm::Spec::new;
    let i32 = DType::I32;
    says(
        new(rms_norm::Config { dtype: i32, ..norm() }),
        "normalization.rms_norm v1: dtype must be f32, f16 or bf16, got i32",
    );
    says(
        new(rms_norm::Config { weight_dtype: DType::U8, ..norm() }),
        "normalization.rms_norm v1: weight_dtype must be f32, f16 or bf16, got u8",
    );
    says(
        new(rms_norm::Config { output_dtype: i32, ..norm() }),
        "normalization.rms_norm v1: output_dtype must be f32, f16 or bf16, got i32",
    );
    says(
        new(rms_norm::Config { hidden_size: 0, ..norm() }),
        "normalization.rms_norm v1: hidden_size must be at least 1, got 0",
    );
    for epsilon in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let error = new(rms_norm::Config { epsilon, ..norm() }).unwrap_err();
        assert!(error.to_string().contains("epsilon must be a finite number over 0"), "{error}");
    }
}

#[test]
fn rope_needs_pairs_within_the_head_and_scalings_in_range() {
    let new = rope::Spec::new;
    for rotary_dim in [0, 7, 130] {
        says(
            new(rope::Config { rotary_dim, ..turn() }),
            &format!(
                "position.rope v1: rotary_dim must be even, at least 2 and at most head_dim, got {rotary_dim}"
            ),
        );
    }
    says(
        new(rope::Config { theta: 1.0, ..turn() }),
        "position.rope v1: theta must be a finite number over 1, got 1",
    );
    let scaled = |scaling| new(rope::Config { scaling, ..turn() });
    says(
        scaled(Scaling::Linear { factor: 0.0 }),
        "position.rope v1: scaling.factor must be a finite number over 0, got 0",
    );
    let llama3 = |low_freq_factor, high_freq_factor, original_max_position| {
        scaled(Scaling::Llama3 { factor: 8.0, low_freq_factor, high_freq_factor, original_max_position })
    };
    says(
        llama3(4.0, 1.0, 8192),
        "position.rope v1: scaling.high_freq_factor must be over scaling.low_freq_factor, got 1",
    );
    says(llama3(1.0, 4.0, 0), "position.rope v1: scaling.original_max_position must be at least 1, got 0");
    let yarn = |beta_fast, attention_factor| {
        let (factor, original_max_position, beta_slow) = (4.0, 32768, 1.0);
        scaled(Scaling::Yarn { factor, original_max_position, beta_fast, beta_slow, attention_factor })
    };
    says(yarn(0.5, None), "position.rope v1: scaling.beta_fast must be at least scaling.beta_slow, got 0.5");
    says(
        yarn(32.0, Some(-1.0)),
        "position.rope v1: scaling.attention_factor must be a finite number over 0, got -1",
    );
    assert_eq!(yarn(32.0, Some(1.25)).unwrap().attention_factor(), 1.25);
}

#[test]
fn attention_needs_whole_groups_and_positive_scales() {
    let new = single_decode::Spec::new;
    says(
        new(Attention { num_kv_heads: 5, ..attention() }),
        "attention.single_decode v1: num_q_heads must be a multiple of num_kv_heads (5), got 12",
    );
    says(
        new(Attention { num_kv_heads: 0, ..attention() }),
        "attention.single_decode v1: num_kv_heads must be at least 1, got 0",
    );
    says(
        new(Attention { head_dim: 0, ..attention() }),
        "attention.single_decode v1: head_dim must be at least 1, got 0",
    );
    says(
        new(Attention { scale: -0.5, ..attention() }),
        "attention.single_decode v1: scale must be a finite number over 0, got -0.5",
    );
    says(
        new(Attention { window: Some(0), ..attention() }),
        "attention.single_decode v1: window must be at least 1, got 0",
    );
    says(
        new(Attention { soft_cap: Some(0.0), ..attention() }),
        "attention.single_decode v1: soft_cap must be a finite number over 0, got 0",
    );
}

#[test]
fn every_attention_names_itself_in_its_errors() {
    let wrong = || Attention { num_q_heads: 0, ..attention() };
    let message = |contract: Contract| format!("{contract}: num_q_heads must be at least 1, got 0");
    let (paging, mask) = (paging(), Mask::Causal);
    says(single_decode::Spec::new(wrong()), &message(Contract::SINGLE_DECODE));
    let config = paged_decode::Config { attention: wrong(), paging };
    says(paged_decode::Spec::new(config), &message(Contract::PAGED_DECODE));
    let config = ragged_prefill::Config { attention: wrong(), mask };
    says(ragged_prefill::Spec::new(config), &message(Contract::RAGGED_PREFILL));
    let config = paged_prefill::Config { attention: wrong(), paging, mask };
    says(paged_prefill::Spec::new(config), &message(Contract::PAGED_PREFILL));
}

#[test]
fn pages_hold_floats_and_at_least_one_token() {
    let append = |paging, num_kv_heads| {
        paged_append::Spec::new(paged_append::Config {
            dtype: DType::F32,
            num_kv_heads,
            head_dim: 64,
            paging,
        })
    };
    says(
        append(Paging { page_size: 0, ..paging() }, 2),
        "kv_cache.paged_append v1: paging.page_size must be at least 1, got 0",
    );
    says(
        append(Paging { dtype: DType::U8, ..paging() }, 2),
        "kv_cache.paged_append v1: paging.dtype must be f32, f16 or bf16, got u8",
    );
    says(append(paging(), 0), "kv_cache.paged_append v1: num_kv_heads must be at least 1, got 0");
    let fused = |rope, num_q_heads| {
        rope_append::Spec::new(rope_append::Config { rope, num_q_heads, num_kv_heads: 2, paging: paging() })
    };
    says(fused(turn(), 0), "kv_cache.rope_append v1: num_q_heads must be at least 1, got 0");
    says(
        fused(rope::Config { rotary_dim: 1, ..turn() }, 4),
        "kv_cache.rope_append v1: rotary_dim must be even, at least 2 and at most head_dim, got 1",
    );
}

#[test]
fn block_weights_need_rows_of_whole_blocks() {
    says(
        dense::Spec::new(dense::Config { k: 300, ..linear() }),
        "gemm.dense v1: k must be a multiple of the block size of the weights (256), got 300",
    );
    says(
        gather::Spec::new(gather::Config {
            table: WeightFormat::Blocks(BlockFormat::Q8_0),
            output: DType::F32,
            hidden_size: 33,
        }),
        "embedding.gather v1: hidden_size must be a multiple of the block size of the weights (32), got 33",
    );
    says(
        dense::Spec::new(dense::Config { weight: WeightFormat::Dense(DType::I32), ..linear() }),
        "gemm.dense v1: weight must be f32, f16 or bf16, got i32",
    );
    says(dense::Spec::new(dense::Config { n: 0, ..linear() }), "gemm.dense v1: n must be at least 1, got 0");
    says(
        dense::Spec::new(dense::Config { bias: Some(DType::U32), ..linear() }),
        "gemm.dense v1: bias must be f32, f16 or bf16, got u32",
    );
}

#[test]
fn gated_products_need_sizes_and_floats_and_say_their_activation() {
    let dense::Config { input, weight, output, n, k, .. } = linear();
    let gated = || dense_swiglu::Config { input, weight, output, n, k };
    says(
        dense_swiglu::Spec::new(dense_swiglu::Config { n: 0, ..gated() }),
        "gemm.dense v1: n must be at least 1, got 0",
    );
    says(
        dense_swiglu::Spec::new(dense_swiglu::Config { n: usize::MAX, ..gated() }),
        "gemm.dense v1: n must be at most half of what a size can be, got 18446744073709551615",
    );
    says(
        dense_swiglu::Spec::new(dense_swiglu::Config { output: DType::I32, ..gated() }),
        "gemm.dense v1: output must be f32, f16 or bf16, got i32",
    );
    says(
        dense_swiglu::Spec::new(dense_swiglu::Config { k: 300, ..gated() }),
        "gemm.dense v1: k must be a multiple of the block size of the weights (256), got 300",
    );
    assert_eq!(
        dense_swiglu::Spec::new(gated()).unwrap().describe(),
        "gemm.dense v1 {input=bf16, weight=Q4_K, output=f32, activation=swiglu, n=10, k=512}"
    );
}

#[test]
fn swiglu_and_sampling_need_elements() {
    says(
        swiglu::Spec::new(swiglu::Config { dtype: DType::F16, size: 0 }),
        "activation.swiglu v1: size must be at least 1, got 0",
    );
    says(
        sampling::Spec::new(sampling::Config { vocab_size: 0 }),
        "sampling.sample v1: vocab_size must be at least 1, got 0",
    );
}

#[test]
fn specs_describe_themselves_in_one_line() {
    assert_eq!(
        rms_norm::Spec::new(norm()).unwrap().describe(),
        "normalization.rms_norm v1 {dtype=bf16, weight_dtype=bf16, output_dtype=bf16, residual=present, hidden_size=1536}"
    );
    assert_eq!(
        dense::Spec::new(linear()).unwrap().describe(),
        "gemm.dense v1 {input=bf16, weight=Q4_K, output=f32, bias=f32, residual=absent, n=10, k=512}"
    );
    let config = paged_decode::Config { attention: attention(), paging: paging() };
    assert_eq!(
        paged_decode::Spec::new(config).unwrap().describe(),
        "attention.paged_decode v1 {dtype=bf16, window=none, soft_cap=none, lse=absent, kv_dtype=bf16, \
         page_layout=hnd, num_q_heads=12, num_kv_heads=2, head_dim=128, page_size=64}"
    );
    let config = rope_append::Config { rope: turn(), num_q_heads: 12, num_kv_heads: 2, paging: paging() };
    assert_eq!(
        rope_append::Spec::new(config).unwrap().describe(),
        "kv_cache.rope_append v1 {dtype=bf16, pairing=neox, kv_dtype=bf16, page_layout=hnd, head_dim=128, \
         rotary_dim=128, num_q_heads=12, num_kv_heads=2, page_size=64}"
    );
}

//! Every reference against numbers that other implementations gave (`data/operators.json` says which).

use half::bf16;
use oxide_infer::attention::{Attention, Mask, paged_prefill, ragged_prefill, single_decode};
use oxide_infer::kv_cache::{PageLayout, Paging};
use oxide_infer::position::rope::{self, Pairing, Scaling};
use oxide_infer::{DType, FloatView, FloatViewMut, Presence, View, ViewMut, Weight, WeightFormat};
use oxide_infer::{activation::swiglu, gemm::dense, normalization::rms_norm};
use serde_json::Value;

fn data() -> Value {
    serde_json::from_str(include_str!("data/operators.json")).unwrap()
}

fn expected(values: &Value) -> Vec<f32> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

/// The inputs of the data: numbers in [−1, 1), by their flat index.
fn fill(seed: u64, len: usize) -> Vec<f32> {
    let word = |i: u64| ((i * 7919 + seed * 104_729 + 13) * 2_654_435_761) % (1 << 32);
    (0..len as u64).map(|i| ((word(i) >> 8) as f64 / f64::from(1 << 23) - 1.0) as f32).collect()
}

fn scaled(factor: f32, mut values: Vec<f32>) -> Vec<f32> {
    values.iter_mut().for_each(|value| *value *= factor);
    values
}

fn assert_close(got: &[f32], want: &Value, tolerance: f32) {
    let want = expected(want);
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "element {i}: {got}, expected {want}");
    }
}

#[test]
fn rms_norm_gives_what_onnx_gives() {
    let (shape, want) = ([3, 2, 7], &data()["rms_norm"]);
    let (input, weight) = (scaled(4.0, fill(1, 42)), fill(2, 7));
    for (residual, expected) in [(Presence::Absent, "plain"), (Presence::Present, "with_residual")] {
        let dtype = DType::F32;
        let config = rms_norm::Config {
            dtype,
            weight_dtype: dtype,
            output_dtype: dtype,
            hidden_size: 7,
            epsilon: 1e-5,
            residual,
        };
        let spec = rms_norm::Spec::new(config).unwrap();
        let (mut sum, mut output) = (fill(3, 42), vec![0.0; 42]);
        let operands = rms_norm::Operands {
            input: FloatView::contiguous(&input, shape).unwrap(),
            weight: FloatView::contiguous(&weight, [7]).unwrap(),
            residual: (residual == Presence::Present)
                .then(|| FloatViewMut::contiguous(&mut sum, shape).unwrap()),
            output: FloatViewMut::contiguous(&mut output, shape).unwrap(),
        };
        rms_norm::reference(&spec, operands).unwrap();
        assert_close(&output, &want[expected], 1e-6);
        if residual == Presence::Present {
            assert_close(&sum, &want["residual"], 0.0);
        }
    }
}

fn rope_config(head_dim: usize, rotary_dim: usize, pairing: Pairing) -> rope::Config {
    rope::Config { dtype: DType::F32, head_dim, rotary_dim, pairing, theta: 1e4, scaling: Scaling::None }
}

#[test]
fn frequencies_are_those_of_transformers_for_every_scaling() {
    let want = &data()["inv_freq"];
    let original_max_position = 8192;
    let llama3 =
        Scaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position };
    let yarn = Scaling::Yarn {
        factor: 4.0,
        original_max_position: 32768,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
    };
    for (name, theta, dim, scaling) in [
        ("default", 1e4, 64, Scaling::None),
        ("linear", 1e4, 64, Scaling::Linear { factor: 4.0 }),
        ("llama3", 5e5, 64, llama3),
        ("yarn", 1e6, 128, yarn),
    ] {
        let config = rope::Config { theta, scaling, ..rope_config(dim, dim, Pairing::NeoX) };
        let spec = rope::Spec::new(config).unwrap();
        let want = &want[name];
        assert_eq!(spec.inv_freq().len(), dim / 2);
        for (got, want) in spec.inv_freq().iter().zip(expected(&want["inv_freq"])) {
            // They compute in f32, so the last places differ.
            assert!((got / want - 1.0).abs() < 2e-6, "{name}: {got}, expected {want}");
        }
        assert!(
            (f64::from(spec.attention_factor()) - want["attention_factor"].as_f64().unwrap()).abs() < 1e-7
        );
    }
}

#[test]
fn rope_gives_what_onnx_gives_in_both_pairings_whole_and_partial() {
    let want = &data()["rope"];
    for (name, seed, head_dim, rotary_dim, pairing) in [
        ("neox", 4, 64, 64, Pairing::NeoX),
        ("interleaved", 4, 64, 64, Pairing::Interleaved),
        ("partial_neox", 5, 10, 6, Pairing::NeoX),
        ("partial_interleaved", 5, 10, 6, Pairing::Interleaved),
    ] {
        let spec = rope::Spec::new(rope_config(head_dim, rotary_dim, pairing)).unwrap();
        let shape = [4, 2, head_dim];
        let input = fill(seed, shape.iter().product());
        let mut output = vec![0.0; input.len()];
        let operands = rope::Operands {
            input: FloatView::contiguous(&input, shape).unwrap(),
            positions: View::contiguous(&[0, 1, 17, 4095], [4]).unwrap(),
            output: FloatViewMut::contiguous(&mut output, shape).unwrap(),
        };
        rope::reference(&spec, operands).unwrap();
        // An angle at position 4095 moves by 5e-4 with the last place of its frequency.
        assert_close(&output, &want[name], 6e-4);
        assert_close(
            &output[..3 * 2 * head_dim],
            &Value::from(&want[name].as_array().unwrap()[..3 * 2 * head_dim]),
            4e-6,
        );
    }
}

/// 4 query heads on 2 key/value heads of 8; 5 rows on 9 keys.
fn attention() -> Attention {
    let scale = 1.0 / 8f32.sqrt();
    let (window, soft_cap, lse) = (None, None, Presence::Present);
    Attention {
        dtype: DType::F32,
        num_q_heads: 4,
        num_kv_heads: 2,
        head_dim: 8,
        scale,
        window,
        soft_cap,
        lse,
    }
}

fn variants() -> [(&'static str, Attention, Mask); 5] {
    [
        ("causal", attention(), Mask::Causal),
        ("full", attention(), Mask::Full),
        ("window_3", Attention { window: Some(3), ..attention() }, Mask::Causal),
        ("soft_cap", Attention { soft_cap: Some(1.5), ..attention() }, Mask::Causal),
        ("scale", Attention { scale: 0.7, ..attention() }, Mask::Causal),
    ]
}

fn queries_keys_values() -> [Vec<f32>; 3] {
    [scaled(4.0, fill(6, 5 * 4 * 8)), fill(7, 9 * 2 * 8), fill(8, 9 * 2 * 8)]
}

#[test]
fn ragged_prefill_gives_what_onnx_gives() {
    let [q, k, v] = queries_keys_values();
    for (name, attention, mask) in variants() {
        let spec = ragged_prefill::Spec::new(ragged_prefill::Config { attention, mask }).unwrap();
        let (mut output, mut lse) = (vec![0.0; q.len()], vec![0.0; 5 * 4]);
        let operands = ragged_prefill::Operands {
            q: FloatView::contiguous(&q, [5, 4, 8]).unwrap(),
            k: FloatView::contiguous(&k, [9, 2, 8]).unwrap(),
            v: FloatView::contiguous(&v, [9, 2, 8]).unwrap(),
            query_start: View::contiguous(&[0, 5], [2]).unwrap(),
            kv_start: View::contiguous(&[0, 9], [2]).unwrap(),
            output: FloatViewMut::contiguous(&mut output, [5, 4, 8]).unwrap(),
            lse: Some(ViewMut::contiguous(&mut lse, [5, 4]).unwrap()),
        };
        ragged_prefill::reference(&spec, operands).unwrap();
        let want = &data()["attention"][name];
        assert_close(&output, &want["output"], 1e-6);
        assert_close(&lse, &want["lse"], 1e-6);
    }
}

#[test]
fn paged_prefill_gives_what_onnx_gives_from_pages_of_four() {
    let [q, k, v] = queries_keys_values();
    for (name, attention, mask) in variants() {
        let paging = Paging { dtype: DType::F32, layout: PageLayout::Hnd, page_size: 4 };
        let spec = paged_prefill::Spec::new(paged_prefill::Config { attention, paging, mask }).unwrap();
        // Nine keys in pages 3, 0 and 2 of four.
        let table = [3, 0, 2];
        let pool = |flat: &[f32]| -> Vec<f32> {
            let mut pool = vec![0.0; 4 * 2 * 4 * 8];
            for (i, &value) in flat.iter().enumerate() {
                let (position, head, dim) = (i / 16, i / 8 % 2, i % 8);
                pool[((table[position / 4] as usize * 2 + head) * 4 + position % 4) * 8 + dim] = value;
            }
            pool
        };
        let (k_pool, v_pool) = (pool(&k), pool(&v));
        let (mut output, mut lse) = (vec![0.0; q.len()], vec![0.0; 5 * 4]);
        let operands = paged_prefill::Operands {
            q: FloatView::contiguous(&q, [5, 4, 8]).unwrap(),
            k_pages: FloatView::contiguous(&k_pool, [4, 2, 4, 8]).unwrap(),
            v_pages: FloatView::contiguous(&v_pool, [4, 2, 4, 8]).unwrap(),
            block_table: View::contiguous(&table, [1, 3]).unwrap(),
            kv_len: View::contiguous(&[9], [1]).unwrap(),
            query_start: View::contiguous(&[0, 5], [2]).unwrap(),
            output: FloatViewMut::contiguous(&mut output, [5, 4, 8]).unwrap(),
            lse: Some(ViewMut::contiguous(&mut lse, [5, 4]).unwrap()),
        };
        paged_prefill::reference(&spec, operands).unwrap();
        let want = &data()["attention"][name];
        assert_close(&output, &want["output"], 1e-6);
        assert_close(&lse, &want["lse"], 1e-6);
    }
}

#[test]
fn single_decode_is_the_last_row_of_what_onnx_gives_also_from_keys_with_heads_first() {
    let [q, k, v] = queries_keys_values();
    // [heads, positions, dims] in memory.
    let heads_first = |flat: &[f32]| -> Vec<f32> {
        (0..flat.len()).map(|i| flat[(i / 8 % 9) * 16 + i / 72 * 8 + i % 8]).collect()
    };
    let (k, v) = (heads_first(&k), heads_first(&v));
    for (name, attention, _) in variants().into_iter().filter(|(_, _, mask)| *mask == Mask::Causal) {
        let spec = single_decode::Spec::new(attention).unwrap();
        let (mut output, mut lse) = (vec![0.0; 4 * 8], vec![0.0; 4]);
        let operands = single_decode::Operands {
            q: FloatView::contiguous(&q[4 * 32..], [1, 4, 8]).unwrap(),
            k: FloatView::strided(&k, [9, 2, 8], [8, 72, 1]).unwrap(),
            v: FloatView::strided(&v, [9, 2, 8], [8, 72, 1]).unwrap(),
            output: FloatViewMut::contiguous(&mut output, [1, 4, 8]).unwrap(),
            lse: Some(ViewMut::contiguous(&mut lse, [1, 4]).unwrap()),
        };
        single_decode::reference(&spec, operands).unwrap();
        let want = &data()["attention"][name];
        assert_close(&output, &Value::from(&want["output"].as_array().unwrap()[4 * 32..]), 1e-6);
        assert_close(&lse, &Value::from(&want["lse"].as_array().unwrap()[4 * 4..]), 1e-6);
    }
}

#[test]
fn dense_gives_what_numpy_gives() {
    let want = &data()["dense"];
    let (input, weight, bias, residual) = (fill(9, 3 * 37), fill(10, 5 * 37), fill(11, 5), fill(12, 3 * 5));
    for (name, has) in [("plain", Presence::Absent), ("bias_residual", Presence::Present)] {
        let (f32, bias_dtype) = (DType::F32, (has == Presence::Present).then_some(DType::F32));
        let config = dense::Config {
            input: f32,
            weight: WeightFormat::Dense(f32),
            output: f32,
            n: 5,
            k: 37,
            bias: bias_dtype,
            residual: has,
        };
        let mut output = vec![0.0; 15];
        let operands = dense::Operands {
            input: FloatView::contiguous(&input, [3, 37]).unwrap(),
            weight: Weight::Dense(FloatView::contiguous(&weight, [5, 37]).unwrap()),
            bias: bias_dtype.map(|_| FloatView::contiguous(&bias, [5]).unwrap()),
            residual: bias_dtype.map(|_| FloatView::contiguous(&residual, [3, 5]).unwrap()),
            output: FloatViewMut::contiguous(&mut output, [3, 5]).unwrap(),
        };
        dense::reference(&dense::Spec::new(config).unwrap(), operands).unwrap();
        assert_close(&output, &want[name], 1e-6);
    }
}

#[test]
fn dense_in_bf16_rounds_once() {
    let narrow = |values: Vec<f32>| -> Vec<bf16> { values.into_iter().map(bf16::from_f32).collect() };
    let (input, weight) = (narrow(fill(9, 3 * 37)), narrow(fill(10, 5 * 37)));
    let dtype = DType::BF16;
    let (bias, residual) = (None, Presence::Absent);
    let format = WeightFormat::Dense(dtype);
    let config = dense::Config { input: dtype, weight: format, output: dtype, n: 5, k: 37, bias, residual };
    let mut output = vec![bf16::ZERO; 15];
    let operands = dense::Operands {
        input: FloatView::contiguous(&input, [3, 37]).unwrap(),
        weight: Weight::Dense(FloatView::contiguous(&weight, [5, 37]).unwrap()),
        bias: None,
        residual: None,
        output: FloatViewMut::contiguous(&mut output, [3, 5]).unwrap(),
    };
    dense::reference(&dense::Spec::new(config).unwrap(), operands).unwrap();
    let widened: Vec<f32> = output.iter().map(|value| value.to_f32()).collect();
    assert_close(&widened, &data()["dense"]["bf16"], 0.0);
}

#[test]
fn swiglu_gives_what_numpy_gives() {
    let (gate, up, mut output) = (scaled(20.0, fill(13, 12)), fill(14, 12), vec![0.0; 12]);
    let operands = swiglu::Operands {
        gate: FloatView::contiguous(&gate, [2, 6]).unwrap(),
        up: FloatView::contiguous(&up, [2, 6]).unwrap(),
        output: FloatViewMut::contiguous(&mut output, [2, 6]).unwrap(),
    };
    let spec = swiglu::Spec::new(swiglu::Config { dtype: DType::F32, size: 6 }).unwrap();
    swiglu::reference(&spec, operands).unwrap();
    assert_close(&output, &data()["swiglu"], 1e-6);
}

//! Contracts that work row by row, on values worked by hand, on strided operands, and on what does not fit.

use half::{bf16, f16};
use oxide_infer::embedding::gather;
use oxide_infer::gemm::{dense, dense_swiglu};
use oxide_infer::normalization::rms_norm;
use oxide_infer::position::rope::{self, Pairing, Scaling};
use oxide_infer::quantization::{BlockFormat, BlockMatrix, dequantize};
use oxide_infer::{
    Contract, DType, DataError, FloatView, FloatViewMut, OperandError, Presence, View, Weight, WeightFormat,
};

fn norm(residual: Presence) -> rms_norm::Spec {
    let dtype = DType::F32;
    let config = rms_norm::Config {
        dtype,
        weight_dtype: dtype,
        output_dtype: dtype,
        hidden_size: 2,
        epsilon: 1e-12,
        residual,
    };
    rms_norm::Spec::new(config).unwrap()
}

#[test]
fn a_norm_of_3_and_4_divides_by_the_root_of_12_and_a_half() {
    // Rows of a fused buffer: two of three elements belong to the norm, and every other output element.
    let input = [3.0, 4.0, 99.0, 0.0, 0.0, 99.0];
    let mut output = [7.0f32; 8];
    let operands = rms_norm::Operands {
        input: FloatView::strided(&input, [2, 1, 2], [3, 3, 1]).unwrap(),
        weight: FloatView::contiguous(&[1.0f32, 2.0], [2]).unwrap(),
        residual: None,
        output: FloatViewMut::strided(&mut output, [2, 1, 2], [4, 4, 2]).unwrap(),
    };
    rms_norm::reference(&norm(Presence::Absent), operands).unwrap();
    let root = 12.5f32.sqrt();
    let want = [3.0 / root, 7.0, 8.0 / root, 7.0, 0.0, 7.0, 0.0, 7.0];
    assert!(output.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{output:?}");
}

#[test]
fn the_residual_is_rounded_before_it_is_normalized() {
    // In f16, 2048 + 1 is a tie that goes to 2048; the norm must not see the 1.
    let half = f16::from_f32;
    let config = rms_norm::Config {
        dtype: DType::F16,
        weight_dtype: DType::F32,
        output_dtype: DType::F16,
        hidden_size: 1,
        epsilon: 1.0,
        residual: Presence::Present,
    };
    let (input, mut residual, mut output) = ([half(1.0)], [half(2048.0)], [half(0.0)]);
    let operands = rms_norm::Operands {
        input: FloatView::contiguous(&input, [1, 1, 1]).unwrap(),
        weight: FloatView::contiguous(&[1.0f32], [1]).unwrap(),
        residual: Some(FloatViewMut::contiguous(&mut residual, [1, 1, 1]).unwrap()),
        output: FloatViewMut::contiguous(&mut output, [1, 1, 1]).unwrap(),
    };
    rms_norm::reference(&rms_norm::Spec::new(config).unwrap(), operands).unwrap();
    assert_eq!((residual[0].to_f32(), output[0].to_f32()), (2048.0, 1.0));
}

#[test]
fn an_f32_residual_stream_is_normalized_for_products_in_bf16() {
    let bf16s = |values: [f32; 2]| values.map(bf16::from_f32);
    let config = rms_norm::Config {
        dtype: DType::F32,
        weight_dtype: DType::BF16,
        output_dtype: DType::BF16,
        hidden_size: 2,
        epsilon: 1e-12,
        residual: Presence::Present,
    };
    // 2⁻¹² more than bf16 can hold beside 3: it stays in the residual.
    let (input, weight, mut output) = ([0.000_244_140_63f32, 0.0], bf16s([1.0, 1.0]), bf16s([0.0, 0.0]));
    let mut residual = [3.0f32, 4.0];
    let operands = rms_norm::Operands {
        input: FloatView::contiguous(&input, [1, 1, 2]).unwrap(),
        weight: FloatView::contiguous(&weight, [2]).unwrap(),
        residual: Some(FloatViewMut::contiguous(&mut residual, [1, 1, 2]).unwrap()),
        output: FloatViewMut::contiguous(&mut output, [1, 1, 2]).unwrap(),
    };
    rms_norm::reference(&rms_norm::Spec::new(config).unwrap(), operands).unwrap();
    assert_eq!(residual, [3.000_244_1, 4.0]);
    // 0.84857 and 1.13133, in steps of 2⁻⁸ and 2⁻⁷.
    assert_eq!(output, bf16s([217.0 / 256.0, 145.0 / 128.0]));
}

#[test]
fn operands_that_do_not_fit_are_named_and_nothing_is_written() {
    let mut output = [7.0f32; 4];
    let mut run = |input: FloatView<'_, 3>, weight: &[f32], residual: Option<FloatViewMut<'_, 3>>, wants| {
        let operands = rms_norm::Operands {
            input,
            weight: FloatView::contiguous(weight, [weight.len()]).unwrap(),
            residual,
            output: FloatViewMut::contiguous(&mut output, [2, 1, 2]).unwrap(),
        };
        let error = rms_norm::reference(&norm(wants), operands).unwrap_err();
        assert_eq!(output, [7.0; 4]);
        error
    };
    let (data, halves) = ([1.0f32; 6], [f16::ONE; 4]);
    let good = FloatView::contiguous(&data, [2, 1, 2]).unwrap();
    let contract = Contract::RMS_NORM;
    let expected = DType::F32;
    assert_eq!(
        run(FloatView::contiguous(&halves, [2, 1, 2]).unwrap(), &[1.0; 2], None, Presence::Absent),
        OperandError::DType { contract, operand: "input", expected, got: DType::F16 }
    );
    assert_eq!(
        run(good, &[1.0; 3], None, Presence::Absent),
        OperandError::Shape { contract, operand: "weight", expected: [2].into(), got: [3].into() }
    );
    assert_eq!(
        run(FloatView::contiguous(&data, [3, 1, 2]).unwrap(), &[1.0; 2], None, Presence::Absent).to_string(),
        "normalization.rms_norm v1: operand output must have shape [3, 1, 2], got [2, 1, 2]"
    );
    assert_eq!(
        run(good, &[1.0; 2], None, Presence::Present),
        OperandError::Missing { contract, operand: "residual" }
    );
    let mut sum = [0.0f32; 4];
    let given = FloatViewMut::contiguous(&mut sum, [2, 1, 2]).unwrap();
    assert_eq!(
        run(good, &[1.0; 2], Some(given), Presence::Absent),
        OperandError::Unexpected { contract, operand: "residual" }
    );
}

#[test]
fn a_quarter_turn_swaps_a_pair_and_the_rest_of_the_head_stays() {
    // theta = 4 and four rotating elements: frequencies 1 and 1/2. The last element of the head does not turn.
    for (pairing, [a, b]) in [(Pairing::NeoX, [0, 2]), (Pairing::Interleaved, [0, 1])] {
        let config = rope::Config {
            dtype: DType::F32,
            head_dim: 5,
            rotary_dim: 4,
            pairing,
            theta: 4.0,
            scaling: Scaling::None,
        };
        let spec = rope::Spec::new(config).unwrap();
        assert_eq!(spec.inv_freq(), [1.0, 0.5]);
        let mut input = [0.0f32; 5];
        (input[a], input[4]) = (1.0, 9.0);
        let mut output = [f32::NAN; 5];
        let operands = rope::Operands {
            input: FloatView::contiguous(&input, [1, 1, 5]).unwrap(),
            positions: View::contiguous(&[11], [1]).unwrap(),
            output: FloatViewMut::contiguous(&mut output, [1, 1, 5]).unwrap(),
        };
        rope::reference(&spec, operands).unwrap();
        // 11 radians are 3.5 π and a little.
        assert!(
            (output[a] - 11f32.cos()).abs() < 1e-7 && (output[b] - 11f32.sin()).abs() < 1e-7,
            "{output:?}"
        );
        assert_eq!(output[4], 9.0);
    }
}

#[test]
fn yarn_multiplies_what_turns_by_the_attention_factor() {
    let scaling = Scaling::Yarn {
        factor: 1.0,
        original_max_position: 64,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Some(2.0),
    };
    let (dtype, pairing) = (DType::F32, Pairing::NeoX);
    let config = rope::Config { dtype, head_dim: 3, rotary_dim: 2, pairing, theta: 10.0, scaling };
    let mut output = [0.0f32; 3];
    let operands = rope::Operands {
        input: FloatView::contiguous(&[1.0f32, -3.0, 5.0], [1, 1, 3]).unwrap(),
        positions: View::contiguous(&[0], [1]).unwrap(),
        output: FloatViewMut::contiguous(&mut output, [1, 1, 3]).unwrap(),
    };
    rope::reference(&rope::Spec::new(config).unwrap(), operands).unwrap();
    assert_eq!(output, [2.0, -6.0, 5.0]);
}

#[test]
fn a_negative_position_is_named() {
    let (dtype, pairing, scaling) = (DType::F32, Pairing::NeoX, Scaling::None);
    let config = rope::Config { dtype, head_dim: 2, rotary_dim: 2, pairing, theta: 10.0, scaling };
    let mut output = [0.0f32; 4];
    let operands = rope::Operands {
        input: FloatView::contiguous(&[1.0f32; 4], [2, 1, 2]).unwrap(),
        positions: View::contiguous(&[5, -3], [2]).unwrap(),
        output: FloatViewMut::contiguous(&mut output, [2, 1, 2]).unwrap(),
    };
    let error = DataError::Position { token: 1, position: -3, limit: i32::MAX as usize };
    assert_eq!(
        rope::reference(&rope::Spec::new(config).unwrap(), operands).unwrap_err(),
        OperandError::Data { contract: Contract::ROPE, error }
    );
}

/// Two rows of 64 in Q4_1 with scale 1/16 and minimum −1/2: nibble `q` stands for `q / 16 − 1/2`.
fn blocks() -> Vec<u8> {
    let block = |seed: u8| {
        let scales = [f16::from_f32(1.0 / 16.0), f16::from_f32(-0.5)];
        let mut bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        bytes.extend((0..16u8).map(|i| i.wrapping_mul(37).wrapping_add(seed)));
        bytes
    };
    [1, 2, 3, 4].map(block).concat()
}

#[test]
fn a_product_with_blocks_is_the_product_with_the_numbers_they_stand_for() {
    let bytes = blocks();
    let mut widened = [0.0f32; 128];
    dequantize(BlockFormat::Q4_1, &bytes, &mut widened).unwrap();
    assert_eq!((widened[0], widened[16]), (1.0 / 16.0 - 0.5, -0.5), "byte 0 is 0x01");
    let input: Vec<f32> = (0..3 * 64).map(|i| (i % 13) as f32 - 6.0).collect();
    let product = |weight: Weight<'_>| {
        let (bias, residual) = (None, Presence::Absent);
        let (input_dtype, output_dtype, format) = (DType::F32, DType::F32, weight.format());
        let config = dense::Config {
            input: input_dtype,
            weight: format,
            output: output_dtype,
            n: 2,
            k: 64,
            bias,
            residual,
        };
        let mut output = [f32::NAN; 6];
        let operands = dense::Operands {
            input: FloatView::contiguous(&input, [3, 64]).unwrap(),
            weight,
            bias: None,
            residual: None,
            output: FloatViewMut::contiguous(&mut output, [3, 2]).unwrap(),
        };
        dense::reference(&dense::Spec::new(config).unwrap(), operands).unwrap();
        output
    };
    let matrix = BlockMatrix::new(BlockFormat::Q4_1, 2, 64, &bytes).unwrap();
    assert_eq!(
        product(Weight::Blocks(matrix)),
        product(Weight::Dense(FloatView::contiguous(&widened, [2, 64]).unwrap()))
    );
}

#[test]
fn a_transposed_weight_is_a_matter_of_strides() {
    // W = [[1, 2], [3, 4], [5, 6]] stored by columns; a = [1, 10].
    let weight = [1.0f32, 3.0, 5.0, 2.0, 4.0, 6.0];
    let config = dense::Config {
        input: DType::F32,
        weight: WeightFormat::Dense(DType::F32),
        output: DType::F32,
        n: 3,
        k: 2,
        bias: None,
        residual: Presence::Absent,
    };
    let mut output = [0.0f32; 3];
    let operands = dense::Operands {
        input: FloatView::contiguous(&[1.0f32, 10.0], [1, 2]).unwrap(),
        weight: Weight::Dense(FloatView::strided(&weight, [3, 2], [1, 3]).unwrap()),
        bias: None,
        residual: None,
        output: FloatViewMut::contiguous(&mut output, [1, 3]).unwrap(),
    };
    dense::reference(&dense::Spec::new(config).unwrap(), operands).unwrap();
    assert_eq!(output, [21.0, 43.0, 65.0]);
}

#[test]
fn a_gated_product_has_the_gate_in_the_first_half_of_the_weight() {
    // One row [2, 1]; gates 2·1 + 1·0 = 2 and 2·0 + 1·0 = 0, ups 2·1 + 1·1 = 3 and 2·5 + 1·5 = 15.
    let weight = [1.0f32, 0.0, 0.0, 0.0, 1.0, 1.0, 5.0, 5.0];
    let format = WeightFormat::Dense(DType::F32);
    let config = dense_swiglu::Config { input: DType::F32, weight: format, output: DType::F32, n: 2, k: 2 };
    let mut output = [f32::NAN; 2];
    let operands = dense_swiglu::Operands {
        input: FloatView::contiguous(&[2.0f32, 1.0], [1, 2]).unwrap(),
        weight: Weight::Dense(FloatView::contiguous(&weight, [4, 2]).unwrap()),
        output: FloatViewMut::contiguous(&mut output, [1, 2]).unwrap(),
    };
    dense_swiglu::reference(&dense_swiglu::Spec::new(config).unwrap(), operands).unwrap();
    // silu(2) = 2 / (1 + e⁻²) = 1.761594156, times 3; silu(0) = 0.
    assert_eq!(output, [5.284_782_5, 0.0]);
}

fn lookup(ids: &[u32], table: Weight<'_>, output: &mut [f32]) -> Result<(), OperandError> {
    let hidden_size = table.shape()[1];
    let config = gather::Config { table: table.format(), output: DType::F32, hidden_size };
    let operands = gather::Operands {
        ids: View::contiguous(ids, [ids.len()]).unwrap(),
        table,
        output: FloatViewMut::contiguous(output, [ids.len(), hidden_size]).unwrap(),
    };
    gather::reference(&gather::Spec::new(config).unwrap(), operands)
}

#[test]
fn gather_copies_rows_in_the_order_of_the_ids() {
    let table = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let view = || Weight::Dense(FloatView::contiguous(&table, [3, 2]).unwrap());
    let mut output = [0.0; 6];
    lookup(&[2, 0, 2], view(), &mut output).unwrap();
    assert_eq!(output, [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
    lookup(&[], view(), &mut []).unwrap();

    let bytes = blocks();
    let mut widened = [0.0f32; 128];
    dequantize(BlockFormat::Q4_1, &bytes, &mut widened).unwrap();
    let mut row = [0.0; 64];
    let matrix = BlockMatrix::new(BlockFormat::Q4_1, 2, 64, &bytes).unwrap();
    lookup(&[1], Weight::Blocks(matrix), &mut row).unwrap();
    assert_eq!(row, widened[64..]);
}

#[test]
fn an_id_past_the_vocabulary_is_named_and_nothing_is_written() {
    let table = [1.0f32, 2.0, 3.0];
    let mut output = [7.0; 2];
    let error = lookup(&[2, 3], Weight::Dense(FloatView::contiguous(&table, [3, 1]).unwrap()), &mut output);
    let data = DataError::Token { row: 1, token: 3, vocab_size: 3 };
    assert_eq!(error, Err(OperandError::Data { contract: Contract::GATHER, error: data }));
    assert_eq!(output, [7.0; 2]);
    assert_eq!(error.unwrap_err().to_string(), "embedding.gather v1: ids[1] must be a token in 0..3, got 3");
}

use super::*;
use crate::CpuProvider;
use crate::testing::{provider, random_blocks, random_floats};
use oxide_infer::quantization::{BlockFormat, dequantize};
use oxide_infer::{DType, WeightFormat};
use proptest::prelude::*;

const FORMATS: [WeightFormat; 11] = [
    WeightFormat::Dense(DType::F32),
    WeightFormat::Dense(DType::F16),
    WeightFormat::Dense(DType::BF16),
    WeightFormat::Blocks(BlockFormat::Q4_0),
    WeightFormat::Blocks(BlockFormat::Q4_1),
    WeightFormat::Blocks(BlockFormat::Q5_0),
    WeightFormat::Blocks(BlockFormat::Q5_1),
    WeightFormat::Blocks(BlockFormat::Q8_0),
    WeightFormat::Blocks(BlockFormat::Q4_K),
    WeightFormat::Blocks(BlockFormat::Q5_K),
    WeightFormat::Blocks(BlockFormat::Q6_K),
];

/// A random matrix, packed and as plain numbers.
fn matrix(format: WeightFormat, n: usize, k: usize, seed: u64) -> (PackedMatrix, Vec<f32>) {
    let (bytes, numbers) = random_blocks(format, n * k, seed);
    let mut packed = PackedMatrix::new(k);
    packed.push(format, n, &bytes).unwrap();
    (packed, numbers)
}

fn product(cpu: &mut CpuProvider, input: &[f32], weight: &PackedMatrix) -> Vec<f32> {
    let [n, k] = weight.shape();
    let mut output = vec![f32::NAN; input.len() / k * n];
    cpu.step(|team| gemm(team, input, weight, None, Update::Overwrite, &mut output)).unwrap();
    output
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// The documented order, written out: one fused chain over `k`.
fn chain(input: &[f32], weight: &[f32]) -> f32 {
    input.iter().zip(weight).fold(0.0, |acc, (&x, &w)| x.mul_add(w, acc))
}

#[test]
fn every_element_is_one_fused_chain_over_the_dequantized_row() {
    let mut cpu = provider(2);
    for format in FORMATS {
        let (n, k) = (37, 512);
        let (weight, numbers) = matrix(format, n, k, 1);
        for m in [1, 2, 3, 4, 5, 6, 7, 13, 241] {
            let input = random_floats(m * k, 2);
            let output = product(&mut cpu, &input, &weight);
            for (row, output) in input.chunks(k).zip(output.chunks(n)) {
                let expected: Vec<f32> = numbers.chunks(k).map(|weight| chain(row, weight)).collect();
                assert_eq!(bits(output), bits(&expected), "{} with {m} rows", format.name());
            }
        }
    }
}

#[test]
fn the_portable_path_gives_the_same_bits() {
    let mut fast = provider(1);
    let mut portable = provider(1).portable();
    for format in FORMATS {
        let (weight, _) = matrix(format, 40, 256, 3);
        for m in [1, 3, 9] {
            let input = random_floats(m * 256, 4);
            let (fast, portable) =
                (product(&mut fast, &input, &weight), product(&mut portable, &input, &weight));
            assert_eq!(bits(&fast), bits(&portable), "{} with {m} rows", format.name());
        }
    }
}

#[test]
fn dense_rows_need_not_be_whole_units() {
    let mut cpu = provider(2);
    for k in [1, 5, 31, 33, 300] {
        let (weight, numbers) = matrix(WeightFormat::Dense(DType::F32), 3, k, 5);
        for m in [1, 8] {
            let input = random_floats(m * k, 6);
            let output = product(&mut cpu, &input, &weight);
            let expected: Vec<f32> = input
                .chunks(k)
                .flat_map(|row| numbers.chunks(k).map(move |weight| chain(row, weight)))
                .collect();
            assert_eq!(bits(&output), bits(&expected));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_row_has_the_same_bits_alone_in_any_batch_and_on_any_number_of_threads(
        format in 0..FORMATS.len(),
        m in 2..40usize,
        n in 1..70usize,
        blocks in 1..3usize,
        pick in any::<prop::sample::Index>(),
        seed in any::<u64>(),
    ) {
        let k = 256 * blocks;
        let (weight, _) = matrix(FORMATS[format], n, k, seed);
        let input = random_floats(m * k, seed ^ 1);
        let batch = product(&mut provider(1), &input, &weight);
        prop_assert_eq!(bits(&batch), bits(&product(&mut provider(2), &input, &weight)));
        prop_assert_eq!(bits(&batch), bits(&product(&mut provider(5), &input, &weight)));
        let row = pick.index(m);
        let alone = product(&mut provider(2), &input[row * k..(row + 1) * k], &weight);
        prop_assert_eq!(bits(&alone), bits(&batch[row * n..(row + 1) * n]));
    }
}

#[test]
fn stacked_tensors_of_different_formats_fill_their_own_columns() {
    let mut cpu = provider(2);
    let k = 256;
    let tensors =
        [(WeightFormat::Blocks(BlockFormat::Q4_K), 20), (WeightFormat::Blocks(BlockFormat::Q6_K), 5)];
    let mut stacked = PackedMatrix::new(k);
    for (seed, (format, n)) in tensors.into_iter().enumerate() {
        stacked.push(format, n, &random_blocks(format, n * k, seed as u64).0).unwrap();
    }
    assert_eq!(stacked.shape(), [25, k]);
    for m in [1, 7] {
        let input = random_floats(m * k, 9);
        let together = product(&mut cpu, &input, &stacked);
        let mut first = 0;
        for (seed, (format, n)) in tensors.into_iter().enumerate() {
            let alone = product(&mut cpu, &input, &matrix(format, n, k, seed as u64).0);
            for (row, alone) in alone.chunks(n).enumerate() {
                assert_eq!(&together[row * 25 + first..][..n], alone);
            }
            first += n;
        }
    }
}

#[test]
fn bias_and_what_the_output_held_are_added_after_the_sum() {
    let mut cpu = provider(2);
    let mut weight = PackedMatrix::new(2);
    weight.push(WeightFormat::Dense(DType::F32), 2, bytemuck::cast_slice(&[1.0f32, 2.0, 3.0, 4.0])).unwrap();
    for m in [1, 6] {
        let input = [10.0f32, 1.0].repeat(m);
        let mut output = [1000.0f32, 2000.0].repeat(m);
        let bias = [0.5, 0.25];
        cpu.step(|team| gemm(team, &input, &weight, Some(&bias), Update::Add, &mut output)).unwrap();
        assert_eq!(output, [1012.5f32, 2034.25].repeat(m));
        cpu.step(|team| gemm(team, &input, &weight, Some(&bias), Update::Overwrite, &mut output)).unwrap();
        assert_eq!(output, [12.5f32, 34.25].repeat(m));
    }
}

#[test]
fn no_rows_give_no_output() {
    let (weight, _) = matrix(WeightFormat::Dense(DType::F32), 4, 4, 0);
    assert!(product(&mut provider(2), &[], &weight).is_empty());
}

#[test]
fn operands_that_do_not_fit_are_named_with_both_lengths() {
    let mut cpu = provider(1);
    let (weight, _) = matrix(WeightFormat::Dense(DType::F32), 4, 8, 0);
    let mut refuse = |input: &[f32], bias: Option<&[f32]>, output: &mut [f32]| {
        cpu.step(|team| gemm(team, input, &weight, bias, Update::Overwrite, output)).unwrap_err().to_string()
    };
    assert_eq!(refuse(&[0.0; 12], None, &mut [0.0; 4]), "input must have 8 elements, got 12");
    assert_eq!(refuse(&[0.0; 16], None, &mut [0.0; 4]), "output must have 8 elements, got 4");
    assert_eq!(refuse(&[0.0; 8], Some(&[0.0; 3]), &mut [0.0; 4]), "bias must have 4 elements, got 3");
}

#[test]
fn weights_that_are_not_their_rows_are_refused() {
    let mut weight = PackedMatrix::new(64);
    let q4_1 = WeightFormat::Blocks(BlockFormat::Q4_1);
    let error = weight.push(q4_1, 2, &[0; 79]).unwrap_err();
    assert_eq!(error.to_string(), "2 rows of 64 weights in Q4_1 take 80 bytes, got 79");
    let error = weight.push(WeightFormat::Blocks(BlockFormat::Q4_K), 2, &[0; 288]).unwrap_err();
    assert!(error.to_string().contains("Q4_K stores blocks of 256"), "{error}");
    let error = weight.push(WeightFormat::Dense(DType::I32), 2, &[0; 512]).unwrap_err();
    assert_eq!(error.to_string(), "dense weights must be f32, f16 or bf16, got i32");
    assert_eq!(weight.shape(), [0, 64]);
}

#[test]
fn quantized_weights_stay_about_as_small_as_in_the_file() {
    for format in FORMATS {
        let (weight, numbers) = matrix(format, 64, 512, 7);
        let file = random_blocks(format, numbers.len(), 7).0.len();
        assert!(weight.memory_bytes() as f64 <= 1.03 * file as f64, "{}", format.name());
    }
}

#[test]
fn rows_read_back_as_the_numbers_that_the_format_defines() {
    for format in FORMATS {
        let (weight, numbers) = matrix(format, 19, 256, 8);
        for (row, expected) in numbers.chunks(256).enumerate() {
            let mut out = [0.0; 256];
            weight.read_row(Level::detect(), row, &mut out);
            assert_eq!(out, expected, "{}", format.name());
        }
    }
    let (bytes, numbers) = random_blocks(FORMATS[4], 64, 1);
    let mut expected = vec![0.0; 64];
    dequantize(BlockFormat::Q4_1, &bytes, &mut expected).unwrap();
    assert_eq!(numbers, expected);
}

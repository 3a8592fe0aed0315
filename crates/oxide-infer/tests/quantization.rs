//! The block formats against gguf-py's own dequantization, and the errors of sizes that do not fit.

use oxide_infer::quantization::{BlockFormat, BlockMatrix, QuantizationError, dequantize};
use serde_json::Value;

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn every_format_gives_the_values_that_gguf_py_gives() {
    let doc: Value = serde_json::from_str(include_str!("data/gguf_blocks.json")).unwrap();
    let cases = doc["cases"].as_array().unwrap();
    for format in BlockFormat::ALL {
        let case = cases.iter().find(|case| case["format"] == format.name()).unwrap();
        let expected: Vec<f32> =
            case["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
        let bytes = bytes_of(case["bytes"].as_str().unwrap());
        assert_eq!(bytes.len(), 2 * format.block_bytes(), "{format}");
        assert_eq!(expected.len(), 2 * format.block_elements(), "{format}");

        let mut out = vec![f32::NAN; expected.len()];
        dequantize(format, &bytes, &mut out).unwrap();
        assert_eq!(out, expected, "{format}");
    }
}

#[test]
fn a_q4_0_block_worked_by_hand() {
    // d = 0.5 (0x3800). Byte 0 is 0x0f: element 0 is 15 - 8 = 7, element 16 is 0 - 8 = -8.
    let mut block = [0x88u8; 18];
    block[..3].copy_from_slice(&[0x00, 0x38, 0x0f]);
    let mut out = [f32::NAN; 32];
    dequantize(BlockFormat::Q4_0, &block, &mut out).unwrap();
    assert_eq!((out[0], out[16], out[1], out[31]), (3.5, -4.0, 0.0, 0.0));
}

#[test]
fn no_blocks_give_no_values() {
    for format in BlockFormat::ALL {
        assert_eq!(dequantize(format, &[], &mut []), Ok(()));
        assert_eq!(BlockMatrix::new(format, 0, format.block_elements(), &[]).unwrap().shape()[0], 0);
    }
}

#[test]
fn a_partial_block_is_refused_with_the_block_size() {
    let error = dequantize(BlockFormat::Q4_K, &[0; 144], &mut [0.0; 100]).unwrap_err();
    assert_eq!(error, QuantizationError::PartialBlock { format: BlockFormat::Q4_K, elements: 100 });
    assert_eq!(error.to_string(), "Q4_K stores blocks of 256 elements, got 100 elements");
}

#[test]
fn missing_and_extra_bytes_are_refused_and_the_output_is_untouched() {
    for got in [19, 21, 40] {
        let mut out = [7.0; 32];
        let error = dequantize(BlockFormat::Q4_1, &vec![0; got], &mut out).unwrap_err();
        assert_eq!(
            error,
            QuantizationError::Bytes { format: BlockFormat::Q4_1, elements: 32, expected: 20, got }
        );
        assert_eq!(out, [7.0; 32]);
    }
}

#[test]
fn a_matrix_gives_the_bytes_of_each_row() {
    let bytes: Vec<u8> = (0..120).collect();
    let matrix = BlockMatrix::new(BlockFormat::Q4_1, 3, 64, &bytes).unwrap();
    assert_eq!(matrix.row(1), &bytes[40..80]);
    assert_eq!(
        BlockMatrix::new(BlockFormat::Q4_1, 3, 64, &bytes[1..]).unwrap_err(),
        QuantizationError::Bytes { format: BlockFormat::Q4_1, elements: 192, expected: 120, got: 119 }
    );
    assert_eq!(
        BlockMatrix::new(BlockFormat::Q8_0, usize::MAX, 64, &bytes).unwrap_err(),
        QuantizationError::Overflow { format: BlockFormat::Q8_0, elements: usize::MAX }
    );
}

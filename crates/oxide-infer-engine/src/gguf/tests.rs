use super::*;
use crate::testing::GgufWriter;
use proptest::prelude::*;

fn open(bytes: &[u8]) -> Result<Gguf, GgufError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    Gguf::open(file.path())
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn small() -> GgufWriter {
    GgufWriter::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .f32("llama.rope.freq_base", 10_000.0)
        .boolean("tokenizer.ggml.add_bos_token", false)
        .strings("tokenizer.ggml.tokens", &["a", "", "ü"])
        .i32s("tokenizer.ggml.token_type", &[1, -3, 6])
        .f32s("tokenizer.ggml.scores", &[0.5, -1.0])
        .raw(
            "deep",
            9,
            &[
                &9u32.to_le_bytes()[..],
                &1u64.to_le_bytes(),
                &0u32.to_le_bytes(),
                &2u64.to_le_bytes(),
                &[7, 8],
            ]
            .concat(),
        )
        .tensor("norm", &[3], TensorType::F32, &f32s(&[1.0, 2.0, 3.0]))
        .tensor("matrix", &[2, 32], TensorType::Q8_0, &[7; 68])
        .tensor("odd", &[256], TensorType(4711), &[])
}

#[test]
fn values_and_tensors_are_read_back() {
    for version in [2, 3] {
        let gguf = open(&small().version(version).build()).unwrap();
        assert_eq!(gguf.version(), version);
        assert_eq!(gguf.string("general.architecture").unwrap(), Some("llama"));
        assert_eq!(gguf.u32("llama.block_count").unwrap(), Some(2));
        assert_eq!(gguf.float("llama.rope.freq_base").unwrap(), Some(10_000.0));
        assert_eq!(gguf.boolean("tokenizer.ggml.add_bos_token").unwrap(), Some(false));
        assert_eq!(gguf.strings("tokenizer.ggml.tokens").unwrap().unwrap(), ["a", "", "ü"]);
        assert_eq!(gguf.ints("tokenizer.ggml.token_type").unwrap().unwrap(), [1, -3, 6]);
        assert_eq!(gguf.floats("tokenizer.ggml.scores").unwrap().unwrap(), [0.5, -1.0]);
        assert_eq!(gguf.u32("absent").unwrap(), None);
        let Some(MetadataValue::Array(outer)) = gguf.get("deep").unwrap() else { panic!("not an array") };
        let Some(Ok(MetadataValue::Array(inner))) = outer.iter().next() else { panic!("not nested") };
        let inner: Vec<_> = inner.iter().map(Result::unwrap).collect();
        assert_eq!(inner, [MetadataValue::U8(7), MetadataValue::U8(8)]);

        let matrix = gguf.tensor("matrix").unwrap();
        assert_eq!((matrix.shape.as_slice(), matrix.tensor_type), (&[2, 32][..], TensorType::Q8_0));
        assert_eq!(gguf.data(matrix).unwrap(), [7; 68]);
        assert_eq!(gguf.data(gguf.tensor("norm").unwrap()).unwrap(), f32s(&[1.0, 2.0, 3.0]));
        assert_eq!(gguf.data(gguf.tensor("odd").unwrap()), None);
        assert_eq!(gguf.tensor("odd").unwrap().tensor_type.to_string(), "type 4711");
        assert!(gguf.tensor("absent").is_none());
    }
}

#[test]
fn a_value_of_another_type_is_named_with_what_was_expected() {
    let gguf = open(&small().build()).unwrap();
    let message = |result: Result<(), GgufError>| result.unwrap_err().to_string();
    assert_eq!(
        message(gguf.u32("general.architecture").map(drop)),
        "metadata \"general.architecture\" is a string; an integer is expected"
    );
    assert_eq!(
        message(gguf.strings("tokenizer.ggml.scores").map(drop)),
        "metadata \"tokenizer.ggml.scores\" is an array; an array of strings is expected"
    );
    let negative = open(&GgufWriter::new().raw("n", 5, &(-1i32).to_le_bytes()).build()).unwrap();
    assert_eq!(
        message(negative.u32("n").map(drop)),
        "metadata \"n\" is -1; a number from 0 to 4294967295 is expected"
    );
    let text = open(&GgufWriter::new().array("t", 8, 1, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]).build()).unwrap();
    assert!(matches!(text.strings("t").unwrap_err(), GgufError::NotUtf8 { .. }));
}

#[test]
fn alignment_is_taken_from_the_file() {
    let bytes = GgufWriter::new()
        .alignment(256)
        .tensor("a", &[1], TensorType::F32, &f32s(&[1.0]))
        .tensor("b", &[1], TensorType::F32, &f32s(&[2.0]))
        .build();
    let gguf = open(&bytes).unwrap();
    assert_eq!(gguf.data(gguf.tensor("b").unwrap()).unwrap(), f32s(&[2.0]));
}

/// A file that must be refused, and the words that the refusal must have.
fn refused(bytes: &[u8], words: &str) {
    let message = open(bytes).expect_err(words).to_string();
    assert!(message.contains(words), "{message:?} does not say {words:?}");
}

#[test]
fn every_kind_of_damage_is_named() {
    refused(b"", "begins with []");
    refused(b"PK\x03\x04", "not a GGUF file");
    refused(b"GGUF\x03\0\0", "ends inside the version");
    refused(b"GGUF\0\0\0\x03rest", "big-endian");
    refused(&GgufWriter::new().version(1).build(), "version 1 is not supported");
    let header = |tensors: u64, keys: u64| {
        [&b"GGUF\x03\0\0\0"[..], &tensors.to_le_bytes(), &keys.to_le_bytes()].concat()
    };
    refused(&header(u64::MAX, 0), "claims 18446744073709551615 tensors");
    refused(&header(0, 1), "claims 1 metadata keys");
    refused(&GgufWriter::new().raw("k", 13, &[]).build(), "value type 13");
    refused(&GgufWriter::new().raw("k", 7, &[2]).build(), "boolean 2");
    refused(&GgufWriter::new().raw("k", 8, &u64::MAX.to_le_bytes()).build(), "ends inside metadata \"k\"");
    refused(&GgufWriter::new().array("k", 4, u64::MAX / 4, &[0; 8]).build(), "elements of metadata \"k\"");
    let nest = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    refused(&GgufWriter::new().raw("k", 9, &nest.repeat(6)).build(), "nests arrays");
    refused(&GgufWriter::new().u32("k", 1).u32("k", 1).build(), "metadata key \"k\" comes twice");
    refused(&GgufWriter::new().string(&"k".repeat(65_536), "").build(), "metadata key of 65536 bytes");
    refused(&GgufWriter::new().u32("general.alignment", 48).build(), "general.alignment is 48");
    refused(&GgufWriter::new().u32("general.alignment", 0).build(), "general.alignment is 0");
}

#[test]
fn every_kind_of_bad_tensor_is_named() {
    let one = |shape: &[u64], tensor_type, offset| {
        GgufWriter::new()
            .tensor("first", &[8], TensorType::F32, &[0; 32])
            .tensor_at("second", shape, tensor_type, offset)
            .build()
    };
    refused(&one(&[1; 5], TensorType::F32, 32), "5 dimensions");
    refused(&one(&[4, 0], TensorType::F32, 32), "a dimension is 0");
    refused(&one(&[u64::MAX, 2], TensorType::F32, 32), "more elements");
    refused(&one(&[2, 33], TensorType::Q4_0, 32), "rows of 33 are not whole blocks of 32");
    refused(&one(&[1], TensorType::F32, 4), "not a multiple of the alignment 32");
    refused(&one(&[1], TensorType::F32, 32), "needs bytes 32 to 36 of the data section, which has 32");
    refused(&one(&[1 << 62], TensorType::F32, 32), "truncated or damaged");
    refused(&one(&[1], TensorType::F32, u64::MAX - 31), "truncated or damaged");
    refused(&one(&[1], TensorType::F32, 0), "\"first\" and \"second\" overlap");
    let twice = small().tensor("norm", &[1], TensorType::F32, &[0; 4]);
    refused(&twice.build(), "tensor \"norm\" comes twice");
}

/// Asks for everything that an open file can tell.
fn read_everything(gguf: &Gguf) {
    for key in gguf.keys() {
        let _ = gguf.get(key).map(|value| value.map(|value| value.to_string()));
        let _ = (gguf.string(key), gguf.boolean(key), gguf.u32(key), gguf.float(key));
        let _ = (gguf.strings(key), gguf.ints(key), gguf.floats(key));
    }
    for tensor in gguf.tensors() {
        assert_eq!(gguf.data(tensor).map(<[u8]>::len), tensor.size());
        gguf.release(tensor);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_mutated_file_is_read_or_refused_but_never_panics(
        writes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        words in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![0, 1, 31, 1 << 31, 1 << 62, u64::MAX])), 0..2),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = small().build();
        for (at, value) in writes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        for (at, value) in words {
            let at = at.index(bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(gguf) = open(&bytes) {
            read_everything(&gguf);
        }
    }
}

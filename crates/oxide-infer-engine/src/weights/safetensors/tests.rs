use super::*;
use crate::testing::{safetensors_file, safetensors_file_of};
use proptest::prelude::*;

fn dir(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

fn message(files: &[(&str, &[u8])]) -> String {
    SafetensorsFiles::open(dir(files).path()).unwrap_err().to_string()
}

#[test]
fn tensors_of_one_file_and_of_several_are_found() {
    let a = safetensors_file(&[("a", "F32", &[2], &[1; 8]), ("b", "BF16", &[1, 3], &[2; 6])]);
    let c = safetensors_file(&[("c", "F16", &[1], &[3; 2])]);
    let one = dir(&[("model.safetensors", &a)]);
    let files = SafetensorsFiles::open(one.path()).unwrap();
    assert_eq!(files.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(files.bytes(files.tensor("b").unwrap()), [2; 6]);

    let index = br#"{"metadata": {"total_size": 16}, "weight_map": {"a": "1.st", "b": "1.st", "c": "2.st"}}"#;
    let several = dir(&[(INDEX, index), ("1.st", &a), ("2.st", &c)]);
    let files = SafetensorsFiles::open(several.path()).unwrap();
    assert_eq!(files.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    files.release(files.tensor("c").unwrap());
    assert_eq!(files.bytes(files.tensor("c").unwrap()), [3; 2]);
    assert_eq!(files.file_bytes(), (a.len() + c.len()) as u64);
}

#[test]
fn a_directory_without_weights_says_what_was_expected_and_what_is_there() {
    assert!(message(&[]).ends_with("has neither model.safetensors nor model.safetensors.index.json"));
    assert!(message(&[("pytorch_model.bin", b"")]).contains("must be converted to safetensors"));
}

#[test]
fn an_index_must_name_files_beside_it_that_have_its_tensors() {
    let a = safetensors_file(&[("a", "F32", &[2], &[1; 8])]);
    let map = |text: &str| format!(r#"{{"weight_map": {text}}}"#).into_bytes();
    let missing = message(&[(INDEX, &map(r#"{"a": "1.st", "b": "2.st", "c": "3.st"}"#)), ("1.st", &a)]);
    assert!(missing.ends_with("names files that are not beside it: 2.st, 3.st"), "{missing}");
    let outside = message(&[(INDEX, &map(r#"{"a": "../1.st"}"#))]);
    assert!(outside.contains("\"../1.st\" is not the name of a file beside it"), "{outside}");
    let absent = message(&[(INDEX, &map(r#"{"a": "1.st", "z": "1.st"}"#)), ("1.st", &a)]);
    assert!(absent.ends_with("1 tensors are in none of the files: z"), "{absent}");
    let twice = message(&[(INDEX, &map(r#"{"a": "1.st", "z": "2.st"}"#)), ("1.st", &a), ("2.st", &a)]);
    assert!(twice.contains("\"a\" is in an earlier file"), "{twice}");
    assert!(message(&[(INDEX, b"[]")]).contains("not a valid safetensors index"));
}

#[test]
fn every_kind_of_damage_is_named() {
    let info = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"t": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}}}"#)
    };
    for (file, words) in [
        (vec![0; 7], "it has 7 bytes"),
        (u64::MAX.to_le_bytes().to_vec(), "claims a header of 18446744073709551615 bytes"),
        (safetensors_file_of("{", &[]), "not JSON"),
        (safetensors_file_of(&info("F32", "[1]", "[0, 8]"), &[0; 4]), "at 0..8 of 4 bytes"),
        (safetensors_file_of(&info("F32", "[1]", "[4, 0]"), &[0; 4]), "at 4..0 of 4 bytes"),
        (safetensors_file_of(&info("F32", "[2]", "[0, 4]"), &[0; 4]), "shape [2] is given 4 bytes"),
        (safetensors_file_of(&info("F32", "[0]", "[0, 4]"), &[0; 4]), "shape [0] is given 4 bytes"),
        (
            safetensors_file_of(&info("F32", "[4294967296, 4294967296]", "[0, 4]"), &[0; 4]),
            "is given 4 bytes",
        ),
        (safetensors_file_of(&info("X9", "[1]", "[0, 4]"), &[0; 4]), "unknown variant `X9`"),
    ] {
        let message = message(&[(SINGLE, &file)]);
        assert!(message.contains(words), "{message:?} does not say {words:?}");
    }
}

#[test]
fn tensors_that_share_bytes_are_refused_and_empty_ones_are_nobodys_neighbours() {
    let file = |offsets: [&str; 3], shape: &str| {
        let info = |name: &str, shape: &str, at: &str| {
            format!(r#""{name}": {{"dtype": "F16", "shape": {shape}, "data_offsets": {at}}}"#)
        };
        let [a, b, c] = offsets;
        let header = [info("a", "[2]", a), info("b", "[2]", b), info("c", shape, c)].join(", ");
        safetensors_file_of(&format!("{{{header}}}"), &[0; 8])
    };
    let shared = message(&[(SINGLE, &file(["[2, 6]", "[0, 4]", "[4, 8]"], "[2]"))]);
    assert!(shared.ends_with("tensors \"b\" and \"a\" have bytes in common"), "{shared}");
    let apart = dir(&[(SINGLE, &file(["[4, 8]", "[0, 4]", "[2, 2]"], "[0]"))]);
    assert_eq!(SafetensorsFiles::open(apart.path()).unwrap().names().count(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_mutated_file_is_read_or_refused_but_never_panics(
        writes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        digits in prop::option::of(any::<prop::sample::Index>()),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = safetensors_file(&[("a", "F32", &[2], &[1; 8]), ("b", "BF16", &[1, 3], &[2; 6])]);
        for (at, value) in writes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(at) = digits {
            let at = at.index(bytes.len() - 20);
            bytes[at..at + 20].copy_from_slice(b"18446744073709551615");
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(tensors) = read_header(&bytes) {
            for (info, range) in tensors.into_values() {
                prop_assert_eq!(bytes[range].len() * 8, info.shape.iter().product::<usize>() * info.dtype.bitsize());
            }
        }
    }
}

//! What the registry refuses: each mismatch by its own error, and nothing by a panic.

use crate::bundle::{Files, SPOILT, WHOLE};
use oxide_infer_cuda::artifact::manifest::{Architecture, ManifestCheckError as Check};
use oxide_infer_cuda::artifact::{
    ArtifactError, Bundle, ManifestError, Registry, RegistryError, Request, Target,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn artifact_error(files: Files) -> ArtifactError {
    match files.verify() {
        Err(RegistryError::Artifact { name, source }) if name == SPOILT => source,
        other => panic!("expected an error of {SPOILT}, got {other:?}"),
    }
}

fn check_error(edit: impl FnOnce(&mut Value)) -> Check {
    match artifact_error(Files::new().edit_manifest(edit)) {
        ArtifactError::Manifest(ManifestError::Check(error)) => error,
        other => panic!("expected a contradiction in the manifest, got {other:?}"),
    }
}

#[test]
fn the_untouched_files_are_accepted() {
    let registry = Files::new().verify().unwrap();
    assert_eq!(registry.artifacts().count(), 2);
    assert_eq!(registry.artifact(WHOLE).unwrap().manifest().name, WHOLE);
    assert!(registry.artifact(SPOILT).unwrap().cubin().starts_with(b"\x7fELF"));
}

#[test]
fn a_directory_serves_as_the_embedded_set_does() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/artifacts/sm_90a");
    let (outside, inside) = (
        Registry::from_directory(folder.as_ref(), Target::hopper()).unwrap(),
        Registry::embedded(Target::hopper()).unwrap(),
    );
    let names =
        |registry: &Registry| registry.artifacts().map(|a| a.manifest().name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&outside), names(&inside));
    let missing = Registry::from_directory("/no/such/folder".as_ref(), Target::hopper());
    assert!(matches!(missing, Err(RegistryError::Bundle(_))));
}

#[test]
fn a_digest_is_of_the_names_and_the_machine_code_of_all_artifacts() {
    let of = |lines: &str| format!("{:x}", Sha256::digest(lines));
    let line = |manifest: &Value| {
        let (name, hash) =
            (manifest["name"].as_str().unwrap(), manifest["cubin"]["sha256"].as_str().unwrap());
        format!("{name} {hash}\n")
    };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/artifacts/sm_90a");
    let registry = Registry::embedded(Target::hopper()).unwrap();
    let manifests = registry.artifacts().map(|artifact| {
        let text = std::fs::read(format!("{folder}/{}.json", artifact.manifest().name)).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap()
    });
    let mut lines: Vec<_> = manifests.map(|manifest| line(&manifest)).collect();
    lines.sort();
    assert_eq!(registry.digest().to_string(), of(&lines.concat()));
    let selection = Files::new().edit_json("index.json", |index| index["selection"] = json!([]));
    assert_eq!(Files::new().verify().unwrap().digest(), selection.verify().unwrap().digest());
    assert_ne!(Files::new().verify().unwrap().digest(), registry.digest());
}

#[test]
fn the_index_is_needed_and_strict() {
    assert!(matches!(Files::new().remove("index.json").verify(), Err(RegistryError::NoIndex)));
    for edit in [
        |index: &mut Value| index["schema"] = json!(1),
        |index: &mut Value| index["speed"] = json!(1),
        |index: &mut Value| index["architecture"] = json!("hopper"),
        |index: &mut Value| index["source"]["sha256"] = json!("ab"),
        |index: &mut Value| index["selection"] = json!([{"contract": "a", "properties": {}, "when": {}}]),
        |index: &mut Value| index["selection"] = json!([{"algorithm": "b"}]),
    ] {
        assert!(matches!(Files::new().edit_json("index.json", edit).verify(), Err(RegistryError::Index(_))));
    }
    for (index, wanted) in [
        ("[]", "an object with schema, architecture, source, artifacts and selection"),
        ("[2]", "an object with schema, architecture, source, artifacts and selection"),
        ("{}", "missing field `schema`"),
        (r#"{"schema": 2}"#, "missing field `architecture`"),
    ] {
        let files = Files::new().edit_bytes("index.json", |text| *text = index.into());
        let told = files.verify().unwrap_err().to_string();
        assert!(told.starts_with("index.json is not an index") && told.contains(wanted), "{told}");
    }
}

#[test]
fn files_and_index_must_account_for_each_other() {
    let stray = Files::new().add("gather.bf16.cubin.zst").verify();
    assert!(matches!(stray, Err(RegistryError::Stray { name }) if name == "gather.bf16.cubin.zst"));
    for file in [format!("{SPOILT}.json"), format!("{SPOILT}.cubin.zst")] {
        let error = artifact_error(Files::new().remove(&file));
        assert!(matches!(error, ArtifactError::Missing { file: missing } if missing == file));
    }
}

#[test]
fn a_manifest_that_the_index_does_not_list_is_refused() {
    let files = Files::new().edit_bytes(&format!("{SPOILT}.json"), |text| text.push(b'\n'));
    assert!(matches!(artifact_error(files), ArtifactError::ManifestHash { .. }));
}

#[test]
fn schema_and_abi_come_before_anything_else() {
    let schema = Files::new().edit_manifest(|m| *m = json!({"schema": 2, "abi": 9, "anything": []}));
    let ArtifactError::Manifest(error) = artifact_error(schema) else { panic!() };
    assert!(matches!(error, ManifestError::Schema { found: 2 }), "{error:?}");
    let abi = Files::new().edit_manifest(|m| *m = json!({"schema": 1, "abi": 9, "anything": []}));
    let ArtifactError::Manifest(error) = artifact_error(abi) else { panic!() };
    assert!(matches!(error, ManifestError::Abi { found: 9 }), "{error:?}");
}

#[test]
fn identity_architecture_and_driver_must_fit() {
    let renamed = Files::new().edit_manifest(|m| {
        m["name"] = json!("other");
        m["cubin"]["file"] = json!("other.cubin.zst");
    });
    assert!(matches!(artifact_error(renamed), ArtifactError::Name { found } if found == "other"));
    let driver = Files::new().edit_manifest(|m| m["minimum_driver"] = json!(13_000));
    assert!(matches!(artifact_error(driver), ArtifactError::Driver { required: 13_000, found: 12_000 }));
    let architecture = Files::new().edit_manifest(|m| m["architecture"] = json!("sm_80"));
    let error = artifact_error(architecture);
    assert_eq!(error.to_string(), "made for sm_80, the device is sm_90a");
    assert!(matches!(error, ArtifactError::Architecture { expected: Architecture::SM_90A, .. }));
    let nameless = Files::new().edit_manifest(|m| m["architecture"] = json!("hopper"));
    assert!(matches!(artifact_error(nameless), ArtifactError::Manifest(ManifestError::Json(_))));
    let index = Files::new().edit_json("index.json", |index| index["architecture"] = json!("sm_100a"));
    let error = index.verify().unwrap_err();
    assert_eq!(error.to_string(), "the artifacts are for sm_100a, the device is sm_90a");
    assert!(matches!(error, RegistryError::Architecture { .. }));
}

#[test]
fn artifacts_of_one_provider_are_not_taken_for_those_of_another() {
    let native = Files::new().edit_manifest(|m| m["toolchain"]["lowering"] = json!("rustc 1.96.0"));
    let expected = "is of oxide_native, not of oxide_tile";
    assert_eq!(artifact_error(native).to_string(), expected);
    let unknown = Files::new().edit_manifest(|m| m["toolchain"]["lowering"] = json!("by hand"));
    assert!(matches!(artifact_error(unknown), ArtifactError::Manifest(ManifestError::Json(_))));
    // The folders of both, each asked for as the other.
    let folder = |name: &str| format!("{}/artifacts/{name}", env!("CARGO_MANIFEST_DIR"));
    let wrong = [
        Registry::from_directory(folder("sm_90a_native").as_ref(), Target::hopper()),
        Registry::verify_native(&Bundle::embedded(Architecture::SM_90A), Target::hopper()),
    ];
    for registry in wrong {
        let error = registry.unwrap_err();
        let of_provider = |e: &RegistryError| {
            matches!(e, RegistryError::Artifact { source: ArtifactError::Provider { .. }, .. })
        };
        assert!(of_provider(&error), "{error}");
    }
}

#[test]
fn machine_code_must_have_the_stated_size_hash_and_form() {
    let name = format!("{SPOILT}.cubin.zst");
    let garbled = Files::new().edit_bytes(&name, |data| data.truncate(40));
    assert!(matches!(artifact_error(garbled), ArtifactError::Compression { .. }));
    let smaller = Files::new().edit_manifest(|m| m["cubin"]["size"] = json!(17));
    let whole = Files::new().verify().unwrap().artifact(SPOILT).unwrap().cubin().len();
    assert!(matches!(artifact_error(smaller), ArtifactError::Size { expected: 17, found } if found == whole));
    let larger = Files::new().edit_manifest(|m| m["cubin"]["size"] = json!(1 << 20));
    assert!(
        matches!(artifact_error(larger), ArtifactError::Size { expected: 1_048_576, found } if found == whole)
    );
    // 80 MiB of zeros in a few KiB: counted no further than a cubin may be large.
    let bomb = zstd::encode_all(vec![0u8; 80 << 20].as_slice(), 1).unwrap();
    let bomb = Files::new().edit_bytes(&name, |data| *data = bomb);
    let bomb = artifact_error(bomb);
    assert!(matches!(bomb, ArtifactError::Size { found: 67_108_865, .. }));
    let told = format!("the cubin has more than 64 MiB, the manifest says {whole} bytes");
    assert_eq!(bomb.to_string(), told);
    let trailing = Files::new().edit_bytes(&name, |data| data.extend(b"more"));
    assert!(matches!(artifact_error(trailing), ArtifactError::Compression { .. }));
    let hash = "0".repeat(64);
    let hashed = Files::new().edit_manifest(|m| m["cubin"]["sha256"] = json!(hash));
    assert!(matches!(artifact_error(hashed), ArtifactError::Hash { .. }));
    let script = Files::new().edit_cubin(|cubin| cubin[..4].copy_from_slice(b"#!/b"));
    assert!(matches!(artifact_error(script), ArtifactError::Elf(_)));
}

#[test]
fn kernels_and_their_parameters_must_be_in_the_machine_code() {
    let symbol = Files::new().edit_manifest(|m| m["launches"][1]["symbol"] = json!("attend"));
    assert!(matches!(artifact_error(symbol), ArtifactError::Symbol { symbol } if symbol == "attend"));
    let fewer = Files::new().edit_manifest(|m| {
        let parameters = m["launches"][1]["parameters"].as_array_mut().unwrap();
        parameters.pop();
    });
    assert!(matches!(artifact_error(fewer), ArtifactError::Parameters { .. }));
}

#[test]
fn contradictions_in_a_manifest_are_told_apart() {
    assert!(
        matches!(check_error(|m| m["name"] = json!("../up")), Check::ArtifactName(name) if name == "../up")
    );
    let digit = Files::new().edit_manifest(|m| {
        m["name"] = json!("a.64");
        m["cubin"]["file"] = json!("a.64.cubin.zst");
    });
    assert!(matches!(artifact_error(digit), ArtifactError::Name { found } if found == "a.64"));
    let contract = |name: &str| check_error(|m| m["contract"] = json!(name));
    for name in ["Gemm", "gemm.64", "gemm.", ""] {
        assert!(matches!(contract(name), Check::DottedName { what: "contract", .. }), "{name}");
    }
    assert!(matches!(
        check_error(|m| m["algorithm"] = json!("2_stages")),
        Check::Name { what: "algorithm", name } if name == "2_stages"
    ));
    assert!(matches!(
        check_error(|m| m["launches"][0]["symbol"] = json!("a-b")),
        Check::SymbolName(name) if name == "a-b"
    ));
    let twice = check_error(|m| m["launches"][1]["symbol"] = m["launches"][0]["symbol"].clone());
    assert!(matches!(&twice, Check::RepeatedSymbol(_)));
    assert!(twice.to_string().contains("is launched twice"), "{twice}");
    assert!(matches!(check_error(|m| m["contract_version"] = json!(0)), Check::ContractVersion));
    assert!(matches!(check_error(|m| m["cubin"]["file"] = json!("/etc/passwd")), Check::CubinFile { .. }));
    assert!(matches!(check_error(|m| m["cubin"]["size"] = json!(0)), Check::CubinSize { size: 0 }));
    assert!(matches!(
        check_error(|m| m["dimensions"]["batch"]["multiple_of"] = json!(0)),
        Check::EmptyDomain { .. }
    ));
    assert!(matches!(
        check_error(|m| m["dimensions"]["batch"]["min"] = json!(1u64 << 40)),
        Check::EmptyDomain { .. }
    ));
    assert!(matches!(
        check_error(|m| m["launches"][0]["grid"][0] = json!("rows / 2")),
        Check::UnknownDimension { name, .. } if name == "rows"
    ));
    assert!(
        matches!(check_error(|m| m["operands"][1]["name"] = json!("q")), Check::RepeatedOperand(name) if name == "q")
    );
    assert!(matches!(check_error(|m| m["operands"][0]["alignment"] = json!(3)), Check::Alignment { .. }));
    assert!(matches!(check_error(|m| m["operands"][0]["same_as"] = json!("nobody")), Check::SameAs { .. }));
    assert!(matches!(
        check_error(|m| m["operands"].as_array_mut().unwrap().push(json!({
            "name": "spare", "role": "operand", "element": "f32", "shape": ["1"], "access": "read",
            "alignment": 4, "same_as": null
        }))),
        Check::UnusedOperand(name) if name == "spare"
    ));
    assert!(matches!(check_error(|m| m["launches"] = json!([])), Check::UnusedOperand(_) | Check::NoLaunch));
    assert!(matches!(check_error(|m| m["launches"][0]["block"] = json!([1024, 2, 1])), Check::Block { .. }));
    assert!(matches!(check_error(|m| m["launches"][0]["cluster"] = json!([4, 4, 2])), Check::Cluster { .. }));
    assert!(matches!(
        check_error(|m| m["launches"][0]["dynamic_shared_memory"] = json!(240_000)),
        Check::SharedMemory { bytes: 240_000, .. }
    ));
    let element = check_error(|m| parameter(m, "pointer")["element"] = json!("f32"));
    assert!(matches!(element, Check::OperandElement { .. }));
    let operand = check_error(|m| parameter(m, "pointer")["operand"] = json!("nobody"));
    assert!(matches!(operand, Check::UnknownOperand { .. } | Check::UnusedOperand(_)));
    let attribute = check_error(|m| parameter(m, "attribute")["attribute"] = json!("epsilon"));
    assert!(matches!(attribute, Check::UnknownAttribute { .. }));
    let scalar = check_error(|m| parameter(m, "scalar")["element"] = json!("f32"));
    assert!(matches!(scalar, Check::ScalarElement { .. }));
    let settled = check_error(|m| *parameter(m, "scalar") = json!({ "kind": "settled", "element": "u8" }));
    assert!(matches!(settled, Check::ScalarElement { .. }));
}

#[test]
fn tensor_maps_must_be_what_the_driver_admits() {
    let map_error = |field: &str, value: Value| check_error(|m| parameter(m, "tensor_map")[field] = value);
    assert!(matches!(map_error("dimensions", json!([])), Check::Rank { rank: 0, .. }));
    assert!(matches!(map_error("strides", json!(["16"])), Check::RankMismatch { what: "strides", .. }));
    assert!(matches!(map_error("box", json!([64, 512, 1, 1])), Check::Box { .. }));
    assert!(matches!(
        map_error("box", json!([128, 64, 1, 1])),
        Check::BoxRow { bytes: 256, swizzle: 128, .. }
    ));
    assert!(matches!(map_error("box", json!([7, 64, 1, 1])), Check::BoxRow { bytes: 14, .. }));
    assert!(matches!(map_error("element_strides", json!([9, 1, 1, 1])), Check::ElementStrides { .. }));
}

#[test]
fn unknown_missing_and_repeated_fields_are_refused_everywhere() {
    let manifest: Value = serde_json::from_slice(Files::new().file(&format!("{SPOILT}.json"))).unwrap();
    for path in object_paths(&manifest, String::new()) {
        let is_map = ["properties", "dimensions", "attributes", "constants", "variant", "schedule"]
            .iter()
            .any(|map| path.ends_with(map));
        let fields: Vec<String> =
            manifest.pointer(&path).unwrap().as_object().unwrap().keys().cloned().collect();
        for field in fields.iter().filter(|_| !is_map) {
            let error = artifact_error(Files::new().edit_manifest(|m| {
                m.pointer_mut(&path).unwrap().as_object_mut().unwrap().remove(field).unwrap();
            }));
            assert!(
                matches!(error, ArtifactError::Manifest(ManifestError::Json(_))),
                "{path}/{field}: {error:?}"
            );
        }
        if !is_map {
            let error = artifact_error(Files::new().edit_manifest(|m| {
                m.pointer_mut(&path).unwrap()["surprise"] = json!(1);
            }));
            assert!(matches!(error, ArtifactError::Manifest(ManifestError::Json(_))), "{path}: {error:?}");
        }
    }
    let twice = Files::new().edit_bytes(&format!("{WHOLE}.json"), |text| {
        let doubled =
            String::from_utf8(text.clone()).unwrap().replace("\"tokens\":", "\"heads\":{},\"tokens\":");
        *text = doubled.into_bytes();
    });
    let text = twice.file(&format!("{WHOLE}.json")).to_vec();
    assert!(oxide_infer_cuda::artifact::Manifest::parse(&text).is_err());
}

/// The first parameter of a kind, of the first launch.
fn parameter<'a>(manifest: &'a mut Value, kind: &str) -> &'a mut Value {
    let parameters = manifest["launches"][0]["parameters"].as_array_mut().unwrap();
    parameters.iter_mut().find(|parameter| parameter["kind"] == kind).unwrap()
}

/// JSON pointers of every object in a value.
fn object_paths(value: &Value, path: String) -> Vec<String> {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(key, child)| (key.clone(), child)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, child)| (i.to_string(), child)).collect(),
        _ => return Vec::new(),
    };
    let below = children.into_iter().flat_map(|(key, child)| object_paths(child, format!("{path}/{key}")));
    below.chain(value.is_object().then(|| path.clone())).collect()
}

/// JSON pointers of every value in a value.
fn all_paths(value: &Value, path: String) -> Vec<String> {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(key, child)| (key.clone(), child)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, child)| (i.to_string(), child)).collect(),
        _ => Vec::new(),
    };
    let below = children.into_iter().flat_map(|(key, child)| all_paths(child, format!("{path}/{key}")));
    below.chain([path.clone()]).collect()
}

fn any_json() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        "[a-z0-9_ +*/%(),.-]{0,24}".prop_map(Value::from),
        proptest::collection::vec(any::<u64>().prop_map(Value::from), 0..6).prop_map(Value::from),
        Just(json!({})),
    ]
}

/// The untouched files with a rule of each form for the same artifacts.
fn with_rules() -> Files {
    let rule = |when: Value, choice: Value| {
        let properties = json!({"dtype": "bf16"});
        json!({"contract": "normalization.rms_norm", "properties": properties, "when": when, "choice": choice})
    };
    let costs =
        json!({"up_to_256": "1000 + ceil_div(tokens * heads, 132) * 50", "twin": "max(tokens, 9) * 100"});
    Files::new()
        .copy(WHOLE, SPOILT)
        .edit_manifest(|manifest| manifest["algorithm"] = json!("twin"))
        .edit_json("index.json", |index| {
            index["selection"] = json!([
                rule(json!({"tokens": {"min": 1, "max": 8}}), json!({"algorithm": "twin"})),
                rule(json!({"tokens": {"min": 9, "max": 99}}), json!({"costs": costs})),
            ]);
        })
}

/// Ask for a choice by either rule.
fn select_by_each_rule(registry: &Registry) {
    for tokens in [3, 9, 99] {
        let request = Request::new("normalization.rms_norm", 1)
            .property("dtype", "bf16")
            .property("weight_dtype", "bf16")
            .property("residual", "absent")
            .dimension("tokens", tokens)
            .dimension("heads", 12)
            .dimension("hidden_size", 128);
        let _ = registry.select(&request);
    }
}

#[test]
fn every_field_of_a_rule_is_needed_and_no_other_admitted() {
    let index: Value = serde_json::from_slice(with_rules().file("index.json")).unwrap();
    with_rules().verify().unwrap();
    let refused = |edit: &dyn Fn(&mut Value)| {
        let verified = with_rules().edit_json("index.json", |index| edit(&mut index["selection"]));
        matches!(verified.verify(), Err(RegistryError::Index(_)))
    };
    for rule in 0..2 {
        for field in index["selection"][rule].as_object().unwrap().keys() {
            assert!(refused(&|rules| _ = rules[rule].as_object_mut().unwrap().remove(field)), "{field}");
            assert!(refused(&|rules| rules[rule][field] = json!(null)), "{field}");
        }
        assert!(refused(&|rules| rules[rule]["speed"] = json!(1)));
        assert!(refused(&|rules| rules[rule]["algorithm"] = json!("twin")));
        assert!(refused(&|rules| rules[rule]["choice"]["speed"] = json!("twin")));
    }
    assert!(refused(&|rules| rules[1]["choice"]["algorithm"] = json!("twin")));
    assert!(refused(&|rules| rules[1]["choice"]["costs"]["twin"] = json!("tokens +")));
    let twice = with_rules().edit_bytes("index.json", |text| {
        let whole = String::from_utf8(text.clone()).unwrap();
        *text = whole.replace(r#""costs":{"#, r#""costs":{"twin":"1","#).into_bytes();
    });
    assert!(matches!(twice.verify(), Err(RegistryError::Index(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn an_index_with_any_value_replaced_is_verified_or_refused(pick in any::<prop::sample::Index>(), value in any_json()) {
        let files = with_rules();
        let index: Value = serde_json::from_slice(files.file("index.json")).unwrap();
        // The rules have the fewest values, and the most forms.
        let paths = all_paths(&index["selection"], "/selection".to_owned());
        let path = &paths[pick.index(paths.len())];
        let edited = files.edit_json("index.json", |index| *index.pointer_mut(path).unwrap() = value);
        if let Ok(registry) = edited.verify() {
            select_by_each_rule(&registry);
        }
    }

    #[test]
    fn text_that_is_nearly_an_index_is_parsed_or_refused(at in any::<prop::sample::Index>(), noise in "[\\[\\]{}\",:0-9a-z+*/()]{1,6}") {
        let files = with_rules().edit_bytes("index.json", |text| {
            let place = at.index(text.len());
            let end = (place + noise.len()).min(text.len());
            text.splice(place..end, noise.bytes());
        });
        if let Ok(registry) = files.verify() {
            select_by_each_rule(&registry);
        }
    }

    #[test]
    fn a_manifest_with_any_value_replaced_is_verified_or_refused(pick in any::<prop::sample::Index>(), value in any_json()) {
        let manifest: Value = serde_json::from_slice(Files::new().file(&format!("{SPOILT}.json"))).unwrap();
        let paths = all_paths(&manifest, String::new());
        let path = &paths[pick.index(paths.len())];
        let verified = Files::new().edit_manifest(|m| *m.pointer_mut(path).unwrap() = value).verify();
        if let Ok(registry) = verified {
            let artifact = registry.artifact(SPOILT).unwrap();
            let smallest = artifact.manifest().dimensions.iter().map(|(name, domain)| (name.clone(), domain.min));
            let _ = artifact.manifest().resolve(&smallest.collect());
        }
    }

    #[test]
    fn a_manifest_with_bytes_changed_is_never_the_listed_one(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let name = format!("{SPOILT}.json");
        let files = Files::new();
        let place = at.index(files.file(&name).len());
        prop_assume!(files.file(&name)[place] != byte);
        let error = artifact_error(files.edit_bytes(&name, |text| text[place] = byte));
        let is_hash = matches!(error, ArtifactError::ManifestHash { .. });
        prop_assert!(is_hash);
    }

    #[test]
    fn text_that_is_nearly_a_manifest_is_parsed_or_refused(at in any::<prop::sample::Index>(), noise in "[\\[\\]{}\",:0-9a-z]{1,6}") {
        let mut text = Files::new().file(&format!("{SPOILT}.json")).to_vec();
        let place = at.index(text.len());
        let end = (place + noise.len()).min(text.len());
        text.splice(place..end, noise.bytes());
        let _ = oxide_infer_cuda::artifact::Manifest::parse(&text);
    }

    #[test]
    fn machine_code_with_bytes_changed_is_refused(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let name = format!("{SPOILT}.cubin.zst");
        let files = Files::new();
        let place = at.index(files.file(&name).len());
        let verified = files.edit_bytes(&name, |data| data[place] ^= 1 << bit).verify();
        // A flipped bit of the zstd frame header may leave the content as it is; then the artifact is still sound.
        if let Ok(registry) = verified {
            let original = Files::new().verify().unwrap();
            prop_assert_eq!(registry.artifact(SPOILT).unwrap().cubin(), original.artifact(SPOILT).unwrap().cubin());
        }
    }

    #[test]
    fn rehashed_machine_code_is_verified_or_refused(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        header_edits in proptest::collection::vec((0usize..64, any::<u8>()), 0..3),
        keep in any::<prop::sample::Index>(),
        truncate in prop::bool::weighted(0.3),
    ) {
        let files = Files::new().edit_cubin(|cubin| {
            for (at, byte) in &edits {
                let place = at.index(cubin.len());
                cubin[place] = *byte;
            }
            for (place, byte) in &header_edits {
                cubin[*place] = *byte;
            }
            if truncate {
                cubin.truncate(keep.index(cubin.len()).max(1));
            }
        });
        let _ = files.verify();
    }
}

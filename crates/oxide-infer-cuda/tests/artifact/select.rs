//! Which artifact serves a request, and why none does.

use crate::bundle::{Files, SPOILT, WHOLE};
use oxide_infer_cuda::artifact::expr::EvalError;
use oxide_infer_cuda::artifact::{Miss, Registry, RegistryError, Request, SelectError, Target};
use serde_json::{Value, json};

fn norm() -> Request {
    Request::new("normalization.rms_norm", 1)
        .property("dtype", "bf16")
        .property("weight_dtype", "bf16")
        .property("output_dtype", "bf16")
        .property("residual", "absent")
        .dimension("tokens", 3)
        .dimension("heads", 12)
        .dimension("hidden_size", 128)
}

/// A registry where a second artifact, of algorithm `twin`, admits the same requests as the first, of `up_to_256`.
fn twins(rules: &[Value]) -> Result<Registry, RegistryError> {
    Files::new()
        .copy(WHOLE, SPOILT)
        .edit_manifest(|manifest| manifest["algorithm"] = json!("twin"))
        .edit_json("index.json", |index| index["selection"] = rules.into())
        .verify()
}

fn rule(algorithm: &str, hidden_size: [u64; 2]) -> Value {
    json!({
        "contract": "normalization.rms_norm",
        "properties": {"dtype": "bf16"},
        "when": {"hidden_size": {"min": hidden_size[0], "max": hidden_size[1]}},
        "choice": {"algorithm": algorithm}
    })
}

fn costs(costs: Value) -> Value {
    json!({
        "contract": "normalization.rms_norm",
        "properties": {},
        "when": {},
        "choice": {"costs": costs}
    })
}

#[test]
fn the_only_artifact_that_admits_a_request_serves_it() {
    let registry = Files::new().verify().unwrap();
    assert_eq!(registry.select(&norm()).unwrap().manifest().name, WHOLE);
}

#[test]
fn another_contract_or_version_has_no_artifact() {
    let registry = Files::new().verify().unwrap();
    for request in [Request::new("normalization.rms_norm", 2), Request::new("gemm.dense", 1)] {
        assert!(matches!(registry.select(&request), Err(SelectError::NoContract { .. })));
    }
}

#[test]
fn every_property_must_be_equal_on_both_sides() {
    let registry = Files::new().verify().unwrap();
    for request in
        [norm().property("dtype", "f16"), norm().property("surprise", "yes"), norm().property("residual", 1)]
    {
        match registry.select(&request) {
            Err(SelectError::NotCovered { misses, .. }) => {
                assert!(matches!(misses[..], [Miss::Property { .. }]), "{misses:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_dimension_must_be_known_and_in_its_domain() {
    let registry = Files::new().verify().unwrap();
    let misses = |request: &Request| match registry.select(request) {
        Err(SelectError::NotCovered { misses, .. }) => misses,
        other => panic!("{other:?}"),
    };
    for hidden_size in [0, 4, 264, 129] {
        let message = misses(&norm().dimension("hidden_size", hidden_size))[0].to_string();
        let expected = format!("{WHOLE}: hidden_size must be 8..=256 in steps of 8, got {hidden_size}");
        assert_eq!(message, expected);
    }
    assert!(matches!(misses(&norm().dimension("splits", 2))[..], [Miss::UnknownDimension { .. }]));
    let incomplete = Request::new("normalization.rms_norm", 1)
        .property("dtype", "bf16")
        .property("weight_dtype", "bf16")
        .property("output_dtype", "bf16")
        .property("residual", "absent");
    assert!(matches!(misses(&incomplete)[..], [Miss::Domain { .. }]));
}

#[test]
fn what_no_artifact_has_is_told_once_by_field() {
    let registry = Registry::embedded(Target::hopper()).unwrap();
    let told = |request: &Request| {
        let error = registry.select(request).unwrap_err().to_string();
        error.strip_prefix(&format!("no artifact for {request}: ")).unwrap().to_owned()
    };
    let properties = [
        ("dtype", "bf16"),
        ("kv_dtype", "bf16"),
        ("lse", "absent"),
        ("page_layout", "hnd"),
        ("soft_cap", "none"),
        ("window", "none"),
    ];
    let decode = Request::new("attention.paged_decode", 1);
    let decode = properties.into_iter().fold(decode, |request, (name, value)| request.property(name, value));
    let dimensions = [
        ("batch", 1),
        ("max_pages", 64),
        ("num_pages", 2),
        ("num_q_heads", 32),
        ("num_kv_heads", 32),
        ("page_size", 64),
    ];
    let decode = dimensions.into_iter().fold(decode, |request, (name, value)| request.dimension(name, value));
    assert_eq!(told(&decode.clone().dimension("head_dim", 96)), "head_dim is 96, artifacts have 64 or 128");
    assert_eq!(told(&decode.clone()), "head_dim is nothing, artifacts have 64 or 128");
    let unknown = decode.dimension("head_dim", 64).dimension("rows", 2);
    assert_eq!(told(&unknown), "rows is stated, artifacts have no such dimension");
    assert_eq!(told(&norm().property("dtype", "f64")), "dtype is f64, artifacts have bf16 or f16 or f32");
}

#[test]
fn conditions_over_several_dimensions_are_held() {
    let registry = Registry::embedded(Target::hopper()).unwrap();
    let decode = registry.artifact(SPOILT).unwrap().manifest();
    let dimensions = |num_q_heads: u64, num_kv_heads: u64| {
        let heads = [("num_q_heads", num_q_heads), ("num_kv_heads", num_kv_heads)];
        let rest = [
            ("batch", 1),
            ("head_dim", 64),
            ("page_size", 64),
            ("num_pages", 9),
            ("max_pages", 9),
            ("splits", 2),
        ];
        heads.iter().chain(&rest).map(|(name, value)| ((*name).to_owned(), *value)).collect()
    };
    assert_eq!(decode.out_of_domain(&dimensions(32, 2)), None);
    let group = decode.out_of_domain(&dimensions(130, 2)).unwrap();
    assert_eq!((group.what.as_str(), group.value), ("num_q_heads / num_kv_heads", Some(65)));
    let remainder = decode.out_of_domain(&dimensions(33, 2)).unwrap();
    assert_eq!((remainder.what.as_str(), remainder.value), ("num_q_heads % num_kv_heads", Some(1)));
}

#[test]
fn of_several_artifacts_the_rule_that_matches_names_one() {
    let registry = twins(&[rule("twin", [1, 127]), rule("up_to_256", [128, 256])]).unwrap();
    assert_eq!(registry.select(&norm()).unwrap().manifest().algorithm, "up_to_256");
    let smaller = norm().dimension("hidden_size", 64);
    assert_eq!(registry.select(&smaller).unwrap().manifest().algorithm, "twin");
}

#[test]
fn no_rule_and_two_rules_are_errors() {
    match twins(&[rule("twin", [1, 127])]).unwrap().select(&norm()) {
        Err(SelectError::NoRule { candidates, .. }) => assert_eq!(candidates, [SPOILT, WHOLE]),
        other => panic!("{other:?}"),
    }
    match twins(&[rule("twin", [1, 128]), rule("up_to_256", [128, 256])]).unwrap().select(&norm()) {
        Err(SelectError::SeveralRules { choices, .. }) => assert_eq!(choices, ["twin", "up_to_256"]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rule_must_name_an_algorithm_of_its_contract() {
    let unknown = twins(&[rule("nobody", [1, 256])]);
    assert!(matches!(unknown, Err(RegistryError::Rule { algorithm, .. }) if algorithm == "nobody"));
    let unknown = twins(&[costs(json!({"twin": "1", "nobody": "2"}))]);
    assert!(matches!(unknown, Err(RegistryError::Rule { algorithm, .. }) if algorithm == "nobody"));
    let mut of_f16 = rule("twin", [1, 256]);
    of_f16["properties"]["dtype"] = json!("f16");
    assert!(matches!(twins(&[of_f16]), Err(RegistryError::Rule { algorithm, .. }) if algorithm == "twin"));
}

#[test]
fn of_several_artifacts_the_cheapest_serves() {
    // 3 tokens of 12 heads of 128: 36 rows cost 1,000 + 36 * 100 = 4,600 ns, or ceil_div(36, 16) = 3 waves of 1,500 ns.
    let rule = costs(json!({
        "up_to_256": "1000 + tokens * heads * 100",
        "twin": "ceil_div(tokens * heads, 16) * 1500"
    }));
    let registry = twins(&[rule]).unwrap();
    let serves = |request: &Request| registry.select(request).unwrap().manifest().algorithm.clone();
    assert_eq!(serves(&norm()), "twin");
    // 49 rows: 5,900 ns, or 4 waves, 6,000 ns. 50 rows: 6,000 ns both, and the first name is taken.
    assert_eq!(serves(&norm().dimension("tokens", 7).dimension("heads", 7)), "up_to_256");
    assert_eq!(serves(&norm().dimension("tokens", 5).dimension("heads", 10)), "twin");
}

#[test]
fn an_artifact_without_a_cost_is_not_considered() {
    let registry = twins(&[costs(json!({"up_to_256": "1000000"}))]).unwrap();
    assert_eq!(registry.select(&norm()).unwrap().manifest().algorithm, "up_to_256");
}

#[test]
fn a_rule_without_a_cost_for_any_that_admits_is_an_error() {
    // A third artifact of the contract has a cost, and another weight type.
    let registry = Files::new()
        .copy(WHOLE, "third")
        .edit_json("third.json", |manifest| {
            manifest["algorithm"] = json!("third");
            manifest["properties"]["weight_dtype"] = json!("f32");
        })
        .copy(WHOLE, SPOILT)
        .edit_manifest(|manifest| manifest["algorithm"] = json!("twin"))
        .edit_json("index.json", |index| {
            index["selection"] = json!([costs(json!({"third": "1"}))]);
            index["artifacts"]["third"] = json!(null);
        })
        .verify()
        .unwrap();
    match registry.select(&norm()) {
        Err(SelectError::NoCost { candidates, .. }) => assert_eq!(candidates, [SPOILT, WHOLE]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cost_that_leaves_64_bits_or_falls_below_0_is_an_error() {
    for (cost, tokens) in [("tokens * 18446744073709551615", 2), ("100 - tokens", 101)] {
        let registry = twins(&[costs(json!({"up_to_256": "7", "twin": cost}))]).unwrap();
        match registry.select(&norm().dimension("tokens", tokens)) {
            Err(SelectError::Cost { source, .. }) => {
                assert_eq!(source.algorithm, "twin");
                assert_eq!(source.source, EvalError::OutOfRange { expr: cost.to_owned() });
            }
            other => panic!("{other:?}"),
        }
        assert!(registry.select(&norm().dimension("tokens", 1)).is_ok());
    }
}

#[test]
fn a_cost_is_over_dimensions_that_its_artifacts_have() {
    match twins(&[costs(json!({"up_to_256": "1", "twin": "tokens * splits"}))]) {
        Err(RegistryError::RuleDimension { algorithm, dimension, artifact, .. }) => {
            assert_eq!([algorithm.as_str(), &dimension, &artifact], ["twin", "splits", SPOILT]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn costs_and_a_fixed_algorithm_for_one_request_are_two_rules() {
    let rules = [rule("twin", [1, 256]), costs(json!({"up_to_256": "1", "twin": "2"}))];
    match twins(&rules).unwrap().select(&norm()) {
        Err(SelectError::SeveralRules { choices, .. }) => {
            assert_eq!(choices, ["twin", "the cheapest of twin | up_to_256"]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn candidates_are_the_artifacts_that_nothing_is_said_to_be_missing_of() {
    let registry = Registry::embedded(Target::hopper()).unwrap();
    let dense = |m: u64, k: u64| {
        Request::new("gemm.dense", 1)
            .property("input", "bf16")
            .property("weight", "bf16")
            .property("output", "f32")
            .property("bias", "absent")
            .property("residual", "present")
            .dimension("m", m)
            .dimension("n", 1536)
            .dimension("k", k)
    };
    let requests = [
        dense(1, 8960),
        dense(7, 1536),
        dense(128, 1536),
        dense(300, 8960).algorithm("tile_128x128"),
        dense(8192, 1536).property("residual", "absent"),
        norm().property("dtype", "f32"),
    ];
    for request in requests {
        let admitted: Vec<_> = registry
            .survey(&request)
            .filter(|(_, miss)| miss.is_none())
            .map(|(artifact, _)| artifact)
            .collect();
        assert!(!admitted.is_empty(), "{request}");
        let names = |artifacts: &[&std::sync::Arc<oxide_infer_cuda::artifact::Artifact>]| {
            artifacts.iter().map(|artifact| artifact.manifest().name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&registry.candidates(&request).unwrap()), names(&admitted), "{request}");
    }
    // One dimension too many, one out of its domain, and a property that none has.
    for request in [dense(1, 1536).dimension("p", 1), dense(1, 1537), dense(1, 1536).property("bias", "f64")]
    {
        assert!(registry.survey(&request).all(|(_, miss)| miss.is_some()), "{request}");
        assert!(matches!(registry.candidates(&request), Err(SelectError::NotCovered { .. })), "{request}");
    }
}

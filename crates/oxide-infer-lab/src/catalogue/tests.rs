use super::evidence::{Content, Evidence, File};
use super::sanitized::{Clean, clean};
use super::state::{Claim, State};
use super::{CatalogueOptions, marks, run, updated};
use oxide_infer_cuda::artifact::{Registry, Target};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const NAME: &str = "dense.bf16.bf16.none.tile_64x128";
const NOW: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const OTHER: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// A record of the conformance gate that lists one artifact.
fn gate(hash: &str, command: &[&str], passed: Value, failures: &[&str]) -> Value {
    json!({
        "schema": 1, "revision": "0123456789", "time": 0, "command": command, "artifacts": { NAME: hash },
        "device": {
            "name": "", "compute_capability": "9.0", "multiprocessors": 1, "total_memory": 1, "driver": 13000
        },
        "findings": [{
            "gate": "conformance", "passed": passed, "not_covered": {}, "failures": failures, "measured": {}
        }]
    })
}

fn passed_gate(hash: &str) -> Value {
    gate(hash, &["oxide-infer-lab", "gates", "conformance"], json!({ NAME: 46 }), &[])
}

/// A record of `gpu_check.py` that lists one artifact, with a time under a name of its own.
fn check(hash: &str, faults: &[&str], timed: &str, samples: &[f64]) -> Value {
    json!({
        "kind": "gpu_check", "artifacts": { NAME: hash }, "checks": { NAME: { "faults": faults, "shapes": 6 } },
        "times": [{ "what": "product", "ours": { timed: { "median": 1.0, "samples": samples } } }]
    })
}

fn evidence(records: &[Value]) -> Evidence {
    let file = |(number, record): (usize, &Value)| File {
        name: format!("{number}.json"),
        content: Content::parse(record.to_string().as_bytes()).unwrap(),
    };
    Evidence { files: records.iter().enumerate().map(file).collect() }
}

/// What is claimed of the current machine code, and of older.
fn claims(records: &[Value]) -> (Vec<Claim>, Vec<Claim>) {
    let evidence = evidence(records);
    let state = State::of(&evidence, NAME, NOW.to_owned().try_into().unwrap());
    (state.now.into_keys().collect(), state.older.into_keys().collect())
}

#[test]
fn the_committed_catalogue_is_what_the_artifacts_and_records_give() {
    let file = docs().join("operators.md");
    let text = fs::read_to_string(&file).unwrap();
    let made = updated(&text, &file, &docs().join("evidence")).unwrap();
    if let Some(difference) = marks::difference(&text, &made) {
        panic!("docs/operators.md is stale, `make catalogue` writes it\n{difference}");
    }
}

#[test]
fn a_gate_shows_only_the_machine_code_that_it_ran() {
    assert_eq!(claims(&[passed_gate(NOW)]), (vec![Claim::Conforms], vec![]));
    assert_eq!(claims(&[passed_gate(OTHER)]), (vec![], vec![Claim::Conforms]));
    assert_eq!(claims(&[]), (vec![], vec![]));
}

#[test]
fn an_artifact_that_the_gate_listed_but_did_not_pass_does_not_conform() {
    let others = json!({ "dense.bf16.bf16.none.tile_64x128_split2": 46, "operands refused": 9 });
    assert_eq!(claims(&[gate(NOW, &[], others, &[])]), (vec![], vec![]));
    assert_eq!(claims(&[gate(NOW, &[], json!({ NAME: 0 }), &[])]), (vec![], vec![]));
}

#[test]
fn one_failure_that_names_an_artifact_outweighs_what_passed_in_any_record() {
    let failure = format!("{NAME}: gemm.dense m=7: 3 of 9 differ");
    let failed = gate(NOW, &[], json!({ NAME: 45 }), &[&failure]);
    assert_eq!(claims(std::slice::from_ref(&failed)), (vec![Claim::Fails], vec![]));
    assert_eq!(claims(&[failed.clone(), passed_gate(NOW)]), (vec![Claim::Fails], vec![]));
    assert_eq!(claims(&[passed_gate(NOW), failed]), (vec![Claim::Fails], vec![]));
    let of_older = gate(OTHER, &[], json!({ NAME: 45 }), &[&failure]);
    assert_eq!(claims(&[of_older, passed_gate(NOW)]), (vec![Claim::Conforms], vec![Claim::Fails]));
}

#[test]
fn a_failure_of_an_artifact_with_a_longer_name_is_not_this_one_s() {
    let failures = [format!("{NAME}_split2: differs"), format!("small_{NAME}: differs")];
    let record = gate(NOW, &[], json!({ NAME: 46 }), &[&failures[0], &failures[1]]);
    assert_eq!(claims(&[record]), (vec![Claim::Conforms], vec![]));
}

#[test]
fn one_odd_shape_for_a_sanitizer_is_not_conformance() {
    for command in [&["gates", "conformance", "--cases", "one"][..], &["gates", "--cases=one"]] {
        assert_eq!(claims(&[gate(NOW, command, json!({ NAME: 1 }), &[])]), (vec![], vec![]));
    }
    let all = gate(NOW, &["gates", "--cases", "all"], json!({ NAME: 46 }), &[]);
    assert_eq!(claims(&[all]), (vec![Claim::Conforms], vec![]));
}

#[test]
fn times_count_for_the_artifact_and_the_machine_code_that_they_are_of() {
    let measured = vec![Claim::Checked, Claim::Measured];
    assert_eq!(claims(&[check(NOW, &[], NAME, &[1.0])]), (measured.clone(), vec![]));
    assert_eq!(claims(&[check(NOW, &[], &format!("{NAME} splits=2"), &[1.0])]), (measured.clone(), vec![]));
    assert_eq!(claims(&[check(OTHER, &[], NAME, &[1.0])]), (vec![], measured));
    assert_eq!(claims(&[check(NOW, &[], NAME, &[])]), (vec![Claim::Checked], vec![]));
    assert_eq!(claims(&[check(NOW, &[], &format!("{NAME}_split2"), &[1.0])]), (vec![Claim::Checked], vec![]));
}

#[test]
fn times_beside_other_artifacts_count_as_measured() {
    let named = |what: String| json!({ "gemv n=8 floor us": 2.5, what: 3.5 });
    let record = |what: String| {
        let mut record = gate(NOW, &["oxide-infer-lab", "natives"], json!({ "gemv n=8": 2 }), &[]);
        record["findings"][0]["gate"] = json!("natives");
        record["findings"][0]["measured"] = named(what);
        record
    };
    assert_eq!(claims(&[record(format!("gemv n=8 by {NAME} us"))]), (vec![Claim::Measured], vec![]));
    assert_eq!(claims(&[record(format!("gemv n=8 by {NAME}_split2 us"))]), (vec![], vec![]));
}

#[test]
fn a_fault_that_a_check_found_takes_conformance_back_and_leaves_times() {
    let records = [passed_gate(NOW), check(NOW, &["m=7: worst error 0.3"], NAME, &[1.0])];
    assert_eq!(claims(&records), (vec![Claim::Fails, Claim::Measured], vec![]));
}

#[test]
fn the_newest_record_stands_for_a_claim() {
    let evidence = evidence(&[passed_gate(NOW), passed_gate(NOW), passed_gate(OTHER)]);
    let state = State::of(&evidence, NAME, NOW.to_owned().try_into().unwrap());
    assert_eq!((state.now[&Claim::Conforms], state.older[&Claim::Conforms]), ("1.json", "2.json"));
}

/// A record of `sanitize.py` with one process.
fn sanitized(hash: &str, tool: &str, status: Value, errors: Value, failures: &[&str]) -> Value {
    json!({
        "kind": "sanitize", "artifacts": { NAME: hash },
        "steps": [{
            "tool": tool, "status": status, "errors": errors, "ran": { NAME: 1, "others": 0 }, "failures": failures,
            "reports": []
        }]
    })
}

/// The tools under which an artifact is clean.
fn clean_tools(records: &[Value]) -> Vec<&'static str> {
    let evidence = evidence(records);
    clean(&evidence, NAME, NOW.to_owned().try_into().unwrap()).into_keys().collect()
}

#[test]
fn an_artifact_is_clean_under_a_tool_that_ran_this_machine_code_to_its_end_and_found_nothing() {
    let good = sanitized(NOW, "memcheck", json!(0), json!(0), &[]);
    assert_eq!(clean_tools(std::slice::from_ref(&good)), ["memcheck"]);
    for bad in [
        sanitized(OTHER, "racecheck", json!(0), json!(0), &[]),
        sanitized(NOW, "racecheck", json!(86), json!(3), &[]),
        sanitized(NOW, "racecheck", json!(null), json!(null), &[]),
        sanitized(NOW, "racecheck", json!(1), json!(0), &["it is wrong"]),
    ] {
        assert_eq!(clean_tools(&[good.clone(), bad.clone()]), ["memcheck"], "{bad}");
    }
    let evidence = evidence(&[good.clone(), good]);
    assert_eq!(clean(&evidence, "others", NOW.to_owned().try_into().unwrap()), Clean::new());
    let newest = clean(&evidence, NAME, NOW.to_owned().try_into().unwrap());
    assert_eq!(newest["memcheck"], "1.json");
}

#[test]
fn one_error_in_any_run_of_a_tool_outweighs_its_clean_runs() {
    let good = sanitized(NOW, "racecheck", json!(0), json!(0), &[]);
    let bad = sanitized(NOW, "racecheck", json!(86), json!(3), &[]);
    for records in [[good.clone(), bad.clone()], [bad.clone(), good.clone()]] {
        assert_eq!(clean_tools(&records), [""; 0]);
    }
    // Of other machine code, by another tool, and of a process whose time was up.
    for other in [
        sanitized(OTHER, "racecheck", json!(86), json!(3), &[]),
        sanitized(NOW, "memcheck", json!(86), json!(3), &[]),
        sanitized(NOW, "racecheck", json!(null), json!(null), &[]),
    ] {
        assert_eq!(clean_tools(&[good.clone(), other]), ["racecheck"]);
    }
    // Of a process that named it because no case had reached it.
    let mut missed = sanitized(NOW, "racecheck", json!(1), json!(0), &["no case has reached it"]);
    missed["steps"][0]["ran"][NAME] = json!(0);
    assert_eq!(clean_tools(&[good.clone(), missed]), ["racecheck"]);
    // Of a process that ran several artifacts, those that it names.
    let symbol = |name: &str| format!("Error: Race reported at {}_kernel+0x10", name.replace('.', "_"));
    for (reports, found) in [(symbol(NAME), vec![]), (symbol("others"), vec!["racecheck"])] {
        let mut named = bad.clone();
        named["steps"][0]["reports"] = json!([reports]);
        assert_eq!(clean_tools(&[good.clone(), named]), found);
    }
}

#[test]
fn parity_of_other_artifacts_is_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let [file, evidence] = ["operators.md", "evidence"].map(|name| folder.path().join(name));
    fs::create_dir(&evidence).unwrap();
    let committed = fs::read_to_string(docs().join("operators.md")).unwrap();
    let digest = Registry::embedded(Target::hopper()).unwrap().digest().to_string();
    for (artifacts, revision) in [
        (json!({ "sha256": digest, "executed": [] }), "0123456"),
        (json!({ "sha256": OTHER, "executed": [] }), "0123456, of other artifacts"),
        (json!(null), "0123456, of other artifacts"),
    ] {
        let record = json!({
            "kind": "model parity", "passed": true, "revision": "0123456789", "artifacts": artifacts, "modes": { "alone": 1 },
            "reference": { "model": "small/model", "layers": 2 }, "cases": { "count": 3 }
        });
        fs::write(evidence.join("2026-11-30-h200-parity.json"), record.to_string()).unwrap();
        let made = updated(&committed, &file, &evidence).unwrap();
        let row = made.lines().find(|line| line.starts_with("| small |")).unwrap();
        assert!(row.contains(&format!("| passed | {revision} |")), "{row}");
    }
}

#[test]
fn a_record_that_cannot_be_read_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("bad.json"), check("abc", &[], NAME, &[]).to_string()).unwrap();
    let error = format!("{:#}", Evidence::read(folder.path()).unwrap_err());
    assert!(error.contains("bad.json") && error.contains("\"abc\" is not 64"), "{error}");
    let error = format!("{:#}", Content::parse(br#"{"kind": "gpu_check"}"#).unwrap_err());
    assert!(error.contains("gpu_check.py: missing field"), "{error}");
}

#[test]
fn without_records_nothing_is_claimed_and_check_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [file, evidence] = ["operators.md", "evidence"].map(|name| folder.path().join(name));
    fs::create_dir(&evidence).unwrap();
    let committed = fs::read_to_string(docs().join("operators.md")).unwrap();
    fs::write(&file, &committed).unwrap();
    let options = |check| CatalogueOptions { evidence: evidence.clone(), file: file.clone(), check };

    let error = run(&options(true)).unwrap_err().to_string();
    assert!(error.contains("\n- ") && error.contains("\n+ "), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), committed);

    run(&options(false)).unwrap();
    let made = fs::read_to_string(&file).unwrap();
    let tables: Vec<_> = made.split("<!-- ").filter(|part| part.starts_with("made by")).collect();
    assert_eq!(tables.len(), 6);
    for table in tables {
        assert!(!table.contains("`conforms`") && !table.contains("`measured`"), "{table}");
    }
    assert!(made.contains(" artifacts: not run in this form |"), "{made}");
    run(&options(true)).unwrap();
}

#[test]
fn an_artifact_conforms_in_the_table_only_with_the_recorded_machine_code() {
    let folder = tempfile::tempdir().unwrap();
    let [file, evidence] = ["operators.md", "evidence"].map(|name| folder.path().join(name));
    fs::create_dir(&evidence).unwrap();
    let committed = fs::read_to_string(docs().join("operators.md")).unwrap();
    let registry = Registry::embedded(Target::hopper()).unwrap();
    // Alone with its contract and properties.
    let name = "record_history.threads_128";
    let current = registry.artifact(name).unwrap().manifest().cubin.sha256.to_string();
    let conforms = "`conforms` ([h200-gate](evidence/2026-11-30-h200-gate.json))";
    for (hash, state) in [
        (current.as_str(), conforms.to_owned()),
        (OTHER, format!("not run in this form; in an older form {conforms}")),
    ] {
        let record = passed_gate(hash).to_string().replace(NAME, name);
        fs::write(evidence.join("2026-11-30-h200-gate.json"), record).unwrap();
        let made = updated(&committed, &file, &evidence).unwrap();
        let row = made.lines().find(|line| line.starts_with("| `sampling.record_history`")).unwrap();
        assert!(row.ends_with(&format!("| {state} |")), "{row}");
    }
}

#[test]
fn a_folder_that_the_file_cannot_link_to_is_refused() {
    let error = updated("", &docs().join("operators.md"), Path::new("elsewhere/evidence")).unwrap_err();
    assert!(error.to_string().contains("must be in the folder of"), "{error:#}");
}

#[test]
fn a_block_is_replaced_between_its_marks_and_nowhere_else() {
    let text = "a\n<!-- made by oxide-infer-lab catalogue: x -->\nold\n<!-- end: x -->\nb\n";
    let made = marks::replace(text, "x", "new").unwrap();
    assert_eq!(made, text.replace("old", "new"));
    assert_eq!(marks::difference(text, &made).unwrap(), "from line 3:\n- old\n+ new\n");
    assert_eq!(marks::difference(text, text), None);
    assert_eq!(marks::difference("a\nb\nc\n", "a\nc\nb\n").unwrap(), "from line 2:\n");
    for (text, name) in [(text, "y"), (&text.repeat(2), "x"), ("<!-- end: x -->\n", "x")] {
        assert!(marks::replace(text, name, "new").is_err(), "{text}");
    }
}

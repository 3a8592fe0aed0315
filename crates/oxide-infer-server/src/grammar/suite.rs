//! The official JSON-Schema-Test-Suite (draft 2020-12): no instance that a schema refuses is ever allowed.

use super::schema;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Schema groups of these files are refused, each for the keyword that the file is about.
const REFUSED_FILES: [&str; 13] = [
    "contains",
    // Its one schema is a reference to the metaschema.
    "defs",
    "dependentRequired",
    "dependentSchemas",
    "dynamicRef",
    "if-then-else",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "refRemote",
    "unevaluatedItems",
    "unevaluatedProperties",
];

#[derive(Default, Debug)]
struct Tally {
    kept: usize,
    refused: usize,
    /// Valid instances that are allowed, and that are not: other orders of keys, other ways to write numbers.
    allowed: usize,
    missed: usize,
}

#[test]
fn no_instance_that_a_schema_of_the_official_suite_refuses_is_allowed() {
    let factory = factory();
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    let mut unsound = Vec::new();
    for (file, groups) in suite() {
        let tally = tallies.entry(file.clone()).or_default();
        for group in groups.as_array().unwrap() {
            let description = group["description"].as_str().unwrap();
            // Requests take objects only.
            if !group["schema"].is_object() {
                continue;
            }
            let Some(start) = start(&factory, &group["schema"]) else {
                tally.refused += 1;
                continue;
            };
            tally.kept += 1;
            for case in group["tests"].as_array().unwrap() {
                let allowed = allows(&start, &case["data"].to_string());
                match (case["valid"].as_bool().unwrap(), allowed) {
                    (true, true) => tally.allowed += 1,
                    (true, false) => tally.missed += 1,
                    (false, false) => {}
                    (false, true) => unsound.push(format!("{file}: {description}: {}", case["description"])),
                }
            }
        }
    }
    assert!(unsound.is_empty(), "{} invalid instances are allowed:\n{}", unsound.len(), unsound.join("\n"));
    let sum = |part: fn(&Tally) -> usize| tallies.values().map(part).sum::<usize>();
    let (kept, allowed, missed) = (sum(|t| t.kept), sum(|t| t.allowed), sum(|t| t.missed));
    assert!(allowed > 9 * missed, "{allowed} valid instances are allowed and {missed} are not");
    println!(
        "{kept} schemas kept, {} refused; {allowed} valid instances allowed, {missed} not",
        sum(|t| t.refused)
    );
    println!("{tallies:#?}");
    let refused: BTreeSet<&str> = tallies
        .iter()
        .filter(|(_, tally)| tally.kept == 0 && tally.refused > 0)
        .map(|(file, _)| file.as_str())
        .collect();
    assert!(refused.is_subset(&REFUSED_FILES.into()), "{refused:?}");
    assert!(kept > 150, "{kept}");
}

fn factory() -> ParserFactory {
    let environment = ApproximateTokEnv::single_byte_env();
    let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &[]).unwrap();
    factory.quiet();
    factory
}

/// `None` if the schema is refused.
fn start(factory: &ParserFactory, schema: &Value) -> Option<Matcher> {
    let prepared = schema::prepare(schema, 48).ok()?;
    let parser = factory.create_parser(TopLevelGrammar::from_json_schema(prepared)).ok()?;
    Some(Matcher::new(Ok(parser)))
}

fn allows(start: &Matcher, text: &str) -> bool {
    let mut matcher = start.deep_clone();
    text.bytes().all(|byte| matcher.consume_token(u32::from(byte)).is_ok())
        && matcher.is_accepting().unwrap_or(false)
}

/// The suite's files by name; of optional ones those for the formats that are kept.
fn suite() -> Vec<(String, Value)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/json-schema-test-suite/draft2020-12");
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap_or_else(|error| {
            panic!("{}: {error}: run scripts/fetch-test-data.sh first", dir.display());
        });
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some()).collect()
    };
    let formats = list(&dir.join("optional/format"));
    let formats = formats.into_iter().filter(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        schema::FORMATS.contains(&name)
    });
    let mut files: Vec<PathBuf> = list(&dir).into_iter().chain(formats).collect();
    files.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), serde_json::from_str(&text).unwrap())
    };
    files.into_iter().map(read).collect()
}

//! The block of the sanitizers: under which tools of compute-sanitizer the present machine code was seen clean.

use super::evidence::{Content, Evidence, Sanitized, Step};
use super::state::names;
use super::tables::{Links, Row, contracts_of};
use oxide_infer::Provider;
use oxide_infer_cuda::artifact::manifest::Sha256Hex;
use std::collections::{BTreeMap, BTreeSet};

/// The tools, in the order of the table.
pub(super) const TOOLS: [&str; 4] = ["memcheck", "initcheck", "synccheck", "racecheck"];

/// The newest record, by file name, in which each tool saw an artifact run to its end with no error.
pub(super) type Clean<'a> = BTreeMap<&'static str, &'a str>;

/// What the records show of this machine code. A record of other machine code under the same name shows nothing of it. One
/// error on record for it outweighs every run without: the code is the same.
pub(super) fn clean<'a>(evidence: &'a Evidence, artifact: &str, hash: Sha256Hex) -> Clean<'a> {
    let records = evidence.files.iter().filter_map(|file| match &file.content {
        Content::Sanitized(record) => Some((file.name.as_str(), record)),
        _ => None,
    });
    let of_hash: Vec<_> =
        records.filter(|(_, record)| record.artifacts.get(artifact) == Some(&hash)).collect();
    let newest = |tool| {
        let clean = of_hash.iter().rev().find(|(_, record)| is_clean(record, tool, artifact));
        let bad = of_hash.iter().any(|(_, record)| has_errors(record, tool, artifact));
        clean.filter(|_| !bad).map(|(name, _)| (tool, *name))
    };
    TOOLS.into_iter().filter_map(newest).collect()
}

/// Whether a process found something wrong with an artifact that it ran: by its name, or in a process that names none of those.
fn has_errors(record: &Sanitized, tool: &str, artifact: &str) -> bool {
    let ran = |step: &&Step| step.ran.get(artifact).is_some_and(|count| *count > 0);
    record.steps.iter().filter(|step| step.tool == tool).filter(ran).any(|step| {
        let bad = step.errors.is_some_and(|errors| errors > 0) || !step.failures.is_empty();
        bad && (accuses(step, artifact) || !step.ran.keys().any(|ran| accuses(step, ran)))
    })
}

/// Whether the gate or the tool names an artifact.
fn accuses(step: &Step, artifact: &str) -> bool {
    let kernel = format!("{}_kernel", artifact.replace('.', "_"));
    step.failures.iter().any(|failure| names(failure, artifact))
        || step.reports.iter().any(|report| names(report, &kernel))
}

/// As `benchmarks/kernels/sanitize.py` has it: the process ended by itself, and neither the tool nor the gate found anything.
fn is_clean(record: &Sanitized, tool: &str, artifact: &str) -> bool {
    record.steps.iter().any(|step| {
        let passed = step.status == Some(0) && step.errors == Some(0) && step.failures.is_empty();
        passed && step.tool == tool && step.ran.get(artifact).is_some_and(|count| *count > 0)
    })
}

/// A line for each contract of a provider that has artifacts, and the records.
pub(super) fn block(providers: [(Provider, &[Row<'_>]); 2], links: &Links) -> String {
    let mut lines = vec![
        format!(
            "| contract | provider | artifacts | {} |",
            TOOLS.map(|tool| format!("`{tool}`")).join(" | ")
        ),
        format!("|---|---|---|{}", "---|".repeat(TOOLS.len())),
    ];
    for (provider, rows) in providers {
        for (contract, group) in contracts_of(rows) {
            let seen = TOOLS.map(|tool| group.iter().filter(|row| row.clean.contains_key(tool)).count());
            let cells = seen.map(|count| cell(count, group.len())).join(" | ");
            lines.push(format!("| `{contract}` | `{provider}` | {} | {cells} |", group.len()));
        }
    }
    let rows = || providers.into_iter().flat_map(|(_, rows)| rows);
    let records: BTreeSet<_> = rows().flat_map(|row| row.clean.values()).map(|name| links.to(name)).collect();
    let records = records.into_iter().collect::<Vec<_>>().join(", ");
    let records = if records.is_empty() { "none".to_owned() } else { records };
    let all = rows().filter(|row| row.clean.len() == TOOLS.len()).count();
    lines.extend([
        String::new(),
        format!("Clean under all four: {all} of {}. Records: {records}.", rows().count()),
    ]);
    lines.join("\n")
}

fn cell(count: usize, of: usize) -> String {
    match count {
        0 => "none".to_owned(),
        count if count == of => "all".to_owned(),
        count => format!("{count} of {of}"),
    }
}

//! What the records show of an artifact.

use super::evidence::{Content, Evidence, KernelCheck};
use crate::natives::{FINDING, Table};
use crate::record::{Finding, Record};
use oxide_infer_cuda::artifact::manifest::Sha256Hex;
use std::collections::BTreeMap;

/// What one record says of one artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claim {
    /// The conformance gate or `gpu_check.py` found a fault.
    Fails,
    /// The conformance gate ran all its cases and found none.
    Conforms,
    /// `gpu_check.py` compared values and found no fault.
    Checked,
    /// There are times.
    Measured,
}

impl Claim {
    pub(super) const ALL: [Self; 4] = [Self::Fails, Self::Conforms, Self::Checked, Self::Measured];

    /// The word for it in the catalogue.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Fails => "fails",
            Self::Conforms => "conforms",
            Self::Checked => "checked",
            Self::Measured => "measured",
        }
    }
}

/// The newest record of each claim, by file name.
pub(super) type Claims<'a> = BTreeMap<Claim, &'a str>;

/// What all records say of one artifact.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct State<'a> {
    /// Of the machine code that there is now.
    pub(super) now: Claims<'a>,
    /// Of other machine code under the same name.
    pub(super) older: Claims<'a>,
}

impl<'a> State<'a> {
    /// A claim is made of this machine code only by a record with the same hash. One fault on record for it outweighs every
    /// pass: the code is the same, so a pass beside it does not take it back.
    pub(super) fn of(evidence: &'a Evidence, artifact: &str, hash: Sha256Hex) -> Self {
        let mut state = Self::default();
        for file in &evidence.files {
            let (listed, claims) = match &file.content {
                Content::Gates(record) => (record.artifacts.get(artifact), gate_claims(record, artifact)),
                Content::Kernels(record) => (record.artifacts.get(artifact), check_claims(record, artifact)),
                Content::Parity(_) | Content::Sanitized(_) | Content::Other => continue,
            };
            let Some(listed) = listed else { continue };
            let known = if *listed == hash { &mut state.now } else { &mut state.older };
            known.extend(claims.into_iter().map(|claim| (claim, file.name.as_str())));
        }
        for known in [&mut state.now, &mut state.older] {
            if known.contains_key(&Claim::Fails) {
                known.retain(|claim, _| matches!(claim, Claim::Fails | Claim::Measured));
            }
        }
        state
    }
}

fn gate_claims(record: &Record, artifact: &str) -> Vec<Claim> {
    let mut times = record.findings.iter().filter(|finding| finding.gate == FINDING);
    let measured = times.any(|finding| finding.measured.keys().any(|what| Table::is_of(what, artifact)));
    conformance_claim(record, artifact).into_iter().chain(measured.then_some(Claim::Measured)).collect()
}

fn conformance_claim(record: &Record, artifact: &str) -> Option<Claim> {
    let mut findings = record.findings.iter().filter(|finding| finding.gate == "conformance").peekable();
    findings.peek()?;
    let passed = |finding: &Finding| finding.passed.get(artifact).is_some_and(|count| *count > 0);
    let failed = |finding: &Finding| finding.failures.iter().any(|failure| names(failure, artifact));
    let (passes, fails) = findings.fold((false, false), |(passes, fails), finding| {
        (passes || passed(finding), fails || failed(finding))
    });
    match (passes, fails) {
        (_, true) => Some(Claim::Fails),
        // One odd shape, for compute-sanitizer, is not the suite.
        (true, false) if !has_option(&record.command, "--cases", "one") => Some(Claim::Conforms),
        _ => None,
    }
}

fn check_claims(record: &KernelCheck, artifact: &str) -> Vec<Claim> {
    let checked = record.checks.get(artifact).map(|check| match check.faults.is_empty() {
        true => Claim::Checked,
        false => Claim::Fails,
    });
    let measured = record.has_timed(artifact).then_some(Claim::Measured);
    checked.into_iter().chain(measured).collect()
}

/// Whether a text has the whole of a name in it, and not as a part of a longer one.
pub(super) fn names(text: &str, name: &str) -> bool {
    let part = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(part) && !text[at + name.len()..].starts_with(part))
}

fn has_option(command: &[String], option: &str, value: &str) -> bool {
    command.contains(&format!("{option}={value}"))
        || command.windows(2).any(|pair| pair[0] == option && pair[1] == value)
}

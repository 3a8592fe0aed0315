//! The generated parts of the catalogue, as Markdown.

use super::evidence::{Content, Evidence, Parity};
use super::native;
use super::sanitized::{self, Clean};
use super::state::{Claim, State};
use crate::record::{Finding, Record};
use anyhow::{Context as _, Result};
use oxide_infer::{Contract, Provider};
use oxide_infer_cuda::artifact::manifest::{Domain, Manifest, Property, Sha256Hex};
use oxide_infer_cuda::artifact::{Artifact, Registry};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A greatest value from which a domain's end is not worth a reader's time.
const UNBOUNDED: u64 = 65_535;
/// How many names a cell lists.
const FEW: usize = 5;

/// Where the records are, as seen from the catalogue.
pub(super) struct Links {
    folder: PathBuf,
}

impl Links {
    pub(super) fn new(file: &Path, folder: &Path) -> Result<Self> {
        let beside = file.parent().unwrap_or(Path::new(""));
        let folder = folder.strip_prefix(beside).with_context(|| {
            format!("the records must be in the folder of {}, not in {}", file.display(), folder.display())
        })?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// A link with the record's name but the date, which the target has.
    pub(super) fn to(&self, record: &str) -> String {
        let stem = record.trim_end_matches(".json");
        let label = stem.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-');
        format!("[{label}]({})", self.folder.join(record).display())
    }
}

/// Each block with its name, from the artifacts of both providers that have some. The document is asked for the sections that describe the contracts.
pub(super) fn blocks(
    [tile, native]: [&Registry; 2],
    evidence: &Evidence,
    links: &Links,
    document: &str,
) -> Result<Vec<(&'static str, String)>> {
    let digest = tile.digest();
    let (tile, native) = (rows(tile, evidence), rows(native, evidence));
    let products = Products::newest(evidence);
    Ok(vec![
        ("contracts", contracts([&tile, &native], products.as_ref(), links, document)?),
        ("artifacts", artifacts(&tile, links)),
        ("oxide_native", native::block(&native, evidence, links)),
        (
            "sanitizers",
            sanitized::block([(Provider::OxideTile, &tile), (Provider::OxideNative, &native)], links),
        ),
        ("cublas_lt", products.map_or("No record of cuBLASLt.".to_owned(), |products| products.block(links))),
        ("models", models(evidence, links, digest)),
    ])
}

/// An artifact with what the records show of it.
pub(super) struct Row<'a> {
    artifact: &'a Artifact,
    state: State<'a>,
    pub(super) clean: Clean<'a>,
}

fn rows<'a>(registry: &'a Registry, evidence: &'a Evidence) -> Vec<Row<'a>> {
    let row = |artifact: &'a std::sync::Arc<Artifact>| {
        let manifest = artifact.manifest();
        let (name, hash) = (&manifest.name, manifest.cubin.sha256);
        Row {
            artifact,
            state: State::of(evidence, name, hash),
            clean: sanitized::clean(evidence, name, hash),
        }
    };
    let mut rows: Vec<_> = registry.artifacts().map(row).collect();
    rows.sort_by_key(|row| (row.order(), row.manifest().properties.clone(), row.manifest().name.clone()));
    rows
}

/// The artifacts of each contract, with its name.
pub(super) fn contracts_of<'r, 'a>(rows: &'r [Row<'a>]) -> impl Iterator<Item = (&'a str, &'r [Row<'a>])> {
    let groups = rows.chunk_by(|a, b| a.contract() == b.contract());
    groups.filter_map(|group| Some((group.first()?.contract().0, group)))
}

impl<'a> Row<'a> {
    fn manifest(&self) -> &'a Manifest {
        self.artifact.manifest()
    }

    fn contract(&self) -> (&'a str, u32) {
        (&self.manifest().contract, self.manifest().contract_version)
    }

    /// The contracts' order, and after them what a device runs as an operator apart.
    fn order(&self) -> (usize, (&'a str, u32)) {
        let contract = self.contract();
        let place = Contract::ALL.iter().position(|known| (known.name(), known.version()) == contract);
        (place.unwrap_or(Contract::ALL.len()), contract)
    }
}

fn contracts(
    providers: [&[Row<'_>]; 2],
    products: Option<&Products<'_>>,
    links: &Links,
    document: &str,
) -> Result<String> {
    let mut named: Vec<(&str, u32)> = Contract::ALL.iter().map(|c| (c.name(), c.version())).collect();
    providers.into_iter().flatten().map(Row::contract).for_each(|contract| {
        if !named.contains(&contract) {
            named.push(contract);
        }
    });
    let (tile, native, lt) = (Provider::OxideTile, Provider::OxideNative, Provider::CublasLt);
    let mut lines = vec![
        format!("| contract | version | `{tile}` | `{native}` | `{lt}` |"),
        "|---|---|---|---|---|".to_owned(),
    ];
    let mut nowhere = Vec::new();
    for (name, version) in named {
        let [tile, native] = providers.map(|rows| {
            let own: Vec<_> = rows.iter().filter(|row| row.contract() == (name, version)).collect();
            match own.len() {
                0 => String::new(),
                count => format!("{}: {}", counted(count, "artifact"), states(&own, links)),
            }
        });
        let of_library = products.filter(|products| products.contract() == Some(name));
        let lt = of_library.map_or(String::new(), |products| products.cell(links));
        if [&tile, &native, &lt].into_iter().all(String::is_empty) {
            nowhere.push(format!("`{name}`"));
        }
        let anchor = anchor(document, name)?;
        lines.push(format!("| [`{name}`](#{anchor}) | {version} | {tile} | {native} | {lt} |"));
    }
    let nowhere = if nowhere.is_empty() { "nothing".to_owned() } else { nowhere.join(", ") };
    lines.extend([String::new(), format!("Provided by no device provider: {nowhere}.")]);
    Ok(lines.join("\n"))
}

/// Artifacts that a plan may choose among: those of one contract with the same properties.
pub(super) fn artifacts(rows: &[Row<'_>], links: &Links) -> String {
    let mut lines = vec![
        "| contract | admits | dimensions | artifacts | state |".to_owned(),
        "|---|---|---|---|---|".to_owned(),
    ];
    let same = |a: &Row<'_>, b: &Row<'_>| {
        a.contract() == b.contract() && a.manifest().properties == b.manifest().properties
    };
    for group in rows.chunk_by(same) {
        let manifests: Vec<_> = group.iter().map(Row::manifest).collect();
        let Some(first) = manifests.first() else { continue };
        lines.push(format!(
            "| `{}` | {} | {} | {} | {} |",
            first.contract,
            properties(&first.properties),
            dimensions(&manifests),
            algorithms(&manifests),
            states(&group.iter().collect::<Vec<_>>(), links)
        ));
    }
    let not_run = rows.iter().filter(|row| row.state.now.is_empty());
    let not_run: Vec<_> = not_run.map(|row| format!("`{}`", row.manifest().name)).collect();
    let not_run = if not_run.is_empty() { "none".to_owned() } else { not_run.join(", ") };
    lines.extend([String::new(), format!("Artifacts that were not run in this form: {not_run}.")]);
    lines.join("\n")
}

fn properties(properties: &BTreeMap<String, Property>) -> String {
    let all = properties.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
    if all.is_empty() { all } else { format!("`{all}`") }
}

fn algorithms(manifests: &[&Manifest]) -> String {
    let names: BTreeSet<_> = manifests.iter().map(|manifest| format!("`{}`", manifest.algorithm)).collect();
    let count = manifests.len();
    if names.len() > FEW {
        return count.to_string();
    }
    format!("{count}: {}", names.into_iter().collect::<Vec<_>>().join(", "))
}

/// The domains of a group's dimensions, and of what its artifacts compute from them.
fn dimensions(manifests: &[&Manifest]) -> String {
    let mut domains: BTreeMap<String, Vec<Domain>> = BTreeMap::new();
    for manifest in manifests {
        let conditions = manifest.conditions.iter().map(|of| (of.value.to_string(), of.domain));
        for (name, domain) in
            manifest.dimensions.iter().map(|(name, of)| (name.clone(), *of)).chain(conditions)
        {
            domains.entry(name).or_default().push(domain);
        }
    }
    let limited = domains.iter().filter_map(|(name, domains)| {
        let words = domain_words(domains)?;
        let some = if domains.len() < manifests.len() { ", of those that have it" } else { "" };
        Some(format!("`{name}` {words}{some}"))
    });
    limited.collect::<Vec<_>>().join("; ")
}

/// Nothing if all of them take every value that there is.
fn domain_words(domains: &[Domain]) -> Option<String> {
    let unlimited = |of: &Domain| of.min <= 1 && of.multiple_of == 1 && of.max >= UNBOUNDED;
    if domains.iter().all(unlimited) {
        return None;
    }
    // Least value and step, with every greatest value.
    let mut spans: BTreeMap<(u64, u64), BTreeSet<u64>> = BTreeMap::new();
    let (fixed, ranges): (Vec<&Domain>, Vec<_>) = domains.iter().partition(|of| of.min == of.max);
    for of in ranges {
        spans.entry((of.min, of.multiple_of)).or_default().insert(of.max.min(UNBOUNDED));
    }
    let fixed: BTreeSet<u64> = fixed.iter().map(|of| of.min).collect();
    let mut words = if fixed.is_empty() { Vec::new() } else { vec![either(fixed)] };
    for ((min, step), ends) in spans {
        let open = ends.contains(&UNBOUNDED);
        let span = if open { format!("{min} or more") } else { format!("{min} to {}", either(ends)) };
        words.push(if step > 1 { format!("{span} in steps of {step}") } else { span });
    }
    Some(words.join(", or "))
}

fn either(numbers: BTreeSet<u64>) -> String {
    let mut words: Vec<_> = numbers.iter().map(u64::to_string).collect();
    let last = words.pop().unwrap_or_default();
    if words.is_empty() { last } else { format!("{} or {last}", words.join(", ")) }
}

/// What the records show of several artifacts.
fn states(rows: &[&Row<'_>], links: &Links) -> String {
    let mut parts = Vec::new();
    for claim in Claim::ALL {
        let records = rows.iter().filter_map(|row| {
            // A check of values says less than the suite.
            let said_more = claim == Claim::Checked && row.state.now.contains_key(&Claim::Conforms);
            row.state.now.get(&claim).filter(|_| !said_more).copied()
        });
        parts.extend(claimed(claim, &records.collect::<Vec<_>>(), rows.len(), links));
    }
    let not_run = rows.iter().filter(|row| row.state.now.is_empty()).count();
    parts.extend((not_run > 0).then(|| format!("not run in this form{}", share(not_run, rows.len()))));
    let older = [Claim::Conforms, Claim::Measured].into_iter().filter_map(|claim| {
        let unclaimed = rows.iter().filter(|row| !row.state.now.contains_key(&claim));
        let records: Vec<_> = unclaimed.filter_map(|row| row.state.older.get(&claim).copied()).collect();
        claimed(claim, &records, rows.len(), links)
    });
    let older: Vec<_> = older.collect();
    parts.extend((!older.is_empty()).then(|| format!("in an older form {}", older.join(", "))));
    parts.join("; ")
}

/// A claim with the records that show it, one for each artifact of which it is made; nothing if of none.
fn claimed(claim: Claim, records: &[&str], of: usize, links: &Links) -> Option<String> {
    let newest: Vec<_> =
        records.iter().collect::<BTreeSet<_>>().into_iter().map(|record| links.to(record)).collect();
    let share = share(records.len(), of);
    (!records.is_empty()).then(|| format!("`{}`{share} ({})", claim.word(), newest.join(", ")))
}

/// Nothing if it is all of them.
fn share(count: usize, of: usize) -> String {
    if count == of { String::new() } else { format!(" {count} of {of}") }
}

/// The gate of cuBLASLt.
struct Products<'a> {
    file: &'a str,
    record: &'a Record,
    finding: &'a Finding,
}

impl<'a> Products<'a> {
    fn newest(evidence: &'a Evidence) -> Option<Self> {
        evidence.files.iter().rev().find_map(|file| {
            let Content::Gates(record) = &file.content else { return None };
            let finding = record.findings.iter().find(|finding| finding.gate == "products")?;
            Some(Self { file: &file.name, record, finding })
        })
    }

    /// The contract whose cases passed.
    fn contract(&self) -> Option<&'a str> {
        self.finding
            .passed
            .keys()
            .find_map(|what| what.strip_prefix("cases of ")?.split_once(" by ").map(|of| of.0))
    }

    fn cell(&self, links: &Links) -> String {
        let claim = if self.finding.is_pass() { Claim::Conforms } else { Claim::Fails };
        format!("`{}` ({})", claim.word(), links.to(self.file))
    }

    fn block(&self, links: &Links) -> String {
        let mut lines = vec![
            format!(
                "{} at revision {}: {} failed.",
                links.to(self.file),
                short(&self.record.revision),
                counted(self.finding.failures.len(), "check")
            ),
            String::new(),
            "| cases | passed |".to_owned(),
            "|---|---|".to_owned(),
        ];
        let row = |(what, count): (&String, &usize)| format!("| {what} | {count} |");
        lines.extend(self.finding.passed.iter().map(row));
        lines.extend(
            ["", "| cases of the suite that it does not admit | not covered |", "|---|---|"]
                .map(str::to_owned),
        );
        lines.extend(self.finding.not_covered.iter().map(row));
        lines.join("\n")
    }
}

/// The models that a record shows to be right; `artifacts` is the digest of those that there are.
fn models(evidence: &Evidence, links: &Links, artifacts: Sha256Hex) -> String {
    let mut lines = vec![
        "| model | layers | prompts | ways to run them | against transformers | revision | record |"
            .to_owned(),
        "|---|---|---|---|---|---|---|".to_owned(),
    ];
    let records = evidence.files.iter().filter_map(|file| match &file.content {
        Content::Parity(parity) => Some((&file.name, parity)),
        _ => None,
    });
    lines.extend(records.map(|(name, parity)| {
        let Parity { passed, revision, artifacts: executed, reference, cases, modes } = parity;
        let is_of_these = executed.as_ref().is_some_and(|executed| executed.sha256 == artifacts);
        let of = if is_of_these { "" } else { ", of other artifacts" };
        let model = reference.model.trim_end_matches("/model");
        let passed = if *passed { "passed" } else { "**failed**" };
        let modes = modes.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let (layers, count, revision, link) =
            (reference.layers, cases.count, short(revision), links.to(name));
        format!("| {model} | {layers} | {count} | {modes} | {passed} | {revision}{of} | {link} |")
    }));
    lines.join("\n")
}

/// The anchor of the section that describes a contract: the heading with its name, or else with its family's.
fn anchor(document: &str, contract: &str) -> Result<String> {
    let quoted = format!("`{contract}`");
    let family = contract.split('.').next().unwrap_or(contract);
    let headings = || {
        document.lines().filter(|line| line.starts_with("##")).map(|line| line.trim_start_matches('#').trim())
    };
    let heading = headings().find(|heading| heading.contains(&quoted));
    let heading = heading.or_else(|| headings().find(|heading| *heading == family));
    let heading =
        heading.with_context(|| format!("no heading has {quoted} in it, and none is {family:?}"))?;
    // As GitHub makes anchors of headings.
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Ok(kept.collect::<String>().to_lowercase().replace(' ', "-"))
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

pub(super) fn short(revision: &str) -> &str {
    revision.get(..7).unwrap_or(revision)
}

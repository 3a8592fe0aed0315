//! What may not be bound to an artifact, by its manifest alone: each is a typed error before anything is enqueued.

use super::Found;
use crate::call::{Bench, GUARD};
use anyhow::{Context as _, Result, bail, ensure};
use oxide_infer::DType;
use oxide_infer_cuda::artifact::manifest::{Domain, Element, Operand, Role};
use oxide_infer_cuda::artifact::{Artifact, Dimensions, Manifest};
use oxide_infer_cuda::runtime::{BindError, DeviceMemory, Operands, OperatorPlan, PlanError, Span};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rows, where a manifest leaves them open: enough for overlaps that are not of the whole.
const ROWS: u64 = 33;

/// Operands by name; the status word is not among them.
type Spans<'a> = BTreeMap<&'a str, Span<'a>>;

pub(super) fn run(mut bench: Bench, artifact: &Arc<Artifact>) -> Result<Found> {
    let manifest = artifact.manifest();
    let dimensions = dimensions(manifest);
    let mut found = Found::default();
    domains(&mut bench, artifact, &dimensions, &mut found);

    let plan = bench.loader().plan_artifact(artifact.clone(), dimensions.clone())?;
    let operands: Vec<_> = manifest.operands.iter().filter(|operand| operand.role != Role::Status).collect();
    let sizes = operands.iter().map(|operand| Ok(manifest.operand_bytes(operand, &dimensions)? as usize));
    let sizes: Vec<usize> = sizes.collect::<Result<_>>()?;
    // One memory for each operand, and one that two may share.
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let allocate = |bytes: usize| DeviceMemory::allocate(&bench.context, bytes + GUARD);
    let memories: Vec<_> = sizes.iter().map(|&bytes| allocate(bytes)).collect::<Result<_, _>>()?;
    let shared = allocate(2 * largest)?;
    let mut spans = Spans::new();
    for ((operand, memory), &bytes) in operands.iter().zip(&memories).zip(&sizes) {
        spans.insert(&operand.name, memory.span(0, bytes, stored(operand))?);
    }

    let table = Table { bench: &bench, manifest, plan: &plan, good: spans };
    found.note("operands as the manifest says", table.admitted(|_| ()));
    for ((operand, memory), &bytes) in operands.iter().zip(&memories).zip(&sizes) {
        let (name, size) = (operand.name.as_str(), operand.element.size() as usize);
        let wrong = if stored(operand) == DType::F32 { DType::U32 } else { DType::F32 };
        let wrong = memory.span(0, bytes.next_multiple_of(4), wrong)?;
        found.note(
            "a wrong type",
            table.refused(
                replaced(name, wrong),
                |e| matches!(e, BindError::DType { operand, .. } if operand == name),
            ),
        );
        let short = memory.span(0, bytes - size, stored(operand))?;
        found.note(
            "a short region",
            table.refused(
                replaced(name, short),
                |e| matches!(e, BindError::Capacity { operand, .. } if operand == name),
            ),
        );
        if operand.alignment > size as u64 {
            let odd = memory.span(size, bytes, stored(operand))?;
            found.note(
                "a misaligned region",
                table.refused(
                    replaced(name, odd),
                    |e| matches!(e, BindError::Alignment { operand, .. } if operand == name),
                ),
            );
        }
        let missing = |spans: &mut Spans<'_>| {
            spans.remove(name);
        };
        found.note(
            "a missing operand",
            table.refused(missing, |e| matches!(e, BindError::Missing { operand, .. } if operand == name)),
        );
    }
    for (written, other, sizes) in pairs(&operands, &sizes) {
        found.note("two operands in one region", table.aliased(written, other, sizes, &shared));
    }
    let unknown = shared.span(0, 4, DType::F32)?;
    let named = |name: &str| name == "no_such_operand";
    found.note(
        "an unknown operand",
        table.refused(
            replaced("no_such_operand", unknown),
            |e| matches!(e, BindError::Unexpected { name, .. } if named(name)),
        ),
    );
    for attribute in manifest.attributes.keys() {
        found.note("a missing attribute", table.without(Some(attribute), true));
    }
    if manifest.operands.len() > operands.len() {
        found.note("no status word", table.without(None, false));
    }
    Ok(found)
}

/// The least of each dimension, and some rows.
fn dimensions(manifest: &Manifest) -> Dimensions {
    let size = |(name, domain): (&String, &Domain)| {
        let rows = matches!(name.as_str(), "m" | "tokens" | "rows" | "batch");
        (name.clone(), if rows { ROWS.clamp(domain.min, domain.max) } else { domain.min })
    };
    manifest.dimensions.iter().map(size).collect()
}

/// Each dimension once outside its domain, at either end and between its steps.
fn domains(bench: &mut Bench, artifact: &Arc<Artifact>, dimensions: &Dimensions, found: &mut Found) {
    for (name, domain) in &artifact.manifest().dimensions {
        let uneven = (domain.multiple_of > 1).then_some(domain.min + 1);
        for value in [domain.min.checked_sub(1), domain.max.checked_add(1), uneven].into_iter().flatten() {
            let mut dimensions = dimensions.clone();
            dimensions.insert(name.clone(), value);
            let refused = match bench.loader().plan_artifact(artifact.clone(), dimensions) {
                Err(PlanError::Resolve(_)) => Ok(()),
                Err(error) => Err(error.into()),
                Ok(_) => Err(anyhow::anyhow!("{name} = {value} was admitted")),
            };
            found.note("a dimension outside its domain", refused);
        }
    }
}

/// Every written operand with every other one.
fn pairs<'a>(operands: &[&'a Operand], sizes: &[usize]) -> Vec<(&'a Operand, &'a Operand, [usize; 2])> {
    let sized = || operands.iter().copied().zip(sizes.iter().copied());
    let written = sized().filter(|(operand, _)| operand.access.writes());
    written
        .flat_map(|(written, bytes)| {
            let others = sized().filter(move |(other, _)| other.name != written.name);
            others.map(move |(other, others)| (written, other, [bytes, others]))
        })
        .collect()
}

/// The type of an operand's region; bytes, where a region cannot say it.
fn stored(operand: &Operand) -> DType {
    match operand.element {
        Element::F32 => DType::F32,
        Element::F16 => DType::F16,
        Element::Bf16 => DType::BF16,
        Element::I32 => DType::I32,
        Element::U32 => DType::U32,
        _ => DType::U8,
    }
}

fn replaced<'a>(name: &'a str, span: Span<'a>) -> impl FnOnce(&mut Spans<'a>) {
    move |spans| {
        spans.insert(name, span);
    }
}

impl Found {
    fn note(&mut self, what: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.checks += 1,
            Err(error) => self.failures.push(format!("{what}: {error:#}")),
        }
    }
}

/// An artifact, and operands that may be bound to it.
struct Table<'a> {
    bench: &'a Bench,
    manifest: &'a Manifest,
    plan: &'a OperatorPlan,
    good: Spans<'a>,
}

impl<'a> Table<'a> {
    /// What the plan says of the operands after a change.
    fn bind(&self, change: impl FnOnce(&mut Spans<'a>)) -> Option<BindError> {
        let mut spans = self.good.clone();
        change(&mut spans);
        self.plan.bind(&self.bound(&spans, None).status(self.bench.status())).err()
    }

    fn bound(&self, spans: &Spans<'a>, without: Option<&str>) -> Operands<'a> {
        let bound = spans.iter().fold(Operands::new(), |bound, (name, span)| bound.span(name, *span));
        let attributes = self.manifest.attributes.keys().filter(|name| without != Some(name.as_str()));
        attributes.fold(bound, |bound, name| bound.attribute(name, 1.0))
    }

    fn admitted(&self, change: impl FnOnce(&mut Spans<'a>)) -> Result<()> {
        self.bind(change).map_or(Ok(()), |error| Err(error.into()))
    }

    /// Checks that the operands are refused after a change, and that the error says why.
    fn refused(
        &self,
        change: impl FnOnce(&mut Spans<'a>),
        says_why: impl FnOnce(&BindError) -> bool,
    ) -> Result<()> {
        let error = self.bind(change).context("admitted")?;
        ensure!(says_why(&error), "refused with {error}");
        Ok(())
    }

    fn without(&self, attribute: Option<&String>, status: bool) -> Result<()> {
        let bound = self.bound(&self.good, attribute.map(String::as_str));
        let bound = if status { bound.status(self.bench.status()) } else { bound };
        match self.plan.bind(&bound).err() {
            Some(BindError::Missing { .. }) => Ok(()),
            Some(error) => bail!("refused with {error}"),
            None => bail!("admitted"),
        }
    }

    /// Two operands that begin together, and two of which one begins inside the other: refused, but for the same whole
    /// region where the manifest says so.
    fn aliased(
        &self,
        written: &'a Operand,
        other: &'a Operand,
        [bytes, others]: [usize; 2],
        shared: &'a DeviceMemory,
    ) -> Result<()> {
        let names = |one: &Operand, two: &Operand| one.same_as.as_deref() == Some(two.name.as_str());
        let first = shared.span(0, bytes, stored(written))?;
        let share = |second: Span<'a>| {
            move |spans: &mut Spans<'a>| {
                spans.insert(&written.name, first);
                spans.insert(&other.name, second);
            }
        };
        let blamed = |error: &BindError| {
            let BindError::Alias { first, second, .. } = error else { return false };
            let both = [&written.name, &other.name];
            both.contains(&first) && both.contains(&second)
        };
        let together = share(shared.span(0, others, stored(other))?);
        if names(written, other) || names(other, written) {
            self.admitted(together).context("the same whole region")?;
        } else {
            self.refused(together, blamed)?;
        }
        let inside = other.alignment.max(16) as usize;
        if inside < bytes {
            let inside = share(shared.span(inside, others, stored(other))?);
            self.refused(inside, blamed).context("one begins inside the other")?;
        }
        Ok(())
    }
}

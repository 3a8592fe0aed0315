//! Every artifact by itself against its contract's reference, whichever of its siblings a plan would choose.

mod binding;
mod feedback;
mod history;
mod scope;
#[cfg(test)]
mod tests;

use crate::call::{Bench, Unwritten};
use crate::provider::{Choice, NormedReference, OxideTile, ScaledProducts};
use crate::record::Finding;
use anyhow::{Result, anyhow, ensure};
use oxide_infer::Contract;
use oxide_infer::conformance::{self, Report};
use oxide_infer_cuda::artifact::manifest::Parameter;
use oxide_infer_cuda::artifact::{Artifact, Manifest, Registry};
use oxide_infer_cuda::runtime::{Context, EarlyLaunch};
pub(crate) use scope::{Cases, Scope, Shape};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Shares of a sequence's pages, for artifacts that split them: one, some that no number of pages is a multiple of, more
/// than there are pages, and the most that there may be.
const SPLITS: [u64; 5] = [1, 2, 3, 7, 256];
/// Tokens of no sequence after those of a prefill.
const PADDING: usize = 5;

pub(super) fn run(context: &Context, registry: &Arc<Registry>, scope: &Scope) -> Finding {
    let artifacts: Vec<_> = registry.artifacts().filter(|artifact| scope.admits(artifact)).cloned().collect();
    gate(context, registry, &artifacts, scope.cases)
}

/// Gates artifacts. One that no case has reached is a failure.
fn gate(context: &Context, registry: &Arc<Registry>, artifacts: &[Arc<Artifact>], cases: Cases) -> Finding {
    let start = Instant::now();
    let tasks: Vec<_> = artifacts
        .iter()
        .flat_map(|artifact| tasks(artifact, cases).into_iter().map(|task| (artifact.clone(), task)))
        .collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::<usize, Result<Found>>::new()));
    let threads = match cases {
        Cases::All => std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(tasks.len()),
        Cases::One => 1,
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((number, (artifact, task))) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, tasks.get(n)?)))
                {
                    let one = task.run(context, registry, artifact, cases);
                    announce(&artifact.manifest().name, cases, &one);
                    found.lock().unwrap_or_else(PoisonError::into_inner).insert(number, one);
                }
            });
        }
    });
    let mut finding = Finding::of("conformance");
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    for ((artifact, task), (_, found)) in tasks.iter().zip(found) {
        note(&mut finding, &artifact.manifest().name, *task, found);
    }
    missed(&mut finding, artifacts);
    finding.measured.insert("seconds".to_owned(), start.elapsed().as_secs_f64());
    finding
}

/// Says at once what has run, since a tool that runs the gate may end it before it has a record.
fn announce(name: &str, cases: Cases, found: &Result<Found>) {
    if let (Cases::One, Ok(found)) = (cases, found) {
        println!("ran {name}: {}", found.checks);
    }
}

fn missed(finding: &mut Finding, artifacts: &[Arc<Artifact>]) {
    for artifact in artifacts {
        let name = &artifact.manifest().name;
        if !finding.passed.contains_key(name) {
            finding.check(name, Err(anyhow!("no case has reached it")));
        }
    }
}

/// One pass over an artifact.
#[derive(Clone, Copy, Debug)]
enum Task {
    /// The contract's cases.
    Cases(Contract, Choice, EarlyLaunch),
    /// `sampling.record_history`, which the suite has no cases for.
    History,
    /// Slots of `embedding.gather`, which its contract does not have.
    Feedback,
    /// What may not be bound to it.
    Binding,
}

/// What a pass found.
#[derive(Debug, Default)]
struct Found {
    /// Calls that ran on the device, or operands that were refused.
    checks: usize,
    /// Of those, calls that a graph's replay ran to the same bits.
    replays: usize,
    unjudged: usize,
    near: usize,
    failures: Vec<String>,
}

fn tasks(artifact: &Artifact, cases: Cases) -> Vec<Task> {
    let all = every_task(artifact);
    match cases {
        Cases::All => all,
        Cases::One => all.into_iter().find(|task| task.is_the_one()).into_iter().collect(),
    }
}

fn every_task(artifact: &Artifact) -> Vec<Task> {
    let manifest = artifact.manifest();
    let named = |contract: &Contract| contract.name() == manifest.contract;
    let contract = match manifest.contract.as_str() {
        "sampling.record_history" => return vec![Task::History, Task::Binding],
        // Not contracts of their own but parts of that one.
        "sampling.log_probabilities" | "sampling.candidates" => Some(Contract::SAMPLE),
        _ => Contract::ALL.iter().copied().find(named),
    };
    let choices = match contract {
        Some(_) if manifest.dimensions.contains_key("splits") => SPLITS.map(Choice::Splits).to_vec(),
        Some(Contract::PAGED_PREFILL | Contract::RAGGED_PREFILL) => {
            vec![Choice::Plain, Choice::Padding(PADDING)]
        }
        Some(_) => vec![Choice::Plain],
        None => vec![],
    };
    let launches = launches_of(manifest);
    let of = |contract| {
        choices.iter().flat_map(move |&choice| {
            launches.iter().map(move |&launch| Task::Cases(contract, choice, launch))
        })
    };
    let cases = contract.into_iter().flat_map(of);
    let feeds = manifest.operand("slots").map(|_| Task::Feedback);
    cases.chain(feeds).chain([Task::Binding]).collect()
}

/// How an artifact's kernels are told to begin: if they can, also before what may be settled is known to be.
fn launches_of(manifest: &Manifest) -> &'static [EarlyLaunch] {
    let parameters = || manifest.launches.iter().flat_map(|launch| &launch.parameters);
    if parameters().any(|parameter| matches!(parameter, Parameter::Settled { .. })) {
        &[EarlyLaunch::WhereKernelsWait, EarlyLaunch::KeysSettled]
    } else {
        &[EarlyLaunch::WhereKernelsWait]
    }
}

impl Task {
    /// Whether it is the pass over an artifact where one is enough: with pages shared unevenly, and with no padding.
    fn is_the_one(self) -> bool {
        match self {
            Self::Cases(_, Choice::Plain | Choice::Splits(3), _) | Self::History => true,
            Self::Cases(..) | Self::Feedback | Self::Binding => false,
        }
    }

    fn run(
        self,
        context: &Context,
        registry: &Arc<Registry>,
        artifact: &Arc<Artifact>,
        cases: Cases,
    ) -> Result<Found> {
        let mut bench = Bench::new(context, registry)?;
        match cases {
            Cases::All => bench.replayed = Some(Shape::of(artifact.manifest())),
            Cases::One => bench.unwritten = Unwritten::Uninitialized,
        }
        match self {
            Self::Cases(contract, choice, launch) => {
                let tile = OxideTile::new(bench.early_launch(launch), artifact, choice);
                let tile = match cases {
                    Cases::All => tile,
                    Cases::One => tile.only(Shape::of(artifact.manifest())),
                };
                Ok(contract_cases(tile, contract))
            }
            Self::History => history::run(bench, artifact, cases),
            Self::Feedback => feedback::run(bench, artifact),
            Self::Binding => binding::run(bench, artifact),
        }
    }
}

fn contract_cases(mut tile: OxideTile, contract: Contract) -> Found {
    let report: Report = if tile.has("qk_norm", "present") {
        conformance::run_against(&mut tile, &mut NormedReference, contract)
    } else if contract == Contract::DENSE && tile.has("norm", "squares") {
        conformance::run_against(&mut tile, &mut ScaledProducts, contract)
    } else {
        conformance::run_contracts(&mut tile, &[contract])
    };
    let failures = report.failures().iter().map(|failure| format!("{}: {}", failure.case, failure.what));
    Found {
        // Refusals that need no device are the suite's business; what is counted here ran on it.
        checks: tile.runs(),
        replays: tile.replays(),
        unjudged: tile.unjudged(),
        near: report.near(),
        failures: failures.collect(),
    }
}

fn note(finding: &mut Finding, name: &str, task: Task, found: Result<Found>) {
    let Found { checks, replays, unjudged, near, failures } = match found {
        Ok(found) => found,
        Err(error) => return finding.check(name, Err(error)),
    };
    let what = match task {
        Task::Binding => "operands refused before any launch",
        Task::Cases(..) | Task::History | Task::Feedback => name,
    };
    if checks > 0 {
        *finding.passed.entry(what.to_owned()).or_default() += checks;
    }
    if replays > 0 {
        *finding.passed.entry("calls replayed from a graph, bit for bit".to_owned()).or_default() += replays;
    }
    if unjudged > 0 {
        *finding
            .not_covered
            .entry(format!("tokens after the last sequence, which {name} takes for padding"))
            .or_default() += unjudged;
    }
    if near > 0 {
        let what = format!("tokens of {name} that differ where rounding decides");
        *finding.measured.entry(what).or_default() += near as f64;
    }
    for failure in failures {
        finding.check(name, Err(anyhow!("{failure}")));
    }
}

/// A check as a failure's text.
fn hold(condition: bool, what: impl FnOnce() -> String) -> Result<()> {
    ensure!(condition, "{}", what());
    Ok(())
}

//! Times of the kernels in Rust beside the artifacts of the same contract that models run through, on the same operands.

mod works;

use crate::record::{Finding, Record};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use half::bf16;
use oxide_infer::{DType, Provider};
use oxide_infer_cuda::artifact::manifest::{Element, Operand, Role};
use oxide_infer_cuda::artifact::{Dimensions, Manifest, Registry, Request, Target};
use oxide_infer_cuda::driver::EventTiming;
use oxide_infer_cuda::provider::{BoundPlan, Candidacy, Cuda, Plan};
use oxide_infer_cuda::runtime::{
    CommandScope, Context, DeviceMemory, Event, Graph, Operands, PinnedMemory, StatusWord, Stream,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use works::{Work, works};

/// The name of the finding.
pub(crate) const FINDING: &str = "natives";
/// Bytes of operands that a replay goes through, so that none are in the L2 cache from the time before.
const PAST_CACHE: usize = 200 << 20;
/// Operands of small works stay in the cache, as they do in a model.
const MOST_COPIES: usize = 32;
/// Calls of one replay, at least.
const CALLS: usize = 32;
const SAMPLES: usize = 9;
/// Bytes that operands repeat.
const BLOCK: usize = 2 << 20;

/// Time the kernels in Rust beside the others on a CUDA device and write an evidence record
///
/// Every algorithm of both providers for each work is replayed from a graph, in turns.
///
/// Example: oxide-infer-lab natives --revision "$(git rev-parse HEAD)" --record natives.json
#[derive(Args, Debug)]
pub(crate) struct NativesOptions {
    /// Which device.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Source revision that the binary was built from.
    #[arg(long)]
    revision: String,
    /// File to write the record to.
    #[arg(long)]
    record: PathBuf,
    /// Only works whose name contains this (repeatable).
    #[arg(long)]
    only: Vec<String>,
}

pub(crate) fn run(options: &NativesOptions) -> Result<ExitCode> {
    Record::check_path(&options.record)?;
    let context = Context::primary(options.device)?;
    let target = Target::of(context.device().compute_capability, context.driver_version()?);
    let target = target.context("no artifacts are made for this device")?;
    let registries = [Registry::embedded(target)?, Registry::embedded_native(target)?].map(Arc::new);
    let mut record = Record::new(&context, &registries[0], &options.revision)?;
    record.list(&registries[1]);
    let asked =
        |work: &Work| options.only.is_empty() || options.only.iter().any(|part| work.name.contains(part));
    let finding = find(&context, &registries, works()?.into_iter().filter(asked));
    print!("{}", Table::of(&finding.measured).text());
    finding.failures.iter().for_each(|failure| println!("failed: {failure}"));
    let passed = finding.is_pass();
    record.add(finding);
    record.write(&options.record)?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn find(context: &Context, registries: &[Arc<Registry>], works: impl IntoIterator<Item = Work>) -> Finding {
    let mut finding = Finding::of(FINDING);
    let mut timer = match Timer::new(context, registries) {
        Ok(timer) => timer,
        Err(error) => {
            finding.check("set-up", Err(error));
            return finding;
        }
    };
    for work in works {
        match timer.time(&work) {
            Ok(times) => {
                finding.passed.insert(work.name.clone(), times.len());
                finding.measured.insert(format!("{} floor us", work.name), work.floor());
                let named = times.into_iter().map(|(by, us)| (format!("{} by {by} us", work.name), us));
                finding.measured.extend(named);
            }
            Err(error) => finding.check(&work.name, Err(error)),
        }
    }
    finding
}

/// Replays algorithms on one stream.
struct Timer {
    cuda: Cuda,
    stream: Stream,
    status: StatusWord,
    /// What operands hold, again and again.
    block: PinnedMemory<u8>,
    start: Event,
    end: Event,
}

impl Timer {
    fn new(context: &Context, registries: &[Arc<Registry>]) -> Result<Self> {
        let block = PinnedMemory::allocate(context, BLOCK)?;
        // Numbers in [−0.5, 0.5), which are finite as `f16` and `f32`, too.
        let number = |i: usize| bf16::from_f32(((i * 2_654_435_761) % 65_521) as f32 / 65_521.0 - 0.5);
        let numbers: Vec<_> = (0..BLOCK / size_of::<bf16>()).map(number).collect();
        block.write(0, bytemuck::cast_slice(&numbers))?;
        let cuda = registries.iter().cloned().fold(Cuda::new(context), Cuda::artifacts);
        let event = || Event::new(context, EventTiming::Enabled);
        let (stream, status) = (context.stream()?, StatusWord::new(context)?);
        Ok(Self { cuda, stream, status, block, start: event()?, end: event()? })
    }

    /// Median microseconds of every algorithm that admits the work, by artifact and what was chosen.
    fn time(&mut self, work: &Work) -> Result<Vec<(String, f64)>> {
        let mut plans = Vec::new();
        for (choice, request) in work.requests() {
            for (name, plan) in self.plans(&request)? {
                plans.push((format!("{name}{choice}"), plan, request.dimensions().clone()));
            }
        }
        let is_native = |plan: &Plan| plan.algorithm().provider == Provider::OxideNative;
        ensure!(plans.iter().any(|(_, plan, _)| is_native(plan)), "no kernel in Rust admits it");
        let (_, first, dimensions) = &plans[0];
        let sets = self.sets(work, manifest(first)?, dimensions)?;
        let mut graphs = Vec::new();
        for (_, plan, dimensions) in &plans {
            graphs.push(self.capture(plan, dimensions, &sets)?);
        }
        let mut samples = vec![Vec::new(); graphs.len()];
        // The first round is to warm up.
        for round in 0..=SAMPLES {
            let mut order: Vec<_> = (0..graphs.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                let (graph, calls) = &graphs[at];
                let us = self.replay(graph)? / *calls as f64;
                if round > 0 {
                    samples[at].push(us);
                }
            }
        }
        let named = plans.into_iter().zip(samples);
        Ok(named.map(|((name, ..), samples)| (name, median(samples))).collect())
    }

    /// Every plan for a request, by the name of its artifact.
    fn plans(&mut self, request: &Request) -> Result<Vec<(String, Plan)>> {
        let ready = |state: &Candidacy| *state == Candidacy::Ready;
        let candidates = self.cuda.candidates(request).into_iter().filter(|c| ready(&c.state));
        let mut plans = Vec::new();
        for candidate in candidates {
            let algorithm = candidate.algorithm.context("a candidate without a name")?;
            let plan = self.cuda.plan(request, candidate.provider, &algorithm.name)?;
            plans.push((candidate.implementation, plan));
        }
        Ok(plans)
    }

    /// Operands of a work, as often as it takes to leave the cache.
    fn sets(&self, work: &Work, manifest: &Manifest, dimensions: &Dimensions) -> Result<Vec<Set>> {
        let operands = || manifest.operands.iter().filter(|operand| operand.role == Role::Operand);
        let sizes = operands().map(|operand| Ok(manifest.operand_bytes(operand, dimensions)? as usize));
        let sizes = sizes.collect::<Result<Vec<usize>>>()?;
        let copies = (PAST_CACHE / sizes.iter().sum::<usize>().max(1)).clamp(1, MOST_COPIES);
        let set =
            || operands().zip(&sizes).map(|(of, &bytes)| Ok((of.name.clone(), self.made(work, of, bytes)?)));
        (0..copies).map(|_| set().collect()).collect()
    }

    fn made(&self, work: &Work, operand: &Operand, bytes: usize) -> Result<Made> {
        let memory = DeviceMemory::allocate(self.cuda.context(), bytes)?;
        let region = memory.region::<u8>(0, bytes)?;
        let mut scope = CommandScope::new(&self.stream)?;
        let indices = work.indices(&operand.name).map(|indices| -> Result<_> {
            let staged = PinnedMemory::allocate(self.cuda.context(), bytes)?;
            staged.write(0, bytemuck::cast_slice(&indices))?;
            Ok(staged)
        });
        let (staged, step) = match indices {
            Some(staged) => (&staged?, bytes),
            None => (&self.block, BLOCK),
        };
        for start in (0..bytes).step_by(step) {
            let end = bytes.min(start + step);
            scope.copy_in(&staged.slice(0..end - start)?, &region.slice(start..end)?)?;
        }
        scope.finish()?.wait()?;
        Ok(Made { memory, dtype: stored(operand.element)? })
    }

    /// A graph of calls on one set after another, and their number.
    fn capture(&self, plan: &Plan, dimensions: &Dimensions, sets: &[Set]) -> Result<(Graph, usize)> {
        let workspaces = plan.workspaces()?;
        let allocate = |bytes: u64| DeviceMemory::allocate(self.cuda.context(), bytes as usize);
        let memories = workspaces.iter().map(|one| allocate(one.bytes)).collect::<Result<Vec<_>, _>>()?;
        let manifest = manifest(plan)?;
        let bound = sets.iter().map(|set| {
            let mut operands = Operands::new().status(&self.status);
            for operand in manifest.operands.iter().filter(|operand| operand.role == Role::Operand) {
                let made = set.get(&operand.name).with_context(|| format!("no operand {}", operand.name))?;
                let bytes = manifest.operand_bytes(operand, dimensions)? as usize;
                operands = operands.span(&operand.name, made.memory.span(0, bytes, made.dtype)?);
            }
            for (workspace, memory) in workspaces.iter().zip(&memories) {
                operands = operands.span(&workspace.name, memory.span(0, memory.bytes(), workspace.dtype)?);
            }
            let attributes = manifest.attributes.keys();
            Ok(plan.bind(&attributes.fold(operands, |operands, name| operands.attribute(name, 0.1)))?)
        });
        let bound = bound.collect::<Result<Vec<BoundPlan>>>()?;
        let rounds = CALLS.div_ceil(bound.len());
        let mut all = (0..rounds).flat_map(|_| &bound);
        let graph = Graph::capture(&self.stream, |scope| all.try_for_each(|bound| bound.enqueue(scope)))?;
        Ok((graph, rounds * bound.len()))
    }

    /// Microseconds of one replay.
    fn replay(&self, graph: &Graph) -> Result<f64> {
        let mut scope = CommandScope::new(&self.stream)?;
        scope.record(&self.start)?;
        graph.replay(&mut scope)?;
        scope.record(&self.end)?;
        scope.finish()?.wait()?;
        Ok(f64::from(self.end.elapsed_since(&self.start)?) * 1e3)
    }
}

/// Operands by name.
type Set = BTreeMap<String, Made>;

struct Made {
    memory: DeviceMemory,
    dtype: DType,
}

fn manifest(plan: &Plan) -> Result<&Manifest> {
    Ok(plan.artifact().context("not a plan of an artifact")?.manifest())
}

fn stored(element: Element) -> Result<DType> {
    let dtypes = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::U8];
    let found = dtypes.into_iter().find(|dtype| dtype.name() == element.name());
    found.with_context(|| format!("no region holds {element}"))
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The fastest artifact of a provider for a work.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fastest {
    /// Its name, and what was chosen.
    pub(crate) by: String,
    pub(crate) us: f64,
}

/// What a record's numbers say of one work.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Line {
    /// What its bytes take, and a launch.
    pub(crate) floor: f64,
    pub(crate) native: Option<Fastest>,
    pub(crate) tile: Option<Fastest>,
}

/// The numbers of a finding, by work.
pub(crate) struct Table(pub(crate) BTreeMap<String, Line>);

impl Table {
    pub(crate) fn of(measured: &BTreeMap<String, f64>) -> Self {
        let mut lines = BTreeMap::<String, Line>::new();
        for (what, &us) in measured {
            let Some(what) = what.strip_suffix(" us") else { continue };
            if let Some(work) = what.strip_suffix(" floor") {
                lines.entry(work.to_owned()).or_default().floor = us;
            } else if let Some((work, by)) = what.split_once(" by ") {
                let line = lines.entry(work.to_owned()).or_default();
                let known = if by.starts_with("native.") { &mut line.native } else { &mut line.tile };
                if known.as_ref().is_none_or(|known| us < known.us) {
                    *known = Some(Fastest { by: by.to_owned(), us });
                }
            }
        }
        Self(lines)
    }

    /// Whether a record's number is of an artifact.
    pub(crate) fn is_of(what: &str, artifact: &str) -> bool {
        what.split_once(" by ").is_some_and(|(_, by)| by.split_whitespace().next() == Some(artifact))
    }

    fn text(&self) -> String {
        let line = |(work, line): (&String, &Line)| {
            let shown = |fastest: &Option<Fastest>| match fastest {
                Some(Fastest { by, us }) => format!("{us:>8.2} {by:<52}"),
                None => format!("{:>8} {:<52}", "-", "-"),
            };
            format!("{work:<52} {:>7.2} {} {}\n", line.floor, shown(&line.native), shown(&line.tile))
        };
        self.0.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxide_infer_cuda::driver::simulated::SimulatedDriver;

    #[test]
    fn every_work_is_admitted_by_a_kernel_in_rust_and_enqueued_without_a_fault() {
        let driver = SimulatedDriver::new();
        let context = Context::primary_on(driver.clone(), 0).unwrap();
        let target = Target::hopper();
        let registries = [Registry::embedded(target).unwrap(), Registry::embedded_native(target).unwrap()];
        let small = |work: &Work| work.bytes < 8 << 20;
        let finding = find(&context, &registries.map(Arc::new), works().unwrap().into_iter().filter(small));
        assert!(finding.failures.is_empty(), "{:?}", finding.failures);
        let contracts = |name: &str| finding.passed.keys().filter(|work| work.starts_with(name)).count();
        for name in ["rms_norm", "gemv", "rope_append", "single_decode"] {
            assert!(contracts(name) > 0, "{name}");
        }
        assert!(driver.violations().is_empty());
    }

    #[test]
    fn the_fastest_of_each_provider_stand_in_a_line() {
        let measured = [
            ("gemv n=8 floor us", 2.5),
            ("gemv n=8 by native.gemv.a us", 5.0),
            ("gemv n=8 by native.gemv.b splits=3 us", 4.0),
            ("gemv n=8 by dense_small.c us", 6.0),
            ("seconds", 9.0),
        ];
        let measured = measured.into_iter().map(|(what, us)| (what.to_owned(), us)).collect();
        let fastest = |by: &str, us| Some(Fastest { by: by.to_owned(), us });
        let line = Line {
            floor: 2.5,
            native: fastest("native.gemv.b splits=3", 4.0),
            tile: fastest("dense_small.c", 6.0),
        };
        assert_eq!(Table::of(&measured).0, BTreeMap::from([("gemv n=8".to_owned(), line)]));
        assert!(Table::is_of("gemv n=8 by native.gemv.b splits=3 us", "native.gemv.b"));
        assert!(!Table::is_of("gemv n=8 by native.gemv.b us", "native.gemv"));
    }
}

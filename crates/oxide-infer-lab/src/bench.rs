//! Times of operators through the runtime: what a caller pays, what a graph's replay takes, and whether that is within what the
//! device allows.

mod clock;
mod limit;
mod matrix;
mod operator;

pub(crate) use matrix::Family;

use crate::record::{Finding, Record, Times};
use crate::registry;
use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use clock::{Cache, Clock, Scopes};
use matrix::{Matrix, Row, Work};
use operator::{Maker, Operator};
use oxide_infer::Provider;
use oxide_infer_cuda::provider::Cuda;
use oxide_infer_cuda::provider::cublas_lt::Search;
use oxide_infer_cuda::runtime::{Context, Graph};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Samples of each way to time.
const SAMPLES: usize = 5;
/// Of all products together, how many times as fast as cuBLASLt's ours must be.
const AGAINST_LIBRARY: f64 = 0.97;

/// Time operators on a CUDA device through the runtime and write an evidence record
///
/// Every row of a family is timed as a caller enqueues it (a scope for each call, one for all, and a scope for each with a graph of
/// the call alone), as a graph replays it, and as a graph replays it when nothing is in the cache. Exits 0 only if no row takes more than the device's memory allows.
///
/// Example: oxide-infer-lab bench paged-decode rms-norm --revision "$(git rev-parse HEAD)" --record bench.json
#[derive(Args, Debug)]
pub(crate) struct BenchOptions {
    /// Families to time; all if none is named.
    families: Vec<Family>,
    /// Which device.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Source revision that the binary was built from.
    #[arg(long)]
    revision: String,
    /// File to write the record to.
    #[arg(long)]
    record: PathBuf,
    /// Directory of artifacts to time instead of the embedded ones.
    #[arg(long)]
    artifacts: Option<PathBuf>,
    /// File of rows to time instead of benchmarks/operators/matrix.json.
    #[arg(long)]
    matrix: Option<PathBuf>,
    /// Only rows whose name contains this (repeatable).
    #[arg(long)]
    only: Vec<String>,
    /// What to time.
    #[arg(long, value_enum, default_value_t)]
    modes: Modes,
    /// Also time products by cuBLASLt: its file, or the folder that it is in.
    #[arg(long)]
    cublas_lt: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Modes {
    /// Calls and replays.
    #[default]
    All,
    /// Calls alone.
    Eager,
}

struct Bench {
    clock: Clock,
    maker: Maker,
    cuda: Option<Cuda>,
    modes: Modes,
    bytes_a_second: f64,
}

pub(crate) fn run(options: &BenchOptions) -> Result<ExitCode> {
    let matrix = Matrix::load(options.matrix.as_deref())?;
    Record::check_path(&options.record)?;
    let context = Context::primary(options.device)?;
    let registry = Arc::new(registry(&context, Provider::OxideTile, options.artifacts.as_deref())?);
    let mut record = Record::new(&context, &registry, &options.revision)?;
    let clock = Clock::new(&context)?;
    let library = |path: &PathBuf| Cuda::new(&context).cublas_lt(&Search::At(path.clone()));
    let mut bench = Bench {
        bytes_a_second: clock.copy_rate()?,
        clock,
        maker: Maker::new(&context, &registry)?,
        cuda: options.cublas_lt.as_ref().map(library),
        modes: options.modes,
    };
    let families = if options.families.is_empty() { &Family::ALL[..] } else { &options.families };
    let named = |row: &&Row| options.only.is_empty() || options.only.iter().any(|part| row.id.contains(part));
    for family in families {
        let mut finding = Finding::of(family.gate());
        finding.measured.insert("GB/s of a copy".to_owned(), bench.bytes_a_second / 1e9);
        for row in matrix.rows.iter().filter(|row| row.work.family() == *family).filter(named) {
            match bench.row(row, &mut finding) {
                Ok(times) => record.times.extend(times),
                Err(error) => finding.check(&row.id, Err(error)),
            }
            record.write(&options.record)?;
        }
        products(&record.times, &mut finding);
        println!("{finding}");
        record.add(finding);
    }
    record.write(&options.record)?;
    println!("{}: {}", options.record.display(), record.verdict());
    Ok(if record.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Bench {
    /// Ours, and what the library does where it is asked.
    fn row(&mut self, row: &Row, finding: &mut Finding) -> Result<Vec<Times>> {
        let operator = match self.maker.artifact(row)? {
            Ok(operator) => operator,
            Err(refused) => {
                *finding.not_covered.entry(format!("{}: {refused}", row.id)).or_default() += 1;
                return Ok(Vec::new());
            }
        };
        let mut all = vec![self.times(row, &operator)?];
        drop(operator);
        if let (Some(cuda), Work::Gemm(product)) = (&mut self.cuda, &row.work) {
            let operator = self.maker.library(cuda, *product)?;
            all.push(self.times(row, &operator)?);
        }
        let ours = &all[0];
        let took = ours.flushed_us.as_deref().map(median);
        if let (Some(took), Some(most)) = (took, limit::microseconds(&row.work, self.bytes_a_second)) {
            let outcome = if took <= most {
                Ok(())
            } else {
                Err(anyhow!("{}: {took:.2} us, may take {most:.2}", row.id))
            };
            finding.check("rows within what the device's memory allows", outcome);
        } else {
            finding.check("rows timed", Ok(()));
        }
        Ok(all)
    }

    fn times(&self, row: &Row, operator: &Operator) -> Result<Times> {
        let clock = &self.clock;
        let first = operator.sets.first().context("an operator without operands")?;
        // The first call loads the kernel, and the second is a fair guess.
        clock.eager(first, 1, Scopes::OneEach)?;
        let calls = Clock::calls(clock.eager(first, 2, Scopes::OneEach)?);
        let samples = |scopes| -> Result<Vec<f64>> {
            // Scopes make what they use again when there are that many for the first time.
            clock.eager(first, calls, scopes)?;
            (0..SAMPLES).map(|_| clock.eager(first, calls, scopes)).collect()
        };
        let (eager, one_scope) = (samples(Scopes::OneEach)?, samples(Scopes::OneForAll)?);
        let alone = Graph::capture(&clock.stream, |scope| first.enqueue(scope))?;
        clock.eager_graph(&alone, calls)?;
        let alone = (0..SAMPLES).map(|_| clock.eager_graph(&alone, calls)).collect::<Result<_>>()?;
        let replays = |sets: &[_], cache| -> Result<Option<Vec<f64>>> {
            if self.modes == Modes::Eager {
                return Ok(None);
            }
            let graph = clock.capture(sets)?;
            clock.replay(&graph, cache)?;
            (0..SAMPLES).map(|_| clock.replay(&graph, cache)).collect::<Result<_>>().map(Some)
        };
        let times = Times {
            row: row.id.clone(),
            implementation: operator.implementation.clone(),
            layout: operator.layout.clone(),
            bytes: row.work.bytes(),
            calls,
            sets: operator.sets.len(),
            eager_us: eager,
            eager_one_scope_us: one_scope,
            graph_of_one_us: Some(alone),
            warm_us: replays(&operator.sets[..1], Cache::Warm)?,
            flushed_us: replays(&operator.sets, Cache::Flushed)?,
        };
        ensure!(times.eager_us.iter().all(|time| *time > 0.0), "a call took no time");
        Ok(times)
    }
}

/// Ours against the library's, over all products that both were timed with.
fn products(times: &[Times], finding: &mut Finding) {
    let ratio = |pair: &[Times]| match pair {
        [ours, theirs] if ours.row == theirs.row => {
            Some(median(theirs.flushed_us.as_deref()?) / median(ours.flushed_us.as_deref()?))
        }
        _ => None,
    };
    let ratios: Vec<f64> = times.windows(2).filter_map(ratio).collect();
    if ratios.is_empty() || finding.gate != Family::Gemm.gate() {
        return;
    }
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    finding.measured.insert("cuBLASLt's time over ours, geometric mean".to_owned(), mean);
    let outcome = if mean >= AGAINST_LIBRARY {
        Ok(())
    } else {
        Err(anyhow!("{mean:.3}, must be at least {AGAINST_LIBRARY}"))
    };
    finding.check("products beside cuBLASLt's", outcome);
}

/// The middle one, or the upper of the two in the middle; of no values NaN.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests;

//! `oxide-infer-lab`: hardware gates of the CUDA runtime and of the kernel artifacts, times of operators, what model parity is
//! judged by, and the operator catalogue made from their records.
//!
//! Each gate runs on a real device and adds its findings to one JSON record; the operator catalogue claims nothing of a
//! GPU that such a record does not show.

mod bench;
mod call;
mod catalogue;
mod export;
mod gates;
mod natives;
mod parity;
mod provider;
mod record;

use anyhow::{Context as _, Result, ensure};
use bench::BenchOptions;
use catalogue::CatalogueOptions;
use clap::{Args, Parser};
use export::ExportOptions;
use natives::NativesOptions;
use oxide_infer::Provider;
use oxide_infer_cuda::artifact::{Bundle, Registry, Target, manifest::Architecture};
use oxide_infer_cuda::provider::cublas_lt::Search;
use oxide_infer_cuda::runtime::Context;
use parity::ParityOptions;
use record::Record;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Debug, Parser)]
#[command(version, about = "Hardware gates and parity runs of Oxide Infer")]
enum Command {
    #[command(visible_alias = "gate")]
    Gates(GatesOptions),
    Bench(BenchOptions),
    Natives(NativesOptions),
    Parity(ParityOptions),
    Export(ExportOptions),
    Catalogue(CatalogueOptions),
}

/// Run hardware gates on a CUDA device and write an evidence record
///
/// Example: oxide-infer-lab gates --revision "$(git rev-parse HEAD)" --record docs/evidence/gates.json
///
/// Exits 0 only if every gate passed.
#[derive(Args, Debug)]
struct GatesOptions {
    /// Gates to run; all but products and fault if none is named.
    gates: Vec<gates::Gate>,
    /// Which device.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Source revision that the binary was built from.
    #[arg(long)]
    revision: String,
    /// File to write the record to.
    #[arg(long)]
    record: PathBuf,
    /// Directory of artifacts to gate instead of the embedded ones.
    #[arg(long)]
    artifacts: Option<PathBuf>,
    /// Whose artifacts to gate: oxide_tile, or oxide_native, which has the conformance gate alone.
    #[arg(long, value_parser = with_artifacts, default_value = Provider::OxideTile.name())]
    provider: Provider,
    /// Of the conformance gate: the cases of each artifact.
    #[arg(long, value_enum, default_value_t)]
    cases: gates::Cases,
    /// Of the conformance gate: only artifacts whose name contains this (repeatable).
    #[arg(long)]
    only: Vec<String>,
    /// Of the products gate: the file of cuBLASLt, or the folder that it is in; where it usually is if not given.
    #[arg(long)]
    cublas_lt: Option<PathBuf>,
    /// Of the fault gate: the oxide-infer binary to run, of the same revision.
    #[arg(long, requires = "provoker")]
    server: Option<PathBuf>,
    /// Of the fault gate: the library that the server is to load, libprovoke_fault.so of oxide-infer-cuda's examples.
    #[arg(long, requires = "server")]
    provoker: Option<PathBuf>,
}

fn main() -> ExitCode {
    // An error in one line: `main`'s own report would add a backtrace and repeat causes.
    run(&Command::parse()).unwrap_or_else(|error| {
        eprintln!("error: {}", message(&error));
        ExitCode::FAILURE
    })
}

/// An error and its causes, each once: many say their cause themselves.
fn message(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |message, cause| {
        let cause = cause.to_string();
        if message.contains(&cause) { message } else { format!("{message}: {cause}") }
    })
}

fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Gates(options) => run_gates(options),
        Command::Bench(options) => bench::run(options),
        Command::Natives(options) => natives::run(options),
        Command::Parity(options) => parity::run(options).map(|()| ExitCode::SUCCESS),
        Command::Export(options) => export::run(options).map(|()| ExitCode::SUCCESS),
        Command::Catalogue(options) => catalogue::run(options).map(|()| ExitCode::SUCCESS),
    }
}

fn run_gates(options: &GatesOptions) -> Result<ExitCode> {
    let gates: &[gates::Gate] = match (options.gates.as_slice(), options.provider) {
        ([], Provider::OxideNative) => &[gates::Gate::Conformance],
        ([], _) if options.artifacts.is_some() => &[gates::Gate::Conformance, gates::Gate::Lifetime],
        ([], _) => gates::Gate::ALL,
        (named, _) => named,
    };
    for &gate in gates {
        check(gate, options)?;
    }
    Record::check_path(&options.record)?;
    let context = Context::primary(options.device)?;
    let registry = Arc::new(registry(&context, options.provider, options.artifacts.as_deref())?);
    let mut record = Record::new(&context, &registry, &options.revision)?;
    let cublas_lt = options.cublas_lt.clone().map_or(Search::Usual, Search::At);
    let supplies = options.server.clone().zip(options.provoker.clone());
    let supplies = supplies.map(|(server, provoker)| gates::Supplies { server, provoker });
    let scope = gates::Scope { cases: options.cases, only: options.only.clone(), cublas_lt, supplies };
    for gate in gates {
        let finding = gate.run(&context, &registry, &scope);
        println!("{finding}");
        record.add(finding);
    }
    record.write(&options.record)?;
    println!("{}: {}", options.record.display(), record.verdict());
    Ok(if record.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a gate runs the artifacts that the record will name.
fn check(gate: gates::Gate, options: &GatesOptions) -> Result<()> {
    let native = options.provider == Provider::OxideNative;
    ensure!(
        !native || gate == gates::Gate::Conformance,
        "the gate {gate:?} is not of {}, which has the conformance gate alone",
        options.provider
    );
    ensure!(
        gate != gates::Gate::Fault || options.server.is_some(),
        "the gate Fault runs a server: --server and --provoker say which"
    );
    let whole_models = matches!(gate, gates::Gate::Engine | gates::Gate::Deterministic | gates::Gate::Fault);
    ensure!(
        !whole_models || options.artifacts.is_none(),
        "the gate {gate:?} runs models with the artifacts in the binary, so it takes no --artifacts"
    );
    Ok(())
}

fn registry(context: &Context, provider: Provider, artifacts: Option<&Path>) -> Result<Registry> {
    let (major, minor) = context.device().compute_capability;
    let architecture = Architecture::of_device(major, minor)
        .with_context(|| format!("no artifacts are made for compute capability {major}.{minor}"))?;
    let target = Target { architecture, driver: context.driver_version()? };
    let native = provider == Provider::OxideNative;
    let registry = match artifacts {
        Some(directory) if native => Registry::verify_native(&Bundle::from_directory(directory)?, target)?,
        Some(directory) => Registry::from_directory(directory, target)?,
        None if native => Registry::embedded_native(target)?,
        None => Registry::embedded(target)?,
    };
    ensure!(registry.artifacts().next().is_some(), "there are no artifacts to gate");
    Ok(registry)
}

/// A provider that has artifacts, by its name.
fn with_artifacts(name: &str) -> Result<Provider, String> {
    match Provider::find(name) {
        Some(provider @ (Provider::OxideTile | Provider::OxideNative)) => Ok(provider),
        _ => Err("only oxide_tile and oxide_native have artifacts".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxide_infer_engine::ModelSource;

    #[test]
    fn arguments_are_refused_before_a_device_is_asked_for() {
        let nowhere = "/no/such/folder/record.json";
        let here = std::env::temp_dir().join(format!("oxide-infer-lab-{}.json", std::process::id()));
        let here = here.to_str().unwrap();
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let cases: [(&[&str], &str); 6] = [
            (&["gates", "engine", "--provider", "oxide_native", "--record", here], "not of oxide_native"),
            (&["gate", "deterministic", "--artifacts", ".", "--record", here], "takes no --artifacts"),
            (&["gate", "fault", "--record", here], "--server and --provoker"),
            (&["gate", "--record", nowhere], nowhere),
            (&["bench", "--matrix", manifest, "--record", here], "the matrix of rows"),
            (&["natives", "--record", nowhere], nowhere),
        ];
        for (arguments, told) in cases {
            // No machine has that device.
            let common = ["--revision", "none", "--device", "4000000000"];
            let arguments = ["oxide-infer-lab"].iter().chain(arguments).chain(&common);
            let error = message(&run(&Command::parse_from(arguments)).unwrap_err());
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn a_missing_model_is_one_line_that_says_its_cause_once() {
        let missing = ModelSource::open(Path::new("/no/such/model")).unwrap_err();
        let text = message(&anyhow::Error::from(missing).context("opening the model"));
        assert!(text.starts_with("opening the model: /no/such/model cannot be read: "), "{text}");
        assert_eq!((text.matches("No such file").count(), text.lines().count()), (1, 1), "{text}");
    }
}

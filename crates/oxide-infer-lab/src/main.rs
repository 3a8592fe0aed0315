//! `oxide-infer-lab`: hardware gates of the CUDA runtime and of the kernel artifacts.
//!
//! Each gate runs on a real device and adds its findings to one JSON record; the operator catalogue claims nothing of a
//! GPU that such a record does not show. It exits 0 only if every gate passed.

mod call;
mod gates;
mod provider;
mod record;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use oxide_infer_cuda::artifact::{Registry, Target, manifest::Architecture};
use oxide_infer_cuda::runtime::Context;
use record::Record;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Run hardware gates on a CUDA device and write an evidence record.
///
/// Example: oxide-infer-lab --revision "$(git rev-parse HEAD)" --record docs/evidence/gates.json
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Gates to run; all of them if none is named.
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
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let context = Context::primary(options.device)?;
    let registry = Arc::new(registry(&context, &options)?);
    let mut record = Record::new(&context, &registry, &options.revision)?;
    let gates = if options.gates.is_empty() { gates::Gate::ALL } else { &options.gates };
    for gate in gates {
        let finding = gate.run(&context, &registry);
        println!("{finding}");
        record.add(finding);
    }
    record.write(&options.record)?;
    println!("{}: {}", options.record.display(), record.verdict());
    Ok(if record.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn registry(context: &Context, options: &Options) -> Result<Registry> {
    let (major, minor) = context.device().compute_capability;
    let architecture = Architecture::of_device(major, minor)
        .with_context(|| format!("no artifacts are made for compute capability {major}.{minor}"))?;
    let target = Target { architecture, driver: context.driver_version()? };
    let registry = match &options.artifacts {
        Some(directory) => Registry::from_directory(directory, target)?,
        None => Registry::embedded(target)?,
    };
    ensure!(registry.artifacts().next().is_some(), "there are no artifacts to gate");
    Ok(registry)
}

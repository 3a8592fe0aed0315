//! `oxide-infer artifacts`.

use crate::cli::options::{ArtifactsArgs, ArtifactsCommand};
use crate::cli::values::ByteSize;
use crate::terminal;
use anyhow::Context;
use oxide_infer_cuda::artifact::manifest::Architecture;
use oxide_infer_cuda::artifact::{Bundle, Registry, Target};
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(args: &ArtifactsArgs) -> anyhow::Result<ExitCode> {
    let directory = args.directory.as_deref();
    let registry = open(directory)?;
    let mut out = String::new();
    match &args.command {
        ArtifactsCommand::List => list(&registry, &mut out)?,
        ArtifactsCommand::Verify => {
            let count = registry.artifacts().count();
            let bytes: usize = registry.artifacts().map(|artifact| artifact.cubin().len()).sum();
            let size = ByteSize(bytes as u64);
            writeln!(
                out,
                "{count} artifacts, {size} of machine code: manifests, hashes, symbols and parameters agree"
            )?;
        }
        ArtifactsCommand::Show { name } => show(&registry, directory, name, &mut out)?,
    }
    terminal::print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// Verifies every artifact; what is malformed is an error here, for `list` and `show` too.
fn open(directory: Option<&Path>) -> anyhow::Result<Registry> {
    match directory {
        None => Registry::embedded(Target::hopper()).context("the artifacts in this binary are not valid"),
        Some(directory) => Registry::from_directory(directory, Target::hopper())
            .with_context(|| format!("the artifacts in {} are not valid", directory.display())),
    }
}

fn list(registry: &Registry, out: &mut String) -> anyhow::Result<()> {
    let rows: Vec<[String; 5]> = registry
        .artifacts()
        .map(|artifact| {
            let manifest = artifact.manifest();
            [
                manifest.name.clone(),
                format!("{} v{}", manifest.contract, manifest.contract_version),
                manifest.algorithm.clone(),
                manifest.architecture.to_string(),
                ByteSize(artifact.cubin().len() as u64).to_string(),
            ]
        })
        .collect();
    let header = ["NAME", "CONTRACT", "ALGORITHM", "ARCH", "SIZE"].map(str::to_owned);
    let width = |column: usize| rows.iter().chain([&header]).map(|row| row[column].len()).max().unwrap_or(0);
    let [a, b, c, d, _] = [0, 1, 2, 3, 4].map(width);
    for [name, contract, algorithm, architecture, size] in [&header].into_iter().chain(&rows) {
        writeln!(out, "{name:<a$}  {contract:<b$}  {algorithm:<c$}  {architecture:<d$}  {size}")?;
    }
    Ok(())
}

fn show(registry: &Registry, directory: Option<&Path>, name: &str, out: &mut String) -> anyhow::Result<()> {
    let artifact = registry
        .artifact(name)
        .with_context(|| format!("there is no artifact {name:?}; `oxide-infer artifacts list` names them"))?;
    let bundle = match directory {
        None => Bundle::embedded(artifact.manifest().architecture),
        Some(directory) => Bundle::from_directory(directory)?,
    };
    // The registry has verified this file.
    let manifest = bundle.file(&format!("{name}.json")).unwrap_or_default();
    out.push_str(&String::from_utf8_lossy(manifest));
    Ok(())
}

/// How many artifacts this binary carries for a device, or why it cannot use them.
pub(crate) fn summary(compute_capability: (u32, u32), cuda_version: (u32, u32)) -> String {
    let (major, minor) = compute_capability;
    let Some(architecture) = Architecture::of_device(major, minor) else {
        return format!("none for compute capability {major}.{minor}");
    };
    let target = Target { architecture, driver: cuda_version.0 * 1000 + cuda_version.1 * 10 };
    match Registry::embedded(target) {
        Ok(registry) => format!("{} for {}", registry.artifacts().count(), architecture),
        Err(error) => format!("not usable: {error}"),
    }
}

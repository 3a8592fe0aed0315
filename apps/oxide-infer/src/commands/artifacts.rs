//! `oxide-infer artifacts`.

use crate::cli::options::{ArtifactsArgs, ArtifactsCommand};
use crate::cli::values::ByteSize;
use crate::terminal;
use anyhow::Context;
use oxide_infer::Provider;
use oxide_infer_cuda::artifact::manifest::Architecture;
use oxide_infer_cuda::artifact::{ArtifactError, Bundle, Registry, RegistryError, Target};
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(args: &ArtifactsArgs) -> anyhow::Result<ExitCode> {
    let sets = open(args.artifacts.as_deref())?;
    let mut out = String::new();
    match &args.command {
        ArtifactsCommand::List => list(&sets, &mut out)?,
        ArtifactsCommand::Verify => sets.iter().try_for_each(|set| verified(&set.registry, &mut out))?,
        ArtifactsCommand::Show { name } => show(&sets, name, &mut out)?,
    }
    terminal::print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// The artifacts of one provider, and the files that they were verified from.
struct Set {
    registry: Registry,
    bundle: Bundle,
}

/// Verifies every artifact; what is malformed is an error here, for `list` and `show` too.
fn open(directory: Option<&Path>) -> anyhow::Result<Vec<Set>> {
    let target = Target::hopper();
    let Some(directory) = directory else {
        let verify = |bundle| verify(bundle, target).context("the artifacts in this binary are not valid");
        let architecture = target.architecture;
        return [Bundle::embedded(architecture), Bundle::embedded_native(architecture)]
            .into_iter()
            .map(verify)
            .collect();
    };
    let invalid = || format!("the artifacts in {} are not valid", directory.display());
    let bundle = Bundle::from_directory(directory).with_context(invalid)?;
    Ok(vec![verify(bundle, target).with_context(invalid)?])
}

/// A set is of one provider, whichever that is.
fn verify(bundle: Bundle, target: Target) -> Result<Set, RegistryError> {
    let registry = match Registry::verify(&bundle, target) {
        Err(RegistryError::Artifact {
            source: ArtifactError::Provider { found: Provider::OxideNative, .. },
            ..
        }) => Registry::verify_native(&bundle, target),
        other => other,
    }?;
    Ok(Set { registry, bundle })
}

fn verified(registry: &Registry, out: &mut String) -> std::fmt::Result {
    let count = registry.artifacts().count();
    let bytes: usize = registry.artifacts().map(|artifact| artifact.cubin().len()).sum();
    let (provider, size) = (registry.provider(), ByteSize(bytes as u64));
    writeln!(
        out,
        "{provider}: {count} artifacts, {size} of machine code: manifests, hashes, symbols and parameters agree"
    )
}

fn list(sets: &[Set], out: &mut String) -> std::fmt::Result {
    let rows: Vec<[String; 6]> = sets.iter().flat_map(|set| rows(&set.registry)).collect();
    let header = ["NAME", "PROVIDER", "CONTRACT", "ALGORITHM", "ARCH", "SIZE"].map(str::to_owned);
    let width = |column: usize| rows.iter().chain([&header]).map(|row| row[column].len()).max().unwrap_or(0);
    let [a, b, c, d, e, _] = [0, 1, 2, 3, 4, 5].map(width);
    for [name, provider, contract, algorithm, architecture, size] in [&header].into_iter().chain(&rows) {
        writeln!(
            out,
            "{name:<a$}  {provider:<b$}  {contract:<c$}  {algorithm:<d$}  {architecture:<e$}  {size}"
        )?;
    }
    Ok(())
}

fn rows(registry: &Registry) -> impl Iterator<Item = [String; 6]> {
    registry.artifacts().map(|artifact| {
        let manifest = artifact.manifest();
        [
            manifest.name.clone(),
            registry.provider().to_string(),
            format!("{} v{}", manifest.contract, manifest.contract_version),
            manifest.algorithm.clone(),
            manifest.architecture.to_string(),
            ByteSize(artifact.cubin().len() as u64).to_string(),
        ]
    })
}

fn show(sets: &[Set], name: &str, out: &mut String) -> anyhow::Result<()> {
    let set = sets
        .iter()
        .find(|set| set.registry.artifact(name).is_some())
        .with_context(|| format!("there is no artifact {name:?}; `oxide-infer artifacts list` names them"))?;
    // The registry has verified this file.
    let manifest = set.bundle.file(&format!("{name}.json")).unwrap_or_default();
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

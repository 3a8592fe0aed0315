//! The committed artifacts against their manifests and the present kernel sources: `make artifacts-check`.

use oxide_infer::Provider;
use oxide_infer_cuda::artifact::manifest::Architecture;
use oxide_infer_cuda::artifact::source::{folder as folder_of_sources, hash_files};
use oxide_infer_cuda::artifact::{Bundle, Index, Registry, Target};
use std::path::{Path, PathBuf};

/// A packaged crate may have 10 MiB; this leaves room for the source.
const BUDGET: usize = 8 << 20;

fn crate_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of a provider's artifacts in this crate.
fn folder(architecture: Architecture, provider: Provider) -> PathBuf {
    let native = if provider == Provider::OxideNative { "_native" } else { "" };
    crate_root().join(format!("artifacts/{architecture}{native}"))
}

/// Every set of artifacts that this binary carries for a Hopper GPU.
fn registries() -> [Registry; 2] {
    [Registry::embedded(Target::hopper()).unwrap(), Registry::embedded_native(Target::hopper()).unwrap()]
}

fn kernel_sources(provider: Provider) -> PathBuf {
    crate_root().join("../..").join(folder_of_sources(provider).unwrap())
}

fn stale(provider: Provider) -> &'static str {
    match provider {
        Provider::OxideNative => "is stale: run `make native-artifacts` and commit what it changes",
        _ => "is stale: run `make artifacts` and commit what it changes",
    }
}

#[test]
fn every_artifact_matches_its_manifest_and_is_its_provider_s() {
    for (registry, provider) in registries().iter().zip([Provider::OxideTile, Provider::OxideNative]) {
        assert!(registry.artifacts().count() > 0);
        assert_eq!(registry.provider(), provider);
        assert!(registry.artifacts().all(|artifact| artifact.manifest().provider() == provider));
    }
}

#[test]
fn every_manifest_is_made_from_the_present_kernel_sources() {
    for registry in registries() {
        for artifact in registry.artifacts() {
            let (manifest, provider) = (artifact.manifest(), registry.provider());
            let present = hash_files(&kernel_sources(provider), &manifest.source.files).unwrap();
            assert_eq!(manifest.source.sha256, present, "{} {}", manifest.name, stale(provider));
        }
    }
}

#[test]
fn every_index_is_made_from_the_present_builder_and_profile() {
    for architecture in Architecture::ALL {
        for (bundle, provider) in bundles(*architecture) {
            let index = Index::parse(bundle.file("index.json").unwrap()).unwrap();
            let present = hash_files(&kernel_sources(provider), &index.source.files).unwrap();
            let stale = stale(provider);
            assert_eq!(index.source.sha256, present, "the index of {provider} for {architecture} {stale}");
        }
    }
}

#[test]
fn the_binary_embeds_what_the_folders_hold_within_the_budget() {
    let mut total = 0;
    for architecture in Architecture::ALL {
        for (embedded, provider) in bundles(*architecture) {
            assert_eq!(embedded, Bundle::from_directory(&folder(*architecture, provider)).unwrap());
            total += embedded.files().map(|(_, data)| data.len()).sum::<usize>();
        }
    }
    assert!(total <= BUDGET, "the artifacts have {total} bytes, the budget is {BUDGET}");
}

fn bundles(architecture: Architecture) -> [(Bundle, Provider); 2] {
    [
        (Bundle::embedded(architecture), Provider::OxideTile),
        (Bundle::embedded_native(architecture), Provider::OxideNative),
    ]
}

/// Eight registers' worth: what prefill attention puts aside before its loops, where all warps share the registers alike.
const MAX_STACK_BYTES: u32 = 32;

#[test]
fn kernels_keep_their_values_in_registers() {
    for artifact in registries().iter().flat_map(Registry::artifacts) {
        for launch in &artifact.manifest().launches {
            assert!(launch.resources.stack <= MAX_STACK_BYTES, "{}", launch.symbol);
        }
    }
}

//! The committed artifacts against their manifests and the present kernel sources: `make artifacts-check`.

use oxide_infer_cuda::artifact::manifest::Architecture;
use oxide_infer_cuda::artifact::source::hash_files;
use oxide_infer_cuda::artifact::{Bundle, Index, Registry, Target};
use std::path::{Path, PathBuf};

/// A packaged crate may have 10 MiB; this leaves room for the source.
const BUDGET: usize = 8 << 20;
const STALE: &str = "is stale: run `make artifacts` and commit what it changes";

fn crate_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn kernel_sources() -> PathBuf {
    crate_root().join("../../kernels/tilelang")
}

#[test]
fn every_artifact_matches_its_manifest() {
    let registry = Registry::embedded(Target::hopper()).unwrap();
    assert!(registry.artifacts().count() > 0);
}

#[test]
fn every_manifest_is_made_from_the_present_kernel_sources() {
    for artifact in Registry::embedded(Target::hopper()).unwrap().artifacts() {
        let manifest = artifact.manifest();
        let present = hash_files(&kernel_sources(), &manifest.source.files).unwrap();
        assert_eq!(manifest.source.sha256, present, "{} {STALE}", manifest.name);
    }
}

#[test]
fn every_index_is_made_from_the_present_builder_and_profile() {
    for architecture in Architecture::ALL {
        let bundle = Bundle::embedded(*architecture);
        let index = Index::parse(bundle.file("index.json").unwrap()).unwrap();
        let present = hash_files(&kernel_sources(), &index.source.files).unwrap();
        assert_eq!(index.source.sha256, present, "the index of {architecture} {STALE}");
    }
}

#[test]
fn the_binary_embeds_what_the_folder_holds_within_the_budget() {
    let mut total = 0;
    for architecture in Architecture::ALL {
        let embedded = Bundle::embedded(*architecture);
        let folder = crate_root().join("artifacts").join(architecture.name());
        assert_eq!(embedded, Bundle::from_directory(&folder).unwrap());
        total += embedded.files().map(|(_, data)| data.len()).sum::<usize>();
    }
    assert!(total <= BUDGET, "the artifacts have {total} bytes, the budget is {BUDGET}");
}

/// Six registers' worth: what prefill attention puts aside before its loops, where all warps share the registers alike.
const MAX_STACK_BYTES: u32 = 24;

#[test]
fn kernels_keep_their_values_in_registers() {
    for artifact in Registry::embedded(Target::hopper()).unwrap().artifacts() {
        for launch in &artifact.manifest().launches {
            assert!(launch.resources.stack <= MAX_STACK_BYTES, "{}", launch.symbol);
        }
    }
}

//! The gate over a simulated device, which computes nothing: what it reaches, and what it may not miss.

use super::*;
use oxide_infer_cuda::artifact::Target;
use oxide_infer_cuda::driver::simulated::SimulatedDriver;
use std::collections::BTreeSet;

fn bench() -> (Context, Arc<Registry>) {
    let context = Context::primary_on(SimulatedDriver::new(), 0).unwrap();
    (context, Arc::new(Registry::embedded(Target::hopper()).unwrap()))
}

/// One artifact of each contract and properties: its siblings differ in their schedule alone.
fn families(registry: &Registry) -> Vec<Arc<Artifact>> {
    let mut seen = BTreeSet::new();
    let first = |artifact: &&Arc<Artifact>| {
        let manifest = artifact.manifest();
        let properties: Vec<_> = manifest.properties.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let splits = manifest.dimensions.contains_key("splits");
        let head_dim = manifest.dimensions.get("head_dim").map(|domain| domain.min);
        seen.insert((manifest.contract.clone(), properties, splits, head_dim))
    };
    registry.artifacts().filter(first).cloned().collect()
}

#[test]
fn cases_reach_every_kind_of_artifact_and_find_that_nothing_was_computed() {
    let (context, registry) = bench();
    let families = families(&registry);
    let finding = gate(&context, &registry, &families);
    assert!(!finding.is_pass());
    for artifact in &families {
        let name = &artifact.manifest().name;
        let own: Vec<_> = finding.failures.iter().filter(|failure| failure.starts_with(name)).collect();
        assert!(finding.passed.get(name).is_some_and(|&runs| runs > 0), "{name}: {own:?}");
        assert!(own.iter().any(|failure| failure.contains("should be")), "{name}: {own:?}");
        // Every operand fits its artifact, and everything that does not fit is refused.
        let unfit =
            own.iter().find(|failure| failure.contains("refused with") || failure.contains("admitted"));
        assert_eq!(unfit, None);
    }
}

#[test]
fn an_artifact_that_no_case_reaches_fails_the_gate() {
    let mut finding = Finding::of("conformance");
    let (_, registry) = bench();
    let artifact = registry.artifacts().next().unwrap();
    note(&mut finding, &artifact.manifest().name, Task::History, Ok(Found::default()));
    assert!(finding.passed.is_empty());
    missed(&mut finding, std::slice::from_ref(artifact));
    assert!(!finding.is_pass());
    assert!(finding.failures[0].contains("no case has reached it"), "{:?}", finding.failures);
}

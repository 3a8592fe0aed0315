//! The gate over a simulated device, which computes nothing: what it reaches, and what it may not miss.

mod emulated;

use super::*;
use crate::call::Emulated;
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
        let dimensions: Vec<_> = manifest.dimensions.keys().cloned().collect();
        let head_dim = manifest.dimensions.get("head_dim").map(|domain| domain.min);
        seen.insert((manifest.contract.clone(), properties, dimensions, head_dim))
    };
    registry.artifacts().filter(first).cloned().collect()
}

/// The artifacts of the kernels in Rust.
fn natives() -> Arc<Registry> {
    Arc::new(Registry::embedded_native(Target::hopper()).unwrap())
}

#[test]
fn cases_reach_every_kind_of_artifact_and_find_that_nothing_was_computed() {
    let (context, registry) = bench();
    reaches_every_kind(&context, &registry);
}

#[test]
fn cases_reach_every_kind_of_kernel_in_rust_and_find_that_nothing_was_computed() {
    reaches_every_kind(&bench().0, &natives());
}

fn reaches_every_kind(context: &Context, registry: &Arc<Registry>) {
    let families = families(registry);
    let finding = gate(context, registry, &families, Cases::All);
    assert!(!finding.is_pass());
    // All but the recording of history, which has no contract.
    let replays = finding.passed["calls replayed from a graph, bit for bit"];
    assert!(replays + 1 >= families.len(), "{replays} of {}", families.len());
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
fn one_case_reaches_every_artifact_by_one_launch() {
    let (context, registry) = bench();
    for registry in [registry, natives()] {
        let artifacts: Vec<_> = registry.artifacts().cloned().collect();
        let finding = gate(&context, &registry, &artifacts, Cases::One);
        let names = artifacts.iter().map(|artifact| (artifact.manifest().name.clone(), 1));
        assert_eq!(finding.passed, names.collect());
        assert!(finding.not_covered.is_empty(), "{:?}", finding.not_covered);
    }
}

/// Elements of k that a warp of the kernels of one row takes at a time.
const SPAN: u64 = 256;

/// A stage that is filled once is memory of which no tool sees two users.
#[test]
fn the_one_case_fills_every_ring_of_few_rows_again() {
    let (_, registry) = bench();
    let mut rings = 0;
    for artifact in registry.artifacts().filter(|artifact| artifact.manifest().contract == "gemm.dense") {
        let manifest = artifact.manifest();
        let number =
            |name: &str| -> Option<u64> { manifest.source.schedule.get(name)?.to_string().parse().ok() };
        let step = number("block_k").or_else(|| Some(number("warps")? * SPAN));
        // Blocks that stay fill theirs again with the next tile.
        let stays = manifest.source.kernel == "streamed_gemm.dense_streamed";
        if let (Some(stages), Some(step), false) = (number("stages"), step, stays) {
            let k = Shape::of(manifest).0.iter().find(|(name, _)| *name == "k").unwrap().1;
            let steps = k.div_ceil(step) / number("splits").unwrap_or(1);
            assert!(steps > stages, "{}: {steps} steps of {k} in {stages} stages", manifest.name);
            rings += 1;
        }
    }
    assert!(rings > 60, "{rings}");
}

#[test]
fn artifacts_are_left_out_by_their_names() {
    let (_, registry) = bench();
    let admitted = |only: &[&str]| {
        let scope = Scope { only: only.iter().map(|&part| part.to_owned()).collect(), ..Scope::default() };
        registry.artifacts().filter(|artifact| scope.admits(artifact)).count()
    };
    assert_eq!(admitted(&[]), registry.artifacts().count());
    assert_eq!(admitted(&["paged_decode.bf16.128.whole.nhd.16"]), 4);
    assert_eq!(admitted(&["paged_decode.bf16.128.whole.nhd.16", "paged_prefill.bf16.64.nhd.64"]), 6);
    assert_eq!(admitted(&["no such"]), 0);
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

/// What every pass but the bindings finds in an artifact on an emulated device.
fn found(name: &str, emulated: Emulated) -> Found {
    let (context, registry) = bench();
    let artifact = registry.artifact(name).unwrap();
    let mut all = Found::default();
    for task in every_task(artifact) {
        let mut bench = Bench::new(&context, &registry).unwrap();
        bench.emulated = Some(emulated);
        let one = match task {
            Task::Cases(contract, choice, launch) => {
                contract_cases(OxideTile::new(bench.early_launch(launch), artifact, choice), contract)
            }
            Task::History => history::run(bench, artifact, Cases::All).unwrap(),
            Task::Feedback => feedback::run(bench, artifact).unwrap(),
            Task::Binding => continue,
        };
        all.checks += one.checks;
        all.failures.extend(one.failures);
    }
    all
}

#[test]
fn an_artifact_that_does_what_is_documented_passes() {
    for name in [
        "argmax.chunk_4096",
        "sample.single",
        "candidates.bf16.192.rows64",
        "pick.threads_256",
        "log_probabilities.single",
        "record_history.threads_128",
        "gather.f32.threads_128",
        "gather.bf16.f32.present.threads_128",
        "gather_weighted.bf16.threads_192",
        "rope_append.bf16.64.absent.threads_128",
        "rope_append.bf16.128.present.threads_128_ahead2",
        "rope_append.bf16.128.absent.apart.nhd.16.threads_128_ahead1",
        "rope_append.bf16.64.absent.apart.hnd.64.threads_128_ahead1",
        "paged_append.bf16.64.nhd.16.threads_128",
        "paged_append.bf16.128.hnd.16.threads_128",
        "rope.bf16.64.threads_128",
        "rope.bf16.128.threads_128",
        "swiglu.bf16.threads_128",
        "swiglu.f32.threads_128",
        "weighted.bf16.w7_s3",
        "scaled.bf16.w7_s2",
        "scaled_swiglu.bf16.w6_s1",
        "scaled_projected.bf16.64.present.w7_s2",
        "weighted.bf16.m8_64x128_s5_split8",
        "scaled_swiglu.bf16.m8_64x128_s3",
        "scaled_projected.bf16.64.absent.m8_64x128_s5_split4",
        "scaled_projected.bf16.128.present.m32_64x128_s3_split4",
        "projected.bf16.128.present.m32_64x128_s6",
    ] {
        let found = found(name, emulated::documented);
        assert!(found.checks >= 2, "{name}: {found:?}");
        assert!(found.failures.is_empty(), "{name}: {:?}", found.failures);
    }
}

/// A device that is wrong in one way is found, whatever else it does right.
#[test]
fn a_neighbours_slot_a_padded_row_and_a_wrong_status_are_found() {
    for (name, wrong, says) in [
        ("sample.single", emulated::with_a_neighbours_slot as Emulated, "last_tokens should be"),
        ("sample.single", emulated::with_a_history_of_every_row, "history["),
        ("argmax.chunk_4096", emulated::with_a_token_for_padding, "should be 0"),
        ("argmax.chunk_4096", emulated::with_no_row_status, "row_status["),
        ("pick.threads_256", emulated::with_a_token_for_padding, "should be 0"),
        ("pick.threads_256", emulated::with_no_row_status, "row_status["),
        ("candidates.bf16.192.rows128", emulated::with_the_last_of_equal_tokens, "token should be"),
        ("log_probabilities.single", emulated::with_no_row_status, "row_status["),
        ("gather.bf16.f32.present.threads_128", emulated::with_a_silent_fault, "the device should report"),
        ("record_history.threads_128", emulated::with_a_silent_fault, "the device should report"),
        ("scaled_projected.bf16.64.absent.w7_s2", emulated::with_a_silent_fault, "the device found no fault"),
        ("rope.bf16.64.threads_128", emulated::with_a_silent_fault, "the device found no fault"),
        (
            "paged_append.bf16.64.nhd.16.threads_128",
            emulated::with_a_silent_fault,
            "the device found no fault",
        ),
        (
            "projected.bf16.128.present.m64_64x128_s4",
            emulated::with_a_silent_fault,
            "the device found no fault",
        ),
        ("scaled_projected.bf16.128.present.w7_s2", emulated::with_no_squares, "should be"),
        ("scaled.bf16.w7_s2", emulated::with_no_squares, "should be"),
        ("weighted.bf16.w7_s2", emulated::with_no_weights, "weighted["),
        ("weighted.bf16.m8_64x128_s5_split8", emulated::with_no_weights, "weighted["),
        ("scaled_swiglu.bf16.m8_64x128_s3", emulated::with_a_neighbours_squares, "should be"),
        (
            "scaled_projected.bf16.64.present.m8_64x128_s5_split4",
            emulated::with_a_neighbours_squares,
            "should be",
        ),
        (
            "scaled_projected.bf16.128.absent.m16_64x128_s5_split2",
            emulated::with_a_silent_fault,
            "the device found no fault",
        ),
    ] {
        let failures = found(name, wrong).failures;
        assert!(failures.iter().any(|failure| failure.contains(says)), "{name}, {says}: {failures:?}");
    }
}

use crate::provider::OxideTile;
use crate::record::Finding;
use anyhow::anyhow;
use oxide_infer::Contract;
use oxide_infer::conformance;
use oxide_infer_cuda::artifact::{Artifact, Registry};
use oxide_infer_cuda::runtime::Context;
use std::sync::Arc;

/// Every artifact by itself against its contract's reference, whichever of its siblings a plan would choose.
pub(super) fn run(context: &Context, registry: &Arc<Registry>) -> Finding {
    let mut finding = Finding::of("conformance");
    for artifact in registry.artifacts() {
        gate(context, registry, artifact, &mut finding);
    }
    finding
}

fn gate(context: &Context, registry: &Arc<Registry>, artifact: &Arc<Artifact>, finding: &mut Finding) {
    let manifest = artifact.manifest();
    let known = Contract::ALL.iter().find(|contract| contract.name() == manifest.contract);
    let Some(&contract) = known else {
        // A contract that the suite has no cases for: say so, do not count it as passed.
        *finding.not_covered.entry(format!("artifacts of {}", manifest.contract)).or_default() += 1;
        return;
    };
    let mut provider = match OxideTile::new(context, registry, artifact) {
        Ok(provider) => provider,
        Err(error) => return finding.check(&manifest.name, Err(error.into())),
    };
    let report = conformance::run_contracts(&mut provider, &[contract]);
    // Refusals that need no device are the suite's business; what is counted here ran on it.
    match provider.runs() {
        0 => *finding.not_covered.entry(format!("{} by any case", manifest.name)).or_default() += 1,
        runs => *finding.passed.entry(manifest.name.clone()).or_default() += runs,
    }
    for failure in report.failures() {
        let (case, what) = (&failure.case, &failure.what);
        finding.check(&manifest.name, Err(anyhow!("{case}: {what}")));
    }
}

//! Dense products by cuBLASLt: the suite's cases, then the shapes of models.

mod shapes;

use crate::call::{Bench, Call, failed};
use crate::provider::stage_product;
use crate::record::Finding;
use anyhow::{Context as _, Result, anyhow};
use oxide_infer::conformance::{self, Operators, Refusal};
use oxide_infer::gemm::dense;
use oxide_infer::{Contract, Provider};
use oxide_infer_cuda::artifact::{Registry, Request};
use oxide_infer_cuda::provider::cublas_lt::{CublasLt, Search};
use oxide_infer_cuda::provider::{Cuda, PlanError};
use oxide_infer_cuda::runtime::Context;
use std::sync::Arc;
use std::time::Instant;

/// What the library proposes first.
const BEST: &str = "heuristic_0";

pub(super) fn run(context: &Context, registry: &Arc<Registry>, search: &Search) -> Finding {
    let (start, mut finding) = (Instant::now(), Finding::of("products"));
    match CublasLt::load(context, search) {
        Ok(library) => {
            finding.measured.insert("cublasLtGetVersion".to_owned(), library.version() as f64);
        }
        Err(error) => {
            finding.check("cuBLASLt", Err(error.into()));
            return finding;
        }
    }
    let cuda = || Cuda::new(context).cublas_lt(search);
    match Bench::new(context, registry) {
        Ok(bench) => suite(&mut finding, Products { bench, cuda: cuda(), runs: 0 }),
        Err(error) => finding.check("set-up", Err(error.into())),
    }
    if let Err(error) = shapes::run(&mut finding, cuda()) {
        finding.check("shapes of models", Err(error));
    }
    finding.measured.insert("seconds".to_owned(), start.elapsed().as_secs_f64());
    finding
}

fn suite(finding: &mut Finding, mut products: Products) {
    let report = conformance::run_contracts(&mut products, &[Contract::DENSE]);
    if products.runs > 0 {
        finding.passed.insert(format!("cases of gemm.dense by cublas_lt/{BEST}"), products.runs);
    }
    for refused in report.refused() {
        *finding.not_covered.entry(refused.reason.to_string()).or_default() += 1;
    }
    for failure in report.failures() {
        finding.check(&format!("cublas_lt/{BEST}"), Err(anyhow!("{}: {}", failure.case, failure.what)));
    }
}

/// Runs products through the library's first proposal.
struct Products {
    bench: Bench,
    cuda: Cuda,
    runs: usize,
}

impl Operators for Products {
    fn dense(&mut self, spec: &dense::Spec, operands: dense::Operands<'_>) -> Result<(), Refusal> {
        operands.check(spec)?;
        let [m, _] = operands.input.shape();
        if m == 0 {
            return Ok(());
        }
        let request = Request::from(spec).dimension("m", m as u64);
        let mut call = Call::new(request.clone());
        call.read_float("input", &operands.input)?;
        stage_product(&mut call, operands)?;
        let plan = self.cuda.plan(&request, Provider::CublasLt, BEST).map_err(refused)?;
        match call.run_plan(&mut self.bench, &plan)? {
            None => self.runs += 1,
            Some(fault) => return Err(Refusal::Failed(format!("the device found a fault: {fault}"))),
        }
        Ok(())
    }
}

fn refused(error: PlanError) -> Refusal {
    match error {
        PlanError::NotAdmitted { why, .. } => Refusal::NotAdmitted(why),
        PlanError::UnknownAlgorithm { .. } => {
            Refusal::NotAdmitted("the library proposes no algorithm".to_owned())
        }
        error => failed(error),
    }
}

/// A plan's own error, with what it was for.
fn planned<T>(outcome: Result<T, PlanError>, request: &Request) -> Result<T> {
    outcome.with_context(|| format!("planning {request}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxide_infer_cuda::artifact::Target;
    use oxide_infer_cuda::driver::simulated::SimulatedDriver;

    #[test]
    fn a_machine_without_the_library_fails_the_gate_and_says_where_it_looked() {
        let context = Context::primary_on(SimulatedDriver::new(), 0).unwrap();
        let registry = Arc::new(Registry::embedded(Target::hopper()).unwrap());
        let finding = run(&context, &registry, &Search::At("/nowhere/libcublasLt.so.13".into()));
        assert!(!finding.is_pass());
        assert!(finding.failures[0].contains("/nowhere/libcublasLt.so.13"), "{:?}", finding.failures);
    }
}

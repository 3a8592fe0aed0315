//! An engine with its own context and streams adopts dense products: by cuBLASLt first, and then by this project's artifacts. One
//! argument changes.
//!
//!     cargo run -p oxide-infer-cuda --example adopt_gemm -- cublas_lt
//!     cargo run -p oxide-infer-cuda --example adopt_gemm -- oxide_tile
//!
//! Without an argument it runs both. cuBLASLt is looked for where `OXIDE_INFER_CUBLASLT` says (a file or a folder), or else where
//! it usually is.
//!
//! Exits 0 if every product is as it should be, 1 if not, 2 for an argument that is no provider, 69 where the machine has no driver,
//! no device, or not what the provider needs.

mod toy_engine;

use half::bf16;
use oxide_infer::gemm::dense::{self, Config, Spec};
use oxide_infer::{DType, FloatView, FloatViewMut, Presence, Provider, ProviderState, Weight, WeightFormat};
use oxide_infer_cuda::artifact::{Registry, Request, Target};
use oxide_infer_cuda::provider::cublas_lt::Search;
use oxide_infer_cuda::provider::{Candidacy, Cuda};
use oxide_infer_cuda::runtime::{CommandScope, DeviceMemory, Operands};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use toy_engine::{Engine, Lent, Missing, numbers, report};

/// The product of query, key and value of a model of 1.5 billion parameters, for 8 sequences.
const M: usize = 8;
const N: usize = 2048;
const K: usize = 1536;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let providers = match std::env::args().nth(1) {
        None => vec![Provider::CublasLt, Provider::OxideTile],
        Some(name) => match Provider::find(&name) {
            Some(provider) => vec![provider],
            None => {
                eprintln!("{name} is no provider: cublas_lt or oxide_tile");
                return ExitCode::from(2);
            }
        },
    };
    report(providers.into_iter().try_for_each(run))
}

fn run(provider: Provider) -> Outcome<()> {
    let (input, weight, bias) = (numbers(M * K, 1), numbers(N * K, 2), numbers(N, 3));
    let engine = Engine::start()?;
    let lent = engine.lend()?;
    let mut cuda = providers(&lent)?;
    if let state @ (ProviderState::Unavailable(_) | ProviderState::NotBuilt) = cuda.state(provider) {
        return Err(Missing(format!("{provider}: {state}")).into());
    }

    let spec = spec()?;
    let request = Request::from(&spec).dimension("m", M as u64);
    let candidates = cuda.candidates(&request);
    let ready =
        |provider| candidates.iter().filter(move |c| c.provider == provider && c.state == Candidacy::Ready);
    ready(provider).for_each(|candidate| println!("{candidate}"));
    // This engine's own rule: the first that is listed.
    let algorithm = ready(provider).find_map(|candidate| candidate.algorithm.clone());
    let algorithm = algorithm.ok_or_else(|| Missing(format!("an algorithm of {provider} for {request}")))?;

    // All that follows is the same, whoever computes.
    let plan = cuda.plan(&request, provider, &algorithm.name)?;
    let context = &lent.context;
    let buffers = [engine.upload(&input)?, engine.upload(&weight)?, engine.upload(&bias)?];
    let output = engine.upload(&vec![bf16::NAN; M * N])?;
    let [on_input, on_weight, on_bias] = [0, 1, 2].map(|i: usize| buffers[i].lend::<bf16>(context));
    let (on_input, on_weight, on_bias) = (on_input?, on_weight?, on_bias?);
    let on_output = output.lend::<bf16>(context)?;
    let workspaces = plan.workspaces()?;
    let allocate = |workspace: &oxide_infer_cuda::runtime::Workspace| {
        DeviceMemory::allocate(context, workspace.bytes as usize)
    };
    let memories = workspaces.iter().map(allocate).collect::<Result<Vec<_>, _>>()?;
    let mut operands = Operands::new()
        .region("input", &on_input)
        .region("weight", &on_weight)
        .region("bias", &on_bias)
        .region("output", &on_output);
    for (workspace, memory) in workspaces.iter().zip(&memories) {
        operands = operands.span(&workspace.name, memory.span(0, memory.bytes(), workspace.dtype)?);
    }
    let bound = plan.bind(&operands)?;
    let mut scope = CommandScope::new(&lent.compute)?;
    scope.wait(&lent.uploaded)?;
    bound.enqueue(&mut scope)?;
    scope.record(&lent.computed)?;
    let completion = scope.finish()?;
    let got = engine.download::<bf16>(&output)?;
    completion.wait()?;
    compare(&spec, [&input, &weight, &bias], &got)?;
    println!("{}: ok", bound.algorithm());
    Ok(())
}

/// Artifacts, if there are any for the device, and cuBLASLt, if it is found.
fn providers(lent: &Lent) -> Outcome<Cuda> {
    let context = &lent.context;
    let cuda = Cuda::new(context).cublas_lt(&Search::default());
    Ok(match Target::of(context.device().compute_capability, context.driver_version()?) {
        Some(target) => cuda.artifacts(Arc::new(Registry::embedded(target)?)),
        None => cuda,
    })
}

fn spec() -> Outcome<Spec> {
    let bf16 = DType::BF16;
    let (weight, residual) = (WeightFormat::Dense(bf16), Presence::Absent);
    Ok(Spec::new(Config { input: bf16, weight, output: bf16, n: N, k: K, bias: Some(bf16), residual })?)
}

/// Compares the device's output with the contract's reference.
fn compare(spec: &Spec, [input, weight, bias]: [&[bf16]; 3], got: &[bf16]) -> Outcome<()> {
    let mut want = vec![bf16::ZERO; M * N];
    let operands = dense::Operands {
        input: FloatView::contiguous(input, [M, K])?,
        weight: Weight::Dense(FloatView::contiguous(weight, [N, K])?),
        bias: Some(FloatView::contiguous(bias, [N])?),
        residual: None,
        output: FloatViewMut::contiguous(&mut want, [M, N])?,
    };
    dense::reference(spec, operands)?;
    // As the conformance suite: sums in any order, and one unit of 8 significant bits.
    let allowed = |want: f32| 1e-5 * (K as f32).sqrt() + want.abs() / 128.0;
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let (got, want) = (got.to_f32(), want.to_f32());
        let near = (got - want).abs() <= allowed(want);
        if !near {
            return Err(format!("element {i} of the output should be {want}, got {got}").into());
        }
    }
    Ok(())
}

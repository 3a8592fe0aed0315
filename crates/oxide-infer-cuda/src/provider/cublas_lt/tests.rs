use super::fake::Fake;
use super::*;
use crate::driver::simulated::SimulatedDriver;
use crate::provider::{Cuda, Plan};
use crate::runtime::{Graph, Region};
use half::bf16;
use oxide_infer::gemm::dense::{Config, Spec};
use oxide_infer::{Element, Presence, ProviderState, WeightFormat};

const M: usize = 3;
const N: usize = 24;
const K: usize = 40;

struct Bench {
    driver: Arc<SimulatedDriver>,
    fake: Fake,
    cuda: Cuda,
}

fn bench() -> Bench {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver.clone(), 0).unwrap();
    let fake = Fake::new(&driver);
    let cuda = Cuda::new(&context).with_cublas_lt(fake.start(&context));
    Bench { driver, fake, cuda }
}

fn request(bias: Option<DType>, residual: Presence) -> Request {
    let dtype = DType::BF16;
    let weight = WeightFormat::Dense(dtype);
    let spec = Spec::new(Config { input: dtype, weight, output: dtype, n: N, k: K, bias, residual }).unwrap();
    Request::from(&spec).dimension("m", M as u64)
}

fn plain() -> Request {
    request(None, Presence::Absent)
}

struct Regions {
    input: Region<bf16>,
    weight: Region<bf16>,
    output: Region<bf16>,
    workspace: Region<u8>,
}

impl Regions {
    fn new(context: &Context) -> Self {
        let region = |len| Region::allocate(context, len).unwrap();
        let workspace = Region::allocate(context, 4096).unwrap();
        Self { input: region(M * K), weight: region(N * K), output: region(M * N), workspace }
    }

    fn operands(&self) -> Operands<'_> {
        Operands::new()
            .region("input", &self.input)
            .region("weight", &self.weight)
            .region("output", &self.output)
    }

    fn with_workspace(&self) -> Operands<'_> {
        self.operands().region("workspace", &self.workspace)
    }
}

fn address<T: Element>(region: &Region<T>) -> u64 {
    region.span().ptr().0
}

impl Bench {
    fn plan(&mut self, request: &Request, algorithm: &str) -> Plan {
        self.cuda.plan(request, Provider::CublasLt, algorithm).unwrap()
    }
}

#[test]
fn algorithms_are_listed_best_first_with_their_workspace() {
    let bench = bench();
    bench.fake.state().proposals.push((1 << 30, 0));
    bench.fake.state().proposals.push((0, NOT_SUPPORTED));
    let listed: Vec<_> = bench.cuda.candidates(plain()).iter().map(ToString::to_string).collect();
    let expected = [
        "cublas_lt/heuristic_0 (cuBLASLt 130000, 0 bytes of workspace): ready",
        "cublas_lt/heuristic_1 (cuBLASLt 130000, 4096 bytes of workspace): ready",
    ];
    assert_eq!(listed[..2], expected, "one wants too much workspace, one is not supported");
    assert!(!listed[2].starts_with("cublas_lt"));
    assert_eq!(bench.fake.state().live, 1, "the handle: descriptors do not outlive the question");
    let state = bench.cuda.state(Provider::CublasLt).to_string();
    assert_eq!(state, "ready on simulated, version 130000 from libfake.so");
}

#[test]
fn what_cannot_be_computed_is_listed_with_the_reason_and_not_planned() {
    let mut bench = bench();
    let residual = request(Some(DType::F32), Presence::Absent);
    let why = "bias must be absent or of the output's type bf16, asked for f32";
    let listed = bench.cuda.candidates(&residual);
    let own = listed.iter().find(|candidate| candidate.provider == Provider::CublasLt).unwrap();
    assert_eq!(own.to_string(), format!("cublas_lt: not admitted: {why}"));
    let error = bench.cuda.plan(&residual, Provider::CublasLt, "heuristic_0").err().unwrap();
    assert!(matches!(error, PlanError::NotAdmitted { why: found, .. } if found == why));
    let error = bench.cuda.plan(plain(), Provider::CublasLt, "heuristic_2").err().unwrap();
    assert!(
        matches!(error, PlanError::UnknownAlgorithm { known, .. } if known == ["heuristic_0", "heuristic_1"])
    );
    bench.fake.state().statuses.insert("cublasLtMatmulAlgoGetHeuristic", NOT_SUPPORTED);
    let error = bench.cuda.plan(plain(), Provider::CublasLt, "heuristic_0").err().unwrap();
    assert!(matches!(error, PlanError::UnknownAlgorithm { known, .. } if known.is_empty()));
    bench.fake.state().statuses.insert("cublasLtMatmulAlgoGetHeuristic", 14);
    let error = bench.cuda.plan(plain(), Provider::CublasLt, "heuristic_0").err().unwrap().to_string();
    assert_eq!(error, "cublasLtMatmulAlgoGetHeuristic failed: CUBLAS_STATUS_INTERNAL_ERROR (14)");
    assert_eq!(bench.fake.state().live, 1);
}

#[test]
fn an_absent_library_is_listed_and_refuses_plans_with_the_places() {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver, 0).unwrap();
    let mut cuda = Cuda::new(&context);
    assert_eq!(cuda.state(Provider::CublasLt), ProviderState::Unavailable("it was not asked for".to_owned()));
    cuda = cuda.cublas_lt(&Search::At("/nowhere/libcublasLt.so.13".into()));
    let error = cuda.plan(plain(), Provider::CublasLt, "heuristic_0").err().unwrap();
    let PlanError::CublasLtAbsent(LoadError::NotFound { looked }) = error else { panic!("{error}") };
    assert_eq!(looked[0].place, Path::new("/nowhere/libcublasLt.so.13"));
    let listed = cuda.candidates(plain());
    let own = listed.iter().find(|candidate| candidate.provider == Provider::CublasLt).unwrap().to_string();
    assert!(own.starts_with("cublas_lt: unavailable: cuBLASLt was not found; looked for /nowhere/"), "{own}");
}

#[test]
fn a_library_that_does_not_start_is_reported_with_its_answer() {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver.clone(), 0).unwrap();
    let fake = Fake::new(&driver);
    fake.state().statuses.insert("cublasLtCreate", 1);
    let error = fake.start(&context).err().unwrap().to_string();
    assert_eq!(error, "libfake.so: cublasLtCreate failed: CUBLAS_STATUS_NOT_INITIALIZED (1)");
}

#[test]
fn the_plan_freezes_algorithm_and_workspace_and_enqueueing_asks_nothing() {
    let mut bench = bench();
    let context = bench.cuda.context().clone();
    let plan = bench.plan(&plain(), "heuristic_1");
    let workspaces = plan.workspaces().unwrap();
    assert_eq!((workspaces[0].bytes, workspaces[0].alignment, workspaces.len()), (4096, 256, 1));
    bench.fake.state().proposals.clear();
    let regions = Regions::new(&context);
    let bound = plan.bind(&regions.with_workspace()).unwrap();
    let stream = context.stream().unwrap();
    let (asked, allocations) = (bench.fake.state().heuristic_calls, bench.driver.live_allocations());
    let live = bench.fake.state().live;
    bench.fake.state().matmuls.clear();
    let mut scope = CommandScope::new(&stream).unwrap();
    bound.enqueue(&mut scope).unwrap();
    bound.enqueue(&mut scope).unwrap();
    scope.finish().unwrap().wait().unwrap();
    let state = bench.fake.state();
    assert_eq!(
        (state.heuristic_calls, state.live, bench.driver.live_allocations()),
        (asked, live, allocations)
    );
    assert_eq!(state.matmuls.len(), 2);
    assert_eq!((state.matmuls[0].algorithm, state.matmuls[0].workspace), (101, 4096));
}

#[test]
fn the_library_is_told_of_the_operands_where_they_lie() {
    let mut bench = bench();
    let context = bench.cuda.context().clone();
    let plan = bench.plan(&request(Some(DType::BF16), Presence::Present), "heuristic_0");
    assert_eq!(plan.workspaces().unwrap(), []);
    let regions = Regions::new(&context);
    let (bias, residual) =
        (Region::<bf16>::allocate(&context, N).unwrap(), Region::<bf16>::allocate(&context, M * N).unwrap());
    let operands = regions.operands().region("bias", &bias).region("residual", &residual);
    let bound = plan.bind(&operands).unwrap();
    let mut scope = CommandScope::new(&context.stream().unwrap()).unwrap();
    bound.enqueue(&mut scope).unwrap();
    scope.finish().unwrap().wait().unwrap();
    let call = bench.fake.state().matmuls.last().cloned().unwrap();
    let [weight, input, output] = [&regions.weight, &regions.input, &regions.output].map(address);
    assert_eq!(call.addresses, [weight, input, address(&residual), output, 0]);
    assert_eq!((call.alpha, call.beta, call.workspace), (1.0, 1.0, 0));
    let (n, m, k) = (N as u64, M as u64, K as u64);
    let rows = (14, n, m, n as i64);
    assert_eq!(call.layouts, [(14, k, n, k as i64), (14, k, m, k as i64), rows, rows]);
    // Compute type 68 (CUBLAS_COMPUTE_32F), scale type 0 (CUDA_R_32F), TRANSA, TRANSB, EPILOGUE (bias), BIAS_POINTER.
    let words = [(0, 68_u32), (1, 0), (3, 1), (4, 0), (7, 4)];
    let mut attributes: std::collections::BTreeMap<_, _> =
        words.map(|(name, value)| (name, value.to_ne_bytes().to_vec())).into();
    attributes.insert(8, address(&bias).to_ne_bytes().to_vec());
    assert_eq!(call.attributes, attributes);
    let bytes = bench.fake.state().preferences[&1].clone();
    assert_eq!(bytes, (32_u64 << 20).to_ne_bytes(), "the most workspace, in 8 bytes");
}

#[test]
fn without_a_residual_the_output_is_not_read() {
    let mut bench = bench();
    let context = bench.cuda.context().clone();
    let plan = bench.plan(&plain(), "heuristic_0");
    let regions = Regions::new(&context);
    let bound = plan.bind(&regions.operands()).unwrap();
    let mut scope = CommandScope::new(&context.stream().unwrap()).unwrap();
    bound.enqueue(&mut scope).unwrap();
    scope.finish().unwrap().wait().unwrap();
    let call = bench.fake.state().matmuls.last().cloned().unwrap();
    assert_eq!((call.beta, call.addresses[2]), (0.0, address(&regions.output)));
    assert!(!call.attributes.contains_key(&8));
}

#[test]
fn operands_that_do_not_fit_are_refused_by_name_before_the_library_sees_them() {
    let mut bench = bench();
    let context = bench.cuda.context().clone();
    let plan = bench.plan(&plain(), "heuristic_1");
    let regions = Regions::new(&context);
    let refused = |operands: &Operands<'_>| plan.bind(operands).err().map(|error| error.to_string());
    assert_eq!(refused(&regions.operands()).unwrap(), "cublas_lt/heuristic_1: operand workspace is missing");
    let good = regions.with_workspace();
    let short = Region::<bf16>::allocate(&context, M * K - 1).unwrap();
    assert_eq!(
        refused(&good.clone().region("input", &short)).unwrap(),
        "cublas_lt/heuristic_1: operand input has 238 bytes, 240 are needed"
    );
    let floats = Region::<f32>::allocate(&context, N * K).unwrap();
    assert_eq!(
        refused(&good.clone().region("weight", &floats)).unwrap(),
        "cublas_lt/heuristic_1: operand weight is f32, must be bf16"
    );
    let odd = Region::<bf16>::allocate(&context, M * N + 1).unwrap().slice(1..M * N + 1).unwrap();
    assert!(matches!(
        plan.bind(&good.clone().region("output", &odd)),
        Err(BindError::Alignment { operand, alignment: 16, .. }) if operand == "output"
    ));
    assert!(matches!(
        plan.bind(&good.clone().region("bias", &short)),
        Err(BindError::Unexpected { name, .. }) if name == "bias"
    ));
    assert!(matches!(
        plan.bind(&good.clone().region("output", &regions.weight)),
        Err(BindError::Alias { first, second, .. }) if (&*first, &*second) == ("output", "weight")
    ));
    let other = Context::primary_on(SimulatedDriver::new(), 0).unwrap();
    let foreign = Region::<bf16>::allocate(&other, N * K).unwrap();
    assert!(matches!(
        plan.bind(&good.clone().region("weight", &foreign)),
        Err(BindError::Kernel { source: KernelError::OtherContext { index: 1 }, .. })
    ));
    assert!(bench.fake.state().matmuls.is_empty());
    assert_eq!(refused(&good), None);
}

#[test]
fn a_product_in_flight_outlives_plan_provider_and_operands() {
    let mut bench = bench();
    let context = bench.cuda.context().clone();
    let stream = context.stream().unwrap();
    let plan = bench.plan(&plain(), "heuristic_1");
    let regions = Regions::new(&context);
    let bound = plan.bind(&regions.with_workspace()).unwrap();
    bench.driver.hold();
    let mut scope = CommandScope::new(&stream).unwrap();
    bound.enqueue(&mut scope).unwrap();
    let completion = scope.finish().unwrap();
    let Bench { driver, fake, cuda } = bench;
    drop((bound, plan, regions, cuda));
    assert_eq!(driver.live_allocations(), 4);
    assert!(fake.state().live > 0);
    driver.release();
    completion.wait().unwrap();
    assert_eq!((driver.live_allocations(), fake.state().live, driver.launches()), (0, 0, 1));
    assert!(driver.violations().is_empty());
}

#[test]
fn a_captured_product_keeps_its_descriptors_for_replays() {
    let mut bench = bench();
    let context = bench.cuda.context().clone();
    let stream = context.stream().unwrap();
    let plan = bench.plan(&plain(), "heuristic_0");
    let regions = Regions::new(&context);
    let bound = plan.bind(&regions.operands()).unwrap();
    let graph = Graph::capture(&stream, |scope| bound.enqueue(scope)).unwrap();
    drop((bound, plan, regions));
    let mut scope = CommandScope::new(&stream).unwrap();
    graph.replay(&mut scope).unwrap();
    graph.replay(&mut scope).unwrap();
    scope.finish().unwrap().wait().unwrap();
    assert_eq!(bench.driver.launches(), 2);
    assert!(bench.driver.violations().is_empty());
}

#[test]
fn a_refused_call_names_the_algorithm_and_keeps_what_it_may_have_enqueued() {
    let mut bench = bench();
    let context = bench.cuda.context().clone();
    let stream = context.stream().unwrap();
    let plan = bench.plan(&plain(), "heuristic_0");
    let regions = Regions::new(&context);
    let bound = plan.bind(&regions.operands()).unwrap();
    bench.fake.state().statuses.insert("cublasLtMatmul", 13);
    bench.driver.hold();
    let mut scope = CommandScope::new(&stream).unwrap();
    let error = bound.enqueue(&mut scope).err().unwrap().to_string();
    assert_eq!(error, "cublas_lt/heuristic_0: cublasLtMatmul failed: CUBLAS_STATUS_EXECUTION_FAILED (13)");
    let allocations = bench.driver.live_allocations();
    drop((bound, plan, regions));
    assert_eq!(bench.driver.live_allocations(), allocations - 1, "all but the unused workspace");
    let completion = scope.finish().unwrap();
    bench.driver.release();
    completion.wait().unwrap();
    assert_eq!(bench.driver.live_allocations(), 0);
}

#[test]
fn a_plan_is_enqueued_in_its_own_context_only() {
    let mut bench = bench();
    let context = bench.cuda.context().clone();
    let plan = bench.plan(&plain(), "heuristic_0");
    let regions = Regions::new(&context);
    let bound = plan.bind(&regions.operands()).unwrap();
    let other = Context::primary_on(SimulatedDriver::new(), 0).unwrap();
    let mut scope = CommandScope::new(&other.stream().unwrap()).unwrap();
    assert_eq!(bound.enqueue(&mut scope), Err(EnqueueError::OtherContext { what: "the plan" }));
}

#[test]
fn a_lost_context_is_not_asked_about() {
    let mut bench = bench();
    let asked = bench.fake.state().heuristic_calls;
    bench.driver.break_device(700);
    let context = bench.cuda.context().clone();
    assert!(context.stream().is_err());
    let listed = bench.cuda.candidates(plain());
    let product = listed.iter().find(|candidate| candidate.provider == Provider::CublasLt).unwrap();
    assert!(product.to_string().contains("(700)"), "{product}");
    let refused = bench.cuda.plan(plain(), Provider::CublasLt, "heuristic_0").err();
    assert!(matches!(refused, Some(PlanError::Driver(CudaError { code: 700, .. }))), "{refused:?}");
    assert_eq!(bench.fake.state().heuristic_calls, asked);
}

use super::*;
use crate::artifact::Target;
use crate::driver::simulated::SimulatedDriver;
use crate::runtime::{CommandScope, Operands, Region};
use half::bf16;
use oxide_infer::attention::{Attention, single_decode};
use oxide_infer::{Contract, DType, Presence, WeightFormat, gemm::dense};

fn cuda() -> (Arc<SimulatedDriver>, Cuda) {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver.clone(), 0).unwrap();
    let registry = Arc::new(Registry::embedded(Target::hopper()).unwrap());
    (driver, Cuda::new(&context).artifacts(registry))
}

fn product(n: usize, k: usize) -> dense::Spec {
    let dtype = DType::BF16;
    let (weight, residual) = (WeightFormat::Dense(dtype), Presence::Absent);
    dense::Spec::new(dense::Config { input: dtype, weight, output: dtype, n, k, bias: None, residual })
        .unwrap()
}

fn of(candidates: &[Candidate], provider: Provider) -> Vec<&Candidate> {
    candidates.iter().filter(|candidate| candidate.provider == provider).collect()
}

#[test]
fn every_artifact_of_a_contract_is_listed_and_those_that_do_not_serve_say_why() {
    let (driver, cuda) = cuda();
    let handles = driver.live_handles();
    let candidates = cuda.candidates(Request::from(&product(2048, 1536)).dimension("m", 8));
    let registry = &cuda.artifacts[&Provider::OxideTile].registry;
    let of_contract =
        registry.artifacts().filter(|a| a.manifest().contract == Contract::DENSE.name()).count();
    let tile = of(&candidates, Provider::OxideTile);
    assert_eq!(tile.len(), of_contract);
    let ready: Vec<_> = tile.iter().filter(|c| c.state == Candidacy::Ready).collect();
    assert!(ready.iter().any(|c| c.implementation == "dense_small.bf16.bf16.none.m8_64x128_s6"), "{ready:?}");
    assert!(ready.len() < of_contract);
    assert_eq!(candidates[0].state, Candidacy::Ready, "those that can be planned come first");
    let biased = tile.iter().find(|c| c.implementation == "dense_small.bf16.bf16.bias.m8_64x128_s6").unwrap();
    let why = "not admitted: dense_small.bf16.bf16.bias.m8_64x128_s6 has bias=bf16, asked for absent";
    assert_eq!(biased.state.to_string(), why);
    assert_eq!(driver.live_handles(), handles, "listing loads nothing");
}

#[test]
fn a_spec_alone_is_told_which_sizes_it_lacks() {
    let (_, cuda) = cuda();
    let candidates = cuda.candidates(&product(2048, 1536));
    let small =
        candidates.iter().find(|c| c.implementation == "dense_small.bf16.bf16.none.m8_64x128_s6").unwrap();
    let state = small.state.to_string();
    assert!(state.contains("m must be") && state.contains("got nothing"), "{state}");
}

#[test]
fn a_provider_that_cannot_be_asked_has_one_entry_that_says_so() {
    let (_, cuda) = cuda();
    let candidates = cuda.candidates(&product(2048, 1536));
    let native = of(&candidates, Provider::OxideNative);
    assert_eq!(native.len(), 1);
    assert_eq!(native[0].to_string(), "oxide_native: unavailable: no artifacts were given");
    let bare = Cuda::new(cuda.context());
    let tile = bare.candidates(&product(8, 8));
    assert_eq!(tile[0].to_string(), "oxide_tile: unavailable: no artifacts were given");
}

/// With the artifacts of both providers that have some.
fn both() -> Cuda {
    let native = Arc::new(Registry::embedded_native(Target::hopper()).unwrap());
    cuda().1.artifacts(native)
}

#[test]
fn native_kernels_are_listed_beside_the_others_and_planned_by_name_alone() {
    let mut cuda = both();
    let request = Request::from(&product(2048, 1536)).dimension("m", 1);
    let candidates = cuda.candidates(&request);
    let ready = |provider| {
        let ready = of(&candidates, provider).into_iter().filter(|c| c.state == Candidacy::Ready);
        ready.map(|c| c.to_string()).collect::<Vec<_>>()
    };
    let tile = "oxide_tile/m8_64x128_s6 (dense_small.bf16.bf16.none.m8_64x128_s6): ready";
    assert!(ready(Provider::OxideTile).iter().any(|c| c == tile));
    let native = "oxide_native/s1_r1_l6 (native.gemv.bf16.bf16.none.s1_r1_l6): ready";
    assert!(ready(Provider::OxideNative).iter().any(|c| c == native), "{:?}", ready(Provider::OxideNative));
    let plan = cuda.plan(&request, Provider::OxideNative, "s1_r1_l6").unwrap();
    assert_eq!(plan.algorithm().to_string(), "oxide_native/s1_r1_l6");
    assert_eq!(plan.artifact().unwrap().manifest().name, "native.gemv.bf16.bf16.none.s1_r1_l6");
    // The name of another provider's algorithm is no name here, and more rows are not admitted.
    let error = cuda.plan(&request, Provider::OxideNative, "m8_64x128_s6").err().unwrap();
    assert!(matches!(error, PlanError::UnknownAlgorithm { .. }), "{error}");
    let rows = Request::from(&product(2048, 1536)).dimension("m", 2);
    let error = cuda.plan(&rows, Provider::OxideNative, "s1_r1_l6").err().unwrap();
    assert!(
        matches!(&error, PlanError::NotAdmitted { why, .. } if why.contains("m must be 1..=1")),
        "{error}"
    );
}

#[test]
fn shares_of_keys_are_a_dimension_that_the_caller_states() {
    let attention = Attention {
        dtype: DType::BF16,
        num_q_heads: 12,
        num_kv_heads: 2,
        head_dim: 128,
        scale: 0.088,
        window: None,
        soft_cap: None,
        lse: Presence::Absent,
    };
    let spec = single_decode::Spec::new(attention).unwrap();
    let request = Request::from(&spec).dimension("kv_len", 4096);
    let mut cuda = both();
    let in_cluster = cuda.plan(&request, Provider::OxideNative, "cluster_8").unwrap();
    assert_eq!(in_cluster.workspaces().unwrap(), []);
    assert!(cuda.plan(&request, Provider::OxideNative, "split").is_err());
    let plan = cuda.plan(request.dimension("splits", 64), Provider::OxideNative, "split").unwrap();
    let sizes: Vec<_> = plan.workspaces().unwrap().into_iter().map(|w| (w.name, w.bytes)).collect();
    // 64 shares of 12 heads: 128 sums in f32, and a maximum with its total.
    let expected =
        [("partial".to_owned(), 64 * 12 * 128 * 4), ("partial_softmax".to_owned(), 64 * 12 * 2 * 4)];
    assert_eq!(sizes, expected);
}

#[test]
fn a_contract_without_artifacts_is_said_to_have_none() {
    let (_, cuda) = cuda();
    let candidates = cuda.candidates(Request::new("no.such", 3));
    assert_eq!(
        of(&candidates, Provider::OxideTile)[0].to_string(),
        "oxide_tile: not admitted: it has nothing of no.such v3"
    );
}

#[test]
fn every_ready_candidate_of_every_contract_can_be_planned_by_its_name() {
    let mut cuda = both();
    let registries = cuda.artifacts.values().map(|of| of.registry.clone()).collect::<Vec<_>>();
    for artifact in registries.iter().flat_map(|registry| registry.artifacts()) {
        let manifest = artifact.manifest();
        let request = Request::new(manifest.contract.clone(), manifest.contract_version);
        let request =
            manifest.properties.iter().fold(request, |r, (name, value)| r.property(name, value.clone()));
        // The least sizes; an artifact with a condition between them may want others.
        let request =
            manifest.dimensions.iter().fold(request, |r, (name, domain)| r.dimension(name, domain.min));
        if manifest.out_of_domain(request.dimensions()).is_some() {
            continue;
        }
        let listed = cuda.candidates(&request);
        let own = listed.iter().find(|candidate| candidate.implementation == manifest.name).unwrap();
        assert_eq!(own.state, Candidacy::Ready, "{own}");
        let plan = cuda.plan(&request, manifest.provider(), &manifest.algorithm);
        assert_eq!(
            plan.map(|plan| plan.algorithm().to_string()).map_err(|error| error.to_string()),
            Ok(own.algorithm.as_ref().unwrap().to_string())
        );
    }
}

#[test]
fn a_plan_by_name_is_refused_rather_than_replaced() {
    let (driver, mut cuda) = cuda();
    let request = Request::from(&product(2044, 1536)).dimension("m", 9);
    let handles = driver.live_handles();
    let mut refused = |provider, algorithm: &str| cuda.plan(&request, provider, algorithm).err().unwrap();
    let error = refused(Provider::OxideTile, "m8_64x128_s6");
    assert!(matches!(&error, PlanError::NotAdmitted { why, .. } if why.contains("n must be")), "{error}");
    let error = refused(Provider::OxideTile, "fastest");
    assert!(
        matches!(&error, PlanError::UnknownAlgorithm { known, .. } if known.iter().any(|name| name == "m8_64x128_s6")),
        "{error}"
    );
    let error = refused(Provider::OxideNative, "gemv").to_string();
    assert_eq!(error, "oxide_native cannot plan: unavailable: no artifacts were given");
    let error = refused(Provider::Cpu, "reference").to_string();
    assert_eq!(error, "cpu cannot plan: unavailable: it does not run on a CUDA device");
    assert_eq!(driver.live_handles(), handles);
}

#[test]
fn what_was_planned_by_name_is_what_is_bound_and_enqueued() {
    let (driver, mut cuda) = cuda();
    let request = Request::from(&product(128, 64)).dimension("m", 8);
    let plan = cuda.plan(&request, Provider::OxideTile, "m8_64x128_s6").unwrap();
    assert_eq!(plan.algorithm().to_string(), "oxide_tile/m8_64x128_s6");
    assert_eq!(plan.workspaces().unwrap(), []);
    let context = cuda.context().clone();
    let region = |len| Region::<bf16>::allocate(&context, len).unwrap();
    let (input, weight, output) = (region(8 * 64), region(128 * 64), region(8 * 128));
    let operands =
        Operands::new().region("input", &input).region("weight", &weight).region("output", &output);
    let bound = plan.bind(&operands).unwrap();
    let stream = context.stream().unwrap();
    let mut scope = CommandScope::new(&stream).unwrap();
    bound.enqueue(&mut scope).unwrap();
    drop((input, weight, output, bound, plan, cuda));
    scope.finish().unwrap().wait().unwrap();
    assert_eq!(driver.launches(), 1);
    assert!(driver.violations().is_empty());
}

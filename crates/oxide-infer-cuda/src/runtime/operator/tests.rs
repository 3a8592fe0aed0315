use super::bind::tensor_map_type;
use super::*;
use crate::artifact::manifest::{Element, Fill, Interleave, L2Promotion, Swizzle};
use crate::artifact::{ResolvedParameter, SelectError, Target};
use crate::driver::Serialization;
use crate::driver::simulated::SimulatedDriver;
use crate::runtime::KernelError;
use crate::runtime::kernel::Argument;
use half::bf16;

const HIDDEN: usize = 1536;
const ROWS: usize = 3;

fn rms_norm() -> Request {
    Request::new("normalization.rms_norm", 1)
        .property("dtype", "bf16")
        .property("weight_dtype", "bf16")
        .property("output_dtype", "bf16")
        .property("residual", "present")
        .dimension("tokens", ROWS as u64)
        .dimension("heads", 1)
        .dimension("hidden_size", HIDDEN as u64)
}

struct Bench {
    driver: Arc<SimulatedDriver>,
    context: Context,
    registry: Arc<Registry>,
    loader: Loader,
}

fn device() -> (Arc<SimulatedDriver>, Context) {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver.clone(), 0).unwrap();
    (driver, context)
}

/// Plans one artifact by name, whatever the selection rules prefer.
fn plan(bench: &mut Bench) -> OperatorPlan {
    let artifact = bench.registry.artifact("add_rms_norm.bf16.up_to_2k").unwrap().clone();
    bench.loader.plan_artifact(artifact, rms_norm().dimensions().clone()).unwrap()
}

fn bench() -> Bench {
    let (driver, context) = device();
    let registry = Arc::new(Registry::embedded(Target::hopper()).unwrap());
    let loader = Loader::new(&context, registry.clone());
    Bench { driver, context, registry, loader }
}

#[test]
fn an_operator_is_planned_bound_and_enqueued_from_its_manifest_alone() {
    let mut bench = bench();
    let plan = plan(&mut bench);
    let Bench { driver, context, loader, .. } = bench;
    let rows = Region::<bf16>::allocate(&context, 3 * ROWS * HIDDEN).unwrap();
    let part = |i: usize| rows.slice(i * ROWS * HIDDEN..(i + 1) * ROWS * HIDDEN).unwrap();
    let (input, residual, output) = (part(0), part(1), part(2));
    let weight = Region::<bf16>::allocate(&context, HIDDEN).unwrap();
    let operands = Operands::new()
        .region("input", &input)
        .region("residual", &residual)
        .region("weight", &weight)
        .region("output", &output)
        .attribute("epsilon", 1e-6);
    let operator = plan.bind(&operands).unwrap();
    assert_eq!(operator.launches()[0].shape().grid, [3, 1, 1]);
    assert!(plan.artifact().manifest().launches[0].programmatic_stream_serialization);
    assert_eq!(operator.launches()[0].shape().serialization, Serialization::Full);
    let early = loader.early_launch(EarlyLaunch::WhereKernelsWait);
    let early = { early }.plan_artifact(plan.artifact.clone(), plan.dimensions.clone()).unwrap();
    assert_eq!(
        early.bind(&operands).unwrap().launches()[0].shape().serialization,
        Serialization::Programmatic
    );
    let stream = context.stream().unwrap();
    let mut scope = CommandScope::new(&stream).unwrap();
    operator.enqueue(&mut scope).unwrap();
    drop((rows, input, residual, output, weight, operator, plan, early));
    scope.finish().unwrap().wait().unwrap();
    assert_eq!(driver.launches(), 1);
    assert!(driver.violations().is_empty());
}

#[test]
fn keys_and_tables_are_read_early_only_where_the_loader_promises_that_they_are_settled() {
    let Bench { context, registry, .. } = bench();
    let heads = [("batch", 8), ("num_q_heads", 12), ("num_kv_heads", 2), ("head_dim", 128)];
    let pages = [("page_size", 64), ("num_pages", 90), ("max_pages", 10)];
    let tokens = [("tokens", 8), ("rotary_dim", 128), ("max_positions", 640)];
    let sized = |sizes: &[&[(&str, usize)]]| -> Dimensions {
        sizes.iter().copied().flatten().map(|&(name, size)| (name.to_owned(), size as u64)).collect()
    };
    let told = |name: &str, dimensions: Dimensions, early_launch| {
        let artifact = registry.artifact(name).unwrap();
        let mut loader = Loader::new(&context, registry.clone()).early_launch(early_launch);
        let plan = loader.plan_artifact(artifact.clone(), dimensions.clone()).unwrap();
        let operands = Operands::new();
        let binder = Binder { plan: &plan, manifest: artifact.manifest(), operands: &operands };
        let launches = artifact.manifest().resolve(&dimensions).unwrap();
        let mut settled = launches[0].parameters.iter().filter(|p| matches!(p, ResolvedParameter::Settled));
        match binder.argument(settled.next().unwrap()).unwrap() {
            Argument::Number(bytes) => i32::from_le_bytes(bytes.try_into().unwrap()),
            _ => panic!("a number says whether keys are settled"),
        }
    };
    let attention = ("paged_decode.bf16.128.whole.cluster_8", sized(&[&heads, &pages]));
    let append = ("rope_append.bf16.128.absent.threads_128", sized(&[&heads, &pages, &tokens]));
    for (name, dimensions) in [attention, append] {
        let told = |early_launch| told(name, dimensions.clone(), early_launch);
        assert_eq!(told(EarlyLaunch::Never), 0, "{name}");
        assert_eq!(told(EarlyLaunch::WhereKernelsWait), 0, "{name}");
        assert_eq!(told(EarlyLaunch::KeysSettled), 1, "{name}");
    }
}

#[test]
fn operands_that_do_not_match_the_manifest_are_refused_by_name() {
    let mut bench = bench();
    let plan = plan(&mut bench);
    let context = bench.context;
    let region = |len| Region::<bf16>::allocate(&context, len).unwrap();
    let (input, residual, output, weight) =
        (region(ROWS * HIDDEN), region(ROWS * HIDDEN), region(ROWS * HIDDEN), region(HIDDEN));
    let good = Operands::new()
        .region("input", &input)
        .region("residual", &residual)
        .region("weight", &weight)
        .region("output", &output)
        .attribute("epsilon", 1e-6);
    let refused = |operands: &Operands<'_>| plan.bind(operands).err().map(|error| error.to_string());
    let name = &plan.artifact().manifest().name;
    assert_eq!(refused(&good), None);
    let short = region(HIDDEN - 1);
    assert_eq!(
        refused(&good.clone().region("weight", &short)),
        Some(format!("{name}: operand weight has 3070 bytes, 3072 are needed"))
    );
    let floats = Region::<f32>::allocate(&context, HIDDEN).unwrap();
    assert_eq!(
        refused(&good.clone().region("weight", &floats)),
        Some(format!("{name}: operand weight is f32, must be bf16"))
    );
    assert_eq!(
        refused(&good.clone().region("bias", &weight)),
        Some(format!("{name}: there is no operand or attribute bias"))
    );
    assert_eq!(
        refused(&good.clone().attribute("eps", 0.0)),
        Some(format!("{name}: there is no operand or attribute eps"))
    );
    let odd = region(HIDDEN + 1).slice(1..HIDDEN + 1).unwrap();
    assert!(matches!(
        plan.bind(&good.clone().region("weight", &odd)),
        Err(BindError::Alignment { operand, alignment: 16, .. }) if operand == "weight"
    ));
    assert!(matches!(
        plan.bind(&good.clone().region("output", &input)),
        Err(BindError::Alias { first, second, .. }) if (first.as_str(), second.as_str()) == ("output", "input")
    ));
    let missing = Operands::new().region("input", &input).attribute("epsilon", 1e-6);
    assert_eq!(refused(&missing), Some(format!("{name}: operand residual is missing")));
    let (_, other) = device();
    let foreign = Region::<bf16>::allocate(&other, HIDDEN).unwrap();
    assert!(matches!(
        plan.bind(&good.clone().region("weight", &foreign)),
        Err(BindError::Kernel { source: KernelError::OtherContext { .. }, .. })
    ));
}

#[test]
fn an_operator_that_no_artifact_covers_names_what_is_missing() {
    let Bench { mut loader, .. } = bench();
    let error = loader.plan(&rms_norm().dimension("hidden_size", 12)).err().unwrap().to_string();
    assert!(error.contains("hidden_size"), "{error}");
    assert!(matches!(
        loader.plan(&Request::new("no.such", 1)),
        Err(PlanError::Select(SelectError::NoContract { .. }))
    ));
}

#[test]
fn tensor_map_enumerations_have_the_numbers_of_the_driver() {
    // Values of the enumerations in cuda.h, CUDA 12.
    assert_eq!([Interleave::None, Interleave::B16, Interleave::B32].map(|v| v as u32), [0, 1, 2]);
    assert_eq!([Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128].map(|v| v as u32), [0, 1, 2, 3]);
    let promotions = [L2Promotion::None, L2Promotion::B64, L2Promotion::B128, L2Promotion::B256];
    assert_eq!(promotions.map(|v| v as u32), [0, 1, 2, 3]);
    assert_eq!([Fill::Zeros, Fill::Nan].map(|v| v as u32), [0, 1]);
    assert_eq!([Element::F16, Element::F32, Element::Bf16].map(tensor_map_type), [6, 7, 9]);
}

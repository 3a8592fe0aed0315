//! From a verified artifact to work that can be enqueued: load, plan, bind.

use super::context::Context;
use super::kernel::{Access, Argument, BoundLaunch, Kernel, KernelError, Module};
use super::memory::{Region, Span};
use super::scope::{CommandScope, EnqueueError};
use super::status::StatusWord;
use crate::artifact::manifest::{self, Element, Operand, Role};
use crate::artifact::{
    Artifact, Dimensions, Manifest, Registry, Request, ResolveError, ResolvedLaunch, ResolvedParameter,
    ResolvedTensorMap, SelectError,
};
use crate::driver::{CudaError, LaunchShape, Serialization, TensorMapRecipe};
use oxide_infer::DType;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The artifacts of a registry, loaded on one device as plans ask for them, each once.
pub struct Loader {
    context: Context,
    registry: Arc<Registry>,
    modules: BTreeMap<String, Module>,
}

/// One operator of fixed dimensions: an artifact, its kernels and their geometry. Immutable.
#[derive(Clone)]
pub struct OperatorPlan {
    artifact: Arc<Artifact>,
    kernels: Vec<Kernel>,
    dimensions: Dimensions,
}

/// What an operator is bound to, by the names that its contract gives them.
#[derive(Clone, Default)]
pub struct Operands<'a> {
    regions: BTreeMap<&'a str, Span<'a>>,
    attributes: BTreeMap<&'a str, f32>,
    status: Option<&'a StatusWord>,
}

/// An operator with its operands: enqueued as often as wanted, with no allocation.
pub struct BoundOperator {
    artifact: Arc<Artifact>,
    launches: Vec<BoundLaunch>,
}

/// A region that a plan's caller provides and whose contents mean nothing before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// The name to bind it by.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Bytes that it needs.
    pub bytes: u64,
    /// The address is a multiple of this.
    pub alignment: u64,
}

/// Why an operator cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// No artifact, or more than one, serves it.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The dimensions give no launch.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The driver refuses the code.
    #[error("artifact {artifact}: {source}")]
    Load {
        /// The artifact.
        artifact: String,
        /// The refusal.
        source: KernelError,
    },
}

/// Why operands cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An operand is missing.
    #[error("{artifact}: operand {operand} is missing")]
    Missing {
        /// The artifact.
        artifact: String,
        /// The operand.
        operand: String,
    },
    /// The artifact has no such operand or attribute.
    #[error("{artifact}: there is no operand or attribute {name}")]
    Unexpected {
        /// The artifact.
        artifact: String,
        /// The name that was given.
        name: String,
    },
    /// Another element type.
    #[error("{artifact}: operand {operand} is {found}, must be {expected}")]
    DType {
        /// The artifact.
        artifact: String,
        /// The operand.
        operand: String,
        /// The contract's.
        expected: Element,
        /// The region's.
        found: DType,
    },
    /// Too little memory.
    #[error("{artifact}: operand {operand} has {found} bytes, {expected} are needed")]
    Capacity {
        /// The artifact.
        artifact: String,
        /// The operand.
        operand: String,
        /// Bytes that the dimensions need.
        expected: u64,
        /// Bytes of the region.
        found: usize,
    },
    /// An address that the kernels cannot use.
    #[error("{artifact}: operand {operand} begins at {address:#x}, which is not a multiple of {alignment}")]
    Alignment {
        /// The artifact.
        artifact: String,
        /// The operand.
        operand: String,
        /// Its address.
        address: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// Two operands share memory.
    #[error(
        "{artifact}: operands {first} and {second} share memory, which only the same whole region may where the artifact says so"
    )]
    Alias {
        /// The artifact.
        artifact: String,
        /// The one that is written.
        first: String,
        /// The other.
        second: String,
    },
    /// The dimensions give no launch.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The launch cannot be made.
    #[error("{artifact}: {source}")]
    Kernel {
        /// The artifact.
        artifact: String,
        /// What is wrong.
        source: KernelError,
    },
}

impl Loader {
    /// A loader that has loaded nothing yet.
    pub fn new(context: &Context, registry: Arc<Registry>) -> Self {
        Self { context: context.clone(), registry, modules: BTreeMap::new() }
    }

    /// Plans the operator that a request describes.
    ///
    /// # Errors
    ///
    /// No artifact serves it, or the driver refuses its code.
    pub fn plan(&mut self, request: &Request) -> Result<OperatorPlan, PlanError> {
        let artifact = self.registry.select(request)?.clone();
        self.plan_artifact(artifact, request.dimensions().clone())
    }

    /// Plans an artifact by itself, for dimensions in its domain.
    ///
    /// # Errors
    ///
    /// A dimension outside its domain, or the driver refuses its code.
    pub fn plan_artifact(
        &mut self,
        artifact: Arc<Artifact>,
        dimensions: Dimensions,
    ) -> Result<OperatorPlan, PlanError> {
        let manifest = artifact.manifest();
        manifest.resolve(&dimensions)?;
        let failed = |source| PlanError::Load { artifact: manifest.name.clone(), source };
        let module = self.module(&artifact).map_err(|error| failed(error.into()))?;
        let kernel = |l: &manifest::Launch| module.kernel(&l.symbol, l.dynamic_shared_memory);
        let kernels = manifest.launches.iter().map(kernel).collect::<Result<_, _>>().map_err(failed)?;
        Ok(OperatorPlan { kernels, artifact, dimensions })
    }

    fn module(&mut self, artifact: &Artifact) -> Result<Module, CudaError> {
        let name = &artifact.manifest().name;
        if let Some(module) = self.modules.get(name) {
            return Ok(module.clone());
        }
        let module = Module::load(&self.context, artifact.cubin())?;
        self.modules.insert(name.clone(), module.clone());
        Ok(module)
    }
}

impl OperatorPlan {
    /// What runs.
    pub fn artifact(&self) -> &Artifact {
        &self.artifact
    }

    /// The regions that it needs beside its contract's operands.
    ///
    /// # Errors
    ///
    /// [`ResolveError`] if a size leaves the range of numbers.
    pub fn workspaces(&self) -> Result<Vec<Workspace>, ResolveError> {
        Workspace::of(self.artifact.manifest(), &self.dimensions)
    }

    /// Binds it to operands.
    ///
    /// # Errors
    ///
    /// Missing or unknown operands, a wrong type, too little memory, a misaligned address, aliasing, a missing
    /// attribute or status, or another context. Nothing is enqueued.
    pub fn bind(&self, operands: &Operands<'_>) -> Result<BoundOperator, BindError> {
        let binder = Binder { plan: self, manifest: self.artifact.manifest(), operands };
        binder.check()?;
        let launches = binder.manifest.resolve(&self.dimensions)?;
        let bind = |(launch, kernel): (&ResolvedLaunch<'_>, &Kernel)| binder.launch(launch, kernel);
        let launches = launches.iter().zip(&self.kernels).map(bind).collect::<Result<_, _>>()?;
        Ok(BoundOperator { artifact: self.artifact.clone(), launches })
    }
}

impl Workspace {
    /// What an artifact needs for dimensions, before it is loaded on any device.
    ///
    /// # Errors
    ///
    /// [`ResolveError`] if a dimension is outside its domain or a size leaves the range of numbers.
    pub fn of(manifest: &Manifest, dimensions: &Dimensions) -> Result<Vec<Self>, ResolveError> {
        let workspaces = manifest.operands.iter().filter(|operand| operand.role == Role::Workspace);
        let describe = |operand: &Operand| {
            let bytes = manifest.operand_bytes(operand, dimensions)?;
            let (name, dtype, alignment) = (operand.name.clone(), dtype(operand.element), operand.alignment);
            Ok(Self { name, dtype: dtype.unwrap_or(DType::U8), bytes, alignment })
        };
        workspaces.map(describe).collect()
    }
}

impl<'a> Operands<'a> {
    /// No operands yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds a region to an operand's or a workspace's name.
    #[must_use]
    pub fn region<T: oxide_infer::Element>(mut self, name: &'a str, region: &'a Region<T>) -> Self {
        self.regions.insert(name, region.span());
        self
    }

    /// Binds a span whose element type is known at run time only.
    #[must_use]
    pub fn span(mut self, name: &'a str, span: Span<'a>) -> Self {
        self.regions.insert(name, span);
        self
    }

    /// Gives an attribute its value.
    #[must_use]
    pub fn attribute(mut self, name: &'a str, value: f32) -> Self {
        self.attributes.insert(name, value);
        self
    }

    /// Where the kernels report bad input.
    #[must_use]
    pub fn status(mut self, status: &'a StatusWord) -> Self {
        self.status = Some(status);
        self
    }
}

impl BoundOperator {
    /// What runs.
    pub fn artifact(&self) -> &Artifact {
        &self.artifact
    }

    /// Its launches, in order.
    pub fn launches(&self) -> &[BoundLaunch] {
        &self.launches
    }

    /// Enqueues it.
    ///
    /// # Errors
    ///
    /// As [`CommandScope::launch`].
    pub fn enqueue(&self, scope: &mut CommandScope) -> Result<(), EnqueueError> {
        self.launches.iter().try_for_each(|launch| scope.launch(launch)).map_err(|error| match error {
            EnqueueError::Cuda(source) => {
                EnqueueError::Operator { artifact: self.artifact.manifest().name.clone(), source }
            }
            other => other,
        })
    }
}

struct Binder<'a> {
    plan: &'a OperatorPlan,
    manifest: &'a Manifest,
    operands: &'a Operands<'a>,
}

impl<'a> Binder<'a> {
    fn check(&self) -> Result<(), BindError> {
        let known = |name: &str| self.manifest.operand(name).is_some_and(|o| o.role != Role::Status);
        let unknown = self.operands.regions.keys().find(|name| !known(name)).or_else(|| {
            self.operands.attributes.keys().find(|name| !self.manifest.attributes.contains_key(**name))
        });
        if let Some(name) = unknown {
            return Err(BindError::Unexpected { artifact: self.artifact(), name: (*name).to_owned() });
        }
        let regions = self.manifest.operands.iter().filter(|operand| operand.role != Role::Status);
        regions.clone().try_for_each(|operand| self.check_operand(operand))?;
        regions.filter(|operand| operand.access.writes()).try_for_each(|operand| self.check_alias(operand))
    }

    fn check_operand(&self, operand: &Operand) -> Result<(), BindError> {
        let span = self.span(operand)?;
        let (artifact, name) = (|| self.artifact(), || operand.name.clone());
        // A workspace's contents mean nothing to its caller: bytes do for any element.
        let any_type = operand.role == Role::Workspace && span.dtype() == DType::U8;
        if !any_type && dtype(operand.element) != Some(span.dtype()) {
            let (expected, found) = (operand.element, span.dtype());
            return Err(BindError::DType { artifact: artifact(), operand: name(), expected, found });
        }
        let expected = self.manifest.operand_bytes(operand, &self.plan.dimensions)?;
        if (span.bytes() as u64) < expected {
            let found = span.bytes();
            return Err(BindError::Capacity { artifact: artifact(), operand: name(), expected, found });
        }
        let (address, alignment) = (span.ptr().0, operand.alignment);
        if !address.is_multiple_of(alignment) {
            return Err(BindError::Alignment { artifact: artifact(), operand: name(), address, alignment });
        }
        Ok(())
    }

    fn check_alias(&self, written: &Operand) -> Result<(), BindError> {
        let span = self.span(written)?;
        let others = self.manifest.operands.iter();
        for other in others.filter(|other| other.role != Role::Status && other.name != written.name) {
            let another = self.span(other)?;
            let admitted = (names(written, other) || names(other, written)) && span.ptr() == another.ptr();
            if span.overlaps(&another) && !admitted {
                let (first, second) = (written.name.clone(), other.name.clone());
                return Err(BindError::Alias { artifact: self.artifact(), first, second });
            }
        }
        Ok(())
    }

    fn launch(&self, launch: &ResolvedLaunch<'_>, kernel: &Kernel) -> Result<BoundLaunch, BindError> {
        let arguments = launch.parameters.iter().map(|p| self.argument(p)).collect::<Result<Vec<_>, _>>()?;
        let shape = LaunchShape {
            grid: launch.grid,
            block: launch.launch.block,
            shared_bytes: launch.launch.dynamic_shared_memory,
            cluster: launch.launch.cluster,
            serialization: match launch.launch.programmatic_stream_serialization {
                true => Serialization::Programmatic,
                false => Serialization::Full,
            },
        };
        // SAFETY: kernel and parameters are of one verified manifest, whose parameter sizes match the machine code; every
        // region is as long, typed and aligned as the manifest says, which `check` has seen.
        unsafe { kernel.bind(shape, &arguments) }
            .map_err(|source| BindError::Kernel { artifact: self.artifact(), source })
    }

    fn argument(&self, parameter: &'a ResolvedParameter<'a>) -> Result<Argument<'a>, BindError> {
        Ok(match parameter {
            ResolvedParameter::Pointer(operand) if operand.role == Role::Status => {
                Argument::Status(self.operands.status.ok_or_else(|| self.missing(&operand.name))?)
            }
            ResolvedParameter::Pointer(operand) => Argument::Region(self.span(operand)?, access(operand)),
            ResolvedParameter::Scalar(bytes) => Argument::Number(bytes),
            ResolvedParameter::Attribute(name, _) => {
                Argument::F32(*self.operands.attributes.get(name).ok_or_else(|| self.missing(name))?)
            }
            ResolvedParameter::TensorMap(map) => {
                Argument::TensorMap(self.span(map.operand)?, access(map.operand), recipe(map))
            }
        })
    }

    fn span(&self, operand: &Operand) -> Result<Span<'a>, BindError> {
        let span = self.operands.regions.get(operand.name.as_str());
        span.copied().ok_or_else(|| self.missing(&operand.name))
    }

    fn missing(&self, operand: &str) -> BindError {
        BindError::Missing { artifact: self.artifact(), operand: operand.to_owned() }
    }

    fn artifact(&self) -> String {
        self.manifest.name.clone()
    }
}

fn names(operand: &Operand, other: &Operand) -> bool {
    operand.same_as.as_ref() == Some(&other.name)
}

/// Aliasing is checked for the whole operator, with what the manifest admits, so a launch need not check it again.
fn access(operand: &Operand) -> Access {
    if operand.access.writes() { Access::Shared } else { Access::Read }
}

fn recipe<'a>(map: &'a ResolvedTensorMap<'a>) -> TensorMapRecipe<'a> {
    TensorMapRecipe {
        data_type: tensor_map_type(map.map.element),
        global_dim: &map.dimensions,
        global_strides: &map.strides,
        box_dim: &map.map.box_,
        element_strides: &map.map.element_strides,
        interleave: map.map.interleave as u32,
        swizzle: map.map.swizzle as u32,
        l2_promotion: map.map.l2_promotion as u32,
        oob_fill: map.map.fill as u32,
    }
}

/// `CUtensorMapDataType`, in the numbering of `cuda.h`; the other enumerations are declared in the driver's order.
fn tensor_map_type(element: Element) -> u32 {
    match element {
        Element::U8 => 0,
        Element::U32 => 2,
        Element::I32 => 3,
        Element::U64 => 4,
        Element::I64 => 5,
        Element::F16 => 6,
        Element::F32 => 7,
        Element::Bf16 => 9,
    }
}

fn dtype(element: Element) -> Option<DType> {
    Some(match element {
        Element::F32 => DType::F32,
        Element::F16 => DType::F16,
        Element::Bf16 => DType::BF16,
        Element::I32 => DType::I32,
        Element::U32 => DType::U32,
        Element::U8 => DType::U8,
        Element::I64 | Element::U64 => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::Target;
    use crate::artifact::manifest::{Fill, Interleave, L2Promotion, Swizzle};
    use crate::driver::simulated::SimulatedDriver;
    use half::bf16;

    const HIDDEN: usize = 1536;
    const ROWS: usize = 3;

    fn rms_norm() -> Request {
        Request::new("normalization.rms_norm", 1)
            .property("dtype", "bf16")
            .property("weight_dtype", "bf16")
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
        let stream = context.stream().unwrap();
        let mut scope = CommandScope::new(&stream).unwrap();
        operator.enqueue(&mut scope).unwrap();
        drop((rows, input, residual, output, weight, operator, plan, loader));
        scope.finish().unwrap().wait().unwrap();
        assert_eq!(driver.launches(), 1);
        assert!(driver.violations().is_empty());
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
        assert_eq!(
            [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128].map(|v| v as u32),
            [0, 1, 2, 3]
        );
        let promotions = [L2Promotion::None, L2Promotion::B64, L2Promotion::B128, L2Promotion::B256];
        assert_eq!(promotions.map(|v| v as u32), [0, 1, 2, 3]);
        assert_eq!([Fill::Zeros, Fill::Nan].map(|v| v as u32), [0, 1]);
        assert_eq!([Element::F16, Element::F32, Element::Bf16].map(tensor_map_type), [6, 7, 9]);
    }
}

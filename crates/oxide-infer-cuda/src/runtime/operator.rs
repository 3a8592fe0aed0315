//! From a verified artifact to work that can be enqueued: load, plan, bind.

mod bind;
mod error;

use super::context::Context;
use super::kernel::{BoundLaunch, Kernel, Module};
use super::memory::{Region, Span};
use super::scope::{CommandScope, EnqueueError};
use super::status::StatusWord;
use crate::artifact::manifest::{self, Operand, Role};
use crate::artifact::{Artifact, Dimensions, Manifest, Registry, Request, ResolveError, ResolvedLaunch};
use crate::driver::CudaError;
use bind::Binder;
pub(crate) use bind::{Expected, check_operands};
use oxide_infer::DType;
use std::collections::BTreeMap;
use std::sync::Arc;

pub use error::{BindError, PlanError};

/// The artifacts of a registry, loaded on one device as plans ask for them, each once.
pub struct Loader {
    context: Context,
    registry: Arc<Registry>,
    modules: BTreeMap<String, Module>,
    early_launch: EarlyLaunch,
}

/// Whether a kernel that waits for the one before by itself may be placed on the device before that one has ended
/// (programmatic dependent launch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyLaunch {
    /// Every kernel begins after the one before has ended.
    #[default]
    Never,
    /// Where the manifest says that the kernel waits by itself. Weights (operands `weight`, `norm_weight` and `bias`) may be
    /// read before the work that is enqueued ahead has ended: only for those that no such work writes.
    WhereKernelsWait,
    /// As [`Self::WhereKernelsWait`], and decode attention over pages may also read lengths, block tables, and all keys and
    /// values but each sequence's newest (that of position `kv_len − 1`) before that work has ended, and an append positions,
    /// starts of sequences, block tables and rotations: only where it writes none of them. Work counts as ended if a copy,
    /// a fill, or the start of a graph lies between; so an engine that has one new token a sequence in a step, and copies
    /// its tables ahead of it, may ask for this, and one that appends several and attends to them from the last one right
    /// afterwards may not.
    KeysSettled,
}

/// One operator of fixed dimensions: an artifact, its kernels and their geometry. Immutable.
#[derive(Clone)]
pub struct OperatorPlan {
    artifact: Arc<Artifact>,
    kernels: Vec<Kernel>,
    dimensions: Dimensions,
    early_launch: EarlyLaunch,
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

impl Loader {
    /// A loader that has loaded nothing yet.
    pub fn new(context: &Context, registry: Arc<Registry>) -> Self {
        let early_launch = EarlyLaunch::default();
        Self { context: context.clone(), registry, modules: BTreeMap::new(), early_launch }
    }

    /// Whether kernels of the operators planned from now on may be launched early.
    #[must_use]
    pub fn early_launch(mut self, early_launch: EarlyLaunch) -> Self {
        self.early_launch = early_launch;
        self
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
        Ok(OperatorPlan { kernels, artifact, dimensions, early_launch: self.early_launch })
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
            let (name, dtype, alignment) =
                (operand.name.clone(), bind::dtype(operand.element), operand.alignment);
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

    /// The region bound to a name.
    pub(crate) fn bound(&self, name: &str) -> Option<Span<'a>> {
        self.regions.get(name).copied()
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

#[cfg(test)]
mod tests;

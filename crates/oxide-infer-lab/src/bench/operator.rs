//! Rows of the matrix as bound operators on memory of their own.

use super::matrix::{Ask, EPSILON, Product, Row, Work};
use anyhow::{Context as _, Result, bail};
use half::bf16;
use oxide_infer::{DType, Provider};
use oxide_infer_cuda::artifact::manifest::{Element, Manifest, Role};
use oxide_infer_cuda::artifact::{Registry, SelectError};
use oxide_infer_cuda::provider::{BoundPlan, Candidacy, Cuda, Plan};
use oxide_infer_cuda::runtime::{
    CommandScope, Context, DeviceMemory, EarlyLaunch, Loader, Operands, PinnedMemory, Region, StatusWord,
    Stream,
};
use std::sync::Arc;

/// Bytes that a turn through the sets of operands takes at least, so that none of them is in the L2 cache of 60 MB when its turn
/// comes again.
const ROTATION: u64 = 240_000_000;
const MOST_SETS: u64 = 24;
/// Numbers that floating-point operands repeat.
const NOISE: usize = 32 << 20;
/// Elements of the noise that are made on the host, a prime.
const SEED: usize = 1_048_573;

/// Makes operators of one device.
pub(super) struct Maker {
    context: Context,
    stream: Stream,
    registry: Arc<Registry>,
    loader: Loader,
    noise: Region<bf16>,
    status: StatusWord,
}

/// An operator on several sets of operands that share nothing.
pub(super) struct Operator {
    /// The name of an artifact, or the algorithm of a library.
    pub(super) implementation: String,
    /// How keys lie, where there are pages.
    pub(super) layout: Option<String>,
    pub(super) sets: Vec<BoundPlan>,
}

struct Operand {
    name: String,
    dtype: DType,
    bytes: usize,
    fill: Fill,
}

enum Fill {
    Noise,
    Integers(Vec<i32>),
    /// Written before it is read, if it is.
    Nothing,
}

impl Maker {
    pub(super) fn new(context: &Context, registry: &Arc<Registry>) -> Result<Self> {
        let stream = context.stream()?;
        let noise = noise(context, &stream)?;
        Ok(Self {
            context: context.clone(),
            stream,
            registry: registry.clone(),
            // As the engine launches them.
            loader: Loader::new(context, registry.clone()).early_launch(EarlyLaunch::WhereKernelsWait),
            noise,
            status: StatusWord::new(context)?,
        })
    }

    /// The operator that the registry selects for a row, in the first layout that it has an artifact for. `None`: it has none.
    pub(super) fn artifact(&mut self, row: &Row) -> Result<Result<Operator, SelectError>> {
        let mut refused = None;
        for ask in row.work.asks()? {
            match self.registry.select(&ask.request) {
                Ok(artifact) => {
                    let artifact = artifact.clone();
                    let plan =
                        self.loader.plan_artifact(artifact.clone(), ask.request.dimensions().clone())?;
                    let operands = operands(artifact.manifest(), &ask)?;
                    let name = artifact.manifest().name.clone();
                    let sets = sets(row.work.bytes());
                    return self.bind(&plan.into(), &operands, sets, name, ask.layout).map(Ok);
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map(Err).context("a row asks for nothing")
    }

    /// A product by what cuBLASLt proposes first.
    pub(super) fn library(&self, cuda: &mut Cuda, product: Product) -> Result<Operator> {
        let request = product.request()?;
        let ready = cuda.candidates(&request).into_iter().find(|candidate| {
            candidate.provider == Provider::CublasLt && candidate.state == Candidacy::Ready
        });
        let algorithm =
            ready.and_then(|ready| ready.algorithm).context("cuBLASLt has nothing for the product")?;
        let plan = cuda.plan(&request, Provider::CublasLt, &algorithm.name)?;
        let Product { m, n, k } = product;
        let operand = |(name, elements, fill): (&str, usize, Fill)| Operand {
            name: name.to_owned(),
            dtype: DType::BF16,
            bytes: 2 * elements,
            fill,
        };
        let operands =
            [("input", m * k, Fill::Noise), ("weight", n * k, Fill::Noise), ("output", m * n, Fill::Nothing)];
        let sets = sets(Work::Gemm(product).bytes());
        self.bind(&plan, &operands.map(operand), sets, algorithm.to_string(), None)
    }

    fn bind(
        &self,
        plan: &Plan,
        operands: &[Operand],
        sets: usize,
        implementation: String,
        layout: Option<String>,
    ) -> Result<Operator> {
        let sets = (0..sets).map(|set| self.set(plan, operands, set)).collect::<Result<_>>()?;
        Ok(Operator { implementation, layout, sets })
    }

    fn set(&self, plan: &Plan, operands: &[Operand], set: usize) -> Result<BoundPlan> {
        let workspaces = plan.workspaces()?.into_iter().map(|workspace| Operand {
            name: workspace.name,
            dtype: workspace.dtype,
            bytes: workspace.bytes as usize,
            fill: Fill::Nothing,
        });
        let workspaces: Vec<_> = workspaces.collect();
        let all: Vec<_> = operands.iter().chain(&workspaces).collect();
        let memories = all.iter().map(|operand| self.fill(operand, set)).collect::<Result<Vec<_>>>()?;
        let attributes: Vec<(String, f32)> =
            plan.artifact().map(|artifact| attributes(artifact.manifest())).transpose()?.unwrap_or_default();
        let mut bound = Operands::new().status(&self.status);
        for (operand, memory) in all.iter().zip(&memories) {
            bound = bound.span(&operand.name, memory.span(0, operand.bytes, operand.dtype)?);
        }
        for (name, value) in &attributes {
            bound = bound.attribute(name, *value);
        }
        Ok(plan.bind(&bound)?)
    }

    /// Memory of an operand, each set's with other numbers.
    fn fill(&self, operand: &Operand, set: usize) -> Result<DeviceMemory> {
        let memory = DeviceMemory::allocate(&self.context, operand.bytes)?;
        let mut scope = CommandScope::new(&self.stream)?;
        match &operand.fill {
            Fill::Nothing => {}
            Fill::Noise => {
                let all = memory.region::<u8>(0, operand.bytes)?;
                let noise = self.noise.cast::<u8>()?;
                // 16 bytes, so that elements of every size stay whole.
                let first = (set * 16 * 4099) % (noise.len() / 2);
                let step = noise.len() - first;
                for start in (0..operand.bytes).step_by(step) {
                    let end = operand.bytes.min(start + step);
                    scope.copy(&noise.slice(first..first + end - start)?, &all.slice(start..end)?)?;
                }
            }
            Fill::Integers(values) => {
                let host = PinnedMemory::<i32>::allocate(&self.context, values.len())?;
                host.write(0, values)?;
                scope.copy_in(&host, &memory.region::<i32>(0, values.len())?)?;
            }
        }
        scope.finish()?.wait()?;
        Ok(memory)
    }
}

/// Of an operator that moves so many bytes: pools of pages are larger than what it touches of them.
fn sets(bytes: u64) -> usize {
    ROTATION.div_ceil(bytes.max(1)).clamp(1, MOST_SETS) as usize
}

/// The operands of an artifact, but its workspaces and the status word.
fn operands(manifest: &Manifest, ask: &Ask) -> Result<Vec<Operand>> {
    let own = manifest.operands.iter().filter(|operand| operand.role == Role::Operand);
    own.map(|operand| {
        let bytes = manifest.operand_bytes(operand, ask.request.dimensions())? as usize;
        let integers = ask.integers.iter().find(|(name, _)| *name == operand.name);
        let (dtype, fill) = match (operand.element, integers) {
            (Element::I32, Some((_, values))) if 4 * values.len() == bytes => {
                (DType::I32, Fill::Integers(values.clone()))
            }
            (Element::Bf16, None) => (DType::BF16, Fill::Noise),
            (Element::F32, None) => (DType::F32, Fill::Noise),
            (element, _) => bail!(
                "the bench has nothing to bind to operand {} of {}: {bytes} bytes of {element:?}",
                operand.name,
                manifest.name
            ),
        };
        Ok(Operand { name: operand.name.clone(), dtype, bytes, fill })
    })
    .collect()
}

fn attributes(manifest: &Manifest) -> Result<Vec<(String, f32)>> {
    let value = |name: &String| {
        let value = match name.as_str() {
            "epsilon" => EPSILON,
            // Of any size: how scores are scaled takes no more or less time.
            "scale" => 1.0 / 16.0,
            _ => bail!("the bench has no value for attribute {name} of {}", manifest.name),
        };
        Ok((name.clone(), value))
    };
    manifest.attributes.keys().map(value).collect()
}

/// Numbers in [−0.5, 0.5). Read as f32 they are in that range too: bf16 is its upper half.
fn noise(context: &Context, stream: &Stream) -> Result<Region<bf16>> {
    let value = |i: usize| bf16::from_f32(((i * 2_654_435_761) % 65_521) as f32 / 65_521.0 - 0.5);
    let host = PinnedMemory::<bf16>::allocate(context, SEED)?;
    host.write_from(0, (0..SEED).map(value))?;
    let noise = Region::allocate(context, NOISE)?;
    let mut scope = CommandScope::new(stream)?;
    for start in (0..NOISE).step_by(SEED) {
        let end = NOISE.min(start + SEED);
        scope.copy_in(&host.slice(0..end - start)?, &noise.slice(start..end)?)?;
    }
    scope.finish()?.wait()?;
    Ok(noise)
}

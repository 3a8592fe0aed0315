//! One operator call from host operands: staged to the device between guards, run, checked, and brought back.

use anyhow::Error;
use half::{bf16, f16};
use oxide_infer::conformance::Refusal;
use oxide_infer::{DType, Element, FloatView, FloatViewMut, View, ViewMut};
use oxide_infer_cuda::artifact::status::DeviceStatus;
use oxide_infer_cuda::artifact::{Registry, Request, SelectError};
use oxide_infer_cuda::runtime::{
    CommandScope, CompletionError, Context, DeviceMemory, Loader, Operands, PinnedMemory, Region, StatusWord,
    Stream, Workspace,
};

/// Bytes before and after every region that must not change, also enough for any alignment that artifacts ask for.
const GUARD: usize = 1024;
const GUARD_BYTE: u8 = 0xB6;
/// What outputs hold before a kernel writes them: a NaN in every floating-point type.
const POISON: u8 = 0xFF;

/// Operands on their way through one operator.
pub(crate) struct Call<'a> {
    context: Context,
    stream: Stream,
    request: Request,
    staged: Vec<Staged>,
    writes: Vec<Write<'a>>,
    attributes: Vec<(&'static str, f32)>,
}

struct Staged {
    name: String,
    region: AnyRegion,
    memory: DeviceMemory,
    /// What the whole memory, guards included, held before the call.
    image: Vec<u8>,
}

/// A host operand that takes what the device wrote.
type Write<'a> = (String, Box<dyn FnOnce(&[u8]) + 'a>);

enum AnyRegion {
    F32(Region<f32>),
    F16(Region<f16>),
    Bf16(Region<bf16>),
    I32(Region<i32>),
    U32(Region<u32>),
    U8(Region<u8>),
}

/// What the device said of a call that the host could not refuse.
pub(crate) type Outcome = Result<Option<DeviceStatus>, Refusal>;

impl<'a> Call<'a> {
    pub(crate) fn new(context: &Context, stream: &Stream, request: Request) -> Self {
        Self {
            context: context.clone(),
            stream: stream.clone(),
            request,
            staged: Vec::new(),
            writes: Vec::new(),
            attributes: Vec::new(),
        }
    }

    pub(crate) fn attribute(&mut self, name: &'static str, value: f32) {
        self.attributes.push((name, value));
    }

    /// Stages a read operand.
    pub(crate) fn read<T: Element, const R: usize>(
        &mut self,
        name: &'static str,
        view: &View<'_, T, R>,
    ) -> Result<(), Refusal> {
        let data = view.as_slice().ok_or_else(|| strided(name))?;
        self.stage(name, T::DTYPE, bytemuck::cast_slice(data))
    }

    /// Stages a read operand of any floating-point type.
    pub(crate) fn read_float<const R: usize>(
        &mut self,
        name: &'static str,
        view: &FloatView<'_, R>,
    ) -> Result<(), Refusal> {
        match view {
            FloatView::F32(view) => self.read(name, view),
            FloatView::F16(view) => self.read(name, view),
            FloatView::BF16(view) => self.read(name, view),
        }
    }

    /// Stages an operand that is only written: the device sees poison.
    pub(crate) fn write<T: Element, const R: usize>(
        &mut self,
        name: &'static str,
        mut view: ViewMut<'a, T, R>,
    ) -> Result<(), Refusal> {
        let bytes = size_of_val(view.as_mut_slice().ok_or_else(|| strided(name))?);
        self.stage(name, T::DTYPE, &vec![POISON; bytes])?;
        self.bring_back(name, view);
        Ok(())
    }

    /// Stages an operand that is read and written.
    pub(crate) fn read_write<T: Element, const R: usize>(
        &mut self,
        name: &'static str,
        mut view: ViewMut<'a, T, R>,
    ) -> Result<(), Refusal> {
        let data = view.as_mut_slice().ok_or_else(|| strided(name))?.to_vec();
        self.stage(name, T::DTYPE, bytemuck::cast_slice(&data))?;
        self.bring_back(name, view);
        Ok(())
    }

    /// As [`Call::write`], of any floating-point type.
    pub(crate) fn write_float<const R: usize>(
        &mut self,
        name: &'static str,
        view: FloatViewMut<'a, R>,
    ) -> Result<(), Refusal> {
        match view {
            FloatViewMut::F32(view) => self.write(name, view),
            FloatViewMut::F16(view) => self.write(name, view),
            FloatViewMut::BF16(view) => self.write(name, view),
        }
    }

    /// As [`Call::read_write`], of any floating-point type.
    pub(crate) fn read_write_float<const R: usize>(
        &mut self,
        name: &'static str,
        view: FloatViewMut<'a, R>,
    ) -> Result<(), Refusal> {
        match view {
            FloatViewMut::F32(view) => self.read_write(name, view),
            FloatViewMut::F16(view) => self.read_write(name, view),
            FloatViewMut::BF16(view) => self.read_write(name, view),
        }
    }

    /// Plans, binds and runs the operator with one artifact, checks every guard, and writes the host operands if the device found no
    /// fault.
    pub(crate) fn run(self, loader: &mut Loader, registry: &Registry, artifact: &str) -> Outcome {
        let not_admitted = |error: SelectError| Refusal::NotAdmitted(error.to_string());
        let candidates = registry.candidates(&self.request).map_err(not_admitted)?;
        let gated = candidates.into_iter().find(|candidate| candidate.manifest().name == artifact);
        let Some(gated) = gated else {
            return Err(Refusal::NotAdmitted(format!("{} is for {artifact}'s siblings", self.request)));
        };
        let dimensions = self.request.dimensions().clone();
        let plan = loader.plan_artifact(gated.clone(), dimensions).map_err(failed)?;
        let status = StatusWord::new(&self.context).map_err(failed)?;
        let allocate = |workspace: Workspace| {
            let bytes = workspace.bytes as usize;
            let memory = DeviceMemory::allocate(&self.context, bytes).map_err(failed)?;
            let region = AnyRegion::new(workspace.dtype, &memory, 0, bytes / workspace.dtype.size())?;
            Ok::<_, Refusal>((workspace.name, region))
        };
        let workspaces = plan.workspaces().map_err(failed)?;
        let workspaces = workspaces.into_iter().map(allocate).collect::<Result<Vec<_>, _>>()?;
        let mut operands = Operands::new().status(&status);
        for staged in &self.staged {
            operands = staged.region.bind(operands, &staged.name);
        }
        for (name, region) in &workspaces {
            operands = region.bind(operands, name);
        }
        for (name, value) in &self.attributes {
            operands = operands.attribute(name, *value);
        }
        let operator = plan.bind(&operands).map_err(failed)?;
        let mut scope = CommandScope::new(&self.stream).map_err(failed)?;
        operator.enqueue(&mut scope).map_err(failed)?;
        match scope.finish().map_err(failed)?.wait() {
            Ok(()) => {}
            Err(CompletionError::Device(fault)) => {
                self.bring_all_back(Verdict::Unwritten)?;
                return Ok(Some(fault));
            }
            Err(error) => return Err(failed(error)),
        }
        self.bring_all_back(Verdict::Written)?;
        Ok(None)
    }

    fn stage(&mut self, name: &str, dtype: DType, bytes: &[u8]) -> Result<(), Refusal> {
        let image = [&[GUARD_BYTE; GUARD], bytes, &[GUARD_BYTE; GUARD]].concat();
        let memory = DeviceMemory::allocate(&self.context, image.len()).map_err(failed)?;
        let host = PinnedMemory::allocate(&self.context, image.len()).map_err(failed)?;
        host.write(0, &image).map_err(failed)?;
        let whole = memory.region::<u8>(0, image.len()).map_err(failed)?;
        let mut scope = CommandScope::new(&self.stream).map_err(failed)?;
        scope.copy_in(&host, &whole).map_err(failed)?;
        scope.finish().map_err(failed)?.wait().map_err(failed)?;
        let region = AnyRegion::new(dtype, &memory, GUARD, bytes.len() / dtype.size())?;
        self.staged.push(Staged { name: name.to_owned(), region, memory, image });
        Ok(())
    }

    fn bring_back<T: Element, const R: usize>(&mut self, name: &str, mut view: ViewMut<'a, T, R>) {
        let take = move |bytes: &[u8]| {
            if let Some(data) = view.as_mut_slice() {
                bytemuck::cast_slice_mut(data).copy_from_slice(bytes);
            }
        };
        self.writes.push((name.to_owned(), Box::new(take)));
    }

    /// Checks that nothing but written operands changed; after a fault not even those are taken over.
    fn bring_all_back(self, verdict: Verdict) -> Result<(), Refusal> {
        let mut writes = self.writes;
        for staged in &self.staged {
            let now = fetch(&self.context, &self.stream, &staged.memory)?;
            let body = GUARD..now.len() - GUARD;
            let write = writes.iter().position(|(name, _)| *name == staged.name);
            let fixed = |range: std::ops::Range<usize>| now[range.clone()] == staged.image[range];
            if !fixed(0..GUARD) || !fixed(body.end..now.len()) {
                return Err(Refusal::Failed(format!("the kernel wrote outside operand {}", staged.name)));
            }
            match (write, verdict) {
                (None, _) if !fixed(body.clone()) => {
                    return Err(Refusal::Failed(format!("the kernel wrote to operand {}", staged.name)));
                }
                (Some(write), Verdict::Written) => (writes.swap_remove(write).1)(&now[body]),
                _ => {}
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Verdict {
    Written,
    Unwritten,
}

fn fetch(context: &Context, stream: &Stream, memory: &DeviceMemory) -> Result<Vec<u8>, Refusal> {
    let host = PinnedMemory::<u8>::allocate(context, memory.bytes()).map_err(failed)?;
    let whole = memory.region::<u8>(0, memory.bytes()).map_err(failed)?;
    let mut scope = CommandScope::new(stream).map_err(failed)?;
    scope.copy_out(&whole, &host).map_err(failed)?;
    scope.finish().map_err(failed)?.wait().map_err(failed)?;
    Ok((0..host.len()).filter_map(|index| host.read(index)).collect())
}

impl AnyRegion {
    fn new(dtype: DType, memory: &DeviceMemory, offset: usize, len: usize) -> Result<Self, Refusal> {
        Ok(match dtype {
            DType::F32 => Self::F32(memory.region(offset, len).map_err(failed)?),
            DType::F16 => Self::F16(memory.region(offset, len).map_err(failed)?),
            DType::BF16 => Self::Bf16(memory.region(offset, len).map_err(failed)?),
            DType::I32 => Self::I32(memory.region(offset, len).map_err(failed)?),
            DType::U32 => Self::U32(memory.region(offset, len).map_err(failed)?),
            DType::U8 => Self::U8(memory.region(offset, len).map_err(failed)?),
        })
    }

    fn bind<'a>(&'a self, operands: Operands<'a>, name: &'a str) -> Operands<'a> {
        match self {
            Self::F32(region) => operands.region(name, region),
            Self::F16(region) => operands.region(name, region),
            Self::Bf16(region) => operands.region(name, region),
            Self::I32(region) => operands.region(name, region),
            Self::U32(region) => operands.region(name, region),
            Self::U8(region) => operands.region(name, region),
        }
    }
}

fn strided(name: &str) -> Refusal {
    Refusal::NotAdmitted(format!("operand {name} is not contiguous"))
}

pub(crate) fn failed(error: impl Into<Error>) -> Refusal {
    Refusal::Failed(format!("{:#}", error.into()))
}

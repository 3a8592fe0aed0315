//! One operator call from host operands: staged to the device between guards, run, checked, and brought back.

use crate::gates::Shape;
use anyhow::Error;
use oxide_infer::conformance::Refusal;
use oxide_infer::{DType, Element, FloatView, FloatViewMut, View, ViewMut};
use oxide_infer_cuda::artifact::status::DeviceStatus;
use oxide_infer_cuda::artifact::{Artifact, Dimensions, Registry, Request, SelectError};
use oxide_infer_cuda::driver::CudaError;
use oxide_infer_cuda::provider::{BoundPlan, Plan};
use oxide_infer_cuda::runtime::{
    CommandScope, CompletionError, Context, DeviceMemory, EarlyLaunch, Graph, Loader, Operands, OperatorPlan,
    PinnedMemory, Region, StatusWord, Stream,
};
use std::ops::Range;
use std::sync::Arc;

/// Bytes before and after every region that must not change, also enough for any alignment that artifacts ask for.
pub(crate) const GUARD: usize = 1024;
const GUARD_BYTE: u8 = 0xB6;
/// What outputs and workspaces hold before a kernel writes them: a NaN in every floating-point type.
const POISON: u8 = 0xFF;

/// What the elements of workspaces are before a kernel writes them. Outputs are always poisoned: a tool that follows what
/// is written does not see the stores of whole tensors, and would take what they wrote for uninitialized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unwritten {
    /// NaN, so that one that is left unwritten shows in the results.
    Poisoned,
    /// As they were allocated, so that a tool that knows what was written sees who reads them.
    Uninitialized,
}

/// A stream, and what the calls on it use again and again.
pub(crate) struct Bench {
    pub(crate) context: Context,
    stream: Stream,
    loader: Loader,
    registry: Arc<Registry>,
    status: StatusWord,
    /// On its way to the device and back; grows with the calls.
    pinned: PinnedMemory<u8>,
    pub(crate) unwritten: Unwritten,
    /// Which calls are run once more, by a graph.
    pub(crate) replayed: Option<Shape>,
    /// Calls that a graph's replay has run to the same bits.
    pub(crate) replays: usize,
    /// Computes what the simulated device does not.
    #[cfg(test)]
    pub(crate) emulated: Option<Emulated>,
}

/// What an artifact does to its operands (by name, as bytes) by its documentation, on the host.
#[cfg(test)]
pub(crate) type Emulated =
    fn(&Artifact, &Dimensions, &mut std::collections::BTreeMap<String, Vec<u8>>) -> Option<DeviceStatus>;

impl Bench {
    pub(crate) fn new(context: &Context, registry: &Arc<Registry>) -> Result<Self, CudaError> {
        Ok(Self {
            context: context.clone(),
            stream: context.stream()?,
            // As the engine launches those that read no keys.
            loader: Loader::new(context, registry.clone()).early_launch(EarlyLaunch::WhereKernelsWait),
            registry: registry.clone(),
            status: StatusWord::new(context)?,
            pinned: PinnedMemory::allocate(context, 1 << 20)?,
            unwritten: Unwritten::Poisoned,
            replayed: None,
            replays: 0,
            #[cfg(test)]
            emulated: None,
        })
    }

    /// With operators planned for another launch; what is copied in ahead of a call is settled for its kernels.
    pub(crate) fn early_launch(self, early_launch: EarlyLaunch) -> Self {
        Self { loader: self.loader.early_launch(early_launch), ..self }
    }

    /// Where kernels report bad input.
    pub(crate) fn status(&self) -> &StatusWord {
        &self.status
    }

    /// Plans an artifact by itself, whatever a plan would choose.
    pub(crate) fn loader(&mut self) -> &mut Loader {
        &mut self.loader
    }

    /// The plan for a request, if that artifact admits it.
    fn plan(&mut self, request: &Request, artifact: &Artifact) -> Result<OperatorPlan, Refusal> {
        let not_admitted = |error: SelectError| Refusal::NotAdmitted(error.to_string());
        let name = &artifact.manifest().name;
        let mut candidates = self.registry.candidates(request).map_err(not_admitted)?.into_iter();
        let Some(gated) = candidates.find(|candidate| candidate.manifest().name == *name) else {
            return Err(Refusal::NotAdmitted(format!("{request} is for siblings of {name}")));
        };
        self.loader.plan_artifact(gated.clone(), request.dimensions().clone()).map_err(failed)
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), Refusal> {
        if self.pinned.len() < bytes {
            self.pinned = PinnedMemory::allocate(&self.context, bytes.next_power_of_two()).map_err(failed)?;
        }
        Ok(())
    }
}

/// Operands on their way through one operator.
pub(crate) struct Call<'a> {
    request: Request,
    staged: Vec<Staged<'a>>,
    attributes: Vec<(&'static str, f32)>,
}

/// Memory of an operand, guards included: on the host and on the device.
struct Place {
    part: PinnedMemory<u8>,
    whole: Region<u8>,
}

struct Staged<'a> {
    name: String,
    dtype: DType,
    /// What the whole memory, guards included, holds before the call.
    image: Vec<u8>,
    changes: Changes<'a>,
}

/// What a kernel may do to the elements of an operand.
enum Changes<'a> {
    Nothing,
    Workspace,
    /// They go back to the host.
    Output(Take<'a>),
}

/// Takes the elements, as bytes.
type Take<'a> = Box<dyn FnOnce(&[u8]) + 'a>;

/// What the device said of a call that the host could not refuse.
pub(crate) type Outcome = Result<Option<DeviceStatus>, Refusal>;

impl<'a> Call<'a> {
    pub(crate) fn new(request: Request) -> Self {
        Self { request, staged: Vec::new(), attributes: Vec::new() }
    }

    pub(crate) fn dimensions(&self) -> &Dimensions {
        self.request.dimensions()
    }

    /// With one more dimension.
    pub(crate) fn dimension(self, name: &str, value: usize) -> Self {
        Self { request: self.request.dimension(name, value as u64), ..self }
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
        self.read_list(name, data);
        Ok(())
    }

    /// As [`Call::read`], of elements one after another.
    pub(crate) fn read_list<T: Element>(&mut self, name: &'static str, data: &[T]) {
        self.stage(name, T::DTYPE, bytemuck::cast_slice(data), Changes::Nothing);
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
        self.stage(name, T::DTYPE, &vec![POISON; bytes], taken(view));
        Ok(())
    }

    /// As [`Call::write`], of elements one after another.
    pub(crate) fn write_list<T: Element>(&mut self, name: &'static str, data: &'a mut [T]) {
        let poison = vec![POISON; size_of_val(data)];
        self.stage(name, T::DTYPE, &poison, list_taken(data));
    }

    /// Stages an operand that is read and written.
    pub(crate) fn read_write<T: Element, const R: usize>(
        &mut self,
        name: &'static str,
        mut view: ViewMut<'a, T, R>,
    ) -> Result<(), Refusal> {
        let data = view.as_mut_slice().ok_or_else(|| strided(name))?.to_vec();
        self.stage(name, T::DTYPE, bytemuck::cast_slice(&data), taken(view));
        Ok(())
    }

    /// As [`Call::read_write`], of elements one after another.
    pub(crate) fn read_write_list<T: Element>(&mut self, name: &'static str, data: &'a mut [T]) {
        let image = bytemuck::cast_slice(data).to_vec();
        self.stage(name, T::DTYPE, &image, list_taken(data));
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

    /// Plans, binds and runs the operator with one artifact, checks every guard and that nothing but written operands
    /// changed, and writes the host operands, whether the device found a fault or not.
    pub(crate) fn run(self, bench: &mut Bench, artifact: &Artifact) -> Outcome {
        let plan = bench.plan(&self.request, artifact)?;
        self.run_plan(bench, &plan.into())
    }

    /// As [`Call::run`], by a plan of any provider.
    pub(crate) fn run_plan(mut self, bench: &mut Bench, plan: &Plan) -> Outcome {
        for workspace in plan.workspaces().map_err(failed)? {
            let poison = vec![POISON; workspace.bytes as usize];
            self.stage(&workspace.name, workspace.dtype, &poison, Changes::Workspace);
        }
        bench.reserve(self.staged.iter().map(|staged| staged.image.len()).sum())?;
        let memories = self.allocate(bench)?;
        bench.status.clear();
        let mut operands = Operands::new().status(&bench.status);
        for (staged, memory) in self.staged.iter().zip(&memories) {
            let bytes = staged.image.len() - 2 * GUARD;
            operands = operands.span(&staged.name, memory.span(GUARD, bytes, staged.dtype).map_err(failed)?);
        }
        for (name, value) in &self.attributes {
            operands = operands.attribute(name, *value);
        }
        let operator = plan.bind(&operands).map_err(failed)?;
        let places = self.places(bench, &memories)?;
        let fault = self.pass(bench, &places, |scope| operator.enqueue(scope).map_err(failed))?;
        if fault.is_none() && bench.replayed.is_some_and(|shape| shape.is_of(self.dimensions())) {
            self.replay(bench, &places, &operator)?;
        }
        #[cfg(test)]
        let fault = fault.or(plan.artifact().and_then(|artifact| self.emulate(bench, artifact, &places)));
        for (staged, place) in self.staged.into_iter().zip(&places) {
            staged.bring_back(&place.part)?;
        }
        Ok(fault)
    }

    /// Where each operand is.
    fn places(&self, bench: &Bench, memories: &[DeviceMemory]) -> Result<Vec<Place>, Refusal> {
        let mut start = 0;
        let place = |memory: &DeviceMemory| {
            let whole = memory.region::<u8>(0, memory.bytes()).map_err(failed)?;
            let part = bench.pinned.slice(start..start + whole.bytes()).map_err(failed)?;
            start += whole.bytes();
            Ok(Place { part, whole })
        };
        memories.iter().map(place).collect()
    }

    /// Brings every operand to the device as it was before the call, runs what is enqueued, and brings all of them back.
    fn pass(
        &self,
        bench: &Bench,
        places: &[Place],
        enqueue: impl FnOnce(&mut CommandScope) -> Result<(), Refusal>,
    ) -> Outcome {
        let mut scope = CommandScope::new(&bench.stream).map_err(failed)?;
        for (staged, Place { part, whole }) in self.staged.iter().zip(places) {
            part.write(0, &staged.image).map_err(failed)?;
            for range in staged.copied(bench.unwritten) {
                copy_in(&mut scope, part, whole, range)?;
            }
        }
        enqueue(&mut scope)?;
        for (staged, Place { part, whole }) in self.staged.iter().zip(places) {
            for range in staged.copied(bench.unwritten) {
                copy_out(&mut scope, whole, part, range)?;
            }
        }
        match scope.finish().map_err(failed)?.wait() {
            Ok(()) => Ok(None),
            Err(CompletionError::Device(fault)) => Ok(Some(fault)),
            Err(error) => Err(failed(error)),
        }
    }

    /// Runs the call once more by a graph, which must leave the same bits in what goes back to the host.
    fn replay(&self, bench: &mut Bench, places: &[Place], operator: &BoundPlan) -> Result<(), Refusal> {
        let first = self.outputs(places)?;
        let graph = Graph::capture(&bench.stream, |scope| operator.enqueue(scope)).map_err(failed)?;
        let fault = self.pass(bench, places, |scope| graph.replay(scope).map_err(failed))?;
        if fault.is_some() || self.outputs(places)? != first {
            let found = fault.map_or("left other bits".to_owned(), |fault| format!("found a fault: {fault}"));
            return Err(Refusal::Failed(format!("a graph's replay of the call {found}")));
        }
        bench.replays += 1;
        Ok(())
    }

    /// What the device left in operands that go back to the host.
    fn outputs(&self, places: &[Place]) -> Result<Vec<Vec<u8>>, Refusal> {
        let outputs =
            self.staged.iter().zip(places).filter(|(staged, _)| matches!(staged.changes, Changes::Output(_)));
        let read = |(_, place): (_, &Place)| {
            let mut bytes = vec![0; place.part.len()];
            place.part.read_into(0, &mut bytes).map_err(failed)?;
            Ok(bytes)
        };
        outputs.map(read).collect()
    }

    #[cfg(test)]
    fn emulate(&self, bench: &Bench, artifact: &Artifact, places: &[Place]) -> Option<DeviceStatus> {
        let emulated = bench.emulated?;
        let body = |staged: &Staged<'_>| staged.image[GUARD..staged.image.len() - GUARD].to_vec();
        let mut memory = self.staged.iter().map(|staged| (staged.name.clone(), body(staged))).collect();
        let fault = emulated(artifact, self.request.dimensions(), &mut memory);
        for (staged, Place { part, .. }) in self.staged.iter().zip(places) {
            part.write(GUARD, &memory[&staged.name]).unwrap();
        }
        fault
    }

    fn allocate(&self, bench: &Bench) -> Result<Vec<DeviceMemory>, Refusal> {
        let allocate =
            |staged: &Staged<'_>| DeviceMemory::allocate(&bench.context, staged.image.len()).map_err(failed);
        self.staged.iter().map(allocate).collect()
    }

    fn stage(&mut self, name: &str, dtype: DType, bytes: &[u8], changes: Changes<'a>) {
        let image = [&[GUARD_BYTE; GUARD], bytes, &[GUARD_BYTE; GUARD]].concat();
        self.staged.push(Staged { name: name.to_owned(), dtype, image, changes });
    }
}

impl Staged<'_> {
    fn body(&self) -> Range<usize> {
        GUARD..self.image.len() - GUARD
    }

    fn whole(&self) -> Vec<Range<usize>> {
        std::iter::once(0..self.image.len()).collect()
    }

    fn guards(&self) -> Vec<Range<usize>> {
        vec![0..GUARD, self.body().end..self.image.len()]
    }

    /// The bytes that are copied before the call and back after it: not those that only a kernel may initialize.
    fn copied(&self, unwritten: Unwritten) -> Vec<Range<usize>> {
        match (&self.changes, unwritten) {
            (Changes::Workspace, Unwritten::Uninitialized) => self.guards(),
            _ => self.whole(),
        }
    }

    fn bring_back(self, part: &PinnedMemory<u8>) -> Result<(), Refusal> {
        let mut now = vec![0; part.len()];
        part.read_into(0, &mut now).map_err(failed)?;
        let body = self.body();
        let fixed = |range: std::ops::Range<usize>| now[range.clone()] == self.image[range];
        if !fixed(0..GUARD) || !fixed(body.end..now.len()) {
            return Err(Refusal::Failed(format!("the kernel wrote outside operand {}", self.name)));
        }
        match self.changes {
            Changes::Nothing if !fixed(body.clone()) => {
                Err(Refusal::Failed(format!("the kernel wrote to operand {}", self.name)))
            }
            Changes::Output(take) => {
                take(&now[body]);
                Ok(())
            }
            Changes::Nothing | Changes::Workspace => Ok(()),
        }
    }
}

fn copy_in(
    scope: &mut CommandScope,
    from: &PinnedMemory<u8>,
    to: &Region<u8>,
    range: Range<usize>,
) -> Result<(), Refusal> {
    let (from, to) = (from.slice(range.clone()).map_err(failed)?, to.slice(range).map_err(failed)?);
    scope.copy_in(&from, &to).map_err(failed)
}

fn copy_out(
    scope: &mut CommandScope,
    from: &Region<u8>,
    to: &PinnedMemory<u8>,
    range: Range<usize>,
) -> Result<(), Refusal> {
    let (from, to) = (from.slice(range.clone()).map_err(failed)?, to.slice(range).map_err(failed)?);
    scope.copy_out(&from, &to).map_err(failed)
}

fn taken<'a, T: Element, const R: usize>(mut view: ViewMut<'a, T, R>) -> Changes<'a> {
    Changes::Output(Box::new(move |bytes| {
        if let Some(data) = view.as_mut_slice() {
            bytemuck::cast_slice_mut(data).copy_from_slice(bytes);
        }
    }))
}

fn list_taken<T: Element>(data: &mut [T]) -> Changes<'_> {
    Changes::Output(Box::new(move |bytes| bytemuck::cast_slice_mut(data).copy_from_slice(bytes)))
}

fn strided(name: &str) -> Refusal {
    Refusal::NotAdmitted(format!("operand {name} is not contiguous"))
}

pub(crate) fn failed(error: impl Into<Error>) -> Refusal {
    Refusal::Failed(format!("{:#}", error.into()))
}

//! A simulated device for tests: memory, streams and events behave as the driver documents, and a test holds the
//! device to see what the runtime does while work is in flight. It computes copies and fills; a launch only touches
//! the memory that its arguments name. Anything that touches freed memory is recorded as a violation.

use super::*;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A driver with one simulated device.
#[derive(Default)]
pub struct SimulatedDriver {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next_handle: usize,
    allocations: BTreeMap<u64, Vec<u8>>,
    pinned: BTreeMap<u64, Box<[u8]>>,
    streams: HashMap<usize, Work>,
    events: HashMap<usize, Mark>,
    graphs: HashMap<usize, Vec<Operation>>,
    capturing: Option<(usize, Vec<Operation>)>,
    contexts: usize,
    held: bool,
    failures: HashMap<&'static str, u32>,
    broken: Option<u32>,
    violations: Vec<String>,
    launches: usize,
    /// What has run since somebody watches.
    watched: Option<Vec<Ran>>,
    /// Bytes of device memory.
    memory: u64,
}

#[derive(Default)]
struct Work {
    queue: VecDeque<Operation>,
}

#[derive(Default)]
struct Mark {
    /// Records that the device has not reached.
    pending: usize,
}

#[derive(Clone)]
enum Operation {
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        byte: u8,
        bytes: usize,
    },
    /// Addresses among the arguments that were live when it was enqueued.
    Launch {
        touches: Vec<u64>,
    },
    Record(usize),
    Wait(usize),
}

impl Operation {
    fn shown(&self) -> Option<Ran> {
        match *self {
            Self::Copy { to, from, bytes } => Some(Ran::Copy { to, from, bytes }),
            Self::Launch { ref touches } => Some(Ran::Launch { touches: touches.clone() }),
            Self::Fill { .. } | Self::Record(_) | Self::Wait(_) => None,
        }
    }
}

/// Something that the device has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran {
    /// A copy of memory, on either side.
    Copy {
        /// Address that was written.
        to: u64,
        /// Address that was read.
        from: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// A kernel.
    Launch {
        /// Addresses among its arguments.
        touches: Vec<u64>,
    },
}

const PAGE: u64 = 4096;

impl SimulatedDriver {
    /// A driver with one idle device.
    pub fn new() -> Arc<Self> {
        let driver = Self::default();
        driver.set_memory(1 << 30);
        Arc::new(driver)
    }

    /// Stops the device: work is queued and nothing of it runs.
    pub fn hold(&self) {
        self.state().held = true;
    }

    /// Lets the device run what is queued and what comes.
    pub fn release(&self) {
        self.state().held = false;
        self.changed.notify_all();
    }

    /// Makes the next call of that name fail.
    pub fn fail_next(&self, call: &'static str, code: u32) {
        self.state().failures.insert(call, code);
    }

    /// Makes every call from now on fail: the context is lost.
    pub fn break_device(&self, code: u32) {
        self.state().broken = Some(code);
        self.changed.notify_all();
    }

    /// Bytes that the device says it has in all, 1 GiB until then; allocations are not held to it.
    pub fn set_memory(&self, bytes: u64) {
        self.state().memory = bytes;
    }

    /// Device allocations that are not freed.
    pub fn live_allocations(&self) -> usize {
        self.state().allocations.len()
    }

    /// Handles of all other kinds that are not destroyed: pinned memory, streams, events, graphs, contexts.
    pub fn live_handles(&self) -> usize {
        let s = self.state();
        s.pinned.len() + s.streams.len() + s.events.len() + s.graphs.len() + s.contexts
    }

    /// Kernels that have run.
    pub fn launches(&self) -> usize {
        self.state().launches
    }

    /// Keeps what runs from now on for [`SimulatedDriver::watched`].
    pub fn watch(&self) {
        self.state().watched = Some(Vec::new());
    }

    /// Copies and kernels that have run since [`SimulatedDriver::watch`], in their order.
    pub fn watched(&self) -> Vec<Ran> {
        self.state().watched.clone().unwrap_or_default()
    }

    /// Uses of memory that was freed, one line each.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, call: &'static str) -> Result<MutexGuard<'_, State>, CudaError> {
        let mut state = self.state();
        let code = state.broken.or_else(|| state.failures.remove(call));
        match code {
            Some(code) => Err(CudaError { call, code, name: "simulated".to_owned() }),
            None => Ok(state),
        }
    }

    fn enqueue(&self, call: &'static str, stream: RawStream, operation: Operation) -> Result<(), CudaError> {
        let mut state = self.call(call)?;
        if let Some((_, captured)) = state.capturing.as_mut().filter(|(s, _)| *s == stream.0) {
            captured.push(operation);
            return Ok(());
        }
        if let Operation::Record(event) = operation {
            state.events.entry(event).or_default().pending += 1;
        }
        state.streams.entry(stream.0).or_default().queue.push_back(operation);
        state.run();
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until `done`, running the device unless it is held.
    fn block(&self, call: &'static str, done: impl Fn(&State) -> bool) -> Result<(), CudaError> {
        let mut state = self.call(call)?;
        loop {
            state.run();
            if done(&state) {
                return Ok(());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            if let Some(code) = state.broken {
                return Err(CudaError { call, code, name: "simulated".to_owned() });
            }
        }
    }
}

impl State {
    fn handle(&mut self) -> usize {
        self.next_handle += 1;
        self.next_handle
    }

    /// Runs queued work until everything left waits for an event.
    fn run(&mut self) {
        if self.held {
            return;
        }
        loop {
            let ready: Vec<usize> =
                self.streams.iter().filter(|(_, w)| self.ready(w)).map(|(s, _)| *s).collect();
            if ready.is_empty() {
                return;
            }
            for stream in ready {
                if let Some(operation) = self.streams.get_mut(&stream).and_then(|w| w.queue.pop_front()) {
                    self.execute(operation);
                }
            }
        }
    }

    fn ready(&self, work: &Work) -> bool {
        match work.queue.front() {
            None => false,
            Some(Operation::Wait(event)) => self.events.get(event).is_none_or(|mark| mark.pending == 0),
            Some(_) => true,
        }
    }

    fn execute(&mut self, operation: Operation) {
        if let Some(watched) = &mut self.watched {
            watched.extend(operation.shown());
        }
        match operation {
            Operation::Copy { to, from, bytes } => {
                let data = self.bytes(from, bytes).map(|b| b.to_vec());
                match (data, self.bytes(to, bytes)) {
                    (Some(data), Some(to)) => to.copy_from_slice(&data),
                    _ => self.violations.push(format!("copy of {bytes} bytes from {from:#x} to {to:#x}")),
                }
            }
            Operation::Fill { to, byte, bytes } => match self.bytes(to, bytes) {
                Some(to) => to.fill(byte),
                None => self.violations.push(format!("fill of {bytes} bytes at {to:#x}")),
            },
            Operation::Launch { touches } => {
                self.launches += 1;
                for address in touches {
                    if self.bytes(address, 1).is_none() {
                        self.violations.push(format!("launch over freed {address:#x}"));
                    }
                }
            }
            Operation::Record(event) => {
                if let Some(mark) = self.events.get_mut(&event) {
                    mark.pending -= 1;
                }
            }
            Operation::Wait(_) => {}
        }
    }

    fn bytes(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        let range = |start: u64| {
            let offset = (address - start) as usize;
            Some(offset..offset.checked_add(bytes)?)
        };
        if let Some((&start, data)) = self.pinned.range_mut(..=address).next_back()
            && let Some(part) = data.get_mut(range(start)?)
        {
            return Some(part);
        }
        let (&start, data) = self.allocations.range_mut(..=address).next_back()?;
        data.get_mut(range(start)?)
    }
}

// SAFETY: handles are table keys; a stale one is an error or a recorded violation, never a wild access.
unsafe impl Driver for SimulatedDriver {
    fn version(&self) -> Result<u32, CudaError> {
        Ok(13_000)
    }

    fn device_count(&self) -> Result<u32, CudaError> {
        Ok(1)
    }

    fn device_info(&self, ordinal: u32) -> Result<DeviceInfo, CudaError> {
        let name = "simulated".to_owned();
        Ok(DeviceInfo {
            ordinal,
            name,
            compute_capability: (9, 0),
            multiprocessors: 132,
            total_memory: 1 << 30,
        })
    }

    unsafe fn primary_context_retain(&self, _: u32) -> Result<RawContext, CudaError> {
        self.call("cuDevicePrimaryCtxRetain")?.contexts += 1;
        Ok(RawContext(1))
    }

    unsafe fn primary_context_release(&self, _: u32) -> Result<(), CudaError> {
        self.state().contexts -= 1;
        Ok(())
    }

    unsafe fn make_current(&self, _: RawContext) -> Result<(), CudaError> {
        Ok(())
    }

    unsafe fn current_device(&self) -> Result<u32, CudaError> {
        Ok(0)
    }

    unsafe fn memory_info(&self) -> Result<MemoryInfo, CudaError> {
        let used: usize = self.call("cuMemGetInfo")?.allocations.values().map(Vec::len).sum();
        let state = self.state();
        Ok(MemoryInfo { free: state.memory.saturating_sub(used as u64), total: state.memory })
    }

    unsafe fn stream_create(&self) -> Result<RawStream, CudaError> {
        let mut state = self.call("cuStreamCreate")?;
        let handle = state.handle();
        state.streams.insert(handle, Work::default());
        Ok(RawStream(handle))
    }

    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<(), CudaError> {
        self.block("cuStreamDestroy", |s| s.streams.get(&stream.0).is_none_or(|w| w.queue.is_empty()))?;
        self.state().streams.remove(&stream.0);
        Ok(())
    }

    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<(), CudaError> {
        self.block("cuStreamSynchronize", |s| s.streams.get(&stream.0).is_none_or(|w| w.queue.is_empty()))
    }

    unsafe fn stream_wait(&self, stream: RawStream, event: RawEvent) -> Result<(), CudaError> {
        self.enqueue("cuStreamWaitEvent", stream, Operation::Wait(event.0))
    }

    unsafe fn stream_context(&self, _: RawStream) -> Result<RawContext, CudaError> {
        Ok(RawContext(1))
    }

    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Capture, CudaError> {
        let state = self.call("cuStreamIsCapturing")?;
        let captured = state.capturing.as_ref().is_some_and(|(captured, _)| *captured == stream.0);
        Ok(if captured { Capture::Active } else { Capture::None })
    }

    unsafe fn event_create(&self, _: EventTiming) -> Result<RawEvent, CudaError> {
        let mut state = self.call("cuEventCreate")?;
        let handle = state.handle();
        state.events.insert(handle, Mark::default());
        Ok(RawEvent(handle))
    }

    unsafe fn event_destroy(&self, event: RawEvent) -> Result<(), CudaError> {
        self.call("cuEventDestroy")?.events.remove(&event.0);
        Ok(())
    }

    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<(), CudaError> {
        self.enqueue("cuEventRecord", stream, Operation::Record(event.0))
    }

    unsafe fn event_query(&self, event: RawEvent) -> Result<Progress, CudaError> {
        let mut state = self.call("cuEventQuery")?;
        state.run();
        let done = state.events.get(&event.0).is_none_or(|mark| mark.pending == 0);
        Ok(if done { Progress::Done } else { Progress::Pending })
    }

    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<(), CudaError> {
        self.block("cuEventSynchronize", |s| s.events.get(&event.0).is_none_or(|mark| mark.pending == 0))
    }

    unsafe fn event_elapsed(&self, _: RawEvent, _: RawEvent) -> Result<f32, CudaError> {
        Ok(0.0)
    }

    unsafe fn memory_alloc(&self, bytes: usize) -> Result<DevicePtr, CudaError> {
        let mut state = self.call("cuMemAlloc")?;
        let next =
            |(start, data): (&u64, &Vec<u8>)| (start + data.len() as u64).next_multiple_of(PAGE) + PAGE;
        let address = state.allocations.last_key_value().map_or(1 << 40, next);
        // Never hand out an address again: a stale pointer must not look live.
        let address = address.max((1 << 40) + state.handle() as u64 * (1 << 24));
        state.allocations.insert(address, vec![0xA5; bytes]);
        Ok(DevicePtr(address))
    }

    unsafe fn memory_free(&self, ptr: DevicePtr) -> Result<(), CudaError> {
        self.call("cuMemFree")?.allocations.remove(&ptr.0);
        Ok(())
    }

    unsafe fn host_alloc(&self, bytes: usize) -> Result<*mut u8, CudaError> {
        let mut state = self.call("cuMemHostAlloc")?;
        let mut data = vec![0xA5; bytes.next_multiple_of(16)].into_boxed_slice();
        let ptr = data.as_mut_ptr();
        state.pinned.insert(ptr as u64, data);
        Ok(ptr)
    }

    unsafe fn host_free(&self, ptr: *mut u8) -> Result<(), CudaError> {
        self.call("cuMemFreeHost")?.pinned.remove(&(ptr as u64));
        Ok(())
    }

    unsafe fn copy_to_device(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), CudaError> {
        self.enqueue("cuMemcpyHtoDAsync", stream, Operation::Copy { to: to.0, from: from as u64, bytes })
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), CudaError> {
        self.enqueue("cuMemcpyDtoHAsync", stream, Operation::Copy { to: to as u64, from: from.0, bytes })
    }

    unsafe fn copy_on_device(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), CudaError> {
        self.enqueue("cuMemcpyDtoDAsync", stream, Operation::Copy { to: to.0, from: from.0, bytes })
    }

    unsafe fn fill(&self, to: DevicePtr, byte: u8, bytes: usize, stream: RawStream) -> Result<(), CudaError> {
        self.enqueue("cuMemsetD8Async", stream, Operation::Fill { to: to.0, byte, bytes })
    }

    unsafe fn module_load(&self, _: &[u8]) -> Result<RawModule, CudaError> {
        Ok(RawModule(self.call("cuModuleLoadData")?.handle()))
    }

    unsafe fn module_unload(&self, _: RawModule) -> Result<(), CudaError> {
        self.call("cuModuleUnload").map(|_| ())
    }

    unsafe fn module_function(&self, _: RawModule, symbol: &CStr) -> Result<RawFunction, CudaError> {
        let mut state = self.call("cuModuleGetFunction")?;
        if symbol.to_bytes().starts_with(b"missing") {
            let name = "CUDA_ERROR_NOT_FOUND".to_owned();
            return Err(CudaError { call: "cuModuleGetFunction", code: 500, name });
        }
        Ok(RawFunction(state.handle()))
    }

    unsafe fn function_allow_shared(&self, _: RawFunction, _: u32) -> Result<(), CudaError> {
        self.call("cuFuncSetAttribute").map(|_| ())
    }

    unsafe fn launch(
        &self,
        _: RawFunction,
        _: &LaunchShape,
        arguments: &mut [*mut c_void],
        stream: RawStream,
    ) -> Result<(), CudaError> {
        // SAFETY: the trait's caller passes pointers to arguments; every slot of the runtime is at least 8 bytes.
        let words: HashSet<u64> =
            arguments.iter().map(|pointer| unsafe { pointer.cast::<u64>().read_unaligned() }).collect();
        let mut state = self.state();
        let touches = words.into_iter().filter(|word| state.bytes(*word, 1).is_some()).collect();
        drop(state);
        self.enqueue("cuLaunchKernelEx", stream, Operation::Launch { touches })
    }

    unsafe fn encode_tensor_map(
        &self,
        ptr: DevicePtr,
        _: &TensorMapRecipe<'_>,
    ) -> Result<TensorMap, CudaError> {
        drop(self.call("cuTensorMapEncodeTiled")?);
        let mut words = [0; 16];
        words[0] = ptr.0;
        Ok(TensorMap(words))
    }

    unsafe fn capture_begin(&self, stream: RawStream) -> Result<(), CudaError> {
        self.call("cuStreamBeginCapture")?.capturing = Some((stream.0, Vec::new()));
        Ok(())
    }

    unsafe fn capture_end(&self, _: RawStream) -> Result<RawGraph, CudaError> {
        let mut state = self.call("cuStreamEndCapture")?;
        let operations = state.capturing.take().map(|(_, operations)| operations).unwrap_or_default();
        let handle = state.handle();
        state.graphs.insert(handle, operations);
        Ok(RawGraph(handle))
    }

    unsafe fn graph_instantiate(&self, graph: RawGraph) -> Result<RawGraphExec, CudaError> {
        let mut state = self.call("cuGraphInstantiateWithFlags")?;
        let operations = state.graphs.get(&graph.0).cloned().unwrap_or_default();
        let handle = state.handle();
        state.graphs.insert(handle, operations);
        Ok(RawGraphExec(handle))
    }

    unsafe fn graph_node_count(&self, graph: RawGraph) -> Result<usize, CudaError> {
        Ok(self.call("cuGraphGetNodes")?.graphs.get(&graph.0).map_or(0, Vec::len))
    }

    unsafe fn graph_destroy(&self, graph: RawGraph) -> Result<(), CudaError> {
        self.call("cuGraphDestroy")?.graphs.remove(&graph.0);
        Ok(())
    }

    unsafe fn graph_exec_destroy(&self, graph: RawGraphExec) -> Result<(), CudaError> {
        self.call("cuGraphExecDestroy")?.graphs.remove(&graph.0);
        Ok(())
    }

    unsafe fn graph_launch(&self, graph: RawGraphExec, stream: RawStream) -> Result<(), CudaError> {
        let operations = self.call("cuGraphLaunch")?.graphs.get(&graph.0).cloned().unwrap_or_default();
        operations.into_iter().try_for_each(|operation| self.enqueue("cuGraphLaunch", stream, operation))
    }
}

//! The driver calls that the runtime makes, as one trait.
//!
//! [`system`] makes them through the driver library that is loaded at run time. Tests put a simulated device behind
//! the same trait, so that leases, ordering and error paths are proven on a machine with no GPU.

mod error;
#[cfg(any(test, feature = "testing"))]
pub mod simulated;
mod system;

pub use error::{CudaError, DriverError, LibraryError};

use std::ffi::{CStr, c_void};
use std::sync::Arc;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub usize);)*
    };
}

handles! {
    /// A `CUcontext`.
    RawContext,
    /// A `CUstream`; 0 is the legacy default stream.
    RawStream,
    /// A `CUevent`.
    RawEvent,
    /// A `CUmodule`.
    RawModule,
    /// A `CUfunction`.
    RawFunction,
    /// A `CUgraph`.
    RawGraph,
    /// A `CUgraphExec`.
    RawGraphExec,
}

/// An address in device memory, or in pinned host memory that the device maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(pub u64);

/// What the driver says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its index in the driver's order.
    pub ordinal: u32,
    /// Marketing name.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of device memory.
    pub total_memory: u64,
}

/// Whether an event keeps a time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTiming {
    /// Ordering only.
    Disabled,
    /// For [`Driver::event_elapsed`].
    Enabled,
}

/// Free and total bytes of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that can be allocated.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Geometry and attributes of one kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks, x y z.
    pub grid: [u32; 3],
    /// Threads in a block, x y z.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// Blocks in a cluster, if the kernel is launched in clusters.
    pub cluster: Option<[u32; 3]>,
    /// When the kernel may begin, relative to the one before it on the stream.
    pub serialization: Serialization,
}

/// When a kernel may begin, relative to the one before it on its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Serialization {
    /// After the one before has ended.
    #[default]
    Full,
    /// When every block of the one before has signalled or ended (programmatic dependent launch); the kernel itself
    /// waits before it reads what the one before wrote.
    Programmatic,
}

/// A tensor map, encoded by the driver: passed to a kernel by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(128))]
pub struct TensorMap(pub [u64; 16]);

/// The arguments of `cuTensorMapEncodeTiled`, innermost dimension first; enumerations hold the driver's own values.
#[derive(Clone, Copy, Debug)]
pub struct TensorMapRecipe<'a> {
    /// `CUtensorMapDataType`.
    pub data_type: u32,
    /// Elements in each dimension.
    pub global_dim: &'a [u64],
    /// Bytes between neighbours in every dimension but the innermost.
    pub global_strides: &'a [u64],
    /// Elements of the box in each dimension.
    pub box_dim: &'a [u32],
    /// Element step in each dimension.
    pub element_strides: &'a [u32],
    /// `CUtensorMapInterleave`.
    pub interleave: u32,
    /// `CUtensorMapSwizzle`.
    pub swizzle: u32,
    /// `CUtensorMapL2promotion`.
    pub l2_promotion: u32,
    /// `CUtensorMapFloatOOBfill`.
    pub oob_fill: u32,
}

/// Whether a stream is being captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// What is enqueued runs.
    None,
    /// What is enqueued goes into a graph, or is refused since the capture has failed.
    Active,
}

/// Where an event or a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All work before it has ended.
    Done,
    /// Some has not.
    Pending,
}

/// The driver. Every method but the first three needs the context current on the calling thread
/// ([`Driver::make_current`]).
///
/// # Safety
///
/// Callers pass handles that this driver returned and that are not destroyed yet, and memory that outlives the work
/// enqueued on it. The runtime's types uphold this; nothing else calls the trait.
#[allow(
    missing_docs,
    clippy::missing_safety_doc,
    reason = "each method is the driver call of that name; see above"
)]
pub unsafe trait Driver: Send + Sync {
    fn version(&self) -> Result<u32, CudaError>;
    fn device_count(&self) -> Result<u32, CudaError>;
    fn device_info(&self, ordinal: u32) -> Result<DeviceInfo, CudaError>;

    unsafe fn primary_context_retain(&self, ordinal: u32) -> Result<RawContext, CudaError>;
    unsafe fn primary_context_release(&self, ordinal: u32) -> Result<(), CudaError>;
    unsafe fn make_current(&self, context: RawContext) -> Result<(), CudaError>;
    /// The device of the context that is current.
    unsafe fn current_device(&self) -> Result<u32, CudaError>;
    unsafe fn memory_info(&self) -> Result<MemoryInfo, CudaError>;

    unsafe fn stream_create(&self) -> Result<RawStream, CudaError>;
    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<(), CudaError>;
    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<(), CudaError>;
    unsafe fn stream_wait(&self, stream: RawStream, event: RawEvent) -> Result<(), CudaError>;
    unsafe fn stream_context(&self, stream: RawStream) -> Result<RawContext, CudaError>;
    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Capture, CudaError>;

    unsafe fn event_create(&self, timing: EventTiming) -> Result<RawEvent, CudaError>;
    unsafe fn event_destroy(&self, event: RawEvent) -> Result<(), CudaError>;
    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<(), CudaError>;
    unsafe fn event_query(&self, event: RawEvent) -> Result<Progress, CudaError>;
    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<(), CudaError>;
    /// Milliseconds between two recorded events.
    unsafe fn event_elapsed(&self, start: RawEvent, end: RawEvent) -> Result<f32, CudaError>;

    unsafe fn memory_alloc(&self, bytes: usize) -> Result<DevicePtr, CudaError>;
    unsafe fn memory_free(&self, ptr: DevicePtr) -> Result<(), CudaError>;
    /// Pinned host memory that the device maps at the same address.
    unsafe fn host_alloc(&self, bytes: usize) -> Result<*mut u8, CudaError>;
    unsafe fn host_free(&self, ptr: *mut u8) -> Result<(), CudaError>;
    unsafe fn copy_to_device(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), CudaError>;
    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), CudaError>;
    unsafe fn copy_on_device(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), CudaError>;
    unsafe fn fill(&self, to: DevicePtr, byte: u8, bytes: usize, stream: RawStream) -> Result<(), CudaError>;

    unsafe fn module_load(&self, image: &[u8]) -> Result<RawModule, CudaError>;
    unsafe fn module_unload(&self, module: RawModule) -> Result<(), CudaError>;
    unsafe fn module_function(&self, module: RawModule, symbol: &CStr) -> Result<RawFunction, CudaError>;
    unsafe fn function_allow_shared(&self, function: RawFunction, bytes: u32) -> Result<(), CudaError>;
    /// `arguments` point at the kernel's parameters in order; they are copied before this returns.
    unsafe fn launch(
        &self,
        function: RawFunction,
        shape: &LaunchShape,
        arguments: &mut [*mut c_void],
        stream: RawStream,
    ) -> Result<(), CudaError>;
    unsafe fn encode_tensor_map(
        &self,
        ptr: DevicePtr,
        recipe: &TensorMapRecipe<'_>,
    ) -> Result<TensorMap, CudaError>;

    unsafe fn capture_begin(&self, stream: RawStream) -> Result<(), CudaError>;
    unsafe fn capture_end(&self, stream: RawStream) -> Result<RawGraph, CudaError>;
    unsafe fn graph_instantiate(&self, graph: RawGraph) -> Result<RawGraphExec, CudaError>;
    unsafe fn graph_node_count(&self, graph: RawGraph) -> Result<usize, CudaError>;
    unsafe fn graph_destroy(&self, graph: RawGraph) -> Result<(), CudaError>;
    unsafe fn graph_exec_destroy(&self, graph: RawGraphExec) -> Result<(), CudaError>;
    unsafe fn graph_launch(&self, graph: RawGraphExec, stream: RawStream) -> Result<(), CudaError>;
}

/// Loads the driver library and initialises it.
///
/// # Errors
///
/// [`DriverError::NoLibrary`] on a machine without the driver, [`DriverError::TooOld`] for one that lacks a call the
/// runtime needs, [`DriverError::Init`] if it will not start.
pub fn system() -> Result<Arc<dyn Driver>, DriverError> {
    system::SystemDriver::load().map(|driver| Arc::new(driver) as Arc<dyn Driver>)
}

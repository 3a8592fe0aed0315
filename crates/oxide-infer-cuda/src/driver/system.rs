//! The driver library of this machine, loaded at run time.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is the one driver call that its method names; the safety contract of `Driver` covers it"
)]

use super::*;
use cudarc::driver::sys;
use std::mem::MaybeUninit;
use std::ptr;

/// Calls that came last to the driver; a library that has these has the rest.
const NEWEST_CALLS: [&str; 2] = ["cuLaunchKernelEx", "cuTensorMapEncodeTiled"];

/// `CU_STREAM_NON_BLOCKING`: no implicit ordering with the legacy default stream.
const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const HOST_ALLOC_FLAGS: u32 = 1 | 2;

pub(super) struct SystemDriver(());

impl SystemDriver {
    pub(super) fn load() -> Result<Self, DriverError> {
        // SAFETY: loading the driver library runs its initialisers, which is what it is for.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverError::NoLibrary);
        }
        // SAFETY: the library is present, so this does not panic; a symbol look-up runs no code.
        let library = unsafe { sys::culib() };
        for missing in NEWEST_CALLS {
            // SAFETY: the symbol is only looked for, never called through this type.
            if unsafe { library.get::<unsafe extern "C" fn()>(missing.as_bytes()) }.is_err() {
                return Err(DriverError::TooOld { missing });
            }
        }
        // SAFETY: flags must be 0, and are.
        check("cuInit", unsafe { sys::cuInit(0) })?;
        Ok(Self(()))
    }
}

fn check(call: &'static str, result: sys::CUresult) -> Result<(), CudaError> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = ptr::null();
    // SAFETY: on success the driver stores a pointer to a static string.
    let name = unsafe {
        match sys::cuGetErrorName(result, &mut name) {
            sys::CUresult::CUDA_SUCCESS if !name.is_null() => {
                CStr::from_ptr(name).to_string_lossy().into_owned()
            }
            _ => "unknown error".to_owned(),
        }
    };
    Err(CudaError { call, code: result as u32, name })
}

/// Calls the driver with an out-parameter first and returns what it stored.
unsafe fn store<T>(
    call: &'static str,
    function: impl FnOnce(*mut T) -> sys::CUresult,
) -> Result<T, CudaError> {
    let mut value = MaybeUninit::uninit();
    check(call, function(value.as_mut_ptr()))?;
    // SAFETY: the caller names a call that stores its result before it reports success.
    Ok(unsafe { value.assume_init() })
}

impl RawStream {
    fn sys(self) -> sys::CUstream {
        self.0 as sys::CUstream
    }
}

impl RawEvent {
    fn sys(self) -> sys::CUevent {
        self.0 as sys::CUevent
    }
}

fn attribute(ordinal: u32, attribute: sys::CUdevice_attribute) -> Result<u32, CudaError> {
    // SAFETY: an out-parameter of the driver's own type; the ordinal came from `device`.
    unsafe {
        store("cuDeviceGetAttribute", |out| sys::cuDeviceGetAttribute(out, attribute, ordinal as i32))
            .map(|value: i32| value as u32)
    }
}

// SAFETY: every method is the driver call that it names; the trait's caller upholds the handles' validity.
unsafe impl Driver for SystemDriver {
    fn version(&self) -> Result<u32, CudaError> {
        // SAFETY: an out-parameter of the driver's own type.
        unsafe { store("cuDriverGetVersion", |out: *mut i32| sys::cuDriverGetVersion(out)).map(|v| v as u32) }
    }

    fn device_count(&self) -> Result<u32, CudaError> {
        // SAFETY: an out-parameter of the driver's own type.
        unsafe { store("cuDeviceGetCount", |out: *mut i32| sys::cuDeviceGetCount(out)).map(|v| v as u32) }
    }

    fn device_info(&self, ordinal: u32) -> Result<DeviceInfo, CudaError> {
        use sys::CUdevice_attribute as A;
        let mut name = [0_u8; 256];
        // SAFETY: out-parameters of the driver's own types; the name buffer's length is passed with it.
        let (device, total_memory) = unsafe {
            let device = store("cuDeviceGet", |out| sys::cuDeviceGet(out, ordinal as i32))?;
            check(
                "cuDeviceGetName",
                sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device),
            )?;
            (device, store("cuDeviceTotalMem", |out| sys::cuDeviceTotalMem_v2(out, device))?)
        };
        let name = CStr::from_bytes_until_nul(&name).map(CStr::to_string_lossy).unwrap_or_default();
        let device = device as u32;
        Ok(DeviceInfo {
            ordinal,
            name: name.into_owned(),
            compute_capability: (
                attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(device, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            total_memory: total_memory as u64,
        })
    }

    unsafe fn primary_context_retain(&self, ordinal: u32) -> Result<RawContext, CudaError> {
        unsafe {
            store("cuDevicePrimaryCtxRetain", |out| sys::cuDevicePrimaryCtxRetain(out, ordinal as i32))
                .map(|context| RawContext(context as usize))
        }
    }

    unsafe fn primary_context_release(&self, ordinal: u32) -> Result<(), CudaError> {
        check("cuDevicePrimaryCtxRelease", unsafe { sys::cuDevicePrimaryCtxRelease_v2(ordinal as i32) })
    }

    unsafe fn make_current(&self, context: RawContext) -> Result<(), CudaError> {
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.0 as sys::CUcontext) })
    }

    unsafe fn current_device(&self) -> Result<u32, CudaError> {
        unsafe {
            store("cuCtxGetDevice", |out| sys::cuCtxGetDevice(out)).map(|device: sys::CUdevice| device as u32)
        }
    }

    unsafe fn memory_info(&self) -> Result<MemoryInfo, CudaError> {
        let (mut free, mut total) = (0, 0);
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    unsafe fn stream_create(&self) -> Result<RawStream, CudaError> {
        unsafe {
            store("cuStreamCreate", |out| sys::cuStreamCreate(out, STREAM_NON_BLOCKING))
                .map(|stream| RawStream(stream as usize))
        }
    }

    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<(), CudaError> {
        check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(stream.sys()) })
    }

    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<(), CudaError> {
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream.sys()) })
    }

    unsafe fn stream_wait(&self, stream: RawStream, event: RawEvent) -> Result<(), CudaError> {
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream.sys(), event.sys(), 0) })
    }

    unsafe fn stream_context(&self, stream: RawStream) -> Result<RawContext, CudaError> {
        unsafe {
            store("cuStreamGetCtx", |out| sys::cuStreamGetCtx(stream.sys(), out))
                .map(|context| RawContext(context as usize))
        }
    }

    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Capture, CudaError> {
        // The status as an integer: a value that the bindings do not know must not be made into their enumeration.
        let mut status = 0_u32;
        check("cuStreamIsCapturing", unsafe {
            sys::cuStreamIsCapturing(stream.sys(), (&raw mut status).cast())
        })?;
        Ok(if status == 0 { Capture::None } else { Capture::Active })
    }

    unsafe fn event_create(&self, timing: EventTiming) -> Result<RawEvent, CudaError> {
        let flags = match timing {
            EventTiming::Disabled => EVENT_DISABLE_TIMING,
            EventTiming::Enabled => 0,
        };
        unsafe {
            store("cuEventCreate", |out| sys::cuEventCreate(out, flags)).map(|event| RawEvent(event as usize))
        }
    }

    unsafe fn event_destroy(&self, event: RawEvent) -> Result<(), CudaError> {
        check("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(event.sys()) })
    }

    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<(), CudaError> {
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.sys(), stream.sys()) })
    }

    unsafe fn event_query(&self, event: RawEvent) -> Result<Progress, CudaError> {
        match unsafe { sys::cuEventQuery(event.sys()) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(Progress::Pending),
            result => check("cuEventQuery", result).map(|()| Progress::Done),
        }
    }

    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<(), CudaError> {
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(event.sys()) })
    }

    unsafe fn event_elapsed(&self, start: RawEvent, end: RawEvent) -> Result<f32, CudaError> {
        unsafe { store("cuEventElapsedTime", |out| sys::cuEventElapsedTime(out, start.sys(), end.sys())) }
    }

    unsafe fn memory_alloc(&self, bytes: usize) -> Result<DevicePtr, CudaError> {
        unsafe { store("cuMemAlloc", |out| sys::cuMemAlloc_v2(out, bytes)).map(DevicePtr) }
    }

    unsafe fn memory_free(&self, ptr: DevicePtr) -> Result<(), CudaError> {
        check("cuMemFree", unsafe { sys::cuMemFree_v2(ptr.0) })
    }

    unsafe fn host_alloc(&self, bytes: usize) -> Result<*mut u8, CudaError> {
        unsafe {
            store("cuMemHostAlloc", |out| sys::cuMemHostAlloc(out, bytes, HOST_ALLOC_FLAGS))
                .map(|ptr| ptr.cast::<u8>())
        }
    }

    unsafe fn host_free(&self, ptr: *mut u8) -> Result<(), CudaError> {
        check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(ptr.cast()) })
    }

    unsafe fn copy_to_device(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), CudaError> {
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(to.0, from.cast(), bytes, stream.sys())
        })
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), CudaError> {
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.cast(), from.0, bytes, stream.sys())
        })
    }

    unsafe fn copy_on_device(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), CudaError> {
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, stream.sys()) })
    }

    unsafe fn fill(&self, to: DevicePtr, byte: u8, bytes: usize, stream: RawStream) -> Result<(), CudaError> {
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(to.0, byte, bytes, stream.sys()) })
    }

    unsafe fn module_load(&self, image: &[u8]) -> Result<RawModule, CudaError> {
        unsafe {
            store("cuModuleLoadData", |out| sys::cuModuleLoadData(out, image.as_ptr().cast()))
                .map(|module| RawModule(module as usize))
        }
    }

    unsafe fn module_unload(&self, module: RawModule) -> Result<(), CudaError> {
        check("cuModuleUnload", unsafe { sys::cuModuleUnload(module.0 as sys::CUmodule) })
    }

    unsafe fn module_function(&self, module: RawModule, symbol: &CStr) -> Result<RawFunction, CudaError> {
        unsafe {
            store("cuModuleGetFunction", |out| {
                sys::cuModuleGetFunction(out, module.0 as sys::CUmodule, symbol.as_ptr())
            })
            .map(|function| RawFunction(function as usize))
        }
    }

    unsafe fn function_allow_shared(&self, function: RawFunction, bytes: u32) -> Result<(), CudaError> {
        check("cuFuncSetAttribute", unsafe {
            sys::cuFuncSetAttribute(
                function.0 as sys::CUfunction,
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                bytes as i32,
            )
        })
    }

    unsafe fn launch(
        &self,
        function: RawFunction,
        shape: &LaunchShape,
        arguments: &mut [*mut c_void],
        stream: RawStream,
    ) -> Result<(), CudaError> {
        // SAFETY: the attribute is plain data for which all zeros is valid.
        let mut attributes: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        if let Some([x, y, z]) = shape.cluster {
            let attribute = &mut attributes[count];
            attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attribute.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
            count += 1;
        }
        if shape.serialization == Serialization::Programmatic {
            let attribute = &mut attributes[count];
            attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attribute.value.programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: shape.grid[2],
            blockDimX: shape.block[0],
            blockDimY: shape.block[1],
            blockDimZ: shape.block[2],
            sharedMemBytes: shape.shared_bytes,
            hStream: stream.sys(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        check("cuLaunchKernelEx", unsafe {
            sys::cuLaunchKernelEx(
                &config,
                function.0 as sys::CUfunction,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }

    unsafe fn encode_tensor_map(
        &self,
        ptr: DevicePtr,
        recipe: &TensorMapRecipe<'_>,
    ) -> Result<TensorMap, CudaError> {
        let mut map = TensorMap([0; 16]);
        // SAFETY: the driver's enumerations are 32-bit; a value it does not know is refused by the driver, but must not
        // be made into a Rust enumeration, so the call goes through a signature that takes plain integers.
        check("cuTensorMapEncodeTiled", unsafe { encode_tiled(&mut map, ptr, recipe) })?;
        Ok(map)
    }

    unsafe fn capture_begin(&self, stream: RawStream) -> Result<(), CudaError> {
        check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(
                stream.sys(),
                sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            )
        })
    }

    unsafe fn capture_end(&self, stream: RawStream) -> Result<RawGraph, CudaError> {
        unsafe {
            store("cuStreamEndCapture", |out| sys::cuStreamEndCapture(stream.sys(), out))
                .map(|graph| RawGraph(graph as usize))
        }
    }

    unsafe fn graph_instantiate(&self, graph: RawGraph) -> Result<RawGraphExec, CudaError> {
        unsafe {
            store("cuGraphInstantiateWithFlags", |out| {
                sys::cuGraphInstantiateWithFlags(out, graph.0 as sys::CUgraph, 0)
            })
            .map(|graph| RawGraphExec(graph as usize))
        }
    }

    unsafe fn graph_node_count(&self, graph: RawGraph) -> Result<usize, CudaError> {
        unsafe {
            store("cuGraphGetNodes", |out| {
                sys::cuGraphGetNodes(graph.0 as sys::CUgraph, ptr::null_mut(), out)
            })
        }
    }

    unsafe fn graph_destroy(&self, graph: RawGraph) -> Result<(), CudaError> {
        check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph.0 as sys::CUgraph) })
    }

    unsafe fn graph_exec_destroy(&self, graph: RawGraphExec) -> Result<(), CudaError> {
        check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(graph.0 as sys::CUgraphExec) })
    }

    unsafe fn graph_launch(&self, graph: RawGraphExec, stream: RawStream) -> Result<(), CudaError> {
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.0 as sys::CUgraphExec, stream.sys()) })
    }
}

type EncodeTiled = unsafe extern "C" fn(
    *mut TensorMap,
    u32,
    u32,
    u64,
    *const u64,
    *const u64,
    *const u32,
    *const u32,
    u32,
    u32,
    u32,
    u32,
) -> sys::CUresult;

unsafe fn encode_tiled(map: &mut TensorMap, ptr: DevicePtr, recipe: &TensorMapRecipe<'_>) -> sys::CUresult {
    // SAFETY: `load` has seen the library and this symbol; the signature is the driver's with enumerations and the
    // address as integers of the same width.
    let Ok(encode) = (unsafe { sys::culib().get::<EncodeTiled>(b"cuTensorMapEncodeTiled") }) else {
        return sys::CUresult::CUDA_ERROR_NOT_SUPPORTED;
    };
    // SAFETY: the arrays are as long as the rank says (the caller's recipe is checked when it is parsed).
    unsafe {
        encode(
            map,
            recipe.data_type,
            recipe.global_dim.len() as u32,
            ptr.0,
            recipe.global_dim.as_ptr(),
            recipe.global_strides.as_ptr(),
            recipe.box_dim.as_ptr(),
            recipe.element_strides.as_ptr(),
            recipe.interleave,
            recipe.swizzle,
            recipe.l2_promotion,
            recipe.oob_fill,
        )
    }
}

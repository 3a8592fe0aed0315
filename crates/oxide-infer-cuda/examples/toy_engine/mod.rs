//! An engine that knows nothing of this project: it has a context, streams, events and memory of its own, all through the
//! driver's API, and a transfer stream beside the one that it computes on.

use cudarc::driver::sys;
use oxide_infer::Element;
use oxide_infer_cuda::driver::{DevicePtr, RawContext, RawEvent, RawStream};
use oxide_infer_cuda::runtime::{Context, DeviceMemory, Event, Region, Stream};
use oxide_infer_cuda::{Probe, probe};
use std::error::Error;
use std::process::ExitCode;
use std::ptr;
use std::sync::Arc;

/// What the examples end with where a machine lacks what they need (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: u8 = 69;

/// Something that the machine does not have.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) String);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Missing {}

/// Prints how a run ended, and turns it into the exit code.
pub(crate) fn report(outcome: Result<(), Box<dyn Error>>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Missing>() => {
            eprintln!("missing: {error}");
            ExitCode::from(UNAVAILABLE)
        }
        Err(error) => {
            eprintln!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The engine's device.
pub(crate) struct Engine {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// What it computes on.
    compute: sys::CUstream,
    /// What it copies on.
    transfer: sys::CUstream,
    /// The end of what was uploaded.
    uploaded: sys::CUevent,
    /// The end of what was computed.
    computed: sys::CUevent,
}

// SAFETY: the driver's handles are used by any thread whose current context is the engine's.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

/// A piece of the engine's memory.
pub(crate) struct Buffer {
    engine: Arc<Engine>,
    ptr: u64,
    bytes: usize,
}

/// The engine's handles, lent to the operator runtime. Each keeps the engine.
pub(crate) struct Lent {
    pub(crate) context: Context,
    pub(crate) compute: Stream,
    pub(crate) uploaded: Event,
    pub(crate) computed: Event,
}

impl Engine {
    /// Starts on the first device.
    pub(crate) fn start() -> Result<Arc<Self>, Box<dyn Error>> {
        let missing = |what: String| Err(Missing(what).into());
        match probe() {
            Probe::NoDriver => return missing("the CUDA driver, libcuda.so.1".to_owned()),
            Probe::Unusable(why) => return missing(format!("a CUDA driver that starts: {why}")),
            Probe::Driver { devices, .. } if devices.is_empty() => {
                return missing("a CUDA device; the driver sees none".to_owned());
            }
            Probe::Driver { .. } => {}
        }
        let (mut device, mut context) = (0, ptr::null_mut());
        let (mut compute, mut transfer) = (ptr::null_mut(), ptr::null_mut());
        let (mut uploaded, mut computed) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: out-parameters of the driver's own types; each handle is destroyed in `drop`.
        unsafe {
            check(sys::cuInit(0))?;
            check(sys::cuDeviceGet(&mut device, 0))?;
            check(sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            check(sys::cuCtxSetCurrent(context))?;
            for stream in [&mut compute, &mut transfer] {
                check(sys::cuStreamCreate(stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
            }
            for event in [&mut uploaded, &mut computed] {
                check(sys::cuEventCreate(event, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32))?;
            }
        }
        Ok(Arc::new(Self { device, context, compute, transfer, uploaded, computed }))
    }

    /// Lends context, stream and events.
    pub(crate) fn lend(self: &Arc<Self>) -> Result<Lent, Box<dyn Error>> {
        // SAFETY: the handles live as long as the engine, which the runtime keeps as their owner.
        unsafe {
            let context = Context::external(RawContext(self.context as usize), self.clone())?;
            let compute = context.external_stream(RawStream(self.compute as usize), self.clone())?;
            let event = |raw| Event::external(&context, RawEvent(raw as usize), self.clone());
            let (uploaded, computed) = (event(self.uploaded), event(self.computed));
            Ok(Lent { context, compute, uploaded, computed })
        }
    }

    /// Allocates memory for elements, and copies them in on the transfer stream.
    pub(crate) fn upload<T: Element>(
        self: &Arc<Self>,
        elements: &[T],
    ) -> Result<Arc<Buffer>, Box<dyn Error>> {
        let bytes = size_of_val(elements);
        let mut ptr = 0;
        // SAFETY: the source is ordinary memory, which the driver has read before the call returns.
        unsafe {
            check(sys::cuCtxSetCurrent(self.context))?;
            check(sys::cuMemAlloc_v2(&mut ptr, bytes))?;
            check(sys::cuMemcpyHtoDAsync_v2(ptr, elements.as_ptr().cast(), bytes, self.transfer))?;
            check(sys::cuEventRecord(self.uploaded, self.transfer))?;
        }
        Ok(Arc::new(Buffer { engine: self.clone(), ptr, bytes }))
    }

    /// What a buffer holds once everything before the `computed` event has ended.
    pub(crate) fn download<T: Element + Default>(&self, buffer: &Buffer) -> Result<Vec<T>, Box<dyn Error>> {
        let mut elements = vec![T::default(); buffer.bytes / size_of::<T>()];
        // SAFETY: the target has as many bytes as the buffer, and is there until the stream has been waited for.
        unsafe {
            check(sys::cuCtxSetCurrent(self.context))?;
            check(sys::cuStreamWaitEvent(self.transfer, self.computed, 0))?;
            check(sys::cuMemcpyDtoHAsync_v2(
                elements.as_mut_ptr().cast(),
                buffer.ptr,
                buffer.bytes,
                self.transfer,
            ))?;
            check(sys::cuStreamSynchronize(self.transfer))?;
        }
        Ok(elements)
    }
}

impl Buffer {
    /// Lends the buffer, which the runtime keeps while work on it is in flight.
    pub(crate) fn lend<T: Element>(self: &Arc<Self>, context: &Context) -> Result<Region<T>, Box<dyn Error>> {
        // SAFETY: the memory is the engine's until the buffer is dropped, which the runtime keeps as its owner.
        let memory =
            unsafe { DeviceMemory::external(context, DevicePtr(self.ptr), self.bytes, self.clone()) };
        Ok(memory.region(0, self.bytes / size_of::<T>())?)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; the last owner is gone, so no work in flight touches it.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.engine.context);
            let _ = sys::cuMemFree_v2(self.ptr);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: each was made once by `start`; every buffer keeps the engine, so none is left.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            for event in [self.uploaded, self.computed] {
                let _ = sys::cuEventDestroy_v2(event);
            }
            for stream in [self.compute, self.transfer] {
                let _ = sys::cuStreamDestroy_v2(stream);
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
        println!("the engine has destroyed what is its own");
    }
}

fn check(result: sys::CUresult) -> Result<(), Box<dyn Error>> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("{result:?}").into()) }
}

/// Numbers in [−0.5, 0.5) that differ from place to place.
pub(crate) fn numbers(len: usize, seed: usize) -> Vec<half::bf16> {
    let value = |i: usize| (((i + seed) * 2_654_435_761) % 65_521) as f32 / 65_521.0 - 0.5;
    (0..len).map(|i| half::bf16::from_f32(value(i))).collect()
}

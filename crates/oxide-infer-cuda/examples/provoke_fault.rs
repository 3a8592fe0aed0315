//! Provokes a sticky error in the process that loads this library, which `oxide-infer-lab gates fault` has the server do by
//! `LD_PRELOAD`: so the server is the binary that users run, with no entrance for this.
//!
//! A thread waits until the file that `OXIDE_INFER_FAULT_WHEN` names is there. Then it launches a kernel that writes to an address
//! that is nobody's, on a stream of its own in the primary context of device `OXIDE_INFER_FAULT_DEVICE`, which is the engine's, too.

use half::bf16;
use oxide_infer_cuda::artifact::{Registry, Request, Target};
use oxide_infer_cuda::driver::DevicePtr;
use oxide_infer_cuda::runtime::{CommandScope, Context, DeviceMemory, Loader, Operands, Region};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The file whose appearance provokes the error.
const WHEN: &str = "OXIDE_INFER_FAULT_WHEN";
/// The number of the device.
const DEVICE: &str = "OXIDE_INFER_FAULT_DEVICE";
/// An address in the first pages, which no allocation has.
const STRAY: DevicePtr = DevicePtr(0x1000);
/// Elements that the kernel writes.
const LEN: usize = 1024;

// The dynamic loader calls it before the program's `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let (Some(when), Some(device)) = (std::env::var_os(WHEN), std::env::var(DEVICE).ok()) else {
        return;
    };
    std::thread::spawn(move || {
        let when = PathBuf::from(when);
        while !when.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        match provoke(&device) {
            Ok(fault) => eprintln!("provoked: {fault}"),
            Err(error) => eprintln!("nothing was provoked: {error}"),
        }
    });
}

/// Launches the kernel, and says what the driver answers.
fn provoke(device: &str) -> Result<String, Box<dyn Error>> {
    let context = Context::primary(device.parse()?)?;
    let target = Target::of(context.device().compute_capability, context.driver_version()?);
    let registry = Arc::new(Registry::embedded(target.ok_or("no artifact is made for this device")?)?);
    let request = Request::new("activation.swiglu", 1)
        .property("dtype", "bf16")
        .dimension("rows", 1)
        .dimension("size", LEN as u64);
    let artifact = registry.select(&request)?.clone();
    let plan = Loader::new(&context, registry).plan_artifact(artifact, request.dimensions().clone())?;
    let (gate, up) = (Region::<bf16>::allocate(&context, LEN)?, Region::<bf16>::allocate(&context, LEN)?);
    // SAFETY: it is not memory, which is the point: the kernel's write must fail, and nothing else uses it.
    let stray = unsafe { DeviceMemory::external(&context, STRAY, LEN * size_of::<bf16>(), ()) };
    let output = stray.region::<bf16>(0, LEN)?;
    let operands = Operands::new().region("gate", &gate).region("up", &up).region("output", &output);
    let swiglu = plan.bind(&operands)?;
    let mut scope = CommandScope::new(&context.stream()?)?;
    swiglu.enqueue(&mut scope)?;
    match scope.finish()?.wait() {
        Err(error) => Ok(format!("{} wrote to {:#x}: {error}", plan.artifact().manifest().name, STRAY.0)),
        Ok(()) => Err(format!("a kernel wrote to {:#x}, and nothing failed", STRAY.0).into()),
    }
}

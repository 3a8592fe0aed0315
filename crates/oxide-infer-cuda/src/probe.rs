//! Which CUDA driver and devices this machine has. Needs neither: a machine without them gets an answer, not an error.

use cudarc::driver::{DriverError, result, sys};

/// What [`probe`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The driver's library (`libcuda.so.1`) cannot be loaded.
    NoDriver,
    /// The driver is there and refuses to start; holds what it says.
    Unusable(String),
    /// The driver works.
    Driver {
        /// The newest CUDA version that the driver supports, major and minor.
        cuda_version: (u32, u32),
        /// The devices in the order of their ordinals; may be empty.
        devices: Vec<DeviceInfo>,
    },
}

/// One CUDA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The number by which it is chosen.
    pub ordinal: u32,
    /// Its product name.
    pub name: String,
    /// Its compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Its memory in bytes.
    pub total_memory: usize,
}

/// Looks for the CUDA driver and its devices. Creates no context and takes no device memory.
#[must_use]
pub fn probe() -> Probe {
    // SAFETY: loads libcuda by its well-known name, whose initialisers are the driver's own.
    if !unsafe { sys::is_culib_present() } {
        return Probe::NoDriver;
    }
    driver().unwrap_or_else(|error| Probe::Unusable(error.to_string()))
}

fn driver() -> Result<Probe, DriverError> {
    match result::init() {
        Err(DriverError(sys::cudaError_enum::CUDA_ERROR_NO_DEVICE)) => {
            return Ok(Probe::Driver { cuda_version: driver_version()?, devices: Vec::new() });
        }
        other => other?,
    }
    let count = result::device::get_count()?;
    let devices = (0..count).map(device).collect::<Result<_, _>>()?;
    Ok(Probe::Driver { cuda_version: driver_version()?, devices })
}

fn driver_version() -> Result<(u32, u32), DriverError> {
    let mut version = 0;
    // SAFETY: `version` outlives the call, which writes one int; no initialisation is needed before it.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    // CUDA encodes 12.9 as 12090.
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

fn device(ordinal: i32) -> Result<DeviceInfo, DriverError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    };
    let device = result::device::get(ordinal)?;
    let attribute = |attribute| {
        // SAFETY: `device` comes from `result::device::get`.
        unsafe { result::device::get_attribute(device, attribute) }.map(i32::unsigned_abs)
    };
    let compute_capability = (
        attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    // SAFETY: `device` comes from `result::device::get`.
    let total_memory = unsafe { result::device::total_mem(device) }?;
    let name = result::device::get_name(device)?;
    Ok(DeviceInfo { ordinal: ordinal.unsigned_abs(), name, compute_capability, total_memory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probing_is_repeatable_and_agrees_with_the_loader() {
        let first = probe();
        assert_eq!(first, probe());
        let names = [c"libcuda.so.1", c"libcuda.so"];
        // SAFETY: loads the same library as `probe`; the handle is kept for the life of the process.
        let loads =
            names.iter().any(|name| !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) }.is_null());
        assert_eq!(first != Probe::NoDriver, loads);
    }
}

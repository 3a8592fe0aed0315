//! Where a model runs, and why there.

use crate::cli::values::DeviceArg;
use oxide_infer_cuda::{DeviceInfo, Probe};

/// The compute capability that the build's kernel artifacts are made for.
const COMPUTE_CAPABILITY: (u32, u32) = (9, 0);

/// A device that was asked for cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("--device cuda:{ordinal} cannot be used: {why}")]
pub(crate) struct DeviceError {
    ordinal: u32,
    why: String,
}

/// The device that was chosen and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) device: DeviceArg,
    pub(crate) reason: String,
}

/// Chooses the device: the one asked for or an error; without one the first GPU if it can run models, else the CPU.
pub(crate) fn choose(asked: Option<DeviceArg>, probe: &Probe) -> Result<Choice, DeviceError> {
    match asked {
        Some(DeviceArg::Cpu) => {
            Ok(Choice { device: DeviceArg::Cpu, reason: "--device cpu was given".to_owned() })
        }
        Some(DeviceArg::Cuda(ordinal)) => match obstacle(ordinal, probe) {
            Some(why) => Err(DeviceError { ordinal, why }),
            None => Ok(Choice {
                device: DeviceArg::Cuda(ordinal),
                reason: format!("--device cuda:{ordinal} was given"),
            }),
        },
        None => Ok(match obstacle(0, probe) {
            Some(why) => Choice { device: DeviceArg::Cpu, reason: format!("no GPU can be used: {why}") },
            None => {
                Choice { device: DeviceArg::Cuda(0), reason: "a driver and a device are there".to_owned() }
            }
        }),
    }
}

/// Why a CUDA device cannot run models here, if it cannot.
pub(crate) fn obstacle(ordinal: u32, probe: &Probe) -> Option<String> {
    let devices = match probe {
        Probe::NoDriver => return Some("there is no CUDA driver (libcuda.so.1 cannot be loaded)".to_owned()),
        Probe::Unusable(message) => return Some(format!("the CUDA driver does not start: {message}")),
        Probe::Driver { devices, .. } => devices,
    };
    if devices.is_empty() {
        return Some("the CUDA driver finds no device".to_owned());
    }
    let Some(device) = devices.iter().find(|device| device.ordinal == ordinal) else {
        let list = devices.iter().map(describe).collect::<Vec<_>>().join(", ");
        return Some(format!("there is no device {ordinal}; there is {list}"));
    };
    if device.compute_capability != COMPUTE_CAPABILITY {
        let (major, minor) = COMPUTE_CAPABILITY;
        let found = describe(device);
        return Some(format!(
            "there are no kernels for {found}; there are for compute capability {major}.{minor}"
        ));
    }
    None
}

/// What people call a device that was chosen.
pub(crate) fn name(device: DeviceArg, probe: &Probe) -> String {
    let DeviceArg::Cuda(ordinal) = device else {
        return "CPU".to_owned();
    };
    let found = match probe {
        Probe::Driver { devices, .. } => devices.iter().find(|device| device.ordinal == ordinal),
        Probe::NoDriver | Probe::Unusable(_) => None,
    };
    found.map_or_else(|| format!("cuda:{ordinal}"), |device| format!("cuda:{ordinal} {}", device.name))
}

/// A device in a few words.
pub(crate) fn describe(device: &DeviceInfo) -> String {
    let (major, minor) = device.compute_capability;
    let memory = indicatif::HumanBytes(device.total_memory as u64);
    format!("cuda:{} {} (compute capability {major}.{minor}, {memory})", device.ordinal, device.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(compute_capability: (u32, u32)) -> Probe {
        let device =
            DeviceInfo { ordinal: 0, name: "H200".to_owned(), compute_capability, total_memory: 1 << 30 };
        Probe::Driver { cuda_version: (12, 9), devices: vec![device] }
    }

    #[test]
    fn without_a_wish_a_gpu_that_has_kernels_is_taken_else_the_cpu_with_the_reason() {
        let choose = |probe: &Probe| choose(None, probe).unwrap();
        assert_eq!(choose(&gpu((9, 0))).device, DeviceArg::Cuda(0));
        assert_eq!(choose(&Probe::NoDriver).device, DeviceArg::Cpu);
        assert!(choose(&Probe::NoDriver).reason.contains("no CUDA driver"));
        assert!(choose(&Probe::Unusable("code 999".into())).reason.contains("code 999"));
        let empty = Probe::Driver { cuda_version: (12, 9), devices: vec![] };
        assert!(choose(&empty).reason.contains("finds no device"));
        assert_eq!(choose(&gpu((8, 0))).device, DeviceArg::Cpu);
        assert!(choose(&gpu((8, 0))).reason.contains("compute capability 9.0"));
    }

    #[test]
    fn an_explicit_gpu_never_falls_back() {
        let ask = |probe: &Probe, ordinal| {
            choose(Some(DeviceArg::Cuda(ordinal)), probe)
                .map(|choice| choice.device)
                .map_err(|e| e.to_string())
        };
        let refused = |probe: &Probe, ordinal| ask(probe, ordinal).unwrap_err();
        assert!(
            refused(&Probe::NoDriver, 0).contains("--device cuda:0 cannot be used: there is no CUDA driver")
        );
        assert!(
            refused(&gpu((9, 0)), 3).contains("no device 3") && refused(&gpu((9, 0)), 3).contains("H200")
        );
        assert!(refused(&gpu((8, 0)), 0).contains("there are no kernels for cuda:0"));
        assert_eq!(ask(&gpu((9, 0)), 0), Ok(DeviceArg::Cuda(0)));
    }

    #[test]
    fn a_chosen_device_is_called_by_its_number_and_product() {
        assert_eq!(name(DeviceArg::Cpu, &gpu((9, 0))), "CPU");
        assert_eq!(name(DeviceArg::Cuda(0), &gpu((9, 0))), "cuda:0 H200");
    }

    #[test]
    fn an_explicit_cpu_needs_nothing() {
        let choice = choose(Some(DeviceArg::Cpu), &gpu((9, 0))).unwrap();
        assert_eq!(choice.device, DeviceArg::Cpu);
    }
}

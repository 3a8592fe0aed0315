//! Where a model runs, and why there.

use crate::cli::values::DeviceArg;
use oxide_infer_cuda::{DeviceInfo, Probe};

/// Whether this build can run models on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CudaExecutor {
    Absent,
}

/// What this build has.
pub(crate) const CUDA_EXECUTOR: CudaExecutor = CudaExecutor::Absent;

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
pub(crate) fn choose(
    asked: Option<DeviceArg>,
    probe: &Probe,
    executor: CudaExecutor,
) -> Result<Choice, DeviceError> {
    match asked {
        Some(DeviceArg::Cpu) => {
            Ok(Choice { device: DeviceArg::Cpu, reason: "--device cpu was given".to_owned() })
        }
        Some(DeviceArg::Cuda(ordinal)) => match obstacle(ordinal, probe, executor) {
            Some(why) => Err(DeviceError { ordinal, why }),
            None => Ok(Choice {
                device: DeviceArg::Cuda(ordinal),
                reason: format!("--device cuda:{ordinal} was given"),
            }),
        },
        None => Ok(match obstacle(0, probe, executor) {
            Some(why) => Choice { device: DeviceArg::Cpu, reason: format!("no GPU can be used: {why}") },
            None => {
                Choice { device: DeviceArg::Cuda(0), reason: "a driver and a device are there".to_owned() }
            }
        }),
    }
}

/// Why a CUDA device cannot run models here, if it cannot.
pub(crate) fn obstacle(ordinal: u32, probe: &Probe, executor: CudaExecutor) -> Option<String> {
    let devices = match probe {
        Probe::NoDriver => return Some("there is no CUDA driver (libcuda.so.1 cannot be loaded)".to_owned()),
        Probe::Unusable(message) => return Some(format!("the CUDA driver does not start: {message}")),
        Probe::Driver { devices, .. } => devices,
    };
    if devices.is_empty() {
        return Some("the CUDA driver finds no device".to_owned());
    }
    if !devices.iter().any(|device| device.ordinal == ordinal) {
        let list = devices.iter().map(describe).collect::<Vec<_>>().join(", ");
        return Some(format!("there is no device {ordinal}; there is {list}"));
    }
    match executor {
        CudaExecutor::Absent => Some("this build cannot run models on a GPU yet".to_owned()),
    }
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

    fn one_gpu() -> Probe {
        let device = DeviceInfo {
            ordinal: 0,
            name: "H200".to_owned(),
            compute_capability: (9, 0),
            total_memory: 1 << 30,
        };
        Probe::Driver { cuda_version: (12, 9), devices: vec![device] }
    }

    #[test]
    fn without_a_wish_the_cpu_is_taken_with_the_reason() {
        let choose = |probe: &Probe| choose(None, probe, CudaExecutor::Absent).unwrap();
        assert_eq!(choose(&Probe::NoDriver).device, DeviceArg::Cpu);
        assert!(choose(&Probe::NoDriver).reason.contains("no CUDA driver"));
        assert!(choose(&Probe::Unusable("code 999".into())).reason.contains("code 999"));
        let empty = Probe::Driver { cuda_version: (12, 9), devices: vec![] };
        assert!(choose(&empty).reason.contains("finds no device"));
        assert!(choose(&one_gpu()).reason.contains("this build cannot"));
    }

    #[test]
    fn an_explicit_gpu_never_falls_back() {
        let ask = |probe: &Probe, ordinal| {
            choose(Some(DeviceArg::Cuda(ordinal)), probe, CudaExecutor::Absent).unwrap_err().to_string()
        };
        assert!(ask(&Probe::NoDriver, 0).contains("--device cuda:0 cannot be used: there is no CUDA driver"));
        assert!(ask(&one_gpu(), 3).contains("no device 3") && ask(&one_gpu(), 3).contains("H200"));
        assert!(ask(&one_gpu(), 0).contains("this build cannot"));
    }

    #[test]
    fn an_explicit_cpu_needs_nothing() {
        let choice = choose(Some(DeviceArg::Cpu), &one_gpu(), CudaExecutor::Absent).unwrap();
        assert_eq!(choice.device, DeviceArg::Cpu);
    }
}

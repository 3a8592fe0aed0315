use std::fmt;

/// A driver call that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct CudaError {
    /// The call.
    pub call: &'static str,
    /// The driver's error number.
    pub code: u32,
    /// The driver's name for it.
    pub name: String,
}

impl CudaError {
    /// Whether the context is lost: every later call on it fails, and nothing that ran on it can be trusted.
    pub fn is_sticky(&self) -> bool {
        // ECC, NVLink and context loss; then 7xx from the device itself, less the launch and peer configuration
        // errors that the driver reports before anything runs.
        matches!(self.code, 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999)
    }

    /// Whether device memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == 2
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {} ({})", self.call, self.name, self.code)
    }
}

/// A call of a CUDA library (not of the driver) that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {name} ({code})")]
pub struct LibraryError {
    /// The call.
    pub call: &'static str,
    /// The library's status number.
    pub code: u32,
    /// The library's name for it.
    pub name: &'static str,
}

/// Why there is no driver to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The library is not on this machine.
    #[error("no CUDA driver: libcuda.so.1 was not found by the dynamic loader")]
    NoLibrary,
    /// The library lacks a call.
    #[error("the CUDA driver has no {missing}: driver 525 or newer is needed")]
    TooOld {
        /// The call.
        missing: &'static str,
    },
    /// It would not start.
    #[error(transparent)]
    Init(#[from] CudaError),
}

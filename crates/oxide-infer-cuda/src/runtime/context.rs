use super::reaper::Reaper;
use super::stream::Stream;
use crate::driver::{CudaError, DeviceInfo, Driver, DriverError, MemoryInfo, RawContext, RawStream, system};
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A device context, with the record of whether it is still sound. Cheap to clone; everything made from it keeps it.
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

struct ContextInner {
    driver: Arc<dyn Driver>,
    raw: RawContext,
    ownership: Ownership,
    device: DeviceInfo,
    /// The first sticky error; once set, nothing more is enqueued or freed on this context.
    poison: OnceLock<CudaError>,
    leaked_bytes: AtomicU64,
    reaper: Reaper,
}

enum Ownership {
    /// Retained from the driver, released with the last clone.
    Primary,
    /// The caller's, which is dropped with the last clone.
    External { _owner: Owner },
}

/// What keeps a handle of the caller's alive.
pub(crate) type Owner = Box<dyn Any + Send + Sync>;

/// Why a context cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// There is no driver.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The device does not exist.
    #[error("there is no CUDA device {ordinal}: the driver sees {count}")]
    NoDevice {
        /// Asked for.
        ordinal: u32,
        /// Devices that exist, numbered from 0.
        count: u32,
    },
    /// A driver call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl Context {
    /// The primary context of a device of this machine.
    ///
    /// # Errors
    ///
    /// No driver, no such device, or a driver call that fails.
    pub fn primary(ordinal: u32) -> Result<Self, ContextError> {
        Self::primary_on(system()?, ordinal)
    }

    /// The primary context of a device of the given driver.
    ///
    /// # Errors
    ///
    /// As [`Context::primary`].
    pub fn primary_on(driver: Arc<dyn Driver>, ordinal: u32) -> Result<Self, ContextError> {
        let count = driver.device_count()?;
        if ordinal >= count {
            return Err(ContextError::NoDevice { ordinal, count });
        }
        let device = driver.device_info(ordinal)?;
        // SAFETY: the ordinal exists; the retain is paired with the release in `drop`.
        let raw = unsafe { driver.primary_context_retain(ordinal)? };
        Self::new(driver, raw, Ownership::Primary, device)
    }

    /// A context that the caller owns: it is used and never destroyed. Every call leaves it current on the calling thread. What is
    /// made from one result does not mix with what is made from another of the same handle, so make one and clone it.
    ///
    /// `owner` is dropped when nothing made from the result is left, from whichever thread that is; `()` if the caller knows that
    /// by other means.
    ///
    /// # Errors
    ///
    /// No driver, or a driver call that fails.
    ///
    /// # Safety
    ///
    /// `raw` is a live `CUcontext` and stays so until `owner` is dropped.
    pub unsafe fn external(raw: RawContext, owner: impl Any + Send + Sync) -> Result<Self, ContextError> {
        // SAFETY: passed on to the caller.
        unsafe { Self::external_on(system()?, raw, owner) }
    }

    /// As [`Context::external`], of the given driver.
    ///
    /// # Errors
    ///
    /// A driver call that fails.
    ///
    /// # Safety
    ///
    /// As [`Context::external`].
    pub unsafe fn external_on(
        driver: Arc<dyn Driver>,
        raw: RawContext,
        owner: impl Any + Send + Sync,
    ) -> Result<Self, ContextError> {
        // SAFETY: the caller says the context is live.
        let ordinal = unsafe {
            driver.make_current(raw)?;
            driver.current_device()?
        };
        let device = driver.device_info(ordinal)?;
        Self::new(driver, raw, Ownership::External { _owner: Box::new(owner) }, device)
    }

    fn new(
        driver: Arc<dyn Driver>,
        raw: RawContext,
        ownership: Ownership,
        device: DeviceInfo,
    ) -> Result<Self, ContextError> {
        let reaper = Reaper::default();
        let inner = ContextInner {
            driver,
            raw,
            ownership,
            device,
            poison: OnceLock::new(),
            leaked_bytes: AtomicU64::new(0),
            reaper,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device it is on.
    pub fn device(&self) -> &DeviceInfo {
        &self.inner.device
    }

    /// The driver's version, major × 1000 + minor × 10: the CUDA version that it supports.
    ///
    /// # Errors
    ///
    /// The driver call fails.
    pub fn driver_version(&self) -> Result<u32, CudaError> {
        self.inner.driver.version()
    }

    /// Free and total device memory.
    ///
    /// # Errors
    ///
    /// The driver call fails, or the context is poisoned.
    pub fn memory_info(&self) -> Result<MemoryInfo, CudaError> {
        // SAFETY: `enter` made the context current.
        self.call(|driver| unsafe { driver.memory_info() })
    }

    /// A new stream, destroyed with its last clone.
    ///
    /// # Errors
    ///
    /// The driver call fails, or the context is poisoned.
    pub fn stream(&self) -> Result<Stream, CudaError> {
        Stream::owned(self)
    }

    /// A stream that the caller owns: it is used and never destroyed. `owner` is as for [`Context::external`].
    ///
    /// # Errors
    ///
    /// [`CudaError`] of the driver if the handle is not one of its streams, or is one of another context.
    ///
    /// # Safety
    ///
    /// `raw` is a live `CUstream`, and stays so until `owner` is dropped. No other [`Stream`] is made of it: clone
    /// this one. The caller begins no capture of it while a scope is open on it.
    pub unsafe fn external_stream(
        &self,
        raw: RawStream,
        owner: impl Any + Send + Sync,
    ) -> Result<Stream, CudaError> {
        // SAFETY: passed on to the caller.
        unsafe { Stream::external(self, raw, Box::new(owner)) }
    }

    /// The sticky error that ended this context, if one has.
    pub fn poison(&self) -> Option<&CudaError> {
        self.inner.poison.get()
    }

    /// Bytes of device and pinned memory that a poisoned context kept from being freed.
    pub fn leaked_bytes(&self) -> u64 {
        self.inner.leaked_bytes.load(Ordering::Relaxed)
    }

    /// Completions that were dropped before they settled and still hold leases.
    pub fn unsettled(&self) -> usize {
        self.inner.reaper.pending()
    }

    /// Whether both are the same context.
    pub fn same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn raw(&self) -> RawContext {
        self.inner.raw
    }

    pub(crate) fn reaper(&self) -> &Reaper {
        &self.inner.reaper
    }

    pub(crate) fn count_leak(&self, bytes: u64) {
        self.inner.leaked_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Makes the context current and calls the driver; a sticky error poisons the context, and a poisoned context
    /// answers with that first error instead of calling.
    pub(crate) fn call<T>(
        &self,
        call: impl FnOnce(&dyn Driver) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        if let Some(error) = self.poison() {
            return Err(error.clone());
        }
        let driver = &*self.inner.driver;
        // SAFETY: the context is live: this object retains it, or its owner does.
        let result = unsafe { driver.make_current(self.inner.raw) }.and_then(|()| call(driver));
        if let Err(error) = &result
            && error.is_sticky()
        {
            // The first error is the cause; a racing second one adds nothing.
            let _ = self.inner.poison.set(error.clone());
        }
        result
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        if let Ownership::Primary = self.ownership {
            // SAFETY: paired with the retain in `primary_on`; every object of this context holds it, so none is left.
            // A failure leaves nothing to do: the process is ending its use of the device.
            let _ = unsafe { self.driver.primary_context_release(self.device.ordinal) };
        }
    }
}

use super::status::StatusWord;
use super::stream::{Event, Stream};
use crate::artifact::status::DeviceStatus;
use crate::driver::{CudaError, Progress};
use std::sync::Arc;

/// What a completion keeps from being freed: memory, a module, a captured graph.
pub(crate) trait Leased: Send + Sync {}
impl<T: Send + Sync> Leased for T {}
pub(crate) type Lease = Arc<dyn Leased>;

/// Work that the device may not have ended yet, with leases on everything that it touches.
///
/// It settles once, through [`Completion::wait`] or [`Completion::poll`]. Dropping it before that neither blocks nor
/// frees anything: its leases go to the context's reaper, which gives them back when the device is done.
#[must_use = "dropping a completion discards the device's verdict on its work"]
pub struct Completion {
    unsettled: Option<Unsettled>,
}

/// Why work that was enqueued did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    /// The driver reports a failure; see [`CudaError::is_sticky`].
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A kernel found its input wrong, wrote nothing outside its outputs, and said so.
    #[error(transparent)]
    Device(#[from] DeviceStatus),
}

/// The parts of a scope that are used again by the next one on its stream.
pub(crate) struct ScopeParts {
    pub(super) event: Event,
    pub(super) leases: Vec<Lease>,
    pub(super) statuses: Vec<StatusWord>,
}

pub(crate) struct Unsettled {
    pub(super) stream: Stream,
    pub(super) parts: ScopeParts,
}

impl Unsettled {
    pub(super) fn settle(self) -> Result<(), CompletionError> {
        let ended = self.parts.event.synchronize();
        self.close(ended)
    }

    /// Gives the leases back and says how the work ended.
    fn close(mut self, ended: Result<(), CudaError>) -> Result<(), CompletionError> {
        let fault = self.parts.statuses.iter().find_map(StatusWord::fault);
        self.parts.leases.clear();
        self.parts.statuses.clear();
        // An event of a lost context cannot be recorded again.
        if ended.is_ok() {
            self.stream.recycle(self.parts);
        }
        ended?;
        fault.map_or(Ok(()), |fault| Err(fault.into()))
    }
}

impl Completion {
    pub(super) fn new(unsettled: Unsettled) -> Self {
        Self { unsettled: Some(unsettled) }
    }

    /// Blocks the calling thread until the work has ended.
    ///
    /// # Errors
    ///
    /// What it failed with.
    pub fn wait(mut self) -> Result<(), CompletionError> {
        self.unsettled.take().map_or(Ok(()), Unsettled::settle)
    }

    /// Settles if the work has ended; never blocks. Once it has said [`Progress::Done`] or an error, it stays `Done`.
    ///
    /// # Errors
    ///
    /// What the work failed with.
    pub fn poll(&mut self) -> Result<Progress, CompletionError> {
        let Some(unsettled) = self.unsettled.take() else {
            return Ok(Progress::Done);
        };
        match unsettled.parts.event.query() {
            Ok(Progress::Pending) => {
                self.unsettled = Some(unsettled);
                Ok(Progress::Pending)
            }
            Ok(Progress::Done) => unsettled.close(Ok(())).map(|()| Progress::Done),
            Err(error) => unsettled.close(Err(error)).map(|()| Progress::Done),
        }
    }

    /// Everything enqueued on `stream` after this waits, on the device, for this work. The host does not.
    ///
    /// # Errors
    ///
    /// The driver call fails, or the context is poisoned.
    pub fn before(&self, stream: &Stream) -> Result<(), CudaError> {
        self.unsettled.as_ref().map_or(Ok(()), |unsettled| stream.wait(&unsettled.parts.event))
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(unsettled) = self.unsettled.take() {
            let context = unsettled.stream.context().clone();
            context.reaper().take(unsettled);
        }
    }
}

use super::completion::{Completion, Lease, Unsettled};
use super::context::Context;
use super::kernel::BoundLaunch;
use super::memory::{PinnedMemory, Region, Span};
use super::status::StatusWord;
use super::stream::{Event, Open, Stream};
use crate::driver::{CudaError, LibraryError, RawStream};
use oxide_infer::Element;

/// Checked work on one stream, enqueued as it is called, in order.
///
/// Enqueueing allocates no device memory, compiles nothing and does not block. [`CommandScope::finish`] turns the scope
/// into the [`Completion`] that holds leases on all that was enqueued; dropping the scope instead does the same and
/// drops the completion.
///
/// Several scopes may be open and in flight on one stream; while one is open, the stream cannot be captured.
pub struct CommandScope {
    work: Option<Unsettled>,
    mode: Mode,
}

/// What becomes of what is enqueued.
enum Mode {
    Runs { _open: Open },
    Captured,
}

/// Why an operation was not enqueued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    /// The two sides of a copy differ in size.
    #[error("a copy of {from} bytes into {to} bytes")]
    SizeMismatch {
        /// Bytes of the source.
        from: usize,
        /// Bytes of the destination.
        to: usize,
    },
    /// The two sides of a copy overlap.
    #[error("a copy onto itself: source and destination overlap")]
    Overlap,
    /// Something belongs to another context than the scope's stream.
    #[error("{what} belongs to another context than the stream")]
    OtherContext {
        /// What.
        what: &'static str,
    },
    /// The launch of an operator is refused.
    #[error("{artifact}: {source}")]
    Operator {
        /// The artifact.
        artifact: String,
        /// The driver's answer.
        source: CudaError,
    },
    /// A library refuses what it is asked to enqueue.
    #[error("{algorithm}: {source}")]
    Library {
        /// The provider's algorithm.
        algorithm: String,
        /// The library's answer.
        source: LibraryError,
    },
    /// An event of the caller's is not a part of a graph.
    #[error("an event cannot be {what} while the stream is captured")]
    Captured {
        /// Waited for, or recorded.
        what: &'static str,
    },
    /// The driver call fails, or the context is poisoned.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl CommandScope {
    /// Begins work on a stream.
    ///
    /// # Errors
    ///
    /// The context is poisoned, the stream is captured (900), or it has no event to use again and a new one cannot be made.
    pub fn new(stream: &Stream) -> Result<Self, CudaError> {
        let mode = Mode::Runs { _open: stream.open()? };
        Self::of(stream, mode)
    }

    /// Begins what a graph is made of, on a stream that no other scope is open on.
    pub(super) fn captured(stream: &Stream) -> Result<Self, CudaError> {
        Self::of(stream, Mode::Captured)
    }

    fn of(stream: &Stream, mode: Mode) -> Result<Self, CudaError> {
        let parts = stream.scope_parts()?;
        Ok(Self { work: Some(Unsettled { stream: stream.clone(), parts }), mode })
    }

    /// Enqueues a kernel that was bound to its operands.
    ///
    /// # Errors
    ///
    /// Another context, a refused launch, or a poisoned context.
    pub fn launch(&mut self, launch: &BoundLaunch) -> Result<(), EnqueueError> {
        let Some(work) = &self.work else { return Ok(()) };
        same_context(work, launch.context(), "the kernel")?;
        launch.enqueue(&work.stream)?;
        self.lease(launch.lease());
        if let Some(status) = launch.status() {
            self.watch(status);
        }
        Ok(())
    }

    /// Copies pinned host memory into a region of the same size.
    ///
    /// # Errors
    ///
    /// Sizes differ, another context, or the driver call fails.
    pub fn copy_in<T: Element>(
        &mut self,
        from: &PinnedMemory<T>,
        to: &Region<T>,
    ) -> Result<(), EnqueueError> {
        same_size(from.len() * size_of::<T>(), to.bytes())?;
        self.enqueue(&[to.span()], |driver, stream| {
            // SAFETY: both sides are live, as long as each other, and leased until the copy has ended.
            unsafe { driver.copy_to_device(to.span().ptr(), from.ptr().cast(), to.bytes(), stream) }
        })?;
        self.lease(from.lease());
        Ok(())
    }

    /// Copies a region into pinned host memory of the same size.
    ///
    /// # Errors
    ///
    /// Sizes differ, another context, or the driver call fails.
    pub fn copy_out<T: Element>(
        &mut self,
        from: &Region<T>,
        to: &PinnedMemory<T>,
    ) -> Result<(), EnqueueError> {
        same_size(from.bytes(), to.len() * size_of::<T>())?;
        self.enqueue(&[from.span()], |driver, stream| {
            // SAFETY: both sides are live, as long as each other, and leased until the copy has ended.
            unsafe { driver.copy_to_host(to.ptr().cast(), from.span().ptr(), from.bytes(), stream) }
        })?;
        self.lease(to.lease());
        Ok(())
    }

    /// Copies a region over another of the same size.
    ///
    /// # Errors
    ///
    /// Sizes differ, the two overlap, another context, or the driver call fails.
    pub fn copy<T: Element>(&mut self, from: &Region<T>, to: &Region<T>) -> Result<(), EnqueueError> {
        same_size(from.bytes(), to.bytes())?;
        if from.span().overlaps(&to.span()) {
            return Err(EnqueueError::Overlap);
        }
        self.enqueue(&[from.span(), to.span()], |driver, stream| {
            // SAFETY: both sides are live, apart, as long as each other, and leased until the copy has ended.
            unsafe { driver.copy_on_device(to.span().ptr(), from.span().ptr(), from.bytes(), stream) }
        })
    }

    /// Sets every byte of a region.
    ///
    /// # Errors
    ///
    /// Another context, or the driver call fails.
    pub fn fill<T: Element>(&mut self, region: &Region<T>, byte: u8) -> Result<(), EnqueueError> {
        self.enqueue(&[region.span()], |driver, stream| {
            // SAFETY: the region is live and leased until the fill has ended; any byte is a valid element.
            unsafe { driver.fill(region.span().ptr(), byte, region.bytes(), stream) }
        })
    }

    /// Everything enqueued after this waits, on the device, for an event of the caller's.
    ///
    /// # Errors
    ///
    /// Another context, a scope that is captured, a driver call that fails, or a poisoned context.
    pub fn wait(&mut self, event: &Event) -> Result<(), EnqueueError> {
        let Some(work) = &self.work else { return Ok(()) };
        same_context(work, event.context(), "the event")?;
        self.check_not_captured("waited for")?;
        Ok(work.stream.wait(event)?)
    }

    /// Moves an event of the caller's to the end of what is enqueued so far. What waits for it on another stream waits on the
    /// device; the host does not.
    ///
    /// # Errors
    ///
    /// As [`CommandScope::wait`].
    pub fn record(&mut self, event: &Event) -> Result<(), EnqueueError> {
        let Some(work) = &self.work else { return Ok(()) };
        same_context(work, event.context(), "the event")?;
        self.check_not_captured("recorded")?;
        Ok(event.record(&work.stream)?)
    }

    fn check_not_captured(&self, what: &'static str) -> Result<(), EnqueueError> {
        match self.mode {
            Mode::Runs { .. } => Ok(()),
            Mode::Captured => Err(EnqueueError::Captured { what }),
        }
    }

    /// Enqueues what a library launches on the stream by itself.
    pub(crate) fn call_library(
        &mut self,
        context: &Context,
        lease: Lease,
        algorithm: impl FnOnce() -> String,
        call: impl FnOnce(RawStream) -> Result<(), LibraryError>,
    ) -> Result<(), EnqueueError> {
        let Some(work) = &self.work else { return Ok(()) };
        same_context(work, context, "the plan")?;
        let stream = work.stream.clone();
        // Before the call: one that fails may have enqueued a part of its work.
        self.lease(lease);
        context
            .call(|_| Ok(call(stream.raw())))?
            .map_err(|source| EnqueueError::Library { algorithm: algorithm(), source })
    }

    /// Ends the scope.
    ///
    /// # Errors
    ///
    /// The end of the work cannot be marked. What was enqueued keeps its leases for good then: nothing could tell when
    /// the device is done with them.
    pub fn finish(mut self) -> Result<Completion, CudaError> {
        match self.work.take() {
            Some(work) => close(work),
            None => Err(CudaError { call: "finish", code: 400, name: "the scope has ended".to_owned() }),
        }
    }

    /// Keeps something until the work has ended.
    pub(super) fn lease(&mut self, lease: Lease) {
        if let Some(work) = &mut self.work {
            work.parts.leases.push(lease);
        }
    }

    /// Reports the status's fault when the work settles.
    pub(super) fn watch(&mut self, status: &StatusWord) {
        if let Some(work) = &mut self.work {
            work.parts.statuses.push(status.clone());
        }
    }

    /// What was enqueued while the stream was captured: nothing runs, so the graph takes over its leases.
    pub(super) fn into_captured(mut self) -> (Vec<Lease>, Vec<StatusWord>) {
        let parts = self.work.take().map(|work| work.parts);
        parts.map_or_else(Default::default, |parts| (parts.leases, parts.statuses))
    }

    /// Ends a scope in which nothing was enqueued.
    pub(super) fn abandon(mut self) {
        self.work = None;
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        self.work.as_ref().map(|work| &work.stream)
    }

    fn enqueue(
        &mut self,
        spans: &[Span<'_>],
        call: impl FnOnce(&dyn crate::driver::Driver, RawStream) -> Result<(), CudaError>,
    ) -> Result<(), EnqueueError> {
        let Some(work) = &mut self.work else { return Ok(()) };
        for span in spans {
            same_context(work, span.memory.context(), "the region")?;
        }
        work.stream.context().call(|driver| call(driver, work.stream.raw()))?;
        work.parts.leases.extend(spans.iter().map(|span| span.memory.lease()));
        Ok(())
    }
}

impl Drop for CommandScope {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            // The completion is dropped unsettled on purpose: the reaper gives the leases back.
            let _ = close(work);
        }
    }
}

fn close(work: Unsettled) -> Result<Completion, CudaError> {
    match work.parts.event.record_at_end(&work.stream) {
        Ok(()) => Ok(Completion::new(work)),
        Err(error) => {
            std::mem::forget(work.parts.leases);
            Err(error)
        }
    }
}

fn same_size(from: usize, to: usize) -> Result<(), EnqueueError> {
    if from == to { Ok(()) } else { Err(EnqueueError::SizeMismatch { from, to }) }
}

fn same_context(work: &Unsettled, context: &Context, what: &'static str) -> Result<(), EnqueueError> {
    if work.stream.context().same(context) { Ok(()) } else { Err(EnqueueError::OtherContext { what }) }
}

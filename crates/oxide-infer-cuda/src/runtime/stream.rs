use super::completion::ScopeParts;
use super::context::{Context, Owner};
use crate::driver::{Capture, CudaError, EventTiming, Progress, RawEvent, RawStream};
use std::any::Any;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An ordered queue of device work. Cheap to clone; an owned stream is destroyed with its last clone.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<StreamInner>,
}

struct StreamInner {
    raw: RawStream,
    ownership: Ownership,
    /// Parts of settled scopes, so that a new scope makes no event and its lists have room. The lock is taken twice a
    /// scope, never per launch, and only a reaper ever contends for it.
    spare: Mutex<Vec<ScopeParts>>,
    /// Scopes that are open, or [`CAPTURED`].
    open: AtomicIsize,
    /// Last, so that the owner of the stream is dropped before that of its context.
    context: Context,
}

/// Everything enqueued on the stream goes into a graph, which keeps what its own scope leases and nothing else.
const CAPTURED: isize = -1;

enum Ownership {
    Owned,
    /// The caller's, which is dropped with the last clone.
    External {
        _owner: Owner,
    },
}

fn captured(call: &'static str) -> CudaError {
    CudaError { call, code: 900, name: "the stream is being captured".to_owned() }
}

/// A scope that is open on a stream.
pub(super) struct Open(Stream);

/// A capture of a stream, on which no scope is open.
pub(super) struct Exclusive(Stream);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.inner.open.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.0.inner.open.store(0, Ordering::Release);
    }
}

impl Stream {
    pub(super) fn owned(context: &Context) -> Result<Self, CudaError> {
        // SAFETY: the context is current; the stream is destroyed in `drop`.
        let raw = context.call(|driver| unsafe { driver.stream_create() })?;
        Ok(Self::new(context, raw, Ownership::Owned))
    }

    /// # Safety
    ///
    /// `raw` is a live stream until `owner` is dropped.
    pub(super) unsafe fn external(
        context: &Context,
        raw: RawStream,
        owner: Owner,
    ) -> Result<Self, CudaError> {
        // SAFETY: the caller says the stream is live.
        let found = context.call(|driver| unsafe { driver.stream_context(raw) })?;
        if found != context.raw() {
            return Err(CudaError {
                call: "cuStreamGetCtx",
                code: 201,
                name: "the stream belongs to another context".to_owned(),
            });
        }
        Ok(Self::new(context, raw, Ownership::External { _owner: owner }))
    }

    fn new(context: &Context, raw: RawStream, ownership: Ownership) -> Self {
        let (spare, open) = (Mutex::default(), AtomicIsize::new(0));
        Self { inner: Arc::new(StreamInner { context: context.clone(), raw, ownership, spare, open }) }
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Everything enqueued after this waits, on the device, for what was recorded before `event`.
    ///
    /// # Errors
    ///
    /// The driver call fails, the stream is being captured, or the context is poisoned.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        self.not_captured("Stream::wait")?;
        // SAFETY: both handles are live: their objects are borrowed.
        self.context().call(|driver| unsafe { driver.stream_wait(self.raw(), event.raw()) })
    }

    /// Blocks the calling thread until everything enqueued has ended.
    ///
    /// # Errors
    ///
    /// What that work failed with, or a poisoned context.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is live.
        self.context().call(|driver| unsafe { driver.stream_synchronize(self.raw()) })
    }

    /// Whether both are the same stream.
    pub fn same(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Work of other streams that joined a capture would be in its graph without the leases that the graph keeps.
    fn not_captured(&self, call: &'static str) -> Result<(), CudaError> {
        if self.inner.open.load(Ordering::Acquire) == CAPTURED { Err(captured(call)) } else { Ok(()) }
    }

    /// Opens one scope more, unless the stream is captured.
    pub(super) fn open(&self) -> Result<Open, CudaError> {
        let more = |open| (open != CAPTURED).then_some(open + 1);
        let opened = self.inner.open.fetch_update(Ordering::Acquire, Ordering::Relaxed, more);
        let open = opened.map(|_| Open(self.clone())).map_err(|_| captured("CommandScope::new"))?;
        // Our own captures keep scopes out; of the caller's only the driver knows.
        if let Ownership::External { .. } = self.inner.ownership {
            // SAFETY: the stream is live.
            match self.context().call(|driver| unsafe { driver.stream_capture(self.raw()) })? {
                Capture::None => {}
                Capture::Active => return Err(captured("CommandScope::new")),
            }
        }
        Ok(open)
    }

    /// Keeps scopes off the stream, unless one is open.
    pub(super) fn exclusive(&self) -> Option<Exclusive> {
        let open = self.inner.open.compare_exchange(0, CAPTURED, Ordering::Acquire, Ordering::Relaxed);
        open.is_ok().then(|| Exclusive(self.clone()))
    }

    pub(super) fn scope_parts(&self) -> Result<ScopeParts, CudaError> {
        if let Some(parts) = self.spare().pop() {
            return Ok(parts);
        }
        let event = Event::new(self.context(), EventTiming::Disabled)?;
        Ok(ScopeParts { event, leases: Vec::new(), statuses: Vec::new() })
    }

    pub(super) fn recycle(&self, parts: ScopeParts) {
        self.spare().push(parts);
    }

    fn spare(&self) -> MutexGuard<'_, Vec<ScopeParts>> {
        self.inner.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn raw(&self) -> RawStream {
        self.inner.raw
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if let Ownership::Owned = self.ownership {
            // SAFETY: created by `owned`, destroyed once. The driver lets enqueued work end before it frees the stream,
            // and a failure means that the context is lost, with the stream.
            let _ = self.context.call(|driver| unsafe { driver.stream_destroy(self.raw) });
        }
    }
}

/// A point in a stream.
pub struct Event {
    raw: RawEvent,
    ownership: Ownership,
    /// Last, so that the owner of the event is dropped before that of its context.
    context: Context,
}

impl Event {
    /// A new event, not recorded yet (which counts as reached).
    ///
    /// # Errors
    ///
    /// The driver call fails, or the context is poisoned.
    pub fn new(context: &Context, timing: EventTiming) -> Result<Self, CudaError> {
        // SAFETY: the context is current; the event is destroyed in `drop`.
        let raw = context.call(|driver| unsafe { driver.event_create(timing) })?;
        Ok(Self { context: context.clone(), raw, ownership: Ownership::Owned })
    }

    /// An event that the caller owns: it is used and never destroyed. `owner` is dropped with the result.
    ///
    /// # Safety
    ///
    /// `raw` is a live `CUevent` of `context`, and stays so until `owner` is dropped.
    pub unsafe fn external(context: &Context, raw: RawEvent, owner: impl Any + Send + Sync) -> Self {
        Self { context: context.clone(), raw, ownership: Ownership::External { _owner: Box::new(owner) } }
    }

    /// Moves the event to the end of what is enqueued on `stream` now.
    ///
    /// # Errors
    ///
    /// The driver call fails, the stream is being captured, or the context is poisoned.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.not_captured("Event::record")?;
        self.record_at_end(stream)
    }

    /// As [`Event::record`], for a scope that ends.
    pub(super) fn record_at_end(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are live: their objects are borrowed.
        self.context.call(|driver| unsafe { driver.event_record(self.raw, stream.raw()) })
    }

    /// Whether the device has reached it.
    ///
    /// # Errors
    ///
    /// What the work before it failed with, or a poisoned context.
    pub fn query(&self) -> Result<Progress, CudaError> {
        // SAFETY: the event is live.
        self.context.call(|driver| unsafe { driver.event_query(self.raw) })
    }

    /// Blocks the calling thread until the device has reached it.
    ///
    /// # Errors
    ///
    /// What the work before it failed with, or a poisoned context.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the event is live.
        self.context.call(|driver| unsafe { driver.event_synchronize(self.raw) })
    }

    /// Milliseconds from `start` to this event; both are reached and were made with [`EventTiming::Enabled`].
    ///
    /// # Errors
    ///
    /// The driver call fails (one is not reached or keeps no time), or the context is poisoned.
    pub fn elapsed_since(&self, start: &Event) -> Result<f32, CudaError> {
        // SAFETY: both handles are live: their objects are borrowed.
        self.context.call(|driver| unsafe { driver.event_elapsed(start.raw, self.raw) })
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn raw(&self) -> RawEvent {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ownership::Owned = self.ownership {
            // SAFETY: created by `new`, destroyed once; the driver waits for a pending record by itself.
            let _ = self.context.call(|driver| unsafe { driver.event_destroy(self.raw) });
        }
    }
}

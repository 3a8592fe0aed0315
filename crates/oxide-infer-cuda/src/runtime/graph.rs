use super::completion::Lease;
use super::context::Context;
use super::scope::{CommandScope, EnqueueError};
use super::status::StatusWord;
use super::stream::Stream;
use crate::driver::{CudaError, RawGraph, RawGraphExec, RawStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Work captured once, with every address and argument fixed, and replayed as one launch. It keeps leases on all that
/// it touches for as long as it lives, and every replay keeps it.
#[derive(Clone)]
pub struct Graph {
    inner: Arc<GraphInner>,
}

struct GraphInner {
    context: Context,
    stream: Stream,
    exec: RawGraphExec,
    /// The driver wants calls on one graph one after another.
    launching: Mutex<()>,
    nodes: usize,
    statuses: Vec<StatusWord>,
    /// Keeps what the captured work touches; never read.
    _leases: Vec<Lease>,
}

/// Why work cannot be captured or replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// The work cannot be enqueued.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// The graph is replayed on a stream that it was not captured for, where two replays could run at once over the
    /// same memory.
    #[error("a graph is replayed on the stream that it was captured for, and on no other")]
    OtherStream,
    /// Scopes are open on the stream: what they enqueue would go into the graph, without a lease on what it touches.
    #[error("a stream cannot be captured while another scope is open on it")]
    ScopeOpen,
    /// Nothing was enqueued.
    #[error("nothing was enqueued while the graph was captured")]
    Empty,
    /// A driver call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl Graph {
    /// Captures what `body` enqueues, without running it.
    ///
    /// # Errors
    ///
    /// The body's own error, nothing enqueued, or a capture that the driver refuses. The stream is usable afterwards in
    /// every case.
    pub fn capture(
        stream: &Stream,
        body: impl FnOnce(&mut CommandScope) -> Result<(), EnqueueError>,
    ) -> Result<Self, GraphError> {
        let context = stream.context();
        // Until the capture has ended, so that no other scope's work gets into it.
        let _exclusive = stream.exclusive().ok_or(GraphError::ScopeOpen)?;
        let mut scope = CommandScope::captured(stream)?;
        let capturing = match Capturing::begin(stream) {
            Ok(capturing) => capturing,
            Err(error) => {
                scope.abandon();
                return Err(error.into());
            }
        };
        let enqueued = body(&mut scope);
        let (leases, statuses) = scope.into_captured();
        let captured = capturing.end();
        enqueued?;
        let graph = captured?;
        // SAFETY: the graph was just captured.
        let nodes = context.call(|driver| unsafe { driver.graph_node_count(graph.raw) })?;
        if nodes == 0 {
            return Err(GraphError::Empty);
        }
        // SAFETY: as above; the executable is destroyed with `GraphInner`.
        let exec = context.call(|driver| unsafe { driver.graph_instantiate(graph.raw) })?;
        let inner = GraphInner {
            context: context.clone(),
            stream: stream.clone(),
            exec,
            launching: Mutex::default(),
            nodes,
            statuses,
            _leases: leases,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Nodes in the graph: launches, copies and fills.
    pub fn nodes(&self) -> usize {
        self.inner.nodes
    }

    /// Enqueues the captured work once more.
    ///
    /// # Errors
    ///
    /// Another stream than the captured one, or a driver call that fails.
    pub fn replay(&self, scope: &mut CommandScope) -> Result<(), GraphError> {
        let inner = &self.inner;
        let stream = scope.stream().filter(|stream| stream.same(&inner.stream));
        let Some(stream) = stream else {
            return Err(GraphError::OtherStream);
        };
        let launching = inner.launching.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the executable is live, and leased by the scope below.
        inner.context.call(|driver| unsafe { driver.graph_launch(inner.exec, stream.raw()) })?;
        drop(launching);
        scope.lease(inner.clone());
        for status in &inner.statuses {
            scope.watch(status);
        }
        Ok(())
    }
}

impl Drop for GraphInner {
    fn drop(&mut self) {
        // SAFETY: instantiated once, destroyed once; every replay leases this object, so none is in flight.
        let _ = self.context.call(|driver| unsafe { driver.graph_exec_destroy(self.exec) });
    }
}

/// Captures what `call` enqueues on a stream of its own, makes it ready to run, and throws it away: nothing runs, but the driver
/// has loaded its kernels, which it otherwise does when they are launched first.
pub(crate) fn rehearse(context: &Context, call: impl FnOnce(RawStream)) -> Result<(), CudaError> {
    let stream = context.stream()?;
    let capturing = Capturing::begin(&stream)?;
    context.call(|_| {
        call(stream.raw());
        Ok(())
    })?;
    let graph = capturing.end()?;
    // SAFETY: the graph was just captured, and the executable is destroyed at once.
    context.call(|driver| unsafe {
        let exec = driver.graph_instantiate(graph.raw)?;
        driver.graph_exec_destroy(exec)
    })
}

/// A stream between the beginning and the end of its capture, which ends whatever happens in between.
struct Capturing<'a> {
    stream: &'a Stream,
}

impl<'a> Capturing<'a> {
    fn begin(stream: &'a Stream) -> Result<Self, CudaError> {
        // SAFETY: the stream is live; the capture is ended by `end` or `drop`, and nothing moves it to another thread.
        stream.context().call(|driver| unsafe { driver.capture_begin(stream.raw()) })?;
        Ok(Self { stream })
    }

    fn end(self) -> Result<CapturedGraph<'a>, CudaError> {
        let stream = self.stream;
        std::mem::forget(self);
        // SAFETY: begun by `begin`, and ended once.
        let raw = stream.context().call(|driver| unsafe { driver.capture_end(stream.raw()) })?;
        Ok(CapturedGraph { context: stream.context(), raw })
    }
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        // After a panic: the stream is usable again, and what was captured is nobody's.
        drop(Capturing { stream: self.stream }.end());
    }
}

struct CapturedGraph<'a> {
    context: &'a Context,
    raw: RawGraph,
}

impl Drop for CapturedGraph<'_> {
    fn drop(&mut self) {
        // SAFETY: captured once, destroyed once; an executable does not need it any more.
        let _ = self.context.call(|driver| unsafe { driver.graph_destroy(self.raw) });
    }
}

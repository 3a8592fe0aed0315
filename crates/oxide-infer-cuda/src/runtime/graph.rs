use super::completion::Lease;
use super::context::Context;
use super::scope::{CommandScope, EnqueueError};
use super::status::StatusWord;
use super::stream::Stream;
use crate::driver::{CudaError, RawGraph, RawGraphExec, RawStream};
use std::sync::Arc;

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
        let mut scope = CommandScope::new(stream)?;
        // SAFETY: the stream is live; the capture is ended below on every path.
        if let Err(error) = context.call(|driver| unsafe { driver.capture_begin(stream.raw()) }) {
            scope.abandon();
            return Err(error.into());
        }
        let enqueued = body(&mut scope);
        let (leases, statuses) = scope.into_captured();
        // SAFETY: begun above, on this thread.
        let captured = context.call(|driver| unsafe { driver.capture_end(stream.raw()) });
        enqueued?;
        let graph = CapturedGraph { context, raw: captured? };
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
        // SAFETY: the executable is live, and leased by the scope below.
        inner.context.call(|driver| unsafe { driver.graph_launch(inner.exec, stream.raw()) })?;
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

/// Captures what `call` enqueues on a stream of its own and throws it away: nothing runs, but the driver has loaded its kernels,
/// which it otherwise does when they are launched first.
pub(crate) fn rehearse(context: &Context, call: impl FnOnce(RawStream)) -> Result<(), CudaError> {
    let stream = context.stream()?;
    // SAFETY: the stream is live; the capture is ended below.
    context.call(|driver| unsafe { driver.capture_begin(stream.raw()) })?;
    let called = context.call(|_| {
        call(stream.raw());
        Ok(())
    });
    // SAFETY: begun above, on this thread.
    let raw = context.call(|driver| unsafe { driver.capture_end(stream.raw()) })?;
    drop(CapturedGraph { context, raw });
    called
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

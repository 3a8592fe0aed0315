//! The way into a running engine: submit requests, read their events, watch and stop the engine.

use crate::admission::{self, Place, Queue};
use crate::batch::{Executor, ExecutorLimits, PlanGoal};
use crate::metrics::{EngineMetrics, OperatorCounters};
use crate::request::{
    ChoiceIndex, EngineEvent, EngineRequest, MaskError, RequestError, RequestId, SubmitError,
};
use crossbeam_channel::Sender;
use oxide_infer::sampling::TokenMask;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// A running engine. Clones share it; the engine ends when the last handle and the last stream are gone.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

/// How the engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It takes requests.
    Running,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// It ended in good order.
    Stopped,
    /// The executor failed, or the engine thread panicked. No request can be served any more.
    Failed(String),
}

/// How a drain went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOutcome {
    /// Every request ended by itself.
    Complete,
    /// Time was up; the requests that were left have failed with [`RequestError::ShutDown`].
    CutShort,
    /// Time was up and the engine did not stop within five seconds even so: the executor hangs in a step, or takes that
    /// long for one.
    Hung,
}

impl EngineHandle {
    pub(crate) fn new(shared: Arc<Shared>, commands: Sender<Command>) -> Self {
        Self { shared, commands }
    }

    /// Puts a request into the queue. Never blocks.
    ///
    /// # Errors
    /// The queue is full, the engine has ended or is ending, or the request could never be finished.
    pub fn submit(&self, request: EngineRequest) -> Result<EventStream, SubmitError> {
        match self.health() {
            Health::Running => {}
            Health::Draining | Health::Stopped => return Err(SubmitError::ShuttingDown),
            Health::Failed(message) => return Err(SubmitError::Failed(message)),
        }
        admission::check(&request, &self.shared.limits)?;
        let arrived = Instant::now();
        let place = self.shared.queue.take_place(arrived)?;
        let id = RequestId(self.shared.next_id.fetch_add(1, Relaxed));
        let choices = request.choices.get();
        // The channel has no bound because the engine must never wait for a client; what can pile up is bounded by the
        // request's own `max_tokens`.
        let (sender, events) = mpsc::unbounded_channel();
        let submission = Submission { id, request, arrived, place, events: sender };
        // If the engine has just ended the submission is dropped here, and the stream tells why.
        let _ = self.commands.send(Command::Submit(Box::new(submission)));
        Ok(EventStream {
            id,
            open_choices: choices,
            events,
            shared: self.shared.clone(),
            commands: self.commands.clone(),
        })
    }

    /// Supplies the mask under which token `index` (from 0) of a choice is sampled. It is for the first token that no step
    /// samples yet; a mask for another one, or for a request that has ended, does nothing.
    ///
    /// # Errors
    /// The mask is for another vocabulary, or admits no token.
    pub fn supply_mask(
        &self,
        request: RequestId,
        choice: ChoiceIndex,
        index: u32,
        mask: Arc<TokenMask>,
    ) -> Result<(), MaskError> {
        let (got, expected) = (mask.vocab_size(), self.shared.limits.vocab_size);
        if got != expected {
            return Err(MaskError::VocabSize { got, expected });
        }
        if mask.words().iter().all(|word| *word == 0) {
            return Err(MaskError::Empty);
        }
        self.send(Command::Mask { request, choice, index, mask });
        Ok(())
    }

    /// Requests that may wait for their first step.
    pub fn max_waiting(&self) -> usize {
        self.shared.queue.limit()
    }

    /// What the executor was planned for.
    pub fn limits(&self) -> ExecutorLimits {
        self.shared.limits
    }

    /// What the executor's operators were chosen for.
    pub fn goal(&self) -> PlanGoal {
        self.shared.goal
    }

    /// The engine's counters.
    pub fn metrics(&self) -> Arc<EngineMetrics> {
        self.shared.metrics.clone()
    }

    /// How often the executor has executed each operator artifact; empty of an executor that has none.
    pub fn operators(&self) -> Arc<OperatorCounters> {
        self.shared.operators.clone()
    }

    /// How the engine is now.
    pub fn health(&self) -> Health {
        self.shared.health.borrow().clone()
    }

    /// Waits until the engine has ended and says how: [`Health::Stopped`] or [`Health::Failed`].
    pub async fn ended(&self) -> Health {
        let mut health = self.shared.health.subscribe();
        match health.wait_for(|health| matches!(health, Health::Stopped | Health::Failed(_))).await {
            Ok(health) => health.clone(),
            // The sender lives in `shared`, which this handle holds.
            Err(_) => Health::Stopped,
        }
    }

    /// Takes no new requests from now on; those that are waiting or running go on to their end.
    pub fn begin_drain(&self) {
        self.shared.health.send_if_modified(|health| {
            let running = *health == Health::Running;
            if running {
                *health = Health::Draining;
            }
            running
        });
        self.send(Command::Drain);
    }

    /// Drains: takes no new requests, waits at most `timeout` for the others to end, then fails those that are left.
    pub async fn drain(&self, timeout: Duration) -> DrainOutcome {
        self.begin_drain();
        if tokio::time::timeout(timeout, self.ended()).await.is_ok() {
            return DrainOutcome::Complete;
        }
        self.send(Command::Abort);
        match tokio::time::timeout(ABORT_GRACE, self.ended()).await {
            Ok(_) => DrainOutcome::CutShort,
            Err(_) => DrainOutcome::Hung,
        }
    }

    fn send(&self, command: Command) {
        // An engine that has ended needs no commands.
        let _ = self.commands.send(command);
    }
}

/// How long a drain that is cut short waits for the step in flight.
const ABORT_GRACE: Duration = Duration::from_secs(5);

/// The events of one request, in order. Dropping it cancels the request: its pages are free within one step.
///
/// Every choice has exactly one [`EngineEvent::Finished`], unless [`EngineEvent::Failed`] ends the whole request.
#[derive(Debug)]
pub struct EventStream {
    id: RequestId,
    /// Choices without a `Finished` yet; 0 once the stream has ended.
    open_choices: u32,
    events: mpsc::UnboundedReceiver<EngineEvent>,
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

impl EventStream {
    /// The request's name.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The next event, or `None` after the last.
    pub async fn next(&mut self) -> Option<EngineEvent> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// [`EventStream::next`] for implementations of `Stream`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<EngineEvent>> {
        if self.open_choices == 0 {
            return Poll::Ready(None);
        }
        self.events.poll_recv(context).map(|event| Some(self.note(event)))
    }

    /// The next event, or `None` after the last; blocks the thread.
    ///
    /// # Panics
    /// Inside an asynchronous task, as every blocking call of tokio's channels does.
    pub fn blocking_next(&mut self) -> Option<EngineEvent> {
        if self.open_choices == 0 {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.note(event))
    }

    /// Ends one choice because the host found its end (a stop string). Its `Finished` follows with
    /// [`FinishReason::Host`](crate::FinishReason::Host), perhaps after tokens that were on their way. Does nothing
    /// before the choice's first token or after its end.
    pub fn end_choice(&self, choice: ChoiceIndex) {
        let _ = self.commands.send(Command::EndChoice { request: self.id, choice });
    }

    /// Keeps count of the choices, and puts the engine's own end into words: an engine that ends drops its senders.
    fn note(&mut self, event: Option<EngineEvent>) -> EngineEvent {
        let event = event.unwrap_or_else(|| EngineEvent::Failed(self.shared.why_dropped()));
        match event {
            EngineEvent::Finished { .. } => self.open_choices -= 1,
            EngineEvent::Failed(_) => self.open_choices = 0,
            EngineEvent::PromptDone { .. } | EngineEvent::Token { .. } => {}
        }
        event
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if self.open_choices > 0 {
            let _ = self.commands.send(Command::Cancel(self.id));
        }
    }
}

/// What handles, streams and the engine thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limits: ExecutorLimits,
    goal: PlanGoal,
    pub(crate) queue: Arc<Queue>,
    pub(crate) metrics: Arc<EngineMetrics>,
    pub(crate) operators: Arc<OperatorCounters>,
    pub(crate) health: watch::Sender<Health>,
    next_id: AtomicU64,
}

impl Shared {
    /// What `executor` says of itself, before it has done anything.
    pub(crate) fn new(executor: &dyn Executor, max_waiting: usize) -> Self {
        Self {
            limits: executor.limits(),
            goal: executor.goal(),
            operators: executor.operator_counters(),
            queue: Queue::new(max_waiting),
            metrics: Arc::default(),
            health: watch::Sender::new(Health::Running),
            next_id: AtomicU64::new(0),
        }
    }

    fn why_dropped(&self) -> RequestError {
        match &*self.health.borrow() {
            Health::Failed(message) => RequestError::Executor(message.clone()),
            Health::Running | Health::Draining | Health::Stopped => RequestError::ShutDown,
        }
    }
}

/// What the engine thread is told.
#[derive(Debug)]
pub(crate) enum Command {
    Submit(Box<Submission>),
    Cancel(RequestId),
    EndChoice { request: RequestId, choice: ChoiceIndex },
    Mask { request: RequestId, choice: ChoiceIndex, index: u32, mask: Arc<TokenMask> },
    Drain,
    Abort,
}

/// A request on its way to the engine thread.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) id: RequestId,
    pub(crate) request: EngineRequest,
    pub(crate) arrived: Instant,
    pub(crate) place: Place,
    pub(crate) events: mpsc::UnboundedSender<EngineEvent>,
}

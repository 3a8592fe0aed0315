//! The engine thread: the only place that touches sequences, pages and the executor.

use crate::admission::Place;
use crate::batch::{EngineBatch, Executor, ExecutorError, ExecutorLimits, StepOutput};
use crate::delivery::{Client, Delivery};
use crate::handle::{Command, EngineHandle, Health, Shared, Submission};
use crate::kv::PrefixCache;
use crate::scheduler::{Notice, RequestMap, Scheduled, Scheduler};
use crossbeam_channel::{Receiver, TryRecvError, unbounded};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// Choices that are the engine's own, not the executor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Requests that may wait for their first step; the next one is refused.
    pub max_waiting: usize,
    /// Whether prompts reuse pages that earlier sequences computed.
    pub prefix_cache: PrefixCache,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self { max_waiting: 1024, prefix_cache: PrefixCache::Enabled }
    }
}

/// Why an engine could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A limit of the executor makes work impossible.
    #[error("the executor's {limit} is {value}; it must be at least {least}")]
    Limit {
        /// Its name.
        limit: &'static str,
        /// Its value.
        value: usize,
        /// The least that works.
        least: usize,
    },
    /// The operating system gave no thread.
    #[error("cannot start the engine's threads: {0}")]
    Thread(#[from] std::io::Error),
}

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Starts the engine thread over an executor, and the thread that delivers its events.
    ///
    /// # Errors
    /// The executor's limits make work impossible, or there is no thread to be had.
    pub fn start(executor: Box<dyn Executor>, config: EngineConfig) -> Result<EngineHandle, StartError> {
        let limits = executor.limits();
        check_limits(&limits)?;
        let shared = Arc::new(Shared::new(&*executor, config.max_waiting));
        let (commands, receiver) = unbounded();
        let engine = EngineThread {
            executor,
            scheduler: Scheduler::new(limits, config.prefix_cache),
            delivery: Delivery::start()?,
            clients: Vec::new(),
            places: RequestMap::default(),
            commands: receiver,
            batch: EngineBatch::default(),
            output: StepOutput::default(),
            shared: shared.clone(),
            draining: false,
        };
        std::thread::Builder::new().name("oxide-infer-engine".into()).spawn(move || engine.run())?;
        Ok(EngineHandle::new(shared, commands))
    }
}

fn check_limits(limits: &ExecutorLimits) -> Result<(), StartError> {
    let least = [
        ("page_size", limits.page_size, 1),
        ("num_pages", limits.num_pages, 1),
        ("max_sequences", limits.max_sequences, 1),
        // Every running sequence must find room for a token in every step, or some would starve.
        ("max_batch_tokens", limits.max_batch_tokens, limits.max_sequences),
        ("max_model_len", limits.max_model_len, 1),
        ("vocab_size", limits.vocab_size, 1),
        ("hidden_size", limits.hidden_size.unwrap_or(1), 1),
        ("steps_in_flight", limits.steps_in_flight, 1),
    ];
    match least.into_iter().find(|(_, value, least)| value < least) {
        Some((limit, value, least)) => Err(StartError::Limit { limit, value, least }),
        None => Ok(()),
    }
}

struct EngineThread {
    executor: Box<dyn Executor>,
    scheduler: Scheduler,
    delivery: Delivery,
    /// Those that the delivery thread does not know yet.
    clients: Vec<Client>,
    /// Of the requests that wait for their first step.
    places: RequestMap<Place>,
    commands: Receiver<Command>,
    batch: EngineBatch,
    output: StepOutput,
    shared: Arc<Shared>,
    draining: bool,
}

/// What to do once the commands are taken.
#[derive(PartialEq)]
enum Next {
    Step,
    End,
}

/// Whether there is anything to do without a command.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Ready,
    AwaitsCommand,
}

impl EngineThread {
    fn run(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| match self.shared.limits.steps_in_flight {
            1 => self.plain_loop(),
            _ => self.overlapped_loop(),
        }));
        let health = match ended {
            Ok(Ok(())) => Health::Stopped,
            Ok(Err(error)) => Health::Failed(error.to_string()),
            Err(panic) => Health::Failed(format!("the engine thread panicked: {}", panic_message(&*panic))),
        };
        self.scheduler.abandon();
        self.shared.metrics.publish(self.scheduler.stats());
        // What was settled before the end is still told.
        let _ = self.delivery.post(&mut self.clients, self.scheduler.notices());
        let (health, clients) = match self.delivery.close() {
            Ok(clients) => (health, Some(clients)),
            Err(panic) => {
                (Health::Failed(format!("delivering events panicked: {}", panic_message(&*panic))), None)
            }
        };
        if let Health::Failed(message) = &health {
            let requests = clients.as_ref().map_or(0, |clients| clients.len());
            tracing::error!(%message, requests, "the engine has failed");
        }
        self.shared.health.send_replace(health);
        // The clients' streams end with these, and read the health just set; the executor goes last, because a broken
        // device may take its time.
        drop(clients);
        drop(self.commands);
    }

    /// One step at a time.
    fn plain_loop(&mut self) -> Result<(), ExecutorError> {
        let mut work = Work::AwaitsCommand;
        while self.receive(work)? == Next::Step {
            work = Work::AwaitsCommand;
            if self.launch()? == Scheduled::Step {
                self.collect()?;
                work = Work::Ready;
            }
        }
        Ok(())
    }

    /// The next step is scheduled and submitted before the one in flight is collected.
    fn overlapped_loop(&mut self) -> Result<(), ExecutorError> {
        let mut work = Work::AwaitsCommand;
        while self.receive(work)? == Next::Step {
            let scheduled = self.launch()?;
            let in_flight = self.scheduler.steps_in_flight();
            if in_flight == self.shared.limits.steps_in_flight
                || (in_flight > 0 && scheduled == Scheduled::Nothing)
            {
                self.collect()?;
            }
            work = if in_flight > 0 { Work::Ready } else { Work::AwaitsCommand };
        }
        Ok(())
    }

    /// Schedules the next step and submits it, if there is anything to compute.
    fn launch(&mut self) -> Result<Scheduled, ExecutorError> {
        let scheduled = self.scheduler.schedule(&mut self.batch, Instant::now());
        // Before the step, which may take long: a request that has left the queue gives its place back now.
        self.deliver()?;
        if scheduled == Scheduled::Step {
            self.executor.submit(&self.batch)?;
        }
        Ok(scheduled)
    }

    /// Waits for the oldest step and takes in what it brought.
    fn collect(&mut self) -> Result<(), ExecutorError> {
        self.executor.collect(&mut self.output)?;
        self.scheduler.settle(&mut self.output, Instant::now())
    }

    /// Tells the clients what is new and takes every command that is there, after waiting for one if there is nothing
    /// else to do.
    fn receive(&mut self, work: Work) -> Result<Next, ExecutorError> {
        self.deliver()?;
        if self.draining && self.scheduler.is_empty() {
            return Ok(Next::End);
        }
        let mut next = match work {
            Work::Ready => self.commands.try_recv(),
            Work::AwaitsCommand => self.commands.recv().map_err(|_| TryRecvError::Disconnected),
        };
        loop {
            match next {
                Ok(command) => {
                    if self.obey(command) == Next::End {
                        return Ok(Next::End);
                    }
                }
                Err(TryRecvError::Empty) => return Ok(Next::Step),
                // The last handle and the last stream are gone, and with them every request.
                Err(TryRecvError::Disconnected) => return Ok(Next::End),
            }
            next = self.commands.try_recv();
        }
    }

    fn obey(&mut self, command: Command) -> Next {
        match command {
            Command::Submit(submission) => {
                let Submission { id, request, arrived, place, events } = *submission;
                self.clients.push((id, events));
                self.places.insert(id, place);
                self.scheduler.add(id, request, arrived);
            }
            Command::Cancel(request) => self.scheduler.cancel(request),
            Command::EndChoice { request, choice } => {
                self.scheduler.end_choice(request, choice, Instant::now());
            }
            Command::Mask { request, choice, index, mask } => {
                self.scheduler.supply_mask(request, choice, index, mask);
            }
            Command::Drain => self.draining = true,
            Command::Abort => return Next::End,
        }
        Next::Step
    }

    /// Publishes the counters and posts the scheduler's notices to the clients, who may then look at the counters and find
    /// the places in the queue that are free now.
    fn deliver(&mut self) -> Result<(), ExecutorError> {
        self.give_places_back();
        self.shared.metrics.publish(self.scheduler.stats());
        let posted = self.delivery.post(&mut self.clients, self.scheduler.notices());
        posted.map_err(|error| ExecutorError { message: error.to_string() })
    }

    fn give_places_back(&mut self) {
        if self.places.is_empty() {
            return;
        }
        for notice in self.scheduler.notices() {
            match notice {
                Notice::Started(request, at) if self.places.remove(request).is_some() => {
                    self.shared.queue.note_start(*at);
                }
                Notice::Ended(request) => _ = self.places.remove(request),
                Notice::Started(..) | Notice::Event(..) => {}
            }
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (None, Some(message)) => message,
        (None, None) => "no message",
    }
}

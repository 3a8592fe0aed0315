//! From the engine thread to the clients' streams, by way of a thread of its own.
//!
//! The engine thread leaves what a step brought in one piece, and wakes the other at most once for it. Each stream is read
//! by a task of its own, and waking 256 of those takes longer than settling their step. What is left while the delivery
//! thread works waits for it in one vector; how much that can be is bounded by the requests' own `max_tokens`.

use crate::request::{EngineEvent, RequestId};
use crate::scheduler::{Notice, RequestMap};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::UnboundedSender;

/// Where a request's events go.
pub(crate) type Client = (RequestId, UnboundedSender<EngineEvent>);

/// Streams that have not ended. Dropping them ends them.
pub(crate) type Clients = RequestMap<UnboundedSender<EngineEvent>>;

/// The engine thread's end.
#[derive(Debug)]
pub(crate) struct Delivery {
    outbox: Outbox,
    thread: JoinHandle<Clients>,
}

/// The delivery thread has panicked.
#[derive(Debug, thiserror::Error)]
#[error("the thread that delivers events has ended")]
pub(crate) struct Gone;

impl Delivery {
    /// Starts the thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let letters = Arc::new(Letters::default());
        let carrier = Carrier { letters: letters.clone(), clients: Clients::default() };
        let builder = std::thread::Builder::new().name("oxide-infer-delivery".into());
        Ok(Self { outbox: Outbox(letters), thread: builder.spawn(move || carrier.run())? })
    }

    /// Leaves new clients and news, in this order, and takes what both vectors have.
    pub(crate) fn post(&self, clients: &mut Vec<Client>, notices: &mut Vec<Notice>) -> Result<(), Gone> {
        if clients.is_empty() && notices.is_empty() {
            return Ok(());
        }
        let letters = &self.outbox.0;
        let mut pile = letters.lock();
        pile.clients.append(clients);
        match pile.notices.is_empty() {
            true => mem::swap(&mut pile.notices, notices),
            false => pile.notices.append(notices),
        }
        letters.wake_carrier(pile)
    }

    /// Ends the thread once everything has been delivered, and returns the clients that are left.
    ///
    /// # Errors
    /// What it panicked with.
    pub(crate) fn close(self) -> std::thread::Result<Clients> {
        drop(self.outbox);
        self.thread.join()
    }
}

/// Dropping it tells the delivery thread that nothing more comes.
#[derive(Debug)]
struct Outbox(Arc<Letters>);

impl Drop for Outbox {
    fn drop(&mut self) {
        let mut pile = self.0.lock();
        pile.closed = true;
        // One that has panicked needs no waking.
        let _ = self.0.wake_carrier(pile);
    }
}

/// What the engine thread has left.
#[derive(Debug, Default)]
struct Letters {
    pile: Mutex<Pile>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Pile {
    clients: Vec<Client>,
    notices: Vec<Notice>,
    /// Nothing more comes.
    closed: bool,
    carrier: Presence,
}

/// What the delivery thread is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Presence {
    /// It looks at the pile before it waits.
    #[default]
    Works,
    Waits,
    Gone,
}

impl Letters {
    fn lock(&self) -> MutexGuard<'_, Pile> {
        // No code that can panic runs under the lock.
        self.pile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the delivery thread if it waits: a wake-up is a system call, even if there is nobody to wake.
    fn wake_carrier(&self, mut pile: MutexGuard<'_, Pile>) -> Result<(), Gone> {
        match mem::replace(&mut pile.carrier, Presence::Works) {
            Presence::Works => {}
            Presence::Waits => {
                drop(pile);
                self.more.notify_one();
            }
            Presence::Gone => {
                pile.carrier = Presence::Gone;
                return Err(Gone);
            }
        }
        Ok(())
    }
}

/// The delivery thread.
#[derive(Debug)]
struct Carrier {
    letters: Arc<Letters>,
    clients: Clients,
}

impl Carrier {
    fn run(mut self) -> Clients {
        // They go back and forth with the pile's, so that neither allocates once they are large enough.
        let (mut clients, mut notices) = (Vec::new(), Vec::new());
        while self.fetch(&mut clients, &mut notices) == Next::Deliver {
            self.clients.extend(clients.drain(..));
            notices.drain(..).for_each(|notice| self.deliver(notice));
        }
        mem::take(&mut self.clients)
    }

    /// Takes what there is, after waiting for it.
    fn fetch(&self, clients: &mut Vec<Client>, notices: &mut Vec<Notice>) -> Next {
        let mut pile = self.letters.lock();
        while pile.clients.is_empty() && pile.notices.is_empty() {
            if pile.closed {
                return Next::End;
            }
            pile.carrier = Presence::Waits;
            pile = self.letters.more.wait(pile).unwrap_or_else(PoisonError::into_inner);
        }
        pile.carrier = Presence::Works;
        mem::swap(&mut pile.clients, clients);
        mem::swap(&mut pile.notices, notices);
        Next::Deliver
    }

    fn deliver(&mut self, notice: Notice) {
        match notice {
            Notice::Event(request, event) => {
                if let Some(client) = self.clients.get(&request) {
                    // A client that is gone has sent its cancellation.
                    let _ = client.send(event);
                }
            }
            Notice::Ended(request) => _ = self.clients.remove(&request),
            // Of interest to the engine thread, which keeps the places in the queue.
            Notice::Started(..) => {}
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.letters.lock().carrier = Presence::Gone;
    }
}

/// Whether there was anything.
#[derive(PartialEq)]
enum Next {
    Deliver,
    End,
}

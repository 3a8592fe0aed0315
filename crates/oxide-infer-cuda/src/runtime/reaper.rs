//! Settles completions that were dropped before they settled, so that dropping neither blocks nor frees early.

use super::completion::Unsettled;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

#[derive(Default)]
pub(crate) struct Reaper {
    /// The thread's inbox; the thread starts with the first completion and ends with the context.
    inbox: Mutex<Option<Sender<Unsettled>>>,
    pending: Arc<AtomicUsize>,
}

impl Reaper {
    pub(super) fn take(&self, unsettled: Unsettled) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if inbox.is_none() {
            *inbox = self.start();
        }
        let rejected = match &*inbox {
            Some(sender) => sender.send(unsettled).err().map(|error| error.0),
            None => Some(unsettled),
        };
        // With no thread to wait for it, a lease that is never given back is the only safe outcome.
        if let Some(unsettled) = rejected {
            std::mem::forget(unsettled);
        }
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    fn start(&self) -> Option<Sender<Unsettled>> {
        let (sender, receiver) = channel::<Unsettled>();
        let pending = self.pending.clone();
        thread::Builder::new()
            .name("cuda-reaper".to_owned())
            .spawn(move || {
                for unsettled in receiver {
                    // Nobody is left to hear of a failure; a sticky one has poisoned the context, which tells.
                    let _ = unsettled.settle();
                    pending.fetch_sub(1, Ordering::Relaxed);
                }
            })
            .ok()
            .map(|_| sender)
    }
}

//! Threads for short work that must not wait behind long work.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

/// Masks recurse with the depth of regular expressions, so their threads have more stack than tokio's.
const STACK: usize = 16 << 20;

/// Threads that take jobs in order. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Workers {
    jobs: Sender<Job>,
}

impl Workers {
    pub(super) fn start(threads: usize) -> io::Result<Self> {
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..threads {
            let queue = queue.clone();
            let thread = thread::Builder::new().name(format!("masks-{number}")).stack_size(STACK);
            thread.spawn(move || work(&queue))?;
        }
        Ok(Self { jobs })
    }

    /// Has a thread do `job` as soon as one is free. What a job panics with ends nothing but the job.
    pub(super) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        // The threads live as long as `self`.
        let _ = self.jobs.send(Box::new(job));
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // The panic's message is in the log; whoever waits for the job sees that nothing came of it.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_panics_leaves_its_thread_to_the_next() {
        let workers = Workers::start(1).unwrap();
        let (sender, received) = channel();
        workers.submit(|| panic!("a job's own fault"));
        workers.submit(move || sender.send(7).unwrap());
        assert_eq!(received.recv(), Ok(7));
    }
}

//! The threads of the provider and how one step uses them.
//!
//! A decode step is some 200 short parallel regions. The unit that wakes the workers is therefore the *step*:
//! [`CpuProvider::step`] calls the rayon workers in once, they stay (spinning, then yielding) until the step ends, and a
//! region inside it costs one store and a few cache misses, where a rayon scope of its own would wake a thread. Between
//! steps the workers sleep and no core is kept busy.

use crate::disjoint::Disjoint;
use crate::simd::Level;
use crate::{CpuError, TASK_ELEMENTS};
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Polls before a waiting thread starts to yield its core.
const SPINS_BEFORE_YIELD: u32 = 1 << 14;

/// The CPU provider: a fixed number of threads, owned by the caller.
///
/// Every operator takes the [`Team`] that [`CpuProvider::step`] hands out.
#[derive(Debug)]
pub struct CpuProvider {
    /// `None` with one thread: the caller does all the work.
    workers: Option<rayon::ThreadPool>,
    threads: NonZeroUsize,
    level: Level,
}

impl CpuProvider {
    /// A provider that computes on `threads` threads, the caller's included.
    ///
    /// # Errors
    ///
    /// [`CpuError::Threads`] when the system refuses to start them.
    pub fn new(threads: NonZeroUsize) -> Result<Self, CpuError> {
        let workers = match threads.get() - 1 {
            0 => None,
            helpers => Some(
                rayon::ThreadPoolBuilder::new()
                    .num_threads(helpers)
                    .thread_name(|index| format!("oxide-cpu-{}", index + 1))
                    .build()
                    .map_err(|source| CpuError::Threads { threads: threads.get(), source })?,
            ),
        };
        Ok(Self { workers, threads, level: Level::detect() })
    }

    /// A provider with one thread for every core that this process may use.
    ///
    /// # Errors
    ///
    /// As [`CpuProvider::new`].
    pub fn with_all_cores() -> Result<Self, CpuError> {
        Self::new(std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }

    /// The same threads without the machine's vector instructions, to compare with.
    #[cfg(test)]
    pub(crate) fn portable(mut self) -> Self {
        self.level = Level::Portable;
        self
    }

    /// Threads that share the work, the caller's included.
    pub fn threads(&self) -> NonZeroUsize {
        self.threads
    }

    /// Runs `body` on the calling thread with the workers standing by: one forward pass, or one operator.
    ///
    /// The exclusive borrow is what keeps a step from being started inside another, which would wait for itself.
    ///
    /// # Panics
    ///
    /// A panic of `body`, or of a task on a worker, reaches the caller.
    pub fn step<R>(&mut self, body: impl FnOnce(&Team<'_>) -> R) -> R {
        let shared = Shared::default();
        let Some(workers) = &self.workers else {
            return body(&Team::new(&shared, self.threads, self.level));
        };
        workers.in_place_scope(|scope| {
            scope.spawn_broadcast(|_, _| shared.serve());
            let _end = EndOfStep(&shared);
            body(&Team::new(&shared, self.threads, self.level))
        })
    }
}

/// The threads of one running step.
///
/// It is deliberately not `Sync`: a task cannot reach it, so a parallel region cannot be started inside another.
#[derive(Debug)]
pub struct Team<'a> {
    shared: &'a Shared,
    threads: NonZeroUsize,
    level: Level,
    not_sync: PhantomData<Cell<()>>,
}

impl<'a> Team<'a> {
    fn new(shared: &'a Shared, threads: NonZeroUsize, level: Level) -> Self {
        Self { shared, threads, level, not_sync: PhantomData }
    }

    /// The instruction set that kernels run with.
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Threads that share the work, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads.get()
    }

    /// Calls `task(i)` once for every `i` in `0..tasks`, on any thread and in any order, and returns when all are done.
    ///
    /// # Panics
    ///
    /// When a task panics.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if self.threads.get() == 1 || tasks <= 1 {
            return (0..tasks).for_each(task);
        }
        self.shared.run(tasks, task);
    }

    /// Lets `task` change every item, each once, on any thread.
    pub(crate) fn for_each<T: Send>(&self, items: &mut [T], task: &(dyn Fn(usize, &mut T) + Sync)) {
        let shared = Disjoint::new(items);
        self.run(shared.len(), &|index| {
            // SAFETY: every item is one task's.
            let item = unsafe { shared.slice(index, 1) };
            task(index, &mut item[0]);
        });
    }

    /// As [`Team::run`], but on the calling thread alone when the tasks pass over too few elements to be worth a region.
    pub(crate) fn run_if_worth(&self, elements: usize, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if elements < TASK_ELEMENTS { (0..tasks).for_each(task) } else { self.run(tasks, task) }
    }

    /// Splits `0..items` into contiguous ranges and calls `task` with each: about four for every thread, so that a
    /// thread that loses its core for a while does not hold up the others, and none shorter than `at_least`.
    ///
    /// # Panics
    ///
    /// When a task panics.
    pub fn run_ranges(&self, items: usize, at_least: usize, task: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
        let chunk = items.div_ceil(4 * self.threads()).max(at_least).max(1);
        self.run(items.div_ceil(chunk), &|index| {
            task(index * chunk..items.min((index + 1) * chunk));
        });
    }
}

/// What the threads of a step share: the open region, if there is one.
#[derive(Debug, Default)]
struct Shared {
    /// Number of the region, shifted left by one; the lowest bit says that it is open.
    state: AtomicUsize,
    /// Workers that may be looking at `job`.
    inside: AtomicUsize,
    next: AtomicUsize,
    step_over: AtomicBool,
    panicked: AtomicBool,
    job: UnsafeCell<Option<Job>>,
}

#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    task: *const (dyn Fn(usize) + Sync),
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("tasks", &self.tasks).finish_non_exhaustive()
    }
}

// SAFETY: `job` is written only by the thread that owns the step, while the region is closed and `inside` is zero, and
// read only by workers that raised `inside` and then saw the region open (see `run` and `serve`).
unsafe impl Sync for Shared {}

impl Shared {
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes. The pointer is used by workers inside the region alone, and `Close` ends
        // the region and waits for them before this function returns or unwinds.
        let task: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(task) };
        let job = Job { tasks, task };
        // SAFETY: the region is closed and nobody is inside, so no one else looks at `job`.
        unsafe { *self.job.get() = Some(job) };
        self.next.store(0, Ordering::Relaxed);
        let open = self.state.load(Ordering::Relaxed) + 1;
        self.state.store(open, Ordering::SeqCst);
        let close = Close { shared: self, open };
        self.claim(job);
        drop(close);
        assert!(!self.panicked.load(Ordering::Relaxed), "a task of a parallel region panicked");
    }

    fn claim(&self, job: Job) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= job.tasks {
                return;
            }
            // SAFETY: the caller is inside the open region (or owns it), so the task is still borrowed.
            unsafe { (*job.task)(index) };
        }
    }

    /// A worker's part of a step: help with every region until the step is over.
    fn serve(&self) {
        let mut seen = 0;
        let mut polls = 0;
        while !self.step_over.load(Ordering::Acquire) {
            let state = self.state.load(Ordering::Relaxed);
            if state & 1 == 0 || state == seen {
                wait(&mut polls);
                continue;
            }
            let _inside = Inside::enter(self);
            // Looked at again after `inside` was raised: either this sees the region closed and leaves, or the owner,
            // which closes it first and reads `inside` second, sees this worker and waits for it.
            let state = self.state.load(Ordering::SeqCst);
            if state & 1 == 1 {
                seen = state;
                polls = 0;
                // SAFETY: the region is open and `inside` is raised, so the owner does not write.
                if let Some(job) = unsafe { *self.job.get() } {
                    self.claim(job);
                }
            }
        }
    }
}

fn wait(polls: &mut u32) {
    *polls = polls.saturating_add(1);
    if *polls < SPINS_BEFORE_YIELD {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// A worker's presence in a region; also records that its task panicked.
struct Inside<'a>(&'a Shared);

impl<'a> Inside<'a> {
    fn enter(shared: &'a Shared) -> Self {
        shared.inside.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked.store(true, Ordering::Relaxed);
        }
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Closes the region and waits for the workers in it, also when the owner's task panics.
struct Close<'a> {
    shared: &'a Shared,
    open: usize,
}

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.shared.state.store(self.open + 1, Ordering::SeqCst);
        let mut polls = 0;
        while self.shared.inside.load(Ordering::SeqCst) != 0 {
            wait(&mut polls);
        }
    }
}

/// Sends the workers home, also when the step's body panics.
struct EndOfStep<'a>(&'a Shared);

impl Drop for EndOfStep<'_> {
    fn drop(&mut self) {
        self.0.step_over.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::provider;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn every_task_of_many_regions_runs_exactly_once() {
        for threads in 1..=4 {
            let mut cpu = provider(threads);
            for tasks in [0, 1, 2, 7, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                cpu.step(|team| {
                    for _ in 0..200 {
                        team.run(tasks, &|i| {
                            counts[i].fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
                assert!(
                    counts.iter().all(|c| c.load(Ordering::Relaxed) == 200),
                    "{threads} threads, {tasks} tasks"
                );
            }
        }
    }

    #[test]
    fn a_region_sees_what_the_one_before_it_wrote() {
        let mut cpu = provider(3);
        let cells: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
        cpu.step(|team| {
            for round in 0..500 {
                team.run(64, &|i| {
                    let neighbour = cells[(i + 1) % 64].load(Ordering::Relaxed);
                    assert!(neighbour == round || neighbour == round + 1);
                    cells[i].store(round + 1, Ordering::Relaxed);
                });
            }
        });
    }

    #[test]
    fn ranges_cover_all_items_without_overlap() {
        let mut cpu = provider(2);
        for (items, at_least) in [(0, 1), (1, 8), (17, 4), (1000, 1)] {
            let seen: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            cpu.step(|team| {
                team.run_ranges(items, at_least, &|range| {
                    for i in range {
                        seen[i].fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
            assert!(seen.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_panicking_task_reaches_the_caller_and_leaves_the_provider_usable() {
        let mut cpu = provider(3);
        for culprit in [0, 31] {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                cpu.step(|team| team.run(32, &|i| assert!(i != culprit, "task {i} fails")));
            }));
            assert!(outcome.is_err());
        }
        let done = AtomicUsize::new(0);
        cpu.step(|team| {
            team.run(8, &|_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(done.load(Ordering::Relaxed), 8);
    }
}

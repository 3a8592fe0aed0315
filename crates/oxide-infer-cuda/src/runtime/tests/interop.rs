//! Handles and memory of the caller's, events before and after, several scopes at once, and what a capture keeps out.

use super::*;
use crate::driver::{Driver, RawContext, RawEvent, RawStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts how many owners were dropped.
#[derive(Clone, Default)]
struct Dropped(Arc<AtomicUsize>);

struct Owner(Dropped);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Dropped {
    fn owner(&self) -> Owner {
        Owner(self.clone())
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// The caller's context, of which the simulated driver has one.
const RAW: RawContext = RawContext(1);

fn external(driver: &Arc<SimulatedDriver>, owner: Owner) -> Context {
    // SAFETY: the simulated device takes any handle.
    unsafe { Context::external_on(driver.clone(), RAW, owner) }.unwrap()
}

fn raw_stream(driver: &SimulatedDriver) -> RawStream {
    // SAFETY: the simulated device has no context to make current.
    unsafe { driver.stream_create() }.unwrap()
}

fn raw_event(driver: &SimulatedDriver) -> RawEvent {
    // SAFETY: as above.
    unsafe { driver.event_create(EventTiming::Disabled) }.unwrap()
}

#[test]
fn the_callers_context_stream_event_and_memory_are_used_and_never_destroyed() {
    let driver = SimulatedDriver::new();
    let (raw_stream, raw_event) = (raw_stream(&driver), raw_event(&driver));
    // SAFETY: the simulated device has no context to make current.
    let ptr = unsafe { driver.memory_alloc(64) }.unwrap();
    let handles = driver.live_handles();
    let dropped = Dropped::default();
    let context = external(&driver, dropped.owner());
    // SAFETY: the handles are live to the end of the test.
    let (stream, event, memory) = unsafe {
        (
            context.external_stream(raw_stream, dropped.owner()).unwrap(),
            Event::external(&context, raw_event, dropped.owner()),
            DeviceMemory::external(&context, ptr, 64, dropped.owner()),
        )
    };
    let region = memory.region::<u8>(0, 64).unwrap();
    let mut scope = CommandScope::new(&stream).unwrap();
    scope.fill(&region, 3).unwrap();
    scope.record(&event).unwrap();
    scope.finish().unwrap().wait().unwrap();
    assert_eq!(event.query().unwrap(), Progress::Done);
    assert_eq!(dropped.count(), 0);
    drop((region, memory, event, stream, context));
    assert_eq!(dropped.count(), 4, "every owner is told that it is no longer needed");
    assert_eq!((driver.live_handles(), driver.live_allocations()), (handles, 1));
    assert!(driver.violations().is_empty());
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let driver = SimulatedDriver::new();
    let raw = raw_stream(&driver);
    // SAFETY: the simulated device takes any handle.
    let other = unsafe { Context::external_on(driver, RawContext(7), ()) }.unwrap();
    // SAFETY: as above.
    let error = unsafe { other.external_stream(raw, ()) }.err().unwrap();
    assert_eq!(error.to_string(), "cuStreamGetCtx failed: the stream belongs to another context (201)");
}

#[test]
fn the_callers_memory_is_kept_while_work_on_it_is_in_flight() {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver.clone(), 0).unwrap();
    // SAFETY: the simulated device has no context to make current.
    let ptr = unsafe { driver.memory_alloc(64) }.unwrap();
    let dropped = Dropped::default();
    // SAFETY: freed after its owner is dropped.
    let memory = unsafe { DeviceMemory::external(&context, ptr, 64, dropped.owner()) };
    let stream = context.stream().unwrap();
    driver.hold();
    let mut scope = CommandScope::new(&stream).unwrap();
    scope.fill(&memory.region::<u8>(0, 64).unwrap(), 1).unwrap();
    drop(scope);
    drop(memory);
    assert_eq!(dropped.count(), 0, "the reaper leases it");
    driver.release();
    eventually("the owner's release", || dropped.count() == 1);
    // SAFETY: nothing is in flight.
    unsafe { driver.memory_free(ptr) }.unwrap();
    assert!(driver.violations().is_empty());
}

#[test]
fn the_callers_memory_is_not_given_back_under_a_lost_context() {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver.clone(), 0).unwrap();
    // SAFETY: the simulated device has no context to make current.
    let ptr = unsafe { driver.memory_alloc(64) }.unwrap();
    let dropped = Dropped::default();
    // SAFETY: it is never freed.
    let memory = unsafe { DeviceMemory::external(&context, ptr, 64, dropped.owner()) };
    driver.break_device(700);
    assert!(context.memory_info().is_err());
    drop(memory);
    assert_eq!((dropped.count(), context.leaked_bytes()), (0, 64));
}

#[test]
fn events_before_and_after_a_scope_order_it_with_the_callers_streams_on_the_device() {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver.clone(), 0).unwrap();
    let (callers, ours, after) =
        (context.stream().unwrap(), context.stream().unwrap(), context.stream().unwrap());
    let region = Region::<u8>::allocate(&context, 1).unwrap();
    let output = PinnedMemory::<u8>::allocate(&context, 1).unwrap();
    let (ready, done) = (raw_event(&driver), raw_event(&driver));
    // SAFETY: both live to the end of the test.
    let (ready, done) =
        unsafe { (Event::external(&context, ready, ()), Event::external(&context, done, ())) };
    driver.hold();
    let mut first = CommandScope::new(&callers).unwrap();
    first.fill(&region, 1).unwrap();
    first.record(&ready).unwrap();
    let mut second = CommandScope::new(&ours).unwrap();
    second.wait(&ready).unwrap();
    second.fill(&region, 2).unwrap();
    second.record(&done).unwrap();
    let mut third = CommandScope::new(&after).unwrap();
    third.wait(&done).unwrap();
    third.copy_out(&region, &output).unwrap();
    // In the wrong order for anything but the events.
    let completions = [third, second, first].map(|scope| scope.finish().unwrap());
    assert_eq!(done.query().unwrap(), Progress::Pending, "nothing has waited on the host");
    driver.release();
    for completion in completions {
        completion.wait().unwrap();
    }
    assert_eq!(output.read(0), Some(2));
}

#[test]
fn scopes_of_one_stream_interleave_and_settle_apart() {
    let (driver, context) = device();
    let stream = context.stream().unwrap();
    let regions: [_; 3] = std::array::from_fn(|_| Region::<u8>::allocate(&context, 8).unwrap());
    driver.hold();
    let mut scopes: [_; 3] = std::array::from_fn(|_| CommandScope::new(&stream).unwrap());
    for round in 0..2 {
        for (scope, region) in scopes.iter_mut().zip(&regions) {
            scope.fill(region, round).unwrap();
        }
    }
    drop(regions);
    let [a, b, c] = scopes.map(|scope| scope.finish().unwrap());
    assert_eq!(driver.live_allocations(), 3);
    driver.release();
    b.wait().unwrap();
    assert_eq!(driver.live_allocations(), 2, "each completion leases its own memory alone");
    c.wait().unwrap();
    a.wait().unwrap();
    assert_eq!(driver.live_allocations(), 0);
    assert!(driver.violations().is_empty());
}

#[test]
fn scopes_completions_and_graphs_go_from_thread_to_thread() {
    fn sendable<T: Send>() {}
    fn shareable<T: Send + Sync>() {}
    sendable::<CommandScope>();
    sendable::<Completion>();
    shareable::<Graph>();
    shareable::<Stream>();
    shareable::<BoundLaunch>();
    shareable::<Region<f32>>();
    let (driver, context) = device();
    let stream = context.stream().unwrap();
    let region = Region::<u8>::allocate(&context, 8).unwrap();
    let mut scope = CommandScope::new(&stream).unwrap();
    scope.fill(&region, 1).unwrap();
    let completion = std::thread::spawn(move || {
        scope.fill(&region, 2).unwrap();
        scope.finish().unwrap()
    });
    completion.join().unwrap().wait().unwrap();
    assert_eq!(driver.live_allocations(), 0);
}

#[test]
fn a_stream_is_not_captured_while_a_scope_is_open_nor_scoped_while_it_is_captured() {
    let (driver, context) = device();
    let stream = context.stream().unwrap();
    let region = Region::<u8>::allocate(&context, 8).unwrap();
    let open = CommandScope::new(&stream).unwrap();
    assert!(matches!(Graph::capture(&stream, |scope| scope.fill(&region, 1)), Err(GraphError::ScopeOpen)));
    open.finish().unwrap().wait().unwrap();
    let graph = Graph::capture(&stream, |scope| {
        let error = CommandScope::new(&stream).err().unwrap();
        assert_eq!(error.to_string(), "CommandScope::new failed: the stream is being captured (900)");
        // Another thread's work would go into the graph, too.
        std::thread::scope(|threads| {
            threads.spawn(|| assert!(CommandScope::new(&stream).is_err())).join().unwrap();
        });
        assert!(matches!(Graph::capture(&stream, |_| Ok(())), Err(GraphError::ScopeOpen)));
        scope.fill(&region, 1)
    })
    .unwrap();
    assert_eq!(graph.nodes(), 1);
    CommandScope::new(&stream).unwrap().finish().unwrap().wait().unwrap();
    assert!(driver.violations().is_empty());
}

#[test]
fn no_scope_is_opened_on_a_stream_that_the_caller_captures() {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver.clone(), 0).unwrap();
    let raw = raw_stream(&driver);
    // SAFETY: the stream lives to the end of the test.
    let stream = unsafe { context.external_stream(raw, ()) }.unwrap();
    // SAFETY: the simulated device has no context to make current.
    unsafe { driver.capture_begin(raw) }.unwrap();
    let error = CommandScope::new(&stream).err().unwrap();
    assert_eq!(error.to_string(), "CommandScope::new failed: the stream is being captured (900)");
    // SAFETY: as above.
    unsafe { driver.capture_end(raw) }.unwrap();
    CommandScope::new(&stream).unwrap().finish().unwrap().wait().unwrap();
}

#[test]
fn a_capture_takes_no_events_of_the_callers() {
    let (_driver, context) = device();
    let stream = context.stream().unwrap();
    let event = Event::new(&context, EventTiming::Disabled).unwrap();
    let capture =
        |body: &dyn Fn(&mut CommandScope) -> Result<(), EnqueueError>| Graph::capture(&stream, body).err();
    let waited = Some(GraphError::Enqueue(EnqueueError::Captured { what: "waited for" }));
    assert_eq!(capture(&|scope| scope.wait(&event)), waited);
    let recorded = Some(GraphError::Enqueue(EnqueueError::Captured { what: "recorded" }));
    assert_eq!(capture(&|scope| scope.record(&event)), recorded);
    // Nor past the scope: another stream could join the capture, whose work the graph would not keep alive.
    let refused = std::cell::RefCell::new(Vec::new());
    let region = Region::<u8>::allocate(&context, 8).unwrap();
    let graph = Graph::capture(&stream, |scope| {
        let errors = [event.record(&stream).err(), stream.wait(&event).err()];
        refused.borrow_mut().extend(errors.into_iter().flatten().map(|error| error.to_string()));
        scope.fill(&region, 1)
    });
    graph.unwrap();
    assert_eq!(
        *refused.borrow(),
        [
            "Event::record failed: the stream is being captured (900)",
            "Stream::wait failed: the stream is being captured (900)"
        ]
    );
    event.record(&stream).unwrap();
    stream.wait(&event).unwrap();
}

#[test]
fn a_capture_that_fails_or_panics_leaves_the_stream_usable_and_nothing_behind() {
    let (driver, context) = device();
    let stream = context.stream().unwrap();
    let region = Region::<u8>::allocate(&context, 8).unwrap();
    let (_, other) = device();
    let foreign = Region::<u8>::allocate(&other, 8).unwrap();
    let failed = Graph::capture(&stream, |scope| {
        scope.fill(&region, 1)?;
        scope.fill(&foreign, 1)
    });
    assert!(matches!(failed, Err(GraphError::Enqueue(EnqueueError::OtherContext { .. }))));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Graph::capture(&stream, |scope| {
            scope.fill(&region, 1).unwrap();
            panic!("in the middle of a capture")
        })
    }));
    assert!(panicked.is_err());
    let mut scope = CommandScope::new(&stream).unwrap();
    scope.fill(&region, 2).unwrap();
    scope.finish().unwrap().wait().unwrap();
    drop((region, stream, context));
    eventually("the release of every event and graph", || driver.live_handles() == 0);
    assert!(driver.violations().is_empty());
}

#[test]
fn replays_from_several_threads_run_one_after_another_on_the_captured_stream() {
    let (driver, context) = device();
    let stream = context.stream().unwrap();
    let region = Region::<u8>::allocate(&context, 8).unwrap();
    let launch = bind(&kernel(&context), SHAPE, &[Argument::Region(region.span(), Access::Write)]).unwrap();
    let graph = Graph::capture(&stream, |scope| scope.launch(&launch)).unwrap();
    drop((region, launch));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..8 {
                    let mut scope = CommandScope::new(&stream).unwrap();
                    graph.replay(&mut scope).unwrap();
                    scope.finish().unwrap().wait().unwrap();
                }
            });
        }
    });
    assert_eq!(driver.launches(), 32);
    drop(graph);
    assert_eq!(driver.live_allocations(), 0);
    assert!(driver.violations().is_empty());
}

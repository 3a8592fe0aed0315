//! The runtime over the simulated device: leases, dropping in any order, failures, graphs.

mod interop;
mod orders;

use super::*;
use crate::artifact::status::DeviceStatus;
use crate::driver::simulated::SimulatedDriver;
use crate::driver::{EventTiming, LaunchShape, Progress, Serialization, TensorMapRecipe};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHAPE: LaunchShape = LaunchShape {
    grid: [4, 1, 1],
    block: [128, 1, 1],
    shared_bytes: 0,
    cluster: None,
    serialization: Serialization::Full,
};

fn device() -> (Arc<SimulatedDriver>, Context) {
    let driver = SimulatedDriver::new();
    let context = Context::primary_on(driver.clone(), 0).unwrap();
    (driver, context)
}

fn kernel(context: &Context) -> Kernel {
    Module::load(context, b"image").unwrap().kernel("entry", 0).unwrap()
}

fn bind(kernel: &Kernel, shape: LaunchShape, arguments: &[Argument<'_>]) -> Result<BoundLaunch, KernelError> {
    // SAFETY: the simulated device accepts any arguments and computes nothing.
    unsafe { kernel.bind(shape, arguments) }
}

/// Waits for the reaper, which works on its own thread.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "{what} did not happen within 10 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn data_goes_in_and_comes_out_in_order() {
    let (driver, context) = device();
    let stream = context.stream().unwrap();
    let (input, output) =
        (PinnedMemory::allocate(&context, 3).unwrap(), PinnedMemory::allocate(&context, 3).unwrap());
    let (a, b) = (Region::<u32>::allocate(&context, 3).unwrap(), Region::allocate(&context, 3).unwrap());
    input.write(0, &[7_u32, 8, 9]).unwrap();
    let mut scope = CommandScope::new(&stream).unwrap();
    scope.copy_in(&input, &a).unwrap();
    scope.copy(&a, &b).unwrap();
    scope.fill(&b.slice(1..2).unwrap(), 0).unwrap();
    scope.copy_out(&b, &output).unwrap();
    scope.finish().unwrap().wait().unwrap();
    assert_eq!([0, 1, 2].map(|i| output.read(i)), [Some(7), Some(0), Some(9)]);
    assert_eq!(output.read(3), None);
    assert!(driver.violations().is_empty());
}

#[test]
fn memory_in_flight_outlives_every_handle_the_host_drops() {
    let (driver, context) = device();
    driver.hold();
    let stream = context.stream().unwrap();
    let region = Region::<f32>::allocate(&context, 64).unwrap();
    let launch = bind(&kernel(&context), SHAPE, &[Argument::Region(region.span(), Access::Write)]).unwrap();
    let mut scope = CommandScope::new(&stream).unwrap();
    scope.launch(&launch).unwrap();
    let completion = scope.finish().unwrap();
    drop((region, launch));
    assert_eq!(driver.live_allocations(), 1, "the completion leases it");
    drop(completion);
    assert_eq!(driver.live_allocations(), 1, "the reaper leases it");
    assert_eq!(context.unsettled(), 1);
    driver.release();
    eventually("the reaper's release", || driver.live_allocations() == 0);
    assert_eq!(driver.launches(), 1);
    assert!(driver.violations().is_empty());
}

#[test]
fn dropping_a_completion_does_not_block_while_the_device_works() {
    let (driver, context) = device();
    driver.hold();
    let stream = context.stream().unwrap();
    let region = Region::<u8>::allocate(&context, 16).unwrap();
    for _ in 0..32 {
        let mut scope = CommandScope::new(&stream).unwrap();
        scope.fill(&region, 1).unwrap();
        drop(scope);
    }
    assert_eq!(context.unsettled(), 32);
    driver.release();
    eventually("all completions settling", || context.unsettled() == 0);
}

#[test]
fn everything_is_given_back_to_the_driver_at_the_end() {
    let (driver, context) = device();
    let stream = context.stream().unwrap();
    let region = Region::<u8>::allocate(&context, 16).unwrap();
    let status = StatusWord::new(&context).unwrap();
    let launch = bind(
        &kernel(&context),
        SHAPE,
        &[Argument::Region(region.span(), Access::Write), Argument::Status(&status)],
    )
    .unwrap();
    let graph = Graph::capture(&stream, |scope| scope.launch(&launch)).unwrap();
    let mut scope = CommandScope::new(&stream).unwrap();
    graph.replay(&mut scope).unwrap();
    graph.replay(&mut scope).unwrap();
    drop((graph, launch, region, status));
    scope.finish().unwrap().wait().unwrap();
    assert_eq!(driver.launches(), 2, "the capture itself runs nothing");
    drop((stream, context));
    eventually("the context's release", || driver.live_handles() == 0);
    assert_eq!(driver.live_allocations(), 0);
    assert!(driver.violations().is_empty());
}

#[test]
fn completions_settle_across_threads_and_in_any_order() {
    let (driver, context) = device();
    let stream = context.stream().unwrap();
    let completions: Vec<_> = (0..8)
        .map(|_| {
            let region = Region::<u8>::allocate(&context, 16).unwrap();
            let mut scope = CommandScope::new(&stream).unwrap();
            scope.fill(&region, 1).unwrap();
            scope.finish().unwrap()
        })
        .collect();
    std::thread::scope(|threads| {
        for completion in completions.into_iter().rev() {
            threads.spawn(move || completion.wait().unwrap());
        }
    });
    assert_eq!(driver.live_allocations(), 0);
}

#[test]
fn a_stream_waits_for_another_without_the_host() {
    let (driver, context) = device();
    driver.hold();
    let (first, second) = (context.stream().unwrap(), context.stream().unwrap());
    let region = Region::<u8>::allocate(&context, 1).unwrap();
    let output = PinnedMemory::<u8>::allocate(&context, 1).unwrap();
    let mut scope = CommandScope::new(&first).unwrap();
    scope.fill(&region, 42).unwrap();
    let filled = scope.finish().unwrap();
    filled.before(&second).unwrap();
    let mut scope = CommandScope::new(&second).unwrap();
    scope.copy_out(&region, &output).unwrap();
    let mut copied = scope.finish().unwrap();
    assert_eq!(copied.poll().unwrap(), Progress::Pending);
    driver.release();
    copied.wait().unwrap();
    filled.wait().unwrap();
    assert_eq!(output.read(0), Some(42));
}

#[test]
fn a_device_fault_is_reported_once_the_work_settles() {
    let (_driver, context) = device();
    let stream = context.stream().unwrap();
    let status = StatusWord::new(&context).unwrap();
    let launch = bind(&kernel(&context), SHAPE, &[Argument::Status(&status)]).unwrap();
    let mut scope = CommandScope::new(&stream).unwrap();
    scope.launch(&launch).unwrap();
    let completion = scope.finish().unwrap();
    status.raise_for_test(0x03ff_fffc);
    let fault = DeviceStatus::PageOutOfRange { sequence: 3 };
    assert_eq!(completion.wait(), Err(CompletionError::Device(fault)));
    status.clear();
    assert_eq!(status.fault(), None);
}

#[test]
fn a_sticky_error_poisons_the_context_and_memory_is_leaked_and_counted() {
    let (driver, context) = device();
    driver.hold();
    let stream = context.stream().unwrap();
    let region = Region::<u8>::allocate(&context, 1000).unwrap();
    let mut scope = CommandScope::new(&stream).unwrap();
    scope.fill(&region, 0).unwrap();
    let completion = scope.finish().unwrap();
    driver.break_device(700);
    let Err(CompletionError::Cuda(error)) = completion.wait() else { panic!("the work was lost") };
    assert!(error.is_sticky());
    assert_eq!(context.poison(), Some(&error));
    assert_eq!(Region::<u8>::allocate(&context, 1).err(), Some(error.clone()), "the first error is repeated");
    assert_eq!(CommandScope::new(&stream).err(), Some(error));
    drop(region);
    assert_eq!(context.leaked_bytes(), 1000);
    assert_eq!(driver.live_allocations(), 1, "not freed under a lost context");
}

#[test]
fn an_ordinary_error_leaves_the_context_usable() {
    let (driver, context) = device();
    driver.fail_next("cuMemAlloc", 2);
    let error = Region::<u8>::allocate(&context, 1).err().unwrap();
    assert!(error.is_out_of_memory() && !error.is_sticky());
    assert!(Region::<u8>::allocate(&context, 1).is_ok());
    assert_eq!(context.poison(), None);
}

#[test]
fn operands_that_alias_a_written_one_are_refused() {
    let (_driver, context) = device();
    let memory = DeviceMemory::allocate(&context, 64).unwrap();
    let (whole, tail) = (memory.region::<u8>(0, 64).unwrap(), memory.region::<u8>(32, 32).unwrap());
    let head = memory.region::<u8>(0, 32).unwrap();
    let kernel = kernel(&context);
    let bind = |a, b| bind(&kernel, SHAPE, &[a, b]).err();
    let read = Argument::Region(whole.span(), Access::Read);
    assert_eq!(
        bind(read, Argument::Region(tail.span(), Access::Write)),
        Some(KernelError::Alias { written: 1, other: 0 })
    );
    assert_eq!(bind(read, Argument::Region(tail.span(), Access::Read)), None);
    assert_eq!(bind(read, Argument::Region(tail.span(), Access::Shared)), None);
    let apart = Argument::Region(head.span(), Access::Write);
    assert_eq!(bind(apart, Argument::Region(tail.span(), Access::Write)), None, "neighbours share no byte");
}

#[test]
fn impossible_launches_are_refused_by_name() {
    let (_driver, context) = device();
    let kernel = kernel(&context);
    let try_bind = |shape| bind(&kernel, shape, &[]).err();
    let empty = LaunchShape { grid: [4, 0, 1], ..SHAPE };
    assert_eq!(try_bind(empty), Some(KernelError::EmptyShape { what: "grid", value: [4, 0, 1] }));
    let partial = LaunchShape { grid: [5, 1, 1], cluster: Some([2, 1, 1]), ..SHAPE };
    assert_eq!(try_bind(partial), Some(KernelError::PartialCluster { grid: [5, 1, 1], cluster: [2, 1, 1] }));
    let many = vec![Argument::Null; MAX_PARAMETERS + 1];
    assert_eq!(
        bind(&kernel, SHAPE, &many).err(),
        Some(KernelError::TooManyParameters { count: MAX_PARAMETERS + 1 })
    );
    let wide = [Argument::Null, Argument::Number(&[0; 9])];
    assert_eq!(bind(&kernel, SHAPE, &wide).err(), Some(KernelError::WideNumber { index: 1, bytes: 9 }));
    let module = Module::load(&context, b"image").unwrap();
    assert!(matches!(module.kernel("missing", 0), Err(KernelError::Cuda(error)) if error.code == 500));
    assert!(matches!(module.kernel("a\0b", 0), Err(KernelError::Symbol { .. })));
}

#[test]
fn regions_past_their_memory_are_refused() {
    let (_driver, context) = device();
    let memory = DeviceMemory::allocate(&context, 10).unwrap();
    assert!(memory.region::<u32>(0, 2).is_ok());
    let past = RegionError::OutOfBounds { offset: 0, len: 3, dtype: oxide_infer::DType::U32, bytes: 10 };
    assert_eq!(memory.region::<u32>(0, 3).err(), Some(past));
    assert!(matches!(memory.region::<u32>(2, 1), Err(RegionError::Misaligned { offset: 2, .. })));
    assert!(memory.region::<u8>(usize::MAX, 2).is_err());
    assert!(memory.region::<u32>(4, usize::MAX / 2).is_err());
    let region = memory.region::<u8>(0, 10).unwrap();
    assert!(region.slice(4..11).is_err());
    assert!(region.slice(10..10).unwrap().is_empty());
}

#[test]
fn copies_of_the_wrong_size_onto_themselves_or_across_contexts_are_refused() {
    let (_driver, context) = device();
    let (_other_driver, other) = device();
    let stream = context.stream().unwrap();
    let memory = DeviceMemory::allocate(&context, 8).unwrap();
    let region = |offset, len| memory.region::<u8>(offset, len).unwrap();
    let foreign = Region::<u8>::allocate(&other, 4).unwrap();
    let mut scope = CommandScope::new(&stream).unwrap();
    assert_eq!(scope.copy(&region(0, 3), &region(4, 4)), Err(EnqueueError::SizeMismatch { from: 3, to: 4 }));
    assert_eq!(scope.copy(&region(0, 5), &region(3, 5)), Err(EnqueueError::Overlap));
    assert_eq!(scope.fill(&foreign, 0), Err(EnqueueError::OtherContext { what: "the region" }));
    let event = Event::new(&other, EventTiming::Disabled).unwrap();
    assert_eq!(scope.wait(&event), Err(EnqueueError::OtherContext { what: "the event" }));
}

#[test]
fn a_graph_is_bound_to_its_stream_and_refuses_to_be_empty() {
    let (driver, context) = device();
    let (stream, other) = (context.stream().unwrap(), context.stream().unwrap());
    let region = Region::<u8>::allocate(&context, 4).unwrap();
    assert!(matches!(Graph::capture(&stream, |_| Ok(())), Err(GraphError::Empty)));
    let graph = Graph::capture(&stream, |scope| scope.fill(&region, 3)).unwrap();
    assert_eq!(graph.nodes(), 1);
    let mut scope = CommandScope::new(&other).unwrap();
    assert_eq!(graph.replay(&mut scope), Err(GraphError::OtherStream));
    driver.fail_next("cuStreamEndCapture", 901);
    assert!(matches!(Graph::capture(&stream, |scope| scope.fill(&region, 3)), Err(GraphError::Cuda(_))));
    let mut scope = CommandScope::new(&stream).unwrap();
    graph.replay(&mut scope).unwrap();
    scope.finish().unwrap().wait().unwrap();
    assert!(driver.violations().is_empty());
}

#[test]
fn a_replay_after_everything_else_is_dropped_touches_live_memory() {
    let (driver, context) = device();
    let stream = context.stream().unwrap();
    let region = Region::<u8>::allocate(&context, 4).unwrap();
    let graph = Graph::capture(&stream, |scope| scope.fill(&region, 3)).unwrap();
    drop(region);
    driver.hold();
    let mut scope = CommandScope::new(&stream).unwrap();
    graph.replay(&mut scope).unwrap();
    drop(graph);
    let completion = scope.finish().unwrap();
    driver.release();
    completion.wait().unwrap();
    assert!(driver.violations().is_empty());
    assert_eq!(driver.live_allocations(), 0);
}

#[test]
fn a_tensor_map_leases_the_memory_it_describes() {
    let (driver, context) = device();
    let stream = context.stream().unwrap();
    let region = Region::<u8>::allocate(&context, 256).unwrap();
    let recipe = TensorMapRecipe {
        data_type: 0,
        global_dim: &[16, 16],
        global_strides: &[16],
        box_dim: &[16, 16],
        element_strides: &[1, 1],
        interleave: 0,
        swizzle: 0,
        l2_promotion: 0,
        oob_fill: 0,
    };
    let argument = Argument::TensorMap(region.span(), Access::Read, recipe);
    let launch = bind(&kernel(&context), SHAPE, &[argument]).unwrap();
    drop(region);
    let mut scope = CommandScope::new(&stream).unwrap();
    scope.launch(&launch).unwrap();
    drop(launch);
    scope.finish().unwrap().wait().unwrap();
    assert!(driver.violations().is_empty());
    assert_eq!(driver.live_allocations(), 0);
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let error = Context::primary_on(SimulatedDriver::new(), 3).err().unwrap();
    assert_eq!(error.to_string(), "there is no CUDA device 3: the driver sees 1");
}

#[test]
fn pinned_memory_takes_what_an_iterator_yields_and_no_more_than_it_promised() {
    /// Says that it has two items and never ends.
    struct Endless;
    impl Iterator for Endless {
        type Item = u32;
        fn next(&mut self) -> Option<u32> {
            Some(9)
        }
        fn size_hint(&self) -> (usize, Option<usize>) {
            (2, Some(2))
        }
    }
    impl ExactSizeIterator for Endless {}

    let context = Context::primary_on(SimulatedDriver::new(), 0).unwrap();
    let memory = PinnedMemory::<u32>::allocate(&context, 5).unwrap();
    let held = || (0..5).filter_map(|index| memory.read(index)).collect::<Vec<_>>();
    memory.write_from(1, [4, 5, 6].into_iter()).unwrap();
    assert_eq!(held(), [0, 4, 5, 6, 0]);
    memory.write_from(3, Endless).unwrap();
    assert_eq!(held(), [0, 4, 5, 9, 9]);
    assert!(matches!(
        memory.write_from(4, Endless),
        Err(RegionError::OutOfBounds { offset: 16, len: 2, .. })
    ));
    assert!(memory.write_from(usize::MAX, Endless).is_err());
    assert_eq!(held(), [0, 4, 5, 9, 9]);
}

#[test]
fn pinned_memory_is_an_operand_at_its_own_address_and_lives_as_long_as_a_view_of_it() {
    let (driver, context) = device();
    let stream = context.stream().unwrap();
    let memory = PinnedMemory::<u32>::allocate(&context, 6).unwrap();
    memory.write(0, &[1, 2, 3, 4, 5, 6]).unwrap();
    let part = memory.slice(2..5).unwrap();
    let region = part.region().unwrap();
    assert_eq!((region.len(), region.span().ptr()), (3, part.device_ptr()));
    assert_eq!(part.device_ptr().0, memory.device_ptr().0 + 8);
    let mut scope = CommandScope::new(&stream).unwrap();
    scope.fill(&region.slice(1..3).unwrap(), 0).unwrap();
    scope.finish().unwrap().wait().unwrap();
    // What the device wrote is in the host's own memory, and nothing beside the part.
    assert_eq!([0, 1, 2, 3, 4, 5].map(|i| memory.read(i)), [1, 2, 3, 0, 0, 6].map(Some));
    // The device writes it still, after the host has dropped every handle.
    driver.hold();
    let mut scope = CommandScope::new(&stream).unwrap();
    scope.fill(&region, 7).unwrap();
    let completion = scope.finish().unwrap();
    let handles = driver.live_handles();
    drop((memory, part, region));
    assert_eq!(driver.live_handles(), handles, "the completion leases it");
    driver.release();
    completion.wait().unwrap();
    eventually("freeing", || driver.live_handles() == handles - 1);
    assert!(driver.violations().is_empty());
}

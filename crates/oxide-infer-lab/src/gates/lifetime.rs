use crate::record::Finding;
use anyhow::{Result, bail, ensure};
use half::bf16;
use oxide_infer_cuda::artifact::{Registry, Request};
use oxide_infer_cuda::driver::{EventTiming, Progress};
use oxide_infer_cuda::runtime::{
    BoundOperator, CommandScope, Completion, Context, DeviceMemory, Event, Graph, Loader, MemoryPlan,
    Operands, PinnedMemory, Region, Stream,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A square product of this size keeps an H200 busy for about a millisecond and a half.
const SIZE: usize = 8192;
/// Products that stand between the host and the end of the device's work.
const DELAY: usize = 64;

pub(super) fn run(context: &Context, registry: &Arc<Registry>) -> Finding {
    let mut finding = Finding::of("lifetime");
    let bench = match Bench::new(context, registry, SIZE) {
        Ok(bench) => bench,
        Err(error) => {
            finding.check("set-up", Err(error));
            return finding;
        }
    };
    finding.check("data survives a round trip between guards", round_trip(&bench));
    finding.check("an unsettled completion is dropped without blocking", drop_does_not_block(&bench));
    finding.check("memory is not given out again while work on it is in flight", memory_is_kept(&bench));
    finding.check("a stream waits for another without the host", streams_wait(&bench));
    finding.check("a graph replays what was enqueued, bit for bit", graph_replays(&bench));
    finding.check("lent memory is given back after the work on it, not before", lent_memory_is_kept(&bench));
    finding.check("a graph replays when all that it was made from is dropped", graph_keeps_all(&bench));
    finding.check("threads replay one graph, one after another", threads_replay(&bench));
    finding.check("scopes in flight settle in any order, on any thread", scopes_settle(&bench));
    finding.check("a plan that does not fit allocates nothing", plan_does_not_fit(&bench));
    for (name, value) in [("product_ms", product_time(&bench)), ("enqueue_us", enqueue_time(&bench))] {
        match value {
            Ok(value) => {
                finding.measured.insert(name.to_owned(), value);
            }
            Err(error) => finding.check(name, Err(error)),
        }
    }
    finding
}

/// A stream with something slow to enqueue on it.
struct Bench {
    context: Context,
    stream: Stream,
    product: BoundOperator,
    output: Region<bf16>,
}

impl Bench {
    /// With a square product of that size.
    fn new(context: &Context, registry: &Arc<Registry>, side: usize) -> Result<Self> {
        let size = side as u64;
        let request = Request::new("gemm.dense", 1)
            .property("input", "bf16")
            .property("weight", "bf16")
            .property("output", "bf16")
            .property("bias", "absent")
            .property("residual", "absent")
            .dimension("m", size)
            .dimension("n", size)
            .dimension("k", size);
        // Any product will do as a delay, so no selection rule is needed.
        let artifact = registry.candidates(&request)?[0].clone();
        let dimensions = request.dimensions().clone();
        let plan = Loader::new(context, registry.clone()).plan_artifact(artifact, dimensions)?;
        let (input, weight) = (ramp(context, side * side)?, ramp(context, side * side)?);
        let output = Region::allocate(context, side * side)?;
        let operands =
            Operands::new().region("input", &input).region("weight", &weight).region("output", &output);
        let product = plan.bind(&operands)?;
        Ok(Self { context: context.clone(), stream: context.stream()?, product, output })
    }

    fn slow_scope(&self) -> Result<CommandScope> {
        let mut scope = CommandScope::new(&self.stream)?;
        for _ in 0..DELAY {
            self.product.enqueue(&mut scope)?;
        }
        Ok(scope)
    }
}

/// Small numbers that differ from place to place.
fn ramp(context: &Context, len: usize) -> Result<Region<bf16>> {
    let host = PinnedMemory::allocate(context, len)?;
    let value = |i: usize| bf16::from_f32(((i * 2_654_435_761) % 255) as f32 / 255.0 - 0.5);
    host.write(0, &(0..len).map(value).collect::<Vec<_>>())?;
    let region = Region::allocate(context, len)?;
    let mut scope = CommandScope::new(&context.stream()?)?;
    scope.copy_in(&host, &region)?;
    scope.finish()?.wait()?;
    Ok(region)
}

fn round_trip(bench: &Bench) -> Result<()> {
    let context = &bench.context;
    let (host, back) =
        (PinnedMemory::<u32>::allocate(context, 1000)?, PinnedMemory::allocate(context, 3000)?);
    host.write(0, &(0..1000).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect::<Vec<_>>())?;
    let all = Region::<u32>::allocate(context, 3000)?;
    let mut scope = CommandScope::new(&bench.stream)?;
    scope.fill(&all, 0xEE)?;
    scope.copy_in(&host, &all.slice(1000..2000)?)?;
    scope.copy_out(&all, &back)?;
    scope.finish()?.wait()?;
    for i in 0..3000 {
        let expected = if (1000..2000).contains(&i) { host.read(i - 1000) } else { Some(0xEEEE_EEEE) };
        ensure!(back.read(i) == expected, "element {i} is {:?}, must be {expected:?}", back.read(i));
    }
    Ok(())
}

fn drop_does_not_block(bench: &Bench) -> Result<()> {
    let mut completion = bench.slow_scope()?.finish()?;
    ensure!(completion.poll()? == Progress::Pending, "the work ended before it could be looked at");
    let start = Instant::now();
    drop(completion);
    let took = start.elapsed();
    ensure!(took < Duration::from_millis(5), "dropping took {took:?}");
    ensure!(
        bench.context.unsettled() == 1,
        "{} completions are unsettled, must be 1",
        bench.context.unsettled()
    );
    bench.stream.synchronize()?;
    settle(&bench.context)
}

fn settle(context: &Context) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    while context.unsettled() > 0 {
        ensure!(Instant::now() < end, "{} completions did not settle within 10 s", context.unsettled());
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Work that ends with a fill and a copy of memory whose every handle is dropped before the device gets there. If the
/// memory were freed early, the allocations made meanwhile would be given it and see the fill.
fn memory_is_kept(bench: &Bench) -> Result<()> {
    const BYTES: usize = 256 << 20;
    let context = &bench.context;
    let victim = Region::<u8>::allocate(context, BYTES)?;
    let free_with_victim = context.memory_info()?.free;
    let mut scope = bench.slow_scope()?;
    scope.fill(&victim, 0x5A)?;
    let back = PinnedMemory::<u8>::allocate(context, 4096)?;
    scope.copy_out(&victim.slice(BYTES - 4096..BYTES)?, &back)?;
    drop(victim);
    drop(scope.finish()?);
    let free_in_flight = context.memory_info()?.free;
    ensure!(free_in_flight <= free_with_victim, "memory was freed while work on it was in flight");
    bench.stream.synchronize()?;
    settle(context)?;
    ensure!((0..4096).all(|i| back.read(i) == Some(0x5A)), "the copy did not see the fill before it");
    let free_after = context.memory_info()?.free;
    ensure!(free_after >= free_with_victim + BYTES as u64 / 2, "the memory was not freed after the work");
    Ok(())
}

fn streams_wait(bench: &Bench) -> Result<()> {
    let context = &bench.context;
    let second = context.stream()?;
    let region = Region::<u8>::allocate(context, 4096)?;
    let back = PinnedMemory::<u8>::allocate(context, 4096)?;
    let mut first = bench.slow_scope()?;
    first.fill(&region, 0x77)?;
    let filled = first.finish()?;
    filled.before(&second)?;
    let mut scope = CommandScope::new(&second)?;
    scope.copy_out(&region, &back)?;
    scope.finish()?.wait()?;
    filled.wait()?;
    ensure!((0..4096).all(|i| back.read(i) == Some(0x77)), "the copy ran before the fill that it waits for");
    Ok(())
}

fn graph_replays(bench: &Bench) -> Result<()> {
    let eager = product_bits(bench, |scope| Ok(bench.product.enqueue(scope)?))?;
    let graph = Graph::capture(&bench.stream, |scope| bench.product.enqueue(scope))?;
    ensure!(graph.nodes() == bench.product.launches().len(), "the graph has {} nodes", graph.nodes());
    let replayed = product_bits(bench, |scope| Ok(graph.replay(scope)?))?;
    ensure!(eager == replayed, "the replay's product differs from the eager one");
    ensure!(eager.iter().any(|bits| *bits != eager[0]), "the product is constant");
    Ok(())
}

/// Some rows of the product, computed into poisoned memory.
fn product_bits(bench: &Bench, run: impl FnOnce(&mut CommandScope) -> Result<()>) -> Result<Vec<u16>> {
    let len = 64 * SIZE;
    let back = PinnedMemory::<bf16>::allocate(&bench.context, len)?;
    let mut scope = CommandScope::new(&bench.stream)?;
    scope.fill(&bench.output, 0xFF)?;
    run(&mut scope)?;
    scope.copy_out(&bench.output.slice(SIZE * SIZE - len..SIZE * SIZE)?, &back)?;
    scope.finish()?.wait()?;
    Ok((0..len).filter_map(|i| back.read(i)).map(bf16::to_bits).collect())
}

/// Says when it is dropped.
struct Flagged(Arc<AtomicBool>, #[expect(dead_code, reason = "kept, not read")] Region<u8>);

impl Drop for Flagged {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn lent_memory_is_kept(bench: &Bench) -> Result<()> {
    let context = &bench.context;
    let region = Region::<u8>::allocate(context, 4096)?;
    let back = PinnedMemory::<u8>::allocate(context, 4096)?;
    let (ptr, given_back) = (region.span().ptr(), Arc::new(AtomicBool::new(false)));
    // SAFETY: the owner keeps the region that the address is of.
    let lent = unsafe { DeviceMemory::external(context, ptr, 4096, Flagged(given_back.clone(), region)) };
    let mut scope = bench.slow_scope()?;
    let whole = lent.region::<u8>(0, 4096)?;
    scope.fill(&whole, 0x3C)?;
    scope.copy_out(&whole, &back)?;
    drop(scope);
    drop((lent, whole));
    ensure!(!given_back.load(Ordering::SeqCst), "it was given back while work on it was in flight");
    bench.stream.synchronize()?;
    settle(context)?;
    ensure!(given_back.load(Ordering::SeqCst), "it was not given back after the work");
    ensure!((0..4096).all(|i| back.read(i) == Some(0x3C)), "the copy did not see the fill before it");
    Ok(())
}

fn graph_keeps_all(bench: &Bench) -> Result<()> {
    let (graph, back) = filling_graph(bench, 0x21)?;
    let mut scope = bench.slow_scope()?;
    graph.replay(&mut scope)?;
    drop(graph);
    scope.finish()?.wait()?;
    ensure!((0..4096).all(|i| back.read(i) == Some(0x21)), "the replay did not fill its memory");
    Ok(())
}

/// A graph that fills memory that only it keeps, and copies it out.
fn filling_graph(bench: &Bench, byte: u8) -> Result<(Graph, PinnedMemory<u8>)> {
    let region = Region::<u8>::allocate(&bench.context, 4096)?;
    let back = PinnedMemory::<u8>::allocate(&bench.context, 4096)?;
    let graph = Graph::capture(&bench.stream, |scope| {
        bench.product.enqueue(scope)?;
        scope.fill(&region, byte)?;
        scope.copy_out(&region, &back)
    })?;
    Ok((graph, back))
}

fn threads_replay(bench: &Bench) -> Result<()> {
    let (graph, back) = filling_graph(bench, 0x43)?;
    let replay = || -> Result<()> {
        for _ in 0..8 {
            let mut scope = CommandScope::new(&bench.stream)?;
            graph.replay(&mut scope)?;
            scope.finish()?.wait()?;
        }
        Ok(())
    };
    std::thread::scope(|threads| {
        let threads: Vec<_> = (0..4).map(|_| threads.spawn(replay)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })?;
    ensure!((0..4096).all(|i| back.read(i) == Some(0x43)), "the replays did not fill their memory");
    Ok(())
}

fn scopes_settle(bench: &Bench) -> Result<()> {
    let context = &bench.context;
    let mut flying = Vec::new();
    for byte in 0..12 {
        // On streams in turn, so that ends come in another order than beginnings.
        let stream = if byte % 2 == 0 { bench.stream.clone() } else { context.stream()? };
        let mut scope = if byte % 3 == 0 { bench.slow_scope()? } else { CommandScope::new(&stream)? };
        let region = Region::<u8>::allocate(context, 4096)?;
        let back = PinnedMemory::<u8>::allocate(context, 4096)?;
        scope.fill(&region, byte)?;
        scope.copy_out(&region, &back)?;
        flying.push((byte, back, scope.finish()?));
    }
    std::thread::scope(|threads| {
        let settle = |(byte, back, completion): (u8, PinnedMemory<u8>, Completion)| {
            threads.spawn(move || -> Result<()> {
                // Every fourth is dropped unsettled.
                if byte % 4 == 3 {
                    drop(completion);
                    return Ok(());
                }
                completion.wait()?;
                ensure!(
                    (0..4096).all(|i| back.read(i) == Some(byte)),
                    "scope {byte} did not fill its memory"
                );
                Ok(())
            })
        };
        let threads: Vec<_> = flying.into_iter().rev().map(settle).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })?;
    settle(context)
}

fn plan_does_not_fit(bench: &Bench) -> Result<()> {
    let before = bench.context.memory_info()?;
    let plan =
        MemoryPlan::default().fixed("weights", 1 << 30).counted("KV pages", 1 << 20, before.total >> 20, 1);
    let error = plan.allocate(&bench.context).err();
    ensure!(error.is_some(), "a plan of more than the device's memory was allocated");
    let after = bench.context.memory_info()?;
    ensure!(after.free == before.free, "{} bytes are missing after it", before.free.abs_diff(after.free));
    Ok(())
}

/// Milliseconds of one product, on the device's own clock.
fn product_time(bench: &Bench) -> Result<f64> {
    let (start, end) = (
        Event::new(&bench.context, EventTiming::Enabled)?,
        Event::new(&bench.context, EventTiming::Enabled)?,
    );
    bench.slow_scope()?.finish()?.wait()?;
    start.record(&bench.stream)?;
    let scope = bench.slow_scope()?;
    end.record(&bench.stream)?;
    scope.finish()?.wait()?;
    Ok(f64::from(end.elapsed_since(&start)?) / DELAY as f64)
}

/// Microseconds that the host takes to enqueue one launch while the device is busy.
fn enqueue_time(bench: &Bench) -> Result<f64> {
    let mut scope = bench.slow_scope()?;
    let start = Instant::now();
    for _ in 0..DELAY {
        bench.product.enqueue(&mut scope)?;
    }
    let took = start.elapsed();
    scope.finish()?.wait()?;
    Ok(took.as_secs_f64() * 1e6 / DELAY as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxide_infer_cuda::artifact::Target;
    use oxide_infer_cuda::driver::simulated::SimulatedDriver;

    #[test]
    fn what_asks_nothing_of_the_devices_speed_passes_on_a_simulated_one() {
        let driver = SimulatedDriver::new();
        let context = Context::primary_on(driver.clone(), 0).unwrap();
        let registry = Arc::new(Registry::embedded(Target::hopper()).unwrap());
        let bench = Bench::new(&context, &registry, 64).unwrap();
        let allocations = driver.live_allocations();
        round_trip(&bench).unwrap();
        streams_wait(&bench).unwrap();
        graph_keeps_all(&bench).unwrap();
        threads_replay(&bench).unwrap();
        scopes_settle(&bench).unwrap();
        assert_eq!(driver.live_allocations(), allocations);
        assert!(driver.violations().is_empty());
    }
}

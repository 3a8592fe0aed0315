//! An engine with its own context, streams and KV cache adopts one operator: paged decode attention.
//!
//!     cargo run -p oxide-infer-cuda --example embed_one_operator
//!
//! It lends its handles and memory, lists who could compute the operator, plans one by name, and orders it with its own streams
//! by events. The host waits for nothing but the result, which is compared with the contract's reference.
//!
//! Exits 0 if all is as it should be, 1 if not, 69 where the machine has no driver, no device, or one that no artifact is made for.

mod toy_engine;

use half::bf16;
use oxide_infer::attention::{Attention, paged_decode};
use oxide_infer::kv_cache::{PageLayout, Paging};
use oxide_infer::{DType, FloatView, FloatViewMut, Presence, Provider, View};
use oxide_infer_cuda::artifact::status::DeviceStatus;
use oxide_infer_cuda::artifact::{Registry, Request, Target};
use oxide_infer_cuda::provider::{BoundPlan, Candidacy, Cuda};
use oxide_infer_cuda::runtime::{
    CommandScope, CompletionError, Context, DeviceMemory, Operands, Region, StatusWord,
};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use toy_engine::{Buffer, Engine, Lent, Missing, numbers, report};

const NUM_Q_HEADS: usize = 12;
const NUM_KV_HEADS: usize = 2;
const HEAD_DIM: usize = 128;
const PAGE_SIZE: usize = 64;
const NUM_PAGES: usize = 40;
const MAX_PAGES: usize = 8;
/// Keys of each sequence: a part of a page, whole pages, all that a row of the table holds.
const KV_LEN: [i32; 4] = [1, 64, 130, 512];

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    report(run())
}

fn run() -> Outcome<()> {
    let cache = Cache::new();
    let engine = Engine::start()?;
    let lent = engine.lend()?;
    let mut cuda = Cuda::new(&lent.context).artifacts(artifacts(&lent.context)?);
    let spec = spec()?;
    let request = Request::from(&spec)
        .dimension("batch", KV_LEN.len() as u64)
        .dimension("num_pages", NUM_PAGES as u64)
        .dimension("max_pages", MAX_PAGES as u64);

    let candidates = cuda.candidates(&request);
    candidates.iter().for_each(|candidate| println!("{candidate}"));
    // This engine's own rule: artifacts only, and the first of them by name.
    let ours = |c: &&oxide_infer_cuda::provider::Candidate| c.provider == Provider::OxideTile;
    let ready = candidates.iter().filter(ours).find(|c| c.state == Candidacy::Ready);
    let algorithm = ready.and_then(|candidate| candidate.algorithm.as_ref());
    let algorithm = algorithm.ok_or_else(|| Missing(format!("an artifact for {request}")))?;
    let plan = cuda.plan(&request, Provider::OxideTile, &algorithm.name)?;
    println!("planned {}", plan.algorithm());

    let on_device = OnDevice::upload(&engine, &cache)?;
    let workspaces = workspaces(&lent.context, &plan.workspaces()?)?;
    let status = StatusWord::new(&lent.context)?;
    let regions = on_device.lend(&lent.context)?;
    let operands = || {
        let operands = regions.operands(spec_scale()).status(&status);
        workspaces.iter().fold(operands, |operands, (name, region)| operands.region(name, region))
    };
    let bound = plan.bind(&operands())?;
    decode(&lent, &bound)?.wait()?;
    cache.compare(&engine.download(&on_device.output)?)?;

    // A page that the pool does not have: the device finds it, touches nothing outside the pool, and says which sequence.
    let mut table = cache.block_table.clone();
    table[2 * MAX_PAGES + 1] = NUM_PAGES as i32;
    let table = engine.upload(&table)?.lend::<i32>(&lent.context)?;
    let bad = plan.bind(&operands().region("block_table", &table))?;
    match decode(&lent, &bad)?.wait() {
        Err(CompletionError::Device(DeviceStatus::PageOutOfRange { sequence: 2 })) => {
            println!("a bad page was reported: sequence 2");
        }
        other => return Err(format!("a bad page in sequence 2 was reported as {other:?}").into()),
    }
    status.clear();

    // Everything is dropped while the work is in flight; the engine's memory is given back when the device is done.
    drop(decode(&lent, &bound)?);
    drop((bound, bad, regions, table, on_device, plan, cuda, workspaces, status));
    let context = lent.context.clone();
    drop((lent, engine));
    while context.unsettled() > 0 {
        std::thread::yield_now();
    }
    println!("ok");
    Ok(())
}

/// After what was uploaded and before what will be read, by the device's own clock.
fn decode(lent: &Lent, bound: &BoundPlan) -> Outcome<oxide_infer_cuda::runtime::Completion> {
    let mut scope = CommandScope::new(&lent.compute)?;
    scope.wait(&lent.uploaded)?;
    bound.enqueue(&mut scope)?;
    scope.record(&lent.computed)?;
    Ok(scope.finish()?)
}

fn artifacts(context: &Context) -> Outcome<Arc<Registry>> {
    let capability = context.device().compute_capability;
    let target = Target::of(capability, context.driver_version()?);
    let target = target.ok_or_else(|| {
        let (major, minor) = capability;
        Missing(format!("artifacts for compute capability {major}.{minor} ({})", context.device().name))
    })?;
    Ok(Arc::new(Registry::embedded(target)?))
}

fn spec_scale() -> f32 {
    1.0 / (HEAD_DIM as f32).sqrt()
}

fn spec() -> Outcome<paged_decode::Spec> {
    let attention = Attention {
        dtype: DType::BF16,
        num_q_heads: NUM_Q_HEADS,
        num_kv_heads: NUM_KV_HEADS,
        head_dim: HEAD_DIM,
        scale: spec_scale(),
        window: None,
        soft_cap: None,
        lse: Presence::Absent,
    };
    let paging = Paging { dtype: DType::BF16, layout: PageLayout::Hnd, page_size: PAGE_SIZE };
    Ok(paged_decode::Spec::new(paged_decode::Config { attention, paging })?)
}

fn workspaces(
    context: &Context,
    wanted: &[oxide_infer_cuda::runtime::Workspace],
) -> Outcome<Vec<(String, Region<u8>)>> {
    let allocate = |workspace: &oxide_infer_cuda::runtime::Workspace| {
        let memory = DeviceMemory::allocate(context, workspace.bytes as usize)?;
        Ok((workspace.name.clone(), memory.region::<u8>(0, memory.bytes())?))
    };
    wanted.iter().map(allocate).collect()
}

/// What the engine has cached, as the host knows it.
struct Cache {
    q: Vec<bf16>,
    k_pages: Vec<bf16>,
    v_pages: Vec<bf16>,
    block_table: Vec<i32>,
}

impl Cache {
    const POOL: usize = NUM_PAGES * NUM_KV_HEADS * PAGE_SIZE * HEAD_DIM;

    fn new() -> Self {
        // Pages of a sequence lie apart; entries that no key needs are none of the pool's, and never read.
        let mut block_table = vec![-1; KV_LEN.len() * MAX_PAGES];
        let mut next = 0;
        for (sequence, kv_len) in KV_LEN.into_iter().enumerate() {
            for page in 0..(kv_len as usize).div_ceil(PAGE_SIZE) {
                block_table[sequence * MAX_PAGES + page] = (next * 7 % NUM_PAGES) as i32;
                next += 1;
            }
        }
        Self {
            q: numbers(KV_LEN.len() * NUM_Q_HEADS * HEAD_DIM, 1),
            k_pages: numbers(Self::POOL, 2),
            v_pages: numbers(Self::POOL, 3),
            block_table,
        }
    }

    /// Compares the device's output with the contract's reference.
    fn compare(&self, output: &[bf16]) -> Outcome<()> {
        let spec = spec()?;
        let rows = [KV_LEN.len(), NUM_Q_HEADS, HEAD_DIM];
        let pool = spec_pool();
        let mut expected = vec![bf16::ZERO; output.len()];
        let operands = paged_decode::Operands {
            q: FloatView::contiguous(&self.q, rows)?,
            k_pages: FloatView::contiguous(&self.k_pages, pool)?,
            v_pages: FloatView::contiguous(&self.v_pages, pool)?,
            block_table: View::contiguous(&self.block_table, [KV_LEN.len(), MAX_PAGES])?,
            kv_len: View::contiguous(&KV_LEN, [KV_LEN.len()])?,
            output: FloatViewMut::contiguous(&mut expected, rows)?,
            lse: None,
        };
        paged_decode::reference(&spec, operands)?;
        let difference = |(got, want): (&bf16, &bf16)| (got.to_f32() - want.to_f32()).abs();
        let largest = output.iter().zip(&expected).map(difference).fold(0.0, f32::max);
        println!("largest difference from the reference: {largest:.6}");
        // Outputs are averages of numbers up to 0.5, of 8 significant bits.
        if largest <= 1.0 / 256.0 { Ok(()) } else { Err(format!("the output is off by {largest}").into()) }
    }
}

fn spec_pool() -> [usize; 4] {
    [NUM_PAGES, NUM_KV_HEADS, PAGE_SIZE, HEAD_DIM]
}

/// The engine's cache on its device.
struct OnDevice {
    q: Arc<Buffer>,
    k_pages: Arc<Buffer>,
    v_pages: Arc<Buffer>,
    block_table: Arc<Buffer>,
    kv_len: Arc<Buffer>,
    output: Arc<Buffer>,
}

/// The same, lent.
struct Regions {
    floats: [(&'static str, Region<bf16>); 4],
    indices: [(&'static str, Region<i32>); 2],
}

impl OnDevice {
    fn upload(engine: &Arc<Engine>, cache: &Cache) -> Outcome<Self> {
        Ok(Self {
            q: engine.upload(&cache.q)?,
            k_pages: engine.upload(&cache.k_pages)?,
            v_pages: engine.upload(&cache.v_pages)?,
            block_table: engine.upload(&cache.block_table)?,
            kv_len: engine.upload(&KV_LEN)?,
            output: engine.upload(&vec![bf16::NAN; cache.q.len()])?,
        })
    }

    fn lend(&self, context: &Context) -> Outcome<Regions> {
        Ok(Regions {
            floats: [
                ("q", self.q.lend(context)?),
                ("k_pages", self.k_pages.lend(context)?),
                ("v_pages", self.v_pages.lend(context)?),
                ("output", self.output.lend(context)?),
            ],
            indices: [
                ("block_table", self.block_table.lend(context)?),
                ("kv_len", self.kv_len.lend(context)?),
            ],
        })
    }
}

impl Regions {
    fn operands(&self, scale: f32) -> Operands<'_> {
        let operands = Operands::new().attribute("scale", scale);
        let operands = self.floats.iter().fold(operands, |o, (name, region)| o.region(name, region));
        self.indices.iter().fold(operands, |o, (name, region)| o.region(name, region))
    }
}

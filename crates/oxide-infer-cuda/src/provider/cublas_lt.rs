//! The provider [`Provider::CublasLt`]: dense products by NVIDIA's cuBLASLt, loaded at run time.
//!
//! The library is asked for algorithms when a product is planned; the plan keeps the one that was named and its workspace. What
//! is enqueued is that algorithm, with nothing left to decide.

mod descriptor;
#[cfg(test)]
pub(super) mod fake;
mod library;
mod product;
mod search;
#[cfg(test)]
mod tests;

pub use library::{LoadError, Looked};
pub use search::Search;

use super::{Candidacy, Candidate, PlanError};
use crate::artifact::Request;
use crate::driver::{CudaError, LibraryError, RawStream};
use crate::runtime::{
    BindError, CommandScope, Context, DeviceMemory, EnqueueError, Expected, KernelError, Lease, Operands,
    Workspace, check_operands, rehearse,
};
use cudarc::cublaslt::sys;
use descriptor::{Layout, Operation, Preference};
use library::{Calls, HeuristicResult, Library, NOT_SUPPORTED, check};
use oxide_infer::{Algorithm, DType, Provider};
use product::{ALIGNMENT, Part, Product, WORKSPACE, WORKSPACE_ALIGNMENT};
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// Most bytes of workspace that an algorithm may want: what NVIDIA recommends for Hopper.
const MAX_WORKSPACE: u64 = 32 << 20;
/// Algorithms that the library is asked for.
const CANDIDATES: usize = 8;
/// Algorithms are named by their place in the library's own order, best first: `heuristic_0`, `heuristic_1`, …
const PREFIX: &str = "heuristic_";

/// The library, started on one device. Cheap to clone; everything made from it keeps it.
#[derive(Clone)]
pub struct CublasLt {
    started: Arc<Started>,
}

struct Started {
    context: Context,
    library: Library,
    handle: sys::cublasLtHandle_t,
}

// SAFETY: the handle holds nothing that a call changes, and the library takes one handle from several threads.
unsafe impl Send for Started {}
// SAFETY: as above.
unsafe impl Sync for Started {}

/// A product with its algorithm and workspace frozen.
#[derive(Clone)]
pub(super) struct ProductPlan {
    inner: Arc<Planned>,
}

struct Planned {
    library: CublasLt,
    algorithm: Algorithm,
    product: Product,
    algo: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
    a: Layout,
    b: Layout,
    /// Of the output, and of what it is added to.
    d: Layout,
}

/// A planned product at fixed addresses.
pub(super) struct BoundProduct {
    inner: Arc<Bound>,
}

struct Bound {
    plan: ProductPlan,
    operation: Operation,
    input: u64,
    weight: u64,
    residual: u64,
    output: u64,
    workspace: u64,
    /// Keeps the operands' memory; never read.
    _memory: Vec<DeviceMemory>,
}

/// An algorithm that the library proposes.
struct Proposed {
    algo: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

/// Why the library proposes nothing.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error(transparent)]
    Driver(#[from] CudaError),
    #[error(transparent)]
    Library(#[from] LibraryError),
}

impl From<Unanswered> for PlanError {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Driver(error) => error.into(),
            Unanswered::Library(error) => error.into(),
        }
    }
}

impl CublasLt {
    /// Loads the library and starts it on the context's device, where it takes what little memory its handle needs.
    ///
    /// # Errors
    ///
    /// [`LoadError`], which says where the library was looked for.
    pub fn load(context: &Context, search: &Search) -> Result<Self, LoadError> {
        Self::start(context, Library::load(search)?)
    }

    fn start(context: &Context, library: Library) -> Result<Self, LoadError> {
        let mut handle = ptr::null_mut();
        // SAFETY: an out-parameter of the library's own type; the context is current; destroyed in `drop`.
        let status = context.call(|_| Ok(unsafe { (library.calls.create)(&mut handle) }))?;
        match check("cublasLtCreate", status) {
            Ok(()) => Ok(Self { started: Arc::new(Started { context: context.clone(), library, handle }) }),
            Err(source) => Err(LoadError::Start { path: library.path, source }),
        }
    }

    /// The library's file, or the name by which the dynamic loader found it.
    pub fn path(&self) -> &Path {
        &self.started.library.path
    }

    /// `cublasLtGetVersion`: 130000 is 13.0.
    pub fn version(&self) -> usize {
        self.started.library.version
    }

    pub(super) fn candidates(&self, request: &Request) -> Vec<Candidate> {
        let (provider, implementation) = (Provider::CublasLt, format!("cuBLASLt {}", self.version()));
        let none = |why: String| {
            let state = Candidacy::NotAdmitted(why);
            vec![Candidate { provider, algorithm: None, implementation: implementation.clone(), state }]
        };
        let product = match Product::of(request) {
            Ok(product) => product,
            Err(why) => return none(why),
        };
        match self.propose(&product) {
            Err(error) => none(error.to_string()),
            Ok((_, proposed)) if proposed.is_empty() => none("the library proposes no algorithm".to_owned()),
            Ok((_, proposed)) => {
                let named = |(rank, proposed): (usize, Proposed)| Candidate {
                    provider,
                    algorithm: Some(named(rank)),
                    implementation: format!("{implementation}, {} bytes of workspace", proposed.workspace),
                    state: Candidacy::Ready,
                };
                proposed.into_iter().enumerate().map(named).collect()
            }
        }
    }

    pub(super) fn plan(&self, request: &Request, algorithm: &str) -> Result<ProductPlan, PlanError> {
        let asked = || Algorithm::new(Provider::CublasLt, algorithm.to_owned());
        let product = Product::of(request).map_err(|why| PlanError::NotAdmitted {
            asked: asked(),
            request: request.clone().into(),
            why,
        })?;
        let (layouts, proposed) = self.propose(&product)?;
        let known: Vec<_> = (0..proposed.len()).map(named).collect();
        let Some((algorithm, Proposed { algo, workspace })) =
            known.iter().cloned().zip(proposed).find(|(known, _)| known.name == algorithm)
        else {
            let known = known.into_iter().map(|known| known.name.into_owned()).collect();
            return Err(PlanError::UnknownAlgorithm {
                asked: asked(),
                request: request.clone().into(),
                known,
            });
        };
        let ([a, b, d], library) = (layouts, self.clone());
        let inner = Planned { library, algorithm, product, algo, workspace, a, b, d };
        Ok(ProductPlan { inner: Arc::new(inner) })
    }

    /// Asks the library for algorithms, best first by its own measure. On the host alone; the library looks at the current
    /// context's device.
    fn propose(&self, product: &Product) -> Result<([Layout; 3], Vec<Proposed>), Unanswered> {
        let calls = self.calls();
        // The heuristics look at whether there is a bias, not at it.
        let bias = (product.bias == Part::Present).then_some(u64::from(ALIGNMENT));
        let operation = Operation::new(calls, product, bias)?;
        let preference = Preference::new(calls)?;
        let layouts = [
            Layout::new(calls, product.a())?,
            Layout::new(calls, product.b())?,
            Layout::new(calls, product.d())?,
        ];
        let [a, b, d] = [0, 1, 2].map(|i: usize| layouts[i].raw());
        let empty = HeuristicResult {
            algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspace: 0,
            state: NOT_SUPPORTED,
            waves: 0.0,
            reserved: [0; 4],
        };
        let (mut results, mut count) = ([empty; CANDIDATES], 0);
        let status = self.started.context.call(|_| {
            // SAFETY: handle and descriptors are live; the library writes at most as many results as it is asked for.
            Ok(unsafe {
                (calls.heuristic)(
                    self.started.handle,
                    operation.raw(),
                    a,
                    b,
                    d,
                    d,
                    preference.raw(),
                    CANDIDATES as c_int,
                    results.as_mut_ptr(),
                    &mut count,
                )
            })
        })?;
        if status == NOT_SUPPORTED {
            return Ok((layouts, Vec::new()));
        }
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        let found = results.iter().take(usize::try_from(count).unwrap_or(0));
        let usable = found.filter(|result| result.state == 0 && result.workspace as u64 <= MAX_WORKSPACE);
        let proposed = usable.map(|result| Proposed { algo: result.algo, workspace: result.workspace });
        Ok((layouts, proposed.collect()))
    }

    fn calls(&self) -> Calls {
        self.started.library.calls
    }
}

fn named(rank: usize) -> Algorithm {
    Algorithm::new(Provider::CublasLt, format!("{PREFIX}{rank}"))
}

impl Drop for Started {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; whatever is in flight keeps it. On a lost context it goes with the context.
        let _ = self.context.call(|_| Ok(unsafe { (self.library.calls.destroy)(self.handle) }));
    }
}

impl ProductPlan {
    pub(super) fn algorithm(&self) -> &Algorithm {
        &self.inner.algorithm
    }

    pub(super) fn workspaces(&self) -> Vec<Workspace> {
        let (name, bytes) = (WORKSPACE.to_owned(), self.inner.workspace as u64);
        let workspace = Workspace { name, dtype: DType::U8, bytes, alignment: WORKSPACE_ALIGNMENT };
        Some(workspace).filter(|workspace| workspace.bytes > 0).into_iter().collect()
    }

    pub(super) fn bind(&self, operands: &Operands<'_>) -> Result<BoundProduct, BindError> {
        let Planned { library, product, algorithm, workspace, .. } = &*self.inner;
        let operator = algorithm.to_string();
        let expected = product.operands(*workspace as u64);
        let context = &library.started.context;
        let foreign = |expected: &Expected<'_>| {
            operands.bound(expected.name).is_some_and(|span| !span.memory.context().same(context))
        };
        if let Some(index) = expected.iter().position(foreign) {
            return Err(BindError::Kernel { operator, source: KernelError::OtherContext { index } });
        }
        check_operands(&operator, &expected, &[], operands)?;
        let address = |name: &str| operands.bound(name).map_or(0, |span| span.ptr().0);
        let bias = (product.bias == Part::Present).then(|| address("bias"));
        let operation = Operation::new(library.calls(), product, bias)
            .map_err(|source| BindError::Library { operator, source })?;
        let output = address("output");
        let residual = match product.residual {
            Part::Present => address("residual"),
            // Not read, but the library wants an address.
            Part::Absent => output,
        };
        let (input, weight, workspace) = (address("input"), address("weight"), address(WORKSPACE));
        let spans = expected.iter().filter_map(|expected| operands.bound(expected.name));
        let memory = spans.map(|span| span.memory.clone()).collect();
        let plan = self.clone();
        let inner = Bound { plan, operation, input, weight, residual, output, workspace, _memory: memory };
        // What a capture cannot load is loaded by the first launch, so a refusal is no reason to refuse the operands.
        let _ = rehearse(context, |stream| drop(inner.enqueue(stream)));
        Ok(BoundProduct { inner: Arc::new(inner) })
    }
}

impl BoundProduct {
    pub(super) fn enqueue(&self, scope: &mut CommandScope) -> Result<(), EnqueueError> {
        let planned = &*self.inner.plan.inner;
        let lease: Lease = self.inner.clone();
        let name = || planned.algorithm.to_string();
        scope.call_library(&planned.library.started.context, lease, name, |stream| self.inner.enqueue(stream))
    }
}

impl Bound {
    fn enqueue(&self, stream: RawStream) -> Result<(), LibraryError> {
        let planned = &*self.plan.inner;
        let Planned { library, product, algo, workspace, a, b, d, .. } = planned;
        let (alpha, beta) = (1.0_f32, product.beta());
        let (alpha, beta) = (ptr::from_ref(&alpha).cast(), ptr::from_ref(&beta).cast());
        let read = |address: u64| address as *const c_void;
        // SAFETY: handle and descriptors are live; `bind` has checked that every region is as long, typed and aligned as the
        // descriptors say, and the scope leases them; the factors are read before the call returns.
        let status = unsafe {
            (library.calls().matmul)(
                library.started.handle,
                self.operation.raw(),
                alpha,
                read(self.weight),
                a.raw(),
                read(self.input),
                b.raw(),
                beta,
                read(self.residual),
                d.raw(),
                self.output as *mut c_void,
                d.raw(),
                algo,
                self.workspace as *mut c_void,
                *workspace,
                stream.0 as sys::cudaStream_t,
            )
        };
        check("cublasLtMatmul", status)
    }
}

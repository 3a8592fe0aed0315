//! The library's calls over a simulated device: descriptors are kept as they were described, a product touches the memory that
//! it was given when the device gets there, and nothing is computed.

use super::library::{Calls, HeuristicResult, Library};
use super::{CublasLt, LoadError};
use crate::driver::simulated::SimulatedDriver;
use crate::driver::{Driver, LaunchShape, RawFunction, RawStream, Serialization};
use crate::runtime::Context;
use cudarc::cublaslt::sys;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

/// One call of `cublasLtMatmul`.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::provider) struct MatmulCall {
    pub(in crate::provider) alpha: f32,
    pub(in crate::provider) beta: f32,
    /// A, B, C, D, workspace.
    pub(in crate::provider) addresses: [u64; 5],
    pub(in crate::provider) algorithm: u64,
    pub(in crate::provider) workspace: usize,
    pub(in crate::provider) attributes: BTreeMap<u32, Vec<u8>>,
    /// Of A, B, C and D: type, rows, columns, leading dimension.
    pub(in crate::provider) layouts: [(u32, u64, u64, i64); 4],
}

#[derive(Default)]
pub(in crate::provider) struct State {
    /// Handles and descriptors that are not destroyed.
    pub(in crate::provider) live: usize,
    pub(in crate::provider) heuristic_calls: usize,
    pub(in crate::provider) preferences: BTreeMap<u32, Vec<u8>>,
    pub(in crate::provider) matmuls: Vec<MatmulCall>,
    /// Workspace and status of each algorithm that is proposed.
    pub(in crate::provider) proposals: Vec<(usize, u32)>,
    /// Status of calls by name; 0 where there is none.
    pub(in crate::provider) statuses: BTreeMap<&'static str, u32>,
}

/// A library on a simulated device.
#[derive(Clone)]
pub(in crate::provider) struct Fake {
    driver: Arc<SimulatedDriver>,
    state: Arc<Mutex<State>>,
}

thread_local! {
    /// What descriptors are made for: they are made without a handle.
    static CURRENT: RefCell<Option<Fake>> = const { RefCell::new(None) };
}

impl Fake {
    /// A library that proposes two algorithms, the second with a workspace.
    pub(in crate::provider) fn new(driver: &Arc<SimulatedDriver>) -> Self {
        let state = State { proposals: vec![(0, 0), (4096, 0)], ..State::default() };
        let fake = Self { driver: driver.clone(), state: Arc::new(Mutex::new(state)) };
        CURRENT.set(Some(fake.clone()));
        fake
    }

    pub(in crate::provider) fn start(&self, context: &Context) -> Result<CublasLt, LoadError> {
        let library = Library { calls: CALLS, path: PathBuf::from("libfake.so"), version: 130_000 };
        CublasLt::start(context, library)
    }

    pub(in crate::provider) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn status(&self, call: &'static str) -> u32 {
        self.state().statuses.get(call).copied().unwrap_or(0)
    }
}

struct Described<T> {
    fake: Fake,
    value: T,
}

type Attributes = BTreeMap<u32, Vec<u8>>;
type Matrix = (u32, u64, u64, i64);

fn make<T, P>(call: &'static str, out: *mut *mut P, value: T) -> u32 {
    let fake = CURRENT.with_borrow(|fake| fake.clone()).expect("a test has made a library");
    let status = fake.status(call);
    if status == 0 {
        fake.state().live += 1;
        // SAFETY: the caller's out-parameter.
        unsafe { *out = Box::into_raw(Box::new(Described { fake, value })).cast() };
    }
    status
}

/// # Safety
/// `raw` was made by `make` with this type and is destroyed once.
unsafe fn destroy<T, P>(raw: *mut P) -> u32 {
    // SAFETY: see above.
    let described = unsafe { Box::from_raw(raw.cast::<Described<T>>()) };
    described.fake.state().live -= 1;
    0
}

/// # Safety
/// `raw` was made by `make` with this type and is live.
unsafe fn described<'a, T, P>(raw: *mut P) -> &'a mut Described<T> {
    // SAFETY: see above; the caller makes no second reference.
    unsafe { &mut *raw.cast() }
}

/// # Safety
/// `buffer` holds `bytes` bytes.
unsafe fn copied(buffer: *const c_void, bytes: usize) -> Vec<u8> {
    // SAFETY: see above.
    unsafe { std::slice::from_raw_parts(buffer.cast(), bytes) }.to_vec()
}

unsafe extern "C" fn version() -> usize {
    130_000
}

unsafe extern "C" fn create(out: *mut sys::cublasLtHandle_t) -> u32 {
    make("cublasLtCreate", out, ())
}

unsafe extern "C" fn destroy_handle(handle: sys::cublasLtHandle_t) -> u32 {
    // SAFETY: the caller destroys what `create` made, once.
    unsafe { destroy::<(), _>(handle) }
}

unsafe extern "C" fn desc_create(out: *mut sys::cublasLtMatmulDesc_t, compute: u32, scale: u32) -> u32 {
    let value = Attributes::from([(0, compute.to_ne_bytes().to_vec()), (1, scale.to_ne_bytes().to_vec())]);
    make("cublasLtMatmulDescCreate", out, value)
}

unsafe extern "C" fn desc_destroy(desc: sys::cublasLtMatmulDesc_t) -> u32 {
    // SAFETY: the caller destroys what `desc_create` made, once.
    unsafe { destroy::<Attributes, _>(desc) }
}

unsafe extern "C" fn desc_set(
    desc: sys::cublasLtMatmulDesc_t,
    name: u32,
    value: *const c_void,
    bytes: usize,
) -> u32 {
    // SAFETY: the descriptor is live and the value has that many bytes.
    unsafe { described::<Attributes, _>(desc).value.insert(name, copied(value, bytes)) };
    0
}

unsafe extern "C" fn layout_create(
    out: *mut sys::cublasLtMatrixLayout_t,
    data_type: u32,
    rows: u64,
    columns: u64,
    leading: i64,
) -> u32 {
    make("cublasLtMatrixLayoutCreate", out, (data_type, rows, columns, leading))
}

unsafe extern "C" fn layout_destroy(layout: sys::cublasLtMatrixLayout_t) -> u32 {
    // SAFETY: the caller destroys what `layout_create` made, once.
    unsafe { destroy::<Matrix, _>(layout) }
}

unsafe extern "C" fn preference_create(out: *mut sys::cublasLtMatmulPreference_t) -> u32 {
    make("cublasLtMatmulPreferenceCreate", out, Attributes::new())
}

unsafe extern "C" fn preference_destroy(preference: sys::cublasLtMatmulPreference_t) -> u32 {
    // SAFETY: the caller destroys what `preference_create` made, once.
    unsafe { destroy::<Attributes, _>(preference) }
}

unsafe extern "C" fn preference_set(
    preference: sys::cublasLtMatmulPreference_t,
    name: u32,
    value: *const c_void,
    bytes: usize,
) -> u32 {
    // SAFETY: the descriptor is live and the value has that many bytes.
    let (described, value) = unsafe { (described::<Attributes, _>(preference), copied(value, bytes)) };
    described.fake.state().preferences.insert(name, value);
    0
}

unsafe extern "C" fn heuristic(
    handle: sys::cublasLtHandle_t,
    _: sys::cublasLtMatmulDesc_t,
    _: sys::cublasLtMatrixLayout_t,
    _: sys::cublasLtMatrixLayout_t,
    _: sys::cublasLtMatrixLayout_t,
    _: sys::cublasLtMatrixLayout_t,
    _: sys::cublasLtMatmulPreference_t,
    asked: c_int,
    results: *mut HeuristicResult,
    count: *mut c_int,
) -> u32 {
    // SAFETY: the handle is live.
    let fake = unsafe { described::<(), _>(handle) }.fake.clone();
    let proposals = fake.state().proposals.clone();
    fake.state().heuristic_calls += 1;
    for (i, (workspace, state)) in proposals.iter().copied().enumerate().take(asked as usize) {
        let algo = sys::cublasLtMatmulAlgo_t { data: [100 + i as u64; 8] };
        let result = HeuristicResult { algo, workspace, state, waves: 1.0, reserved: [0; 4] };
        // SAFETY: the caller has room for as many as it asks for.
        unsafe { *results.add(i) = result };
    }
    // SAFETY: the caller's out-parameter.
    unsafe { *count = proposals.len().min(asked as usize) as c_int };
    fake.status("cublasLtMatmulAlgoGetHeuristic")
}

unsafe extern "C" fn matmul(
    handle: sys::cublasLtHandle_t,
    desc: sys::cublasLtMatmulDesc_t,
    alpha: *const c_void,
    a: *const c_void,
    a_layout: sys::cublasLtMatrixLayout_t,
    b: *const c_void,
    b_layout: sys::cublasLtMatrixLayout_t,
    beta: *const c_void,
    c: *const c_void,
    c_layout: sys::cublasLtMatrixLayout_t,
    d: *mut c_void,
    d_layout: sys::cublasLtMatrixLayout_t,
    algo: *const sys::cublasLtMatmulAlgo_t,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: sys::cudaStream_t,
) -> u32 {
    // SAFETY: handle, descriptors and numbers are live, and of the types that their creators made.
    let (fake, call) = unsafe {
        let layout = |raw| described::<Matrix, _>(raw).value;
        let call = MatmulCall {
            alpha: *alpha.cast(),
            beta: *beta.cast(),
            addresses: [a as u64, b as u64, c as u64, d as u64, workspace as u64],
            algorithm: (*algo).data[0],
            workspace: workspace_bytes,
            attributes: described::<Attributes, _>(desc).value.clone(),
            layouts: [layout(a_layout), layout(b_layout), layout(c_layout), layout(d_layout)],
        };
        (described::<(), _>(handle).fake.clone(), call)
    };
    let mut words = call.addresses.to_vec();
    words.extend(call.attributes.get(&8).map(|bias| u64::from_ne_bytes(bias[..].try_into().unwrap())));
    fake.state().matmuls.push(call);
    let status = fake.status("cublasLtMatmul");
    if status == 0 {
        let mut pointers: Vec<*mut c_void> =
            words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let shape = LaunchShape {
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            cluster: None,
            serialization: Serialization::Full,
        };
        // SAFETY: the simulated device reads as many words as there are.
        unsafe { fake.driver.launch(RawFunction(0), &shape, &mut pointers, RawStream(stream as usize)) }
            .unwrap();
    }
    status
}

const CALLS: Calls = Calls {
    version,
    create,
    destroy: destroy_handle,
    desc_create,
    desc_destroy,
    desc_set,
    layout_create,
    layout_destroy,
    preference_create,
    preference_destroy,
    preference_set,
    heuristic,
    matmul,
};

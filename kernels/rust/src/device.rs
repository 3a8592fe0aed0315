//! What a kernel needs of the machine, as thin functions over intrinsics and `asm!`.
//!
//! Operations that all threads of a warp or block must reach together are LLVM intrinsics, which rustc declares convergent;
//! `asm!` carries no such mark, so it holds only what each thread does alone.

use core::arch::asm;
pub use core::arch::nvptx::{_block_idx_x, _block_idx_y, _thread_idx_x};
pub use core::f32::math::mul_add as fma;

/// Threads of a warp.
pub const WARP: u32 = 32;
const ALL: u32 = u32::MAX;
const LAST_LANE: u32 = WARP - 1;

unsafe extern "C" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.f32"]
    safe fn shuffle_xor_f32(mask: u32, value: f32, lane: u32, clamp: u32) -> f32;
    #[link_name = "llvm.nvvm.redux.sync.add"]
    safe fn redux_add(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.barrier.cluster.arrive"]
    safe fn cluster_arrive();
    #[link_name = "llvm.nvvm.barrier.cluster.wait"]
    safe fn cluster_wait();
}

/// 16 bytes: what one load or store moves.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct Vector(pub [u32; 4]);

impl Vector {
    pub const ZERO: Self = Self([0; 4]);
    pub const BYTES: u32 = 16;
}

#[inline(always)]
pub fn thread() -> u32 {
    // SAFETY: reads a register.
    unsafe { _thread_idx_x() as u32 }
}

#[inline(always)]
pub fn block_x() -> u32 {
    // SAFETY: reads a register.
    unsafe { _block_idx_x() as u32 }
}

#[inline(always)]
pub fn block_y() -> u32 {
    // SAFETY: reads a register.
    unsafe { _block_idx_y() as u32 }
}

/// Waits for all threads of the block.
#[inline(always)]
pub fn sync_block() {
    // SAFETY: called where all threads of the block come by.
    unsafe { core::arch::nvptx::_syncthreads() }
}

/// Waits for all threads of the cluster; what they wrote to shared memory before is seen after.
#[inline(always)]
pub fn sync_cluster() {
    cluster_arrive();
    cluster_wait();
}

/// This block's number in its cluster.
#[inline(always)]
pub fn cluster_rank() -> u32 {
    let rank: u32;
    // SAFETY: reads a register.
    unsafe { asm!("mov.u32 {0}, %cluster_ctarank;", out(reg32) rank, options(pure, nomem, nostack)) }
    rank
}

/// The value of the lane whose number differs by `distance` in its bits.
#[inline(always)]
pub fn shuffle_xor(value: f32, distance: u32) -> f32 {
    shuffle_xor_f32(ALL, value, distance, LAST_LANE)
}

/// The sum over groups of `LANES` neighbours, in each of them.
#[inline(always)]
pub fn sum_lanes<const LANES: u32>(mut value: f32) -> f32 {
    let mut distance = LANES / 2;
    while distance > 0 {
        value += shuffle_xor(value, distance);
        distance /= 2;
    }
    value
}

/// The sum over the warp, in each lane.
#[inline(always)]
pub fn count_warp(value: u32) -> u32 {
    redux_add(value, ALL)
}

/// Lets the next kernel's blocks be placed, and waits until the kernel before has ended and its writes are seen.
#[inline(always)]
pub fn overlap_predecessor() {
    release_successor();
    wait_for_predecessor();
}

/// Lets the next kernel's blocks be placed.
#[inline(always)]
pub fn release_successor() {
    // SAFETY: touches no memory.
    unsafe { asm!("griddepcontrol.launch_dependents;", options(nostack)) }
}

/// Waits until the kernel before has ended and its writes are seen. Only weights may be read ahead of it.
#[inline(always)]
pub fn wait_for_predecessor() {
    // SAFETY: touches no memory.
    unsafe { asm!("griddepcontrol.wait;", options(nostack)) }
}

#[inline(always)]
pub unsafe fn store<T>(to: *mut T, value: Vector) {
    *(to as *mut Vector) = value
}

macro_rules! loads {
    ($($(#[$doc:meta])* $name:ident $cache:literal;)*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub unsafe fn $name<T>(from: *const T, wanted: bool) -> Vector {
            let (a, b, c, d): (u32, u32, u32, u32);
            asm!(
                "{{ .reg .pred wanted;",
                "setp.ne.u32 wanted, {5}, 0;",
                "mov.b32 {0}, 0; mov.b32 {1}, 0; mov.b32 {2}, 0; mov.b32 {3}, 0;",
                concat!("@wanted ld.global", $cache, ".v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}]; }}"),
                out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) from, in(reg32) wanted as u32,
                options(readonly, nostack)
            );
            Vector([a, b, c, d])
        }
    )* };
}

// Not `pure`, or LLVM would move a load to its first use, and batches of them would not be in flight at once.
loads! {
    /// Loads what several blocks read; zeros where nothing is wanted.
    load_cached "";
    /// Loads what is read once, past L1; zeros where nothing is wanted.
    load_streamed ".L1::no_allocate.L2::256B";
}

/// Begins a copy of 16 bytes to shared memory; of zeros where there is nothing to copy.
#[inline(always)]
pub unsafe fn copy_async<T>(to: u32, from: *const T, wanted: bool) {
    let bytes = if wanted { Vector::BYTES } else { 0 };
    asm!("cp.async.cg.shared.global.L2::256B [{0}], [{1}], 16, {2};", in(reg32) to, in(reg64) from, in(reg32) bytes,
        options(nostack));
}

/// Closes a group of this thread's copies.
#[inline(always)]
pub fn commit_copies() {
    // SAFETY: only waited for by this thread.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) }
}

/// Waits until all but the last `OPEN` groups of this thread have arrived.
#[inline(always)]
pub fn wait_copies<const OPEN: i32>() {
    // SAFETY: waits for this thread's own copies.
    unsafe { asm!("cp.async.wait_group {0};", const OPEN, options(nostack)) }
}

#[inline(always)]
pub unsafe fn load_shared(at: u32) -> f32 {
    let value: f32;
    asm!("ld.shared.b32 {0}, [{1}];", out(reg32) value, in(reg32) at, options(nostack));
    value
}

#[inline(always)]
pub unsafe fn store_shared(at: u32, value: f32) {
    asm!("st.shared.b32 [{0}], {1};", in(reg32) at, in(reg32) value, options(nostack));
}

#[inline(always)]
pub unsafe fn load_shared_vector(at: u32) -> Vector {
    let (a, b, c, d): (u32, u32, u32, u32);
    asm!("ld.shared.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];", out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d,
        in(reg32) at, options(nostack));
    Vector([a, b, c, d])
}

/// The number that block `rank` of the cluster has at this place of its shared memory.
#[inline(always)]
pub unsafe fn load_cluster(at: u32, rank: u32) -> f32 {
    let value: f32;
    asm!(
        "{{ .reg .b32 place; mapa.shared::cluster.u32 place, {1}, {2}; ld.shared::cluster.b32 {0}, [place]; }}",
        out(reg32) value, in(reg32) at, in(reg32) rank, options(nostack)
    );
    value
}

/// `1 / sqrt(x)` within 2 units in the last place.
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    let root: f32;
    // SAFETY: arithmetic.
    unsafe { asm!("rsqrt.approx.f32 {0}, {1};", out(reg32) root, in(reg32) x, options(pure, nomem, nostack)) }
    root
}

/// `2^x` within 2 units in the last place.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let power: f32;
    // SAFETY: arithmetic.
    unsafe { asm!("ex2.approx.f32 {0}, {1};", out(reg32) power, in(reg32) x, options(pure, nomem, nostack)) }
    power
}

/// The binary logarithm, off by at most 2^-22 and by 1 unit in the last place from 2 on.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    let log: f32;
    // SAFETY: arithmetic.
    unsafe { asm!("lg2.approx.f32 {0}, {1};", out(reg32) log, in(reg32) x, options(pure, nomem, nostack)) }
    log
}

// One window of dynamic shared memory for all kernels.
core::arch::global_asm!(".extern .shared .align 16 .b8 DYNAMIC_SHARED_MEMORY[];");

/// Where dynamic shared memory begins.
#[inline(always)]
pub fn dynamic_shared_memory() -> u32 {
    let at: u32;
    // SAFETY: an address.
    unsafe { asm!("mov.b32 {0}, DYNAMIC_SHARED_MEMORY;", out(reg32) at, options(pure, nomem, nostack)) }
    at
}

/// So many bytes of static shared memory, by their address.
#[macro_export]
macro_rules! shared_memory {
    ($bytes:literal) => {{
        let at: u32;
        // SAFETY: an address.
        unsafe {
            core::arch::asm!(
                concat!("{{ .shared .align 16 .b8 MEMORY[", $bytes, "]; mov.b32 {0}, MEMORY; }}"),
                out(reg32) at, options(pure, nomem, nostack)
            )
        }
        at
    }};
}

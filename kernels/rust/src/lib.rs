//! Device kernels written in Rust, compiled ahead of time for `nvptx64-nvidia-cuda`.
//!
//! A family is a module, and compiled by itself, so that its machine code depends on its own files alone. The manifests in
//! `oxide_native/families.py` say how each kernel is launched, and what its operands must be: what every `unsafe` here relies on.
#![no_std]
#![feature(abi_ptx, asm_experimental_arch, core_float_math, f16, link_llvm_intrinsics, stdarch_nvptx)]
#![allow(internal_features, unsafe_op_in_unsafe_fn)]
// A family needs a part of what they share.
#![allow(dead_code)]
// Loops over the index of arrays: see element.rs.
#![allow(clippy::needless_range_loop)]

#[macro_use]
mod device;
mod element;
#[cfg(family = "gemv")]
mod gemv;
#[cfg(family = "rms_norm")]
mod rms_norm;
#[cfg(family = "rope_append")]
mod rope_append;
#[cfg(family = "single_decode")]
mod single_decode;
#[cfg(family = "rope_append")]
mod status;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: ends the grid with an error.
    unsafe { core::arch::nvptx::trap() }
}

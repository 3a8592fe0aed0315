//! Operator contracts of Oxide Infer.
//!
//! A contract says what an operator computes, never where: a validated `Spec`, a description of every operand, typed
//! errors, and a reference in `f32`/`f64` that can be read against its formula. Providers (CPU, CUDA) implement
//! contracts and are held to them by one shared conformance suite. This crate knows no device and does no I/O.

pub mod activation;
pub mod attention;
mod check;
#[cfg(feature = "conformance")]
pub mod conformance;
mod contract;
mod dtype;
pub mod embedding;
mod error;
pub mod gemm;
mod ids;
pub mod kv_cache;
pub mod normalization;
pub mod position;
mod provider;
pub mod quantization;
pub mod sampling;
mod spec;
mod tensor;
mod weight;

pub use contract::Contract;
pub use dtype::{DType, Element, Float};
pub use error::{DataError, LayoutError, OperandError, SpecError};
pub use ids::{PageId, TokenId};
pub use provider::{Admission, Algorithm, Capability, Provider, ProviderState};
pub use spec::{Presence, Spec};
pub use tensor::{Dims, FloatView, FloatViewMut, Layout, MAX_RANK, View, ViewMut};
pub use weight::{Weight, WeightFormat};

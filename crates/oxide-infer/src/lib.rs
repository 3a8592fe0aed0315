//! Operator contracts of Oxide Infer.
//!
//! A contract says what an operator computes, never where. Its module holds
//!
//! - a `Spec`: element types, sizes and semantics, made from a plain `Config` and validated there ([`Spec`] is what they
//!   have in common),
//! - its `Operands`: typed, strided views ([`FloatView`] to read, [`FloatViewMut`] to write) with checks that name what does
//!   not fit ([`OperandError`], and [`DataError`] for values inside index operands),
//! - a `reference` in `f32`/`f64` that can be read against its formula.
//!
//! Providers (CPU, CUDA) implement contracts and are held to them by one shared suite (the module `conformance`, behind the
//! feature of that name). This crate knows no device and does no I/O.
//!
//! Arrays mean the same everywhere: `q` `[tokens, num_q_heads, head_dim]`; pages as [`kv_cache::PageLayout`] says;
//! `block_table` `[batch, max_pages]`, `kv_len` `[batch]`, `query_start` `[batch + 1]` and `positions` `[tokens]` in `i32`;
//! `lse` `[tokens, num_q_heads]` in `f32`, natural logarithm.
//!
//! ```
//! use oxide_infer::activation::swiglu::{self, Config, Operands};
//! use oxide_infer::{DType, FloatView, FloatViewMut};
//!
//! let spec = swiglu::Spec::new(Config { dtype: DType::F32, size: 2 })?;
//! // One row of a fused product: gate, then up.
//! let fused = FloatView::contiguous(&[0.0f32, 1.0, 5.0, 2.0], [1, 4])?;
//! let mut output = [0.0f32; 2];
//! let operands = Operands {
//!     gate: fused.narrow(1, 0, 2)?,
//!     up: fused.narrow(1, 2, 2)?,
//!     output: FloatViewMut::contiguous(&mut output, [1, 2])?,
//! };
//! swiglu::reference(&spec, operands)?;
//! assert_eq!(output, [0.0, 2.0 / (1.0 + (-1f32).exp())]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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

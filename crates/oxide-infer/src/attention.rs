//! Scaled dot-product attention, multi-head, grouped-query or multi-query.
//!
//! Query head `h` uses key/value head `h / (num_q_heads / num_kv_heads)` (Ainslie et al., "GQA", 2023). For a query row at
//! position `p` and the keys `j` that it sees (see [`Mask`] and [`Attention::window`]):
//!
//! ```text
//! s[j] = scale · (q · k[j]),   then   soft_cap · tanh(s[j] / soft_cap)   with a soft cap
//! out  = Σ exp(s[j]) · v[j] / Σ exp(s[j])
//! lse  = ln Σ exp(s[j])                                                  natural logarithm
//! ```
//!
//! A row that sees no key has `out = 0` and `lse = −∞`. The rows of a sequence are aligned to the end of its keys: row `i`
//! of `query_len` is at position `kv_len − query_len + i`.

pub mod paged_decode;
pub mod paged_prefill;
pub mod ragged_prefill;
mod row;
pub mod single_decode;

use crate::{Contract, DType, Presence, SpecError, check};

/// Heads and scores: what all attention contracts share.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Element type of queries and output, and of keys and values that are not in pages.
    pub dtype: DType,
    /// Query heads: a multiple of `num_kv_heads`.
    pub num_q_heads: usize,
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// What scores are multiplied by, usually `1 / sqrt(head_dim)`; over 0.
    pub scale: f32,
    /// Sliding window: a row at position `p` sees no key before `p − window + 1`, so at most `window` keys up to itself.
    /// At least 1; `None` sees all.
    pub window: Option<usize>,
    /// Bends scores into `(−soft_cap, soft_cap)`; over 0.
    pub soft_cap: Option<f32>,
    /// Whether the log-sum-exp of each row is written.
    pub lse: Presence,
}

/// Which keys of a prefill a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mask {
    /// Keys up to the row's own position.
    Causal,
    /// All keys (that the window leaves).
    Full,
}

impl Mask {
    /// The name used in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Causal => "causal",
            Self::Full => "full",
        }
    }
}

impl Attention {
    /// Query heads that share one key/value head.
    pub fn group_size(&self) -> usize {
        self.num_q_heads / self.num_kv_heads
    }

    fn check(&self, contract: Contract) -> Result<(), SpecError> {
        check::float_dtype(contract, "dtype", self.dtype)?;
        check::at_least_one(contract, "num_q_heads", self.num_q_heads)?;
        check::at_least_one(contract, "num_kv_heads", self.num_kv_heads)?;
        let (q, kv) = (("num_q_heads", self.num_q_heads), ("num_kv_heads", self.num_kv_heads));
        check::multiple(contract, q, kv)?;
        check::at_least_one(contract, "head_dim", self.head_dim)?;
        check::positive(contract, "scale", self.scale.into())?;
        check::at_least_one(contract, "window", self.window.unwrap_or(1))?;
        check::positive(contract, "soft_cap", self.soft_cap.unwrap_or(1.0).into())
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        vec![
            ("dtype", self.dtype.name()),
            ("window", if self.window.is_some() { "sliding" } else { "none" }),
            ("soft_cap", if self.soft_cap.is_some() { "tanh" } else { "none" }),
            ("lse", self.lse.name()),
        ]
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("num_q_heads", self.num_q_heads),
            ("num_kv_heads", self.num_kv_heads),
            ("head_dim", self.head_dim),
        ]
    }
}

//! One query row, after all the keys of one sequence that lie in one piece.

use super::Attention;
use super::row::{Flat, Rows, seen_by_last};
use crate::{Contract, FloatView, FloatViewMut, OperandError, SpecError, ViewMut, check};

/// A validated single decode. Its configuration is [`Attention`] alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Attention);

impl Spec {
    /// # Errors
    /// [`SpecError`] for an element type that is not a float, a size of 0, query heads that key/value heads do not divide,
    /// or a scale or soft cap that is not over 0.
    pub fn new(attention: Attention) -> Result<Self, SpecError> {
        attention.check(Contract::SINGLE_DECODE)?;
        Ok(Self(attention))
    }
}

impl crate::Spec for Spec {
    type Config = Attention;
    const CONTRACT: Contract = Contract::SINGLE_DECODE;

    fn config(&self) -> &Attention {
        &self.0
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        self.0.properties()
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        self.0.dimensions()
    }
}

/// The operands. Heads before positions (`[num_kv_heads, kv_len, head_dim]` in memory) is a matter of strides.
#[derive(Debug)]
pub struct Operands<'a> {
    /// Read: `[1, num_q_heads, head_dim]`, at position `kv_len − 1`.
    pub q: FloatView<'a, 3>,
    /// Read: `[kv_len, num_kv_heads, head_dim]`; `kv_len` may be 0.
    pub k: FloatView<'a, 3>,
    /// Read: `[kv_len, num_kv_heads, head_dim]`.
    pub v: FloatView<'a, 3>,
    /// Written: `[1, num_q_heads, head_dim]`.
    pub output: FloatViewMut<'a, 3>,
    /// Written, when the spec has it: `[1, num_q_heads]`.
    pub lse: Option<ViewMut<'a, f32, 2>>,
}

impl Operands<'_> {
    /// Checks element types, shapes, and the presence of the log-sum-exp.
    ///
    /// # Errors
    /// [`OperandError`] naming the first operand that does not fit.
    pub fn check(&self, spec: &Spec) -> Result<(), OperandError> {
        let (contract, attention) = (Contract::SINGLE_DECODE, &spec.0);
        let [kv_len, _, _] = self.k.shape();
        let queries = (attention.dtype, [1, attention.num_q_heads, attention.head_dim]);
        let keys = (attention.dtype, [kv_len, attention.num_kv_heads, attention.head_dim]);
        check::float(contract, "q", queries, self.q.kind())?;
        check::float(contract, "k", keys, self.k.kind())?;
        check::float(contract, "v", keys, self.v.kind())?;
        check::float(contract, "output", queries, self.output.kind())?;
        if let Some(lse) = check::optional(contract, "lse", attention.lse, self.lse.as_ref())? {
            check::shape(contract, "lse", [1, attention.num_q_heads], lse.shape())?;
        }
        Ok(())
    }
}

/// The formula of [`crate::attention`].
///
/// # Errors
/// As [`Operands::check`]; nothing is written then.
pub fn reference(spec: &Spec, operands: Operands<'_>) -> Result<(), OperandError> {
    operands.check(spec)?;
    let Operands { q, k, v, output, lse } = operands;
    let [kv_len, _, _] = k.shape();
    let mut rows = Rows { attention: &spec.0, q, output, lse };
    rows.attend(0, seen_by_last(&spec.0, kv_len), &Flat { k, v, first: 0 });
    Ok(())
}

//! Several query rows per sequence over keys that lie one sequence after another, with no pages.

use super::row::{Flat, Rows, query_rows, seen};
use super::{Attention, Mask};
use crate::{Contract, DataError, FloatView, FloatViewMut, OperandError, SpecError, View, ViewMut, check};

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Heads and scores.
    pub attention: Attention,
    /// Which keys a row sees.
    pub mask: Mask,
}

/// A validated ragged prefill.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Config);

impl Spec {
    /// # Errors
    /// [`SpecError`] as for [`super::single_decode::Spec::new`].
    pub fn new(config: Config) -> Result<Self, SpecError> {
        config.attention.check(Contract::RAGGED_PREFILL)?;
        Ok(Self(config))
    }
}

impl crate::Spec for Spec {
    type Config = Config;
    const CONTRACT: Contract = Contract::RAGGED_PREFILL;

    fn config(&self) -> &Config {
        &self.0
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        let mut properties = self.0.attention.properties();
        properties.push(("mask", self.0.mask.name()));
        properties
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        self.0.attention.dimensions()
    }
}

/// The operands.
#[derive(Debug)]
pub struct Operands<'a> {
    /// Read: `[tokens, num_q_heads, head_dim]`.
    pub q: FloatView<'a, 3>,
    /// Read: `[kv_tokens, num_kv_heads, head_dim]`.
    pub k: FloatView<'a, 3>,
    /// Read: `[kv_tokens, num_kv_heads, head_dim]`.
    pub v: FloatView<'a, 3>,
    /// Read: the first query row of each sequence, and at the end the number of rows: `[batch + 1]`.
    pub query_start: View<'a, i32, 1>,
    /// Read: the first key of each sequence, and at the end the number of keys: `[batch + 1]`.
    pub kv_start: View<'a, i32, 1>,
    /// Written: `[tokens, num_q_heads, head_dim]`.
    pub output: FloatViewMut<'a, 3>,
    /// Written, when the spec has it: `[tokens, num_q_heads]`.
    pub lse: Option<ViewMut<'a, f32, 2>>,
}

impl Operands<'_> {
    /// Checks element types, shapes, and the presence of the log-sum-exp.
    ///
    /// # Errors
    /// [`OperandError`] naming the first operand that does not fit.
    pub fn check(&self, spec: &Spec) -> Result<(), OperandError> {
        let (contract, attention) = (Contract::RAGGED_PREFILL, &spec.0.attention);
        let [tokens, _, _] = self.q.shape();
        let [kv_tokens, _, _] = self.k.shape();
        let queries = (attention.dtype, [tokens, attention.num_q_heads, attention.head_dim]);
        let keys = (attention.dtype, [kv_tokens, attention.num_kv_heads, attention.head_dim]);
        check::float(contract, "q", queries, self.q.kind())?;
        check::float(contract, "k", keys, self.k.kind())?;
        check::float(contract, "v", keys, self.v.kind())?;
        let [entries] = self.query_start.shape();
        check::shape(contract, "query_start", [entries.max(1)], [entries])?;
        check::shape(contract, "kv_start", [entries], self.kv_start.shape())?;
        check::float(contract, "output", queries, self.output.kind())?;
        if let Some(lse) = check::optional(contract, "lse", attention.lse, self.lse.as_ref())? {
            check::shape(contract, "lse", [tokens, attention.num_q_heads], lse.shape())?;
        }
        Ok(())
    }

    /// Checks the starts, and that no sequence has more rows than keys.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn check_indices(&self) -> Result<(), DataError> {
        check::starts("query_start", self.query_start, self.q.shape()[0])?;
        check::starts("kv_start", self.kv_start, self.k.shape()[0])?;
        for sequence in 0..self.query_start.shape()[0] - 1 {
            let kv_len = self.kv_start.at([sequence + 1]) - self.kv_start.at([sequence]);
            query_rows(self.query_start, sequence, kv_len as usize)?;
        }
        Ok(())
    }
}

/// The formula of [`crate::attention`].
///
/// # Errors
/// As [`Operands::check`] and [`Operands::check_indices`]; nothing is written then.
pub fn reference(spec: &Spec, operands: Operands<'_>) -> Result<(), OperandError> {
    let data = |error| OperandError::Data { contract: Contract::RAGGED_PREFILL, error };
    operands.check(spec)?;
    operands.check_indices().map_err(data)?;
    let Config { attention, mask } = &spec.0;
    let Operands { q, k, v, query_start, kv_start, output, lse } = operands;
    let mut rows = Rows { attention, q, output, lse };
    for sequence in 0..query_start.shape()[0] - 1 {
        let [first, end] = [sequence, sequence + 1].map(|entry| kv_start.at([entry]) as usize);
        let kv_len = end - first;
        let range = query_rows(query_start, sequence, kv_len).map_err(data)?;
        for row in range.clone() {
            let position = kv_len + row - range.end;
            rows.attend(row, seen(attention, *mask, position, kv_len), &Flat { k, v, first });
        }
    }
    Ok(())
}

//! One query row per sequence, after all the keys of that sequence, which lie in pages.

use super::Attention;
use super::row::{Paged, Rows, seen_by_last};
use crate::kv_cache::{PageTables, Paging};
use crate::{Contract, DataError, FloatView, FloatViewMut, OperandError, SpecError, View, ViewMut, check};

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Heads and scores.
    pub attention: Attention,
    /// How the pages are stored.
    pub paging: Paging,
}

/// A validated paged decode.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Config);

impl Spec {
    /// # Errors
    /// [`SpecError`] as for [`super::single_decode::Spec::new`], or for pages of no tokens or of no floats.
    pub fn new(config: Config) -> Result<Self, SpecError> {
        config.attention.check(Contract::PAGED_DECODE)?;
        config.paging.check(Contract::PAGED_DECODE)?;
        Ok(Self(config))
    }
}

impl crate::Spec for Spec {
    type Config = Config;
    const CONTRACT: Contract = Contract::PAGED_DECODE;

    fn config(&self) -> &Config {
        &self.0
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        let mut properties = self.0.attention.properties();
        properties.extend(self.0.paging.properties());
        properties
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        let mut dimensions = self.0.attention.dimensions();
        dimensions.push(("page_size", self.0.paging.page_size));
        dimensions
    }
}

/// The operands. Pools have the shape of [`Paging::pool_shape`].
#[derive(Debug)]
pub struct Operands<'a> {
    /// Read: `[batch, num_q_heads, head_dim]`; the row of sequence `b` is at position `kv_len[b] − 1`.
    pub q: FloatView<'a, 3>,
    /// Read: the K pool.
    pub k_pages: FloatView<'a, 4>,
    /// Read: the V pool.
    pub v_pages: FloatView<'a, 4>,
    /// Read: `[batch, max_pages]`.
    pub block_table: View<'a, i32, 2>,
    /// Read: keys of each sequence, its new one included, `[batch]`; 0 (a padding row) gives zeros.
    pub kv_len: View<'a, i32, 1>,
    /// Written: `[batch, num_q_heads, head_dim]`.
    pub output: FloatViewMut<'a, 3>,
    /// Written, when the spec has it: `[batch, num_q_heads]`.
    pub lse: Option<ViewMut<'a, f32, 2>>,
}

impl Operands<'_> {
    /// Checks element types, shapes, and the presence of the log-sum-exp.
    ///
    /// # Errors
    /// [`OperandError`] naming the first operand that does not fit.
    pub fn check(&self, spec: &Spec) -> Result<(), OperandError> {
        let (contract, Config { attention, paging }) = (Contract::PAGED_DECODE, &spec.0);
        let [batch, _, _] = self.q.shape();
        let queries = (attention.dtype, [batch, attention.num_q_heads, attention.head_dim]);
        check::float(contract, "q", queries, self.q.kind())?;
        let heads = [attention.num_kv_heads, attention.head_dim];
        paging.check_pools(contract, heads, self.k_pages.kind(), self.v_pages.kind())?;
        let [_, max_pages] = self.block_table.shape();
        check::shape(contract, "block_table", [batch, max_pages], self.block_table.shape())?;
        check::shape(contract, "kv_len", [batch], self.kv_len.shape())?;
        check::float(contract, "output", queries, self.output.kind())?;
        if let Some(lse) = check::optional(contract, "lse", attention.lse, self.lse.as_ref())? {
            check::shape(contract, "lse", [batch, attention.num_q_heads], lse.shape())?;
        }
        Ok(())
    }

    /// Checks lengths, and every page that a row reads (those before its window it does not).
    ///
    /// # Errors
    /// [`DataError`].
    pub fn check_indices(&self, spec: &Spec) -> Result<(), DataError> {
        let tables = self.tables(spec);
        for sequence in 0..self.kv_len.shape()[0] {
            let kv_len = tables.check_len(sequence, self.kv_len.at([sequence]))?;
            tables.check_pages(sequence, seen_by_last(&spec.0.attention, kv_len))?;
        }
        Ok(())
    }

    fn tables(&self, spec: &Spec) -> PageTables<'_> {
        PageTables {
            block_table: self.block_table,
            paging: spec.0.paging,
            num_pages: self.k_pages.shape()[0],
        }
    }
}

/// The formula of [`crate::attention`].
///
/// # Errors
/// As [`Operands::check`] and [`Operands::check_indices`]; nothing is written then.
pub fn reference(spec: &Spec, operands: Operands<'_>) -> Result<(), OperandError> {
    let data = |error| OperandError::Data { contract: Contract::PAGED_DECODE, error };
    operands.check(spec)?;
    operands.check_indices(spec).map_err(data)?;
    let attention = &spec.0.attention;
    let Operands { q, k_pages, v_pages, block_table, kv_len, output, lse } = operands;
    let tables = PageTables { block_table, paging: spec.0.paging, num_pages: k_pages.shape()[0] };
    let mut rows = Rows { attention, q, output, lse };
    for sequence in 0..q.shape()[0] {
        let kv_len = kv_len.at([sequence]) as usize;
        let kv = Paged { k_pages, v_pages, tables, sequence };
        rows.attend(sequence, seen_by_last(attention, kv_len), &kv);
    }
    Ok(())
}

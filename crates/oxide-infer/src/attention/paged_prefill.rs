//! Several query rows per sequence, after or among the keys of that sequence, which lie in pages.
//!
//! This is also chunked prefill: a chunk's keys are appended first, `kv_len` counts them, and its rows are aligned to the
//! end.

use super::row::{Paged, Rows, query_rows, seen};
use super::{Attention, Mask};
use crate::kv_cache::{PageTables, Paging};
use crate::{Contract, DataError, FloatView, FloatViewMut, OperandError, SpecError, View, ViewMut, check};

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Heads and scores.
    pub attention: Attention,
    /// How the pages are stored.
    pub paging: Paging,
    /// Which keys a row sees.
    pub mask: Mask,
}

/// A validated paged prefill.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Config);

impl Spec {
    /// # Errors
    /// [`SpecError`] as for [`super::single_decode::Spec::new`], or for pages of no tokens or of no floats.
    pub fn new(config: Config) -> Result<Self, SpecError> {
        config.attention.check(Contract::PAGED_PREFILL)?;
        config.paging.check(Contract::PAGED_PREFILL)?;
        Ok(Self(config))
    }
}

impl crate::Spec for Spec {
    type Config = Config;
    const CONTRACT: Contract = Contract::PAGED_PREFILL;

    fn config(&self) -> &Config {
        &self.0
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        let mut properties = self.0.attention.properties();
        properties.extend(self.0.paging.properties());
        properties.push(("mask", self.0.mask.name()));
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
    /// Read: `[tokens, num_q_heads, head_dim]`.
    pub q: FloatView<'a, 3>,
    /// Read: the K pool.
    pub k_pages: FloatView<'a, 4>,
    /// Read: the V pool.
    pub v_pages: FloatView<'a, 4>,
    /// Read: `[batch, max_pages]`.
    pub block_table: View<'a, i32, 2>,
    /// Read: keys of each sequence, those of its rows included, `[batch]`.
    pub kv_len: View<'a, i32, 1>,
    /// Read: the first query row of each sequence, and at the end the number of rows: `[batch + 1]`.
    pub query_start: View<'a, i32, 1>,
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
        let (contract, Config { attention, paging, .. }) = (Contract::PAGED_PREFILL, &spec.0);
        let [tokens, _, _] = self.q.shape();
        let queries = (attention.dtype, [tokens, attention.num_q_heads, attention.head_dim]);
        check::float(contract, "q", queries, self.q.kind())?;
        let heads = [attention.num_kv_heads, attention.head_dim];
        paging.check_pools(contract, heads, self.k_pages.kind(), self.v_pages.kind())?;
        let [batch, _] = self.block_table.shape();
        check::shape(contract, "kv_len", [batch], self.kv_len.shape())?;
        check::shape(contract, "query_start", [batch + 1], self.query_start.shape())?;
        check::float(contract, "output", queries, self.output.kind())?;
        if let Some(lse) = check::optional(contract, "lse", attention.lse, self.lse.as_ref())? {
            check::shape(contract, "lse", [tokens, attention.num_q_heads], lse.shape())?;
        }
        Ok(())
    }

    /// Checks starts and lengths, and every page that a row reads (those before all rows' windows none does).
    ///
    /// # Errors
    /// [`DataError`].
    pub fn check_indices(&self, spec: &Spec) -> Result<(), DataError> {
        let tables = self.tables(spec);
        check::starts("query_start", self.query_start, self.q.shape()[0])?;
        for sequence in 0..self.kv_len.shape()[0] {
            let kv_len = tables.check_len(sequence, self.kv_len.at([sequence]))?;
            let rows = query_rows(self.query_start, sequence, kv_len)?;
            if !rows.is_empty() {
                let first = seen(&spec.0.attention, spec.0.mask, kv_len - rows.len(), kv_len);
                tables.check_pages(sequence, first.start..kv_len)?;
            }
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
    let data = |error| OperandError::Data { contract: Contract::PAGED_PREFILL, error };
    operands.check(spec)?;
    operands.check_indices(spec).map_err(data)?;
    let Config { attention, paging, mask } = &spec.0;
    let Operands { q, k_pages, v_pages, block_table, kv_len, query_start, output, lse } = operands;
    let tables = PageTables { block_table, paging: *paging, num_pages: k_pages.shape()[0] };
    let mut rows = Rows { attention, q, output, lse };
    for sequence in 0..block_table.shape()[0] {
        let kv_len = kv_len.at([sequence]) as usize;
        let range = query_rows(query_start, sequence, kv_len).map_err(data)?;
        let kv = Paged { k_pages, v_pages, tables, sequence };
        for row in range.clone() {
            let position = kv_len + row - range.end;
            rows.attend(row, seen(attention, *mask, position, kv_len), &kv);
        }
    }
    Ok(())
}

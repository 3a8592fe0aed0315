//! Writes the keys and values of new tokens into their pages.
//!
//! For each token `t` of sequence `b` (`query_start[b] ≤ t < query_start[b + 1]`), with `p = positions[t]`:
//!
//! ```text
//! k_pages[block_table[b][p / page_size], slot p % page_size] = round(k[t])        and V alike
//! ```
//!
//! Everything else in the pools stays as it is. No two tokens may have the same place, except in a page that nobody reads
//! (padding rows share a null page); which of them stays there is not defined.

use super::{PageTables, Paging, tables};
use crate::{Contract, DType, DataError, FloatView, FloatViewMut, OperandError, SpecError, View, check};

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Element type of the new keys and values.
    pub dtype: DType,
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// How the pages are stored.
    pub paging: Paging,
}

/// A validated append.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Config);

impl Spec {
    /// # Errors
    /// [`SpecError`] for an element type that is not a float or a size of 0.
    pub fn new(config: Config) -> Result<Self, SpecError> {
        let contract = Contract::PAGED_APPEND;
        check::float_dtype(contract, "dtype", config.dtype)?;
        check::at_least_one(contract, "num_kv_heads", config.num_kv_heads)?;
        check::at_least_one(contract, "head_dim", config.head_dim)?;
        config.paging.check(contract)?;
        Ok(Self(config))
    }
}

impl crate::Spec for Spec {
    type Config = Config;
    const CONTRACT: Contract = Contract::PAGED_APPEND;

    fn config(&self) -> &Config {
        &self.0
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        let mut properties = vec![("dtype", self.0.dtype.name())];
        properties.extend(self.0.paging.properties());
        properties
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("num_kv_heads", self.0.num_kv_heads),
            ("head_dim", self.0.head_dim),
            ("page_size", self.0.paging.page_size),
        ]
    }
}

/// The operands. Pools have the shape of [`Paging::pool_shape`].
#[derive(Debug)]
pub struct Operands<'a> {
    /// Read: `[tokens, num_kv_heads, head_dim]`.
    pub k: FloatView<'a, 3>,
    /// Read: `[tokens, num_kv_heads, head_dim]`.
    pub v: FloatView<'a, 3>,
    /// Read: position of each token in its sequence, `[tokens]`.
    pub positions: View<'a, i32, 1>,
    /// Read: the first token of each sequence, and at the end the number of tokens: `[batch + 1]`.
    pub query_start: View<'a, i32, 1>,
    /// Read: `[batch, max_pages]`.
    pub block_table: View<'a, i32, 2>,
    /// Written at the new tokens' places: the K pool.
    pub k_pages: FloatViewMut<'a, 4>,
    /// Written at the new tokens' places: the V pool.
    pub v_pages: FloatViewMut<'a, 4>,
}

impl Operands<'_> {
    /// Checks element types and shapes.
    ///
    /// # Errors
    /// [`OperandError`] naming the first operand that does not fit.
    pub fn check(&self, spec: &Spec) -> Result<(), OperandError> {
        let (contract, config) = (Contract::PAGED_APPEND, &spec.0);
        let [tokens, _, _] = self.k.shape();
        let new = (config.dtype, [tokens, config.num_kv_heads, config.head_dim]);
        check::float(contract, "k", new, self.k.kind())?;
        check::float(contract, "v", new, self.v.kind())?;
        check::shape(contract, "positions", [tokens], self.positions.shape())?;
        let [batch, _] = self.block_table.shape();
        check::shape(contract, "query_start", [batch + 1], self.query_start.shape())?;
        let heads = [config.num_kv_heads, config.head_dim];
        config.paging.check_pools(contract, heads, self.k_pages.kind(), self.v_pages.kind())
    }

    /// Checks starts, positions, and the page of every token.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn check_indices(&self, spec: &Spec) -> Result<(), DataError> {
        self.tables(spec).check_new_tokens(self.query_start, self.positions)
    }

    fn tables(&self, spec: &Spec) -> PageTables<'_> {
        PageTables {
            block_table: self.block_table,
            paging: spec.0.paging,
            num_pages: self.k_pages.shape()[0],
        }
    }
}

/// The rule above.
///
/// # Errors
/// As [`Operands::check`] and [`Operands::check_indices`]; nothing is written then.
pub fn reference(spec: &Spec, mut operands: Operands<'_>) -> Result<(), OperandError> {
    let data = |error| OperandError::Data { contract: Contract::PAGED_APPEND, error };
    operands.check(spec)?;
    operands.check_indices(spec).map_err(data)?;
    let config = &spec.0;
    for (sequence, token) in tables::tokens(operands.query_start) {
        let position = operands.positions.at([token]) as usize;
        let (page, slot) = operands.tables(spec).locate(sequence, position).map_err(data)?;
        for head in 0..config.num_kv_heads {
            for dim in 0..config.head_dim {
                let place = config.paging.index(page, slot, head, dim);
                operands.k_pages.set(place, operands.k.at([token, head, dim]));
                operands.v_pages.set(place, operands.v.at([token, head, dim]));
            }
        }
    }
    Ok(())
}

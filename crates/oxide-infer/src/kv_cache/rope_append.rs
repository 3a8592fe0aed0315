//! Turns queries and keys by their positions and writes keys and values into their pages: [`crate::position::rope`] of
//! `q` into `q_out`, the same of `k`, then [`super::paged_append`], in one pass.
//!
//! Turned keys are rounded once, to the element type of the pages.

use super::{PageTables, Paging, tables};
use crate::position::rope;
use crate::{Contract, DataError, FloatView, FloatViewMut, OperandError, SpecError, View, check};

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How queries and keys turn; gives the element type of `q`, `k`, `v` and `q_out`, and `head_dim`.
    pub rope: rope::Config,
    /// Query heads.
    pub num_q_heads: usize,
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// How the pages are stored.
    pub paging: Paging,
}

/// A validated rope and append.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    config: Config,
    rope: rope::Spec,
}

impl Spec {
    /// # Errors
    /// [`SpecError`] as for the two parts, or for no query heads.
    pub fn new(config: Config) -> Result<Self, SpecError> {
        let contract = Contract::ROPE_APPEND;
        let rope = rope::Spec::for_contract(contract, config.rope.clone())?;
        check::at_least_one(contract, "num_q_heads", config.num_q_heads)?;
        check::at_least_one(contract, "num_kv_heads", config.num_kv_heads)?;
        config.paging.check(contract)?;
        Ok(Self { config, rope })
    }

    /// The rotation, with its frequencies.
    pub fn rope(&self) -> &rope::Spec {
        &self.rope
    }
}

impl crate::Spec for Spec {
    type Config = Config;
    const CONTRACT: Contract = Contract::ROPE_APPEND;

    fn config(&self) -> &Config {
        &self.config
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        let mut properties = self.rope.properties();
        properties.extend(self.config.paging.properties());
        properties
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        let mut dimensions = self.rope.dimensions();
        dimensions.extend([
            ("num_q_heads", self.config.num_q_heads),
            ("num_kv_heads", self.config.num_kv_heads),
            ("page_size", self.config.paging.page_size),
        ]);
        dimensions
    }
}

/// The operands. Pools have the shape of [`Paging::pool_shape`].
#[derive(Debug)]
pub struct Operands<'a> {
    /// Read: `[tokens, num_q_heads, head_dim]`.
    pub q: FloatView<'a, 3>,
    /// Read: `[tokens, num_kv_heads, head_dim]`.
    pub k: FloatView<'a, 3>,
    /// Read: `[tokens, num_kv_heads, head_dim]`.
    pub v: FloatView<'a, 3>,
    /// Read: position of each token in its sequence, for the turn and for its place, `[tokens]`.
    pub positions: View<'a, i32, 1>,
    /// Read: the first token of each sequence, and at the end the number of tokens: `[batch + 1]`.
    pub query_start: View<'a, i32, 1>,
    /// Read: `[batch, max_pages]`.
    pub block_table: View<'a, i32, 2>,
    /// Written: `[tokens, num_q_heads, head_dim]`.
    pub q_out: FloatViewMut<'a, 3>,
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
        let (contract, config) = (Contract::ROPE_APPEND, &spec.config);
        let [tokens, _, _] = self.q.shape();
        let (dtype, head_dim) = (config.rope.dtype, config.rope.head_dim);
        let queries = (dtype, [tokens, config.num_q_heads, head_dim]);
        check::float(contract, "q", queries, self.q.kind())?;
        let new = (dtype, [tokens, config.num_kv_heads, head_dim]);
        check::float(contract, "k", new, self.k.kind())?;
        check::float(contract, "v", new, self.v.kind())?;
        check::shape(contract, "positions", [tokens], self.positions.shape())?;
        let [batch, _] = self.block_table.shape();
        check::shape(contract, "query_start", [batch + 1], self.query_start.shape())?;
        check::float(contract, "q_out", queries, self.q_out.kind())?;
        let heads = [config.num_kv_heads, head_dim];
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
            paging: spec.config.paging,
            num_pages: self.k_pages.shape()[0],
        }
    }
}

/// The rule above, turns in `f64`.
///
/// # Errors
/// As [`Operands::check`] and [`Operands::check_indices`]; nothing is written then.
pub fn reference(spec: &Spec, mut operands: Operands<'_>) -> Result<(), OperandError> {
    let data = |error| OperandError::Data { contract: Contract::ROPE_APPEND, error };
    operands.check(spec)?;
    operands.check_indices(spec).map_err(data)?;
    let Config { num_q_heads, num_kv_heads, paging, .. } = spec.config;
    let mut row = vec![0.0; spec.config.rope.head_dim];
    for (sequence, token) in tables::tokens(operands.query_start) {
        let position = operands.positions.at([token]);
        for head in 0..num_q_heads {
            row.iter_mut().enumerate().for_each(|(dim, x)| *x = operands.q.at([token, head, dim]));
            spec.rope.rotate(position, &mut row);
            row.iter().enumerate().for_each(|(dim, &x)| operands.q_out.set([token, head, dim], x));
        }
        let (page, slot) = operands.tables(spec).locate(sequence, position as usize).map_err(data)?;
        for head in 0..num_kv_heads {
            row.iter_mut().enumerate().for_each(|(dim, x)| *x = operands.k.at([token, head, dim]));
            spec.rope.rotate(position, &mut row);
            for (dim, &x) in row.iter().enumerate() {
                let place = paging.index(page, slot, head, dim);
                operands.k_pages.set(place, x);
                operands.v_pages.set(place, operands.v.at([token, head, dim]));
            }
        }
    }
    Ok(())
}

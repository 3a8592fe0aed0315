//! `kv_cache::paged_append` and `kv_cache::rope_append`.
//!
//! Pages are written head by head, one task each: tokens may share a place (padding rows do, in a page that nobody
//! reads), heads cannot.

use crate::rope::Angles;
use crate::rows::{self, SharedRows};
use crate::{Operator, Team};
use oxide_infer::kv_cache::{Paging, paged_append, rope_append};
use oxide_infer::{Contract, FloatView, OperandError, Spec as _, View};

impl Operator for paged_append::Spec {
    type Operands<'a> = paged_append::Operands<'a>;
    type Prepared = ();
    type Output = ();
    type Error = OperandError;
    const ALGORITHM: &'static str = "head_by_head";

    fn prepare(&self) {}

    fn run(
        &self,
        (): &(),
        team: &Team<'_>,
        mut operands: paged_append::Operands<'_>,
    ) -> Result<(), OperandError> {
        operands.check(self)?;
        let contract = Contract::PAGED_APPEND;
        operands.check_indices(self).map_err(|error| OperandError::Data { contract, error })?;
        let config = self.config();
        let append = Append {
            paging: config.paging,
            head_dim: config.head_dim,
            positions: operands.positions,
            query_start: operands.query_start,
            block_table: operands.block_table,
        };
        let k_pages = SharedRows::new(&mut operands.k_pages);
        let v_pages = SharedRows::new(&mut operands.v_pages);
        let (k, v) = (operands.k, operands.v);
        let elements = 2 * append.tokens() * config.num_kv_heads * config.head_dim;
        team.run_if_worth(elements, config.num_kv_heads, &|head| {
            // SAFETY: every head is one task's.
            unsafe {
                append.head(&k, &k_pages, head, |_, from, to| to.copy_from_slice(from));
                append.head(&v, &v_pages, head, |_, from, to| to.copy_from_slice(from));
            }
        });
        Ok(())
    }
}

impl Operator for rope_append::Spec {
    type Operands<'a> = rope_append::Operands<'a>;
    type Prepared = Angles;
    type Output = ();
    type Error = OperandError;
    const ALGORITHM: &'static str = "head_by_head";

    fn prepare(&self) -> Angles {
        Angles::new(self.rope())
    }

    fn run(
        &self,
        angles: &Angles,
        team: &Team<'_>,
        mut operands: rope_append::Operands<'_>,
    ) -> Result<(), OperandError> {
        operands.check(self)?;
        let contract = Contract::ROPE_APPEND;
        operands.check_indices(self).map_err(|error| OperandError::Data { contract, error })?;
        let config = self.config();
        let head_dim = config.rope.head_dim;
        let append = Append {
            paging: config.paging,
            head_dim,
            positions: operands.positions,
            query_start: operands.query_start,
            block_table: operands.block_table,
        };
        let level = team.level();
        let turn = |token: usize, from: &[f32], to: &mut [f32]| {
            let position = append.positions.at([token]) as usize;
            angles.rotation(level, position, &mut Vec::new()).turn(from, to);
        };
        let (q, k, v) = (operands.q, operands.k, operands.v);
        rows::for_each(team, &mut operands.q_out, &|at, output| {
            turn(at[0], rows::read(&q, at, head_dim, &mut Vec::new()), output);
        });
        let k_pages = SharedRows::new(&mut operands.k_pages);
        let v_pages = SharedRows::new(&mut operands.v_pages);
        let elements = 2 * append.tokens() * config.num_kv_heads * head_dim;
        team.run_if_worth(elements, config.num_kv_heads, &|head| {
            // SAFETY: every head is one task's.
            unsafe {
                append.head(&k, &k_pages, head, turn);
                append.head(&v, &v_pages, head, |_, from, to| to.copy_from_slice(from));
            }
        });
        Ok(())
    }
}

/// Where new keys and values go.
struct Append<'a> {
    paging: Paging,
    head_dim: usize,
    positions: View<'a, i32, 1>,
    query_start: View<'a, i32, 1>,
    block_table: View<'a, i32, 2>,
}

impl Append<'_> {
    fn tokens(&self) -> usize {
        self.positions.shape()[0]
    }

    /// Writes one head of all tokens to its places: `change` is given the token, the head, and where it goes.
    ///
    /// # Safety
    /// No other thread may use this head of the pool at the same time.
    unsafe fn head(
        &self,
        new: &FloatView<'_, 3>,
        pages: &SharedRows<'_, 4>,
        head: usize,
        change: impl Fn(usize, &[f32], &mut [f32]),
    ) {
        let mut buffer = Vec::new();
        let mut sequence = 0;
        for token in 0..self.tokens() {
            while self.query_start.at([sequence + 1]) as usize <= token {
                sequence += 1;
            }
            let position = self.positions.at([token]) as usize;
            let page = self.block_table.at([sequence, position / self.paging.page_size]) as usize;
            let place = self.paging.index(page, position % self.paging.page_size, head, 0);
            let from = rows::read(new, [token, head, 0], self.head_dim, &mut buffer);
            // SAFETY: passed on to the caller.
            unsafe { pages.update(place, self.head_dim, |to| change(token, from, to)) };
        }
    }
}

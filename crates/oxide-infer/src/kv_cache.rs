//! The paged key/value cache: how pages are laid out, and how new keys and values enter it.
//!
//! A layer has a pool of K pages and one of V pages. Row `b` of the block table lists the pages of sequence `b` in order:
//! the key at position `p` lies in page `block_table[b][p / page_size]`, slot `p % page_size`. Table entries that no
//! position needs are never read and may hold anything. Slots that no position needs must hold finite numbers (pools are
//! zeroed when they are made): a provider may load a whole page and weigh such slots with 0.

pub mod paged_append;
pub mod rope_append;
mod tables;

pub use tables::PageTables;

use crate::{Contract, DType, OperandError, SpecError, check};

/// The order of a page's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageLayout {
    /// `[num_pages, page_size, num_kv_heads, head_dim]`.
    Nhd,
    /// `[num_pages, num_kv_heads, page_size, head_dim]`.
    Hnd,
}

impl PageLayout {
    /// The name used in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nhd => "nhd",
            Self::Hnd => "hnd",
        }
    }
}

/// How the pages of a pool are stored. The same for K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Paging {
    /// Element type of the pages.
    pub dtype: DType,
    /// The order of a page's axes.
    pub layout: PageLayout,
    /// Tokens in a page, at least 1.
    pub page_size: usize,
}

impl Paging {
    pub(crate) fn check(&self, contract: Contract) -> Result<(), SpecError> {
        check::float_dtype(contract, "paging.dtype", self.dtype)?;
        check::at_least_one(contract, "paging.page_size", self.page_size)
    }

    /// Checks element type and shape of both pools; any number of pages.
    pub(crate) fn check_pools(
        &self,
        contract: Contract,
        [num_kv_heads, head_dim]: [usize; 2],
        k_pages: (DType, [usize; 4]),
        v_pages: (DType, [usize; 4]),
    ) -> Result<(), OperandError> {
        let [num_pages, ..] = k_pages.1;
        let pool = (self.dtype, self.pool_shape(num_pages, num_kv_heads, head_dim));
        check::float(contract, "k_pages", pool, k_pages)?;
        check::float(contract, "v_pages", pool, v_pages)
    }

    /// The shape of a pool.
    pub fn pool_shape(&self, num_pages: usize, num_kv_heads: usize, head_dim: usize) -> [usize; 4] {
        self.axes(num_pages, self.page_size, num_kv_heads, head_dim)
    }

    /// Where an element of a pool lies, by its page, slot in the page, head, and dimension.
    pub fn index(&self, page: usize, slot: usize, head: usize, dim: usize) -> [usize; 4] {
        self.axes(page, slot, head, dim)
    }

    /// Pages that `kv_len` tokens take.
    pub fn pages_for(&self, kv_len: usize) -> usize {
        kv_len.div_ceil(self.page_size)
    }

    fn axes(&self, page: usize, slot: usize, head: usize, dim: usize) -> [usize; 4] {
        match self.layout {
            PageLayout::Nhd => [page, slot, head, dim],
            PageLayout::Hnd => [page, head, slot, dim],
        }
    }

    pub(crate) fn properties(&self) -> [(&'static str, &'static str); 2] {
        [("kv_dtype", self.dtype.name()), ("page_layout", self.layout.name())]
    }
}

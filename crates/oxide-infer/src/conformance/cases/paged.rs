//! Batches of paged sequences for the suite.

use crate::DType;
use crate::conformance::buffer::{Floats, Indices, Numbers, Spacing, list};
use crate::kv_cache::{PageLayout, Paging};

/// A batch of sequences, their tables, and what is in their pages.
#[derive(Clone)]
pub(super) struct Batch {
    pub(super) paging: Paging,
    pub(super) heads: [usize; 2],
    /// Keys of each sequence, new ones included.
    pub(super) kv_len: Vec<i32>,
    /// `[batch][max_pages]`; entries that no key needs are −1.
    pub(super) table: Vec<Vec<i32>>,
    pub(super) num_pages: usize,
    pub(super) spacing: Spacing,
}

impl Batch {
    /// Sequences of these lengths, their pages in no order in a pool with some to spare.
    pub(super) fn new(paging: Paging, heads: [usize; 2], kv_len: &[i32], spacing: Spacing) -> Self {
        let needs: Vec<_> = kv_len.iter().map(|&len| paging.pages_for(len as usize)).collect();
        let max_pages = needs.iter().max().map_or(0, |most| most + 1);
        let num_pages = needs.iter().sum::<usize>() + 3;
        let mut free: Vec<i32> = (0..num_pages as i32).collect();
        let mut numbers = Numbers::new(5);
        let mut row = |need: &usize| -> Vec<i32> {
            let mut take = || free.swap_remove(numbers.below(free.len()));
            (0..max_pages).map(|entry| if entry < *need { take() } else { -1 }).collect()
        };
        let table = needs.iter().map(&mut row).collect();
        Self { paging, heads, kv_len: kv_len.to_vec(), table, num_pages, spacing }
    }

    /// Keys that a row of the block table has room for.
    pub(super) fn capacity(&self) -> i32 {
        (self.table.first().map_or(0, Vec::len) * self.paging.page_size) as i32
    }

    pub(super) fn block_table(&self) -> Indices<2> {
        let max_pages = self.table.first().map_or(0, Vec::len);
        let layout = self.spacing.layout([self.table.len(), max_pages]);
        Indices::new(layout, |[sequence, entry]| self.table[sequence][entry])
    }

    pub(super) fn kv_len(&self) -> Indices<1> {
        list(&self.kv_len)
    }

    /// A pool with random numbers at the places of keys, and large finite ones at those that no key needs.
    pub(super) fn pool(&self, numbers: &mut Numbers) -> Floats<4> {
        let Paging { dtype, layout, page_size } = self.paging;
        let mut used = vec![0; self.num_pages];
        for (row, &len) in self.table.iter().zip(&self.kv_len) {
            for (entry, &page) in row.iter().enumerate().filter(|&(_, &page)| page >= 0) {
                if let Some(used) = used.get_mut(page as usize) {
                    *used = (len as usize).saturating_sub(entry * page_size).min(page_size);
                }
            }
        }
        let [num_kv_heads, head_dim] = self.heads;
        let pool = self.spacing.layout(self.paging.pool_shape(self.num_pages, num_kv_heads, head_dim));
        Floats::filled(dtype, pool, |index| {
            let slot = match layout {
                PageLayout::Nhd => index[1],
                PageLayout::Hnd => index[2],
            };
            if slot < used[index[0]] { numbers.signed() } else { 1000.0 }
        })
    }
}

/// Row starts of runs of these lengths.
pub(super) fn starts(lens: &[i32]) -> Vec<i32> {
    let mut starts = vec![0];
    let mut sum = 0;
    starts.extend(lens.iter().map(|len| {
        sum += len;
        sum
    }));
    starts
}

/// Pages of every layout and of the sizes at which models run, and of one token.
pub(super) fn pagings(dtype: DType) -> impl Iterator<Item = Paging> {
    let layouts = [PageLayout::Nhd, PageLayout::Hnd];
    layouts
        .into_iter()
        .flat_map(move |layout| [1, 16, 64].map(|page_size| Paging { dtype, layout, page_size }))
}

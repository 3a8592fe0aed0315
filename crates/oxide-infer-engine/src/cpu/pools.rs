use super::plan::{PAGE_SIZE, page_bytes};
use crate::batch::PageCopy;
use crate::model::ModelConfig;
use memmap2::MmapMut;
use std::io;

/// The key and value pages of every layer, `[num_pages, num_kv_heads, PAGE_SIZE, head_dim]` each.
///
/// The memory comes zeroed from the system and counts as used once a page is written.
#[derive(Debug)]
pub(super) struct Pools {
    memory: MmapMut,
    /// Elements of one pool.
    pool: usize,
    /// Elements of one page of a pool.
    page: usize,
}

impl Pools {
    pub(super) fn new(config: &ModelConfig, num_pages: usize) -> io::Result<Self> {
        let bytes = usize::try_from(num_pages as u64 * page_bytes(config)).map_err(io::Error::other)?;
        let page = PAGE_SIZE * config.kv_size();
        Ok(Self { memory: MmapMut::map_anon(bytes)?, pool: num_pages * page, page })
    }

    /// The K pool and the V pool of a layer.
    pub(super) fn layer(&mut self, layer: usize) -> (&mut [f32], &mut [f32]) {
        let pool = self.pool;
        self.all()[2 * layer * pool..2 * (layer + 1) * pool].split_at_mut(pool)
    }

    /// Copies pages in every layer.
    pub(super) fn copy_pages(&mut self, copies: &[PageCopy]) {
        let (pool, page) = (self.pool, self.page);
        for pool in self.all().chunks_exact_mut(pool) {
            for copy in copies {
                let from = copy.from.index() * page;
                pool.copy_within(from..from + page, copy.to.index() * page);
            }
        }
    }

    fn all(&mut self) -> &mut [f32] {
        // The system maps memory at page boundaries, and every bit pattern is a float.
        bytemuck::cast_slice_mut(&mut self.memory)
    }
}

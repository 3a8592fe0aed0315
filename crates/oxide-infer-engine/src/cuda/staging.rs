use oxide_infer_cuda::driver::CudaError;
use oxide_infer_cuda::runtime::{Context, PinnedMemory, RegionError};

/// Pinned memory of one step in flight, handed out from its start. Nothing of it is handed out again before the step has
/// ended.
pub(super) struct Staging {
    memory: PinnedMemory<u32>,
    used: usize,
}

impl Staging {
    pub(super) fn new(context: &Context, words: usize) -> Result<Self, CudaError> {
        Ok(Self { memory: PinnedMemory::allocate(context, words)?, used: 0 })
    }

    /// Forgets what was handed out: the step that used it has ended.
    pub(super) fn reset(&mut self) {
        self.used = 0;
    }

    /// Room for so many words.
    ///
    /// # Errors
    /// There is not enough left.
    pub(super) fn take(&mut self, words: usize) -> Result<PinnedMemory<u32>, RegionError> {
        let part = self.memory.slice(self.used..self.used.saturating_add(words))?;
        self.used += words;
        Ok(part)
    }

    /// Whether so many words are left.
    pub(super) fn has(&self, words: usize) -> bool {
        words <= self.memory.len() - self.used
    }
}

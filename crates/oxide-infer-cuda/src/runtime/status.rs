use super::context::Context;
use super::memory::PinnedMemory;
use crate::artifact::status::DeviceStatus;
use crate::driver::{CudaError, DevicePtr};

/// Where kernels of one bound plan say what was wrong with their input (see [`crate::artifact::status`]). It lies in
/// pinned host memory, so that reading it after the work has ended costs no copy.
#[derive(Clone)]
pub struct StatusWord {
    word: PinnedMemory<u32>,
}

impl StatusWord {
    /// A word that says nothing is wrong.
    ///
    /// # Errors
    ///
    /// Pinned memory ran out, or the context is poisoned.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self { word: PinnedMemory::allocate(context, 1)? })
    }

    /// The fault that kernels wrote, if one did. Meaningful once the work that may write it has settled.
    pub fn fault(&self) -> Option<DeviceStatus> {
        DeviceStatus::decode(self.word.read(0).unwrap_or_default())
    }

    /// Forgets the fault. Call it when no work that may write it is in flight.
    pub fn clear(&self) {
        // The one word fits: it was allocated.
        let _ = self.word.write(0, &[0]);
    }

    /// What a kernel would write.
    #[cfg(test)]
    pub(super) fn raise_for_test(&self, word: u32) {
        self.word.write(0, &[word]).expect("the word was allocated");
    }

    /// Its address, as kernels take it.
    pub(super) fn ptr(&self) -> DevicePtr {
        self.word.device_ptr()
    }
}

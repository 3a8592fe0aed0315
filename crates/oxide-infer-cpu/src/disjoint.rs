//! One buffer, written by many threads in places that do not overlap.

use std::marker::PhantomData;

/// A mutable slice that tasks of a parallel region share, each writing its own places.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out `&mut [T]` on any thread, which is what `T: Send` allows; that no two overlap is the duty of the
// caller of `slice`.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Elements `at..at + len`.
    ///
    /// # Safety
    /// No other slice that is in use at the same time may overlap it.
    ///
    /// # Panics
    /// When they are not inside the buffer.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the safety condition is that the slices do not overlap")]
    pub(crate) unsafe fn slice(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at, "{at}..{at}+{len} of {}", self.len);
        // SAFETY: inside the buffer, and the caller promises that nothing else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

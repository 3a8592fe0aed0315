use super::completion::Lease;
use super::context::{Context, Owner};
use crate::driver::{CudaError, DevicePtr};
use oxide_infer::{DType, Element};
use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Device memory. Cheap to clone; it is freed when the last clone, region and lease on it is gone, never before.
#[derive(Clone)]
pub struct DeviceMemory {
    inner: Arc<DeviceAllocation>,
}

struct DeviceAllocation {
    ptr: DevicePtr,
    bytes: usize,
    ownership: Ownership,
    /// Last, so that the owner of the memory is dropped before that of its context.
    context: Context,
}

enum Ownership {
    Owned,
    /// The caller's; there until the allocation is dropped.
    External(Option<Owner>),
}

/// Why a region cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// It reaches past its memory.
    #[error("a region of {len} {dtype} at byte {offset} ends past its memory of {bytes} bytes")]
    OutOfBounds {
        /// Byte where it begins.
        offset: usize,
        /// Elements.
        len: usize,
        /// Their type.
        dtype: DType,
        /// Bytes of the memory.
        bytes: usize,
    },
    /// It does not begin at a multiple of its element's size.
    #[error("a region of {dtype} cannot begin at byte {offset}: not a multiple of {align}")]
    Misaligned {
        /// Byte where it begins.
        offset: usize,
        /// Type of its elements.
        dtype: DType,
        /// Bytes of one.
        align: usize,
    },
}

impl DeviceMemory {
    /// Allocates `bytes` of device memory, not initialised. Never called while work is enqueued: a plan allocates.
    ///
    /// # Errors
    ///
    /// Out of memory (see [`CudaError::is_out_of_memory`]), or a poisoned context.
    pub fn allocate(context: &Context, bytes: usize) -> Result<Self, CudaError> {
        // SAFETY: freed once, in `drop`. The driver refuses 0 bytes, so an empty allocation takes 1.
        let ptr = context.call(|driver| unsafe { driver.memory_alloc(bytes.max(1)) })?;
        Ok(Self::new(context, ptr, bytes, Ownership::Owned))
    }

    /// Memory that the caller owns: it is used and never freed.
    ///
    /// `owner` is dropped when no region, plan or lease on it is left, so not while work in flight may touch it, and from whichever
    /// thread that is. If the context is lost by then it is never dropped, and the bytes count as leaked.
    ///
    /// # Safety
    ///
    /// `ptr..ptr + bytes` is memory that `context`'s device can reach until `owner` is dropped.
    pub unsafe fn external(
        context: &Context,
        ptr: DevicePtr,
        bytes: usize,
        owner: impl Any + Send + Sync,
    ) -> Self {
        Self::new(context, ptr, bytes, Ownership::External(Some(Box::new(owner))))
    }

    fn new(context: &Context, ptr: DevicePtr, bytes: usize, ownership: Ownership) -> Self {
        Self { inner: Arc::new(DeviceAllocation { context: context.clone(), ptr, bytes, ownership }) }
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(super) fn lease(&self) -> Lease {
        self.inner.clone()
    }

    /// A view of `len` elements from byte `offset` on.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if it does not fit or is not aligned to its element.
    pub fn region<T: Element>(&self, offset: usize, len: usize) -> Result<Region<T>, RegionError> {
        let size = size_of::<T>();
        if !(self.inner.ptr.0 as usize).wrapping_add(offset).is_multiple_of(size) {
            return Err(RegionError::Misaligned { offset, dtype: T::DTYPE, align: size });
        }
        let end = len.checked_mul(size).and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > self.bytes()) {
            return Err(RegionError::OutOfBounds { offset, len, dtype: T::DTYPE, bytes: self.bytes() });
        }
        Ok(Region { memory: self.clone(), offset, len, element: PhantomData })
    }
}

impl DeviceMemory {
    /// As [`DeviceMemory::region`], for an element type that is known at run time only.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemory::region`].
    pub fn span(&self, offset: usize, bytes: usize, dtype: DType) -> Result<Span<'_>, RegionError> {
        let len = bytes / dtype.size().max(1);
        let align = dtype.size().max(1);
        if !(self.inner.ptr.0 as usize).wrapping_add(offset).is_multiple_of(align) {
            return Err(RegionError::Misaligned { offset, dtype, align });
        }
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(RegionError::OutOfBounds { offset, len, dtype, bytes: self.bytes() });
        }
        Ok(Span { memory: self, offset, bytes, dtype })
    }
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        if let Ownership::External(owner) = &mut self.ownership {
            if self.context.poison().is_some() {
                std::mem::forget(owner.take());
                self.context.count_leak(self.bytes as u64);
            }
            return;
        }
        // SAFETY: allocated by `allocate` and freed once; no lease is left, so no work in flight can reach it.
        if self.context.call(|driver| unsafe { driver.memory_free(self.ptr) }).is_err() {
            self.context.count_leak(self.bytes as u64);
        }
    }
}

/// A typed span of device memory. Cheap to clone; it keeps its memory.
pub struct Region<T> {
    memory: DeviceMemory,
    offset: usize,
    len: usize,
    element: PhantomData<T>,
}

impl<T> Clone for Region<T> {
    fn clone(&self) -> Self {
        Self { memory: self.memory.clone(), offset: self.offset, len: self.len, element: PhantomData }
    }
}

impl<T: Element> Region<T> {
    /// Allocates memory for `len` elements and views it whole.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemory::allocate`].
    pub fn allocate(context: &Context, len: usize) -> Result<Self, CudaError> {
        let memory = DeviceMemory::allocate(context, len * size_of::<T>())?;
        Ok(Self { memory, offset: 0, len, element: PhantomData })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it, in elements.
    ///
    /// # Errors
    ///
    /// [`RegionError::OutOfBounds`] if the range ends past it.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, RegionError> {
        let out_of_bounds = || RegionError::OutOfBounds {
            offset: range.start,
            len: range.len(),
            dtype: T::DTYPE,
            bytes: self.bytes(),
        };
        if range.start > range.end || range.end > self.len {
            return Err(out_of_bounds());
        }
        self.memory.region(self.offset + range.start * size_of::<T>(), range.len())
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if it does not begin at a multiple of the other element's size, or its bytes are not whole elements.
    pub fn cast<U: Element>(&self) -> Result<Region<U>, RegionError> {
        let (size, bytes) = (size_of::<U>(), self.bytes());
        let len = bytes.div_ceil(size);
        if !bytes.is_multiple_of(size) {
            return Err(RegionError::OutOfBounds { offset: self.offset, len, dtype: U::DTYPE, bytes });
        }
        self.memory.region(self.offset, len)
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Byte of its memory where it begins.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The memory it lies in.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Its address and extent, without its type.
    pub fn span(&self) -> Span<'_> {
        Span { memory: &self.memory, offset: self.offset, bytes: self.bytes(), dtype: T::DTYPE }
    }
}

/// A region without its static type: what operands are checked by.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    pub(crate) memory: &'a DeviceMemory,
    offset: usize,
    bytes: usize,
    dtype: DType,
}

impl Span<'_> {
    /// Address of its first byte.
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.memory.inner.ptr.0 + self.offset as u64)
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Span<'_>) -> bool {
        let (a, b) = (self.ptr().0, other.ptr().0);
        a < b + other.bytes as u64 && b < a + self.bytes as u64
    }
}

/// Pinned host memory that the device can reach. Cheap to clone; it is freed when the last clone and lease is gone.
///
/// The host reads and writes it through [`PinnedMemory::read`] and [`PinnedMemory::write`] only, by value, because
/// the device may touch it at any time.
#[derive(Clone)]
pub struct PinnedMemory<T> {
    inner: Arc<PinnedAllocation>,
    /// Elements before its first.
    start: usize,
    len: usize,
    element: PhantomData<T>,
}

struct PinnedAllocation {
    context: Context,
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the allocation is only a pointer to memory that any thread may reach; access goes through volatile copies.
unsafe impl Send for PinnedAllocation {}
// SAFETY: as above.
unsafe impl Sync for PinnedAllocation {}

impl<T: Element> PinnedMemory<T> {
    /// Allocates memory for `len` elements, all zero.
    ///
    /// # Errors
    ///
    /// Out of memory, or a poisoned context.
    pub fn allocate(context: &Context, len: usize) -> Result<Self, CudaError> {
        let bytes = (len * size_of::<T>()).max(1);
        // SAFETY: freed once, in `drop`.
        let ptr = context.call(|driver| unsafe { driver.host_alloc(bytes) })?;
        let Some(ptr) = NonNull::new(ptr) else {
            return Err(CudaError { call: "cuMemHostAlloc", code: 2, name: "a null pointer".to_owned() });
        };
        // SAFETY: the driver just allocated that many bytes, and nothing else knows of them yet.
        unsafe { ptr.as_ptr().write_bytes(0, bytes) };
        let inner = Arc::new(PinnedAllocation { context: context.clone(), ptr, bytes });
        Ok(Self { inner, start: 0, len, element: PhantomData })
    }

    /// A part of it, in elements. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`RegionError::OutOfBounds`] if the range ends past it.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, RegionError> {
        if range.start > range.end || range.end > self.len {
            return Err(self.out_of_bounds(range.start, range.len()));
        }
        let (inner, start) = (self.inner.clone(), self.start + range.start);
        Ok(Self { inner, start, len: range.len(), element: PhantomData })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The element at `index`, or `None` past the end. Meaningful once the work that writes it has settled.
    pub fn read(&self, index: usize) -> Option<T> {
        // SAFETY: the index is in bounds, the memory is initialised and any bit pattern is a valid element.
        (index < self.len).then(|| unsafe { self.ptr().add(index).read_volatile() })
    }

    /// Copies `values` in, from element `start` on. Meaningful before the work that reads them is enqueued.
    ///
    /// # Errors
    ///
    /// [`RegionError::OutOfBounds`] if they end past it; nothing is written then.
    pub fn write(&self, start: usize, values: &[T]) -> Result<(), RegionError> {
        let fits = start.checked_add(values.len()).is_some_and(|end| end <= self.len);
        if !fits {
            return Err(self.out_of_bounds(start, values.len()));
        }
        // SAFETY: in bounds, and the source is a slice of the host that cannot lie in memory the driver allocated.
        unsafe { self.ptr().add(start).copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        Ok(())
    }

    /// Writes what an iterator yields, from element `start` on, with one check for all. Meaningful as
    /// [`PinnedMemory::write`].
    ///
    /// # Errors
    ///
    /// [`RegionError::OutOfBounds`] if it ends past it; nothing is written then.
    pub fn write_from(
        &self,
        start: usize,
        values: impl ExactSizeIterator<Item = T>,
    ) -> Result<(), RegionError> {
        let len = values.len();
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(self.out_of_bounds(start, len));
        }
        // The length of an iterator is a promise of safe code, which no bounds may rest on.
        for (index, value) in values.take(len).enumerate() {
            // SAFETY: `start + index` is under `start + len`, which is in bounds.
            unsafe { self.ptr().add(start + index).write(value) };
        }
        Ok(())
    }

    /// Copies its elements from `start` on out, as many as `values` holds. Meaningful once the work that writes them has
    /// settled.
    ///
    /// # Errors
    ///
    /// [`RegionError::OutOfBounds`] if they end past it; nothing is read then.
    pub fn read_into(&self, start: usize, values: &mut [T]) -> Result<(), RegionError> {
        let fits = start.checked_add(values.len()).is_some_and(|end| end <= self.len);
        if !fits {
            return Err(self.out_of_bounds(start, values.len()));
        }
        // SAFETY: in bounds, initialised, any bit pattern is a valid element, and the target is a slice of the host that
        // cannot lie in memory the driver allocated.
        unsafe { values.as_mut_ptr().copy_from_nonoverlapping(self.ptr().add(start), values.len()) };
        Ok(())
    }

    /// The same memory as an operand of kernels, which reach it over the bus. It keeps this memory.
    ///
    /// # Errors
    ///
    /// None that a caller can bring about: an allocation begins at a multiple of every element's size.
    pub fn region(&self) -> Result<Region<T>, RegionError> {
        // SAFETY: pinned memory has one address on host and device, and the clone keeps it until it is dropped.
        let memory = unsafe {
            DeviceMemory::external(&self.inner.context, self.device_ptr(), self.bytes(), self.clone())
        };
        memory.region(0, self.len)
    }

    fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Its address as the device sees it.
    pub(crate) fn device_ptr(&self) -> DevicePtr {
        DevicePtr(self.ptr() as u64)
    }

    pub(crate) fn ptr(&self) -> *mut T {
        // SAFETY: `start` is inside the allocation, or one past its end for an empty part.
        unsafe { self.inner.ptr.as_ptr().cast::<T>().add(self.start) }
    }

    fn out_of_bounds(&self, start: usize, len: usize) -> RegionError {
        let (offset, bytes) = (start.saturating_mul(size_of::<T>()), self.len * size_of::<T>());
        RegionError::OutOfBounds { offset, len, dtype: T::DTYPE, bytes }
    }

    pub(super) fn lease(&self) -> Lease {
        self.inner.clone()
    }
}

impl Drop for PinnedAllocation {
    fn drop(&mut self) {
        // SAFETY: allocated by `allocate` and freed once; no lease is left.
        if self.context.call(|driver| unsafe { driver.host_free(self.ptr.as_ptr()) }).is_err() {
            self.context.count_leak(self.bytes as u64);
        }
    }
}

use super::{Layout, View, ViewMut};
use crate::{DType, Float, LayoutError};
use half::{bf16, f16};

/// A read operand of any floating-point element type.
#[derive(Clone, Copy, Debug)]
pub enum FloatView<'a, const R: usize> {
    /// binary32 elements.
    F32(View<'a, f32, R>),
    /// binary16 elements.
    F16(View<'a, f16, R>),
    /// bfloat16 elements.
    BF16(View<'a, bf16, R>),
}

/// A write operand of any floating-point element type.
#[derive(Debug)]
pub enum FloatViewMut<'a, const R: usize> {
    /// binary32 elements.
    F32(ViewMut<'a, f32, R>),
    /// binary16 elements.
    F16(ViewMut<'a, f16, R>),
    /// bfloat16 elements.
    BF16(ViewMut<'a, bf16, R>),
}

macro_rules! each {
    ($on:expr, $kind:ident, $view:ident => $body:expr) => {
        match $on {
            $kind::F32($view) => $body,
            $kind::F16($view) => $body,
            $kind::BF16($view) => $body,
        }
    };
}

impl<'a, const R: usize> FloatView<'a, R> {
    /// Row-major with no gaps, from the start of the buffer.
    ///
    /// # Errors
    /// [`LayoutError`] when the buffer is too short.
    pub fn contiguous<T: Float>(data: &'a [T], shape: [usize; R]) -> Result<Self, LayoutError> {
        View::contiguous(data, shape).map(T::erase)
    }

    /// Any strides (in elements), from the start of the buffer.
    ///
    /// # Errors
    /// [`LayoutError`] when the buffer is too short.
    pub fn strided<T: Float>(
        data: &'a [T],
        shape: [usize; R],
        strides: [usize; R],
    ) -> Result<Self, LayoutError> {
        View::strided(data, shape, strides).map(T::erase)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F16(_) => DType::F16,
            Self::BF16(_) => DType::BF16,
        }
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout<R> {
        each!(self, Self, view => view.layout())
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> [usize; R] {
        self.layout().shape()
    }

    /// Element type and shape, as checks compare them.
    pub(crate) fn kind(&self) -> (DType, [usize; R]) {
        (self.dtype(), self.shape())
    }

    /// One element, widened exactly.
    ///
    /// # Panics
    /// When the index is outside the shape.
    #[inline]
    pub fn at(&self, index: [usize; R]) -> f32 {
        each!(self, Self, view => view.at(index).to_f32())
    }

    /// The view by its element type, if that is `T`.
    pub fn typed<T: Float>(self) -> Option<View<'a, T, R>> {
        T::downcast(self)
    }

    /// A part of one axis.
    ///
    /// # Errors
    /// [`LayoutError::Narrow`] when the part is not inside the axis.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Self, LayoutError> {
        each!(self, Self, view => view.narrow(axis, start, len).map(Float::erase))
    }
}

impl<'a, const R: usize> FloatViewMut<'a, R> {
    /// Row-major with no gaps, from the start of the buffer.
    ///
    /// # Errors
    /// [`LayoutError`] when the buffer is too short.
    pub fn contiguous<T: Float>(data: &'a mut [T], shape: [usize; R]) -> Result<Self, LayoutError> {
        ViewMut::contiguous(data, shape).map(T::erase_mut)
    }

    /// Any strides (in elements), from the start of the buffer.
    ///
    /// # Errors
    /// [`LayoutError`] when the buffer is too short or elements may overlap.
    pub fn strided<T: Float>(
        data: &'a mut [T],
        shape: [usize; R],
        strides: [usize; R],
    ) -> Result<Self, LayoutError> {
        ViewMut::strided(data, shape, strides).map(T::erase_mut)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.as_view().dtype()
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout<R> {
        each!(self, Self, view => view.layout())
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> [usize; R] {
        self.layout().shape()
    }

    /// The same window, to read.
    pub fn as_view(&self) -> FloatView<'_, R> {
        each!(self, Self, view => Float::erase(view.as_view()))
    }

    /// The same window, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> FloatViewMut<'_, R> {
        each!(self, Self, view => Float::erase_mut(view.reborrow()))
    }

    /// Element type and shape, as checks compare them.
    pub(crate) fn kind(&self) -> (DType, [usize; R]) {
        (self.dtype(), self.shape())
    }

    /// One element, widened exactly.
    ///
    /// # Panics
    /// When the index is outside the shape.
    #[inline]
    pub fn at(&self, index: [usize; R]) -> f32 {
        each!(self, Self, view => view.at(index).to_f32())
    }

    /// Writes one element, rounded to the element type (ties to even).
    ///
    /// # Panics
    /// When the index is outside the shape.
    #[inline]
    pub fn set(&mut self, index: [usize; R], value: f32) {
        each!(self, Self, view => view.set(index, Float::from_f32(value)));
    }

    /// The view by its element type, if that is `T`.
    pub fn typed<T: Float>(self) -> Option<ViewMut<'a, T, R>> {
        T::downcast_mut(self)
    }

    /// A part of one axis.
    ///
    /// # Errors
    /// [`LayoutError::Narrow`] when the part is not inside the axis.
    pub fn narrow(self, axis: usize, start: usize, len: usize) -> Result<Self, LayoutError> {
        each!(self, Self, view => view.narrow(axis, start, len).map(Float::erase_mut))
    }
}

use super::Layout;
use crate::LayoutError;

/// A read operand: a strided window on a buffer of `T`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T, const R: usize> {
    data: &'a [T],
    layout: Layout<R>,
}

impl<'a, T: Copy, const R: usize> View<'a, T, R> {
    /// Row-major with no gaps, from the start of the buffer.
    ///
    /// # Errors
    /// [`LayoutError`] when the buffer is too short.
    pub fn contiguous(data: &'a [T], shape: [usize; R]) -> Result<Self, LayoutError> {
        Self::new(data, Layout::contiguous(shape)?)
    }

    /// Any strides (in elements), from the start of the buffer.
    ///
    /// # Errors
    /// [`LayoutError`] when the buffer is too short.
    pub fn strided(data: &'a [T], shape: [usize; R], strides: [usize; R]) -> Result<Self, LayoutError> {
        Self::new(data, Layout::strided(shape, strides)?)
    }

    /// A layout on a buffer.
    ///
    /// # Errors
    /// [`LayoutError`] when the buffer is too short.
    pub fn new(data: &'a [T], layout: Layout<R>) -> Result<Self, LayoutError> {
        layout.check_span(data.len())?;
        Ok(Self { data, layout })
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout<R> {
        &self.layout
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> [usize; R] {
        self.layout.shape()
    }

    /// The buffer under the view, from the view's first element.
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// One element.
    ///
    /// # Panics
    /// When the index is outside the shape.
    #[inline]
    pub fn at(&self, index: [usize; R]) -> T {
        self.data[self.layout.offset(index)]
    }

    /// All elements in row-major order, if they lie so with no gaps.
    pub fn as_slice(&self) -> Option<&'a [T]> {
        self.layout.is_contiguous().then(|| &self.data[..self.layout.span()])
    }

    /// The run from `index` to the end of the last axis, if it lies in one piece.
    ///
    /// # Panics
    /// When the index is outside the shape.
    #[inline]
    pub fn row(&self, index: [usize; R]) -> Option<&'a [T]> {
        if R == 0 || !self.layout.has_contiguous_rows() {
            return None;
        }
        let start = self.layout.offset(index);
        Some(&self.data[start..start + self.layout.shape()[R - 1] - index[R - 1]])
    }

    /// A part of one axis.
    ///
    /// # Errors
    /// [`LayoutError::Narrow`] when the part is not inside the axis.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Self, LayoutError> {
        let (offset, layout) = self.layout.narrow(axis, start, len)?;
        Self::new(&self.data[offset..], layout)
    }
}

/// A write operand: a strided window on a buffer of `T` in which no two elements share a place.
#[derive(Debug)]
pub struct ViewMut<'a, T, const R: usize> {
    data: &'a mut [T],
    layout: Layout<R>,
}

impl<'a, T: Copy, const R: usize> ViewMut<'a, T, R> {
    /// Row-major with no gaps, from the start of the buffer.
    ///
    /// # Errors
    /// [`LayoutError`] when the buffer is too short.
    pub fn contiguous(data: &'a mut [T], shape: [usize; R]) -> Result<Self, LayoutError> {
        Self::new(data, Layout::contiguous(shape)?)
    }

    /// Any strides (in elements), from the start of the buffer.
    ///
    /// # Errors
    /// [`LayoutError`] when the buffer is too short or elements may overlap.
    pub fn strided(data: &'a mut [T], shape: [usize; R], strides: [usize; R]) -> Result<Self, LayoutError> {
        Self::new(data, Layout::strided(shape, strides)?)
    }

    /// A layout on a buffer.
    ///
    /// # Errors
    /// [`LayoutError`] when the buffer is too short or elements may overlap.
    pub fn new(data: &'a mut [T], layout: Layout<R>) -> Result<Self, LayoutError> {
        layout.check_span(data.len())?;
        layout.check_no_overlap()?;
        Ok(Self { data, layout })
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout<R> {
        &self.layout
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> [usize; R] {
        self.layout.shape()
    }

    /// The buffer under the view, from the view's first element.
    pub fn data_mut(&mut self) -> &mut [T] {
        self.data
    }

    /// The same window, to read.
    pub fn as_view(&self) -> View<'_, T, R> {
        View { data: self.data, layout: self.layout }
    }

    /// The same window, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_, T, R> {
        ViewMut { data: self.data, layout: self.layout }
    }

    /// One element.
    ///
    /// # Panics
    /// When the index is outside the shape.
    #[inline]
    pub fn at(&self, index: [usize; R]) -> T {
        self.data[self.layout.offset(index)]
    }

    /// Writes one element.
    ///
    /// # Panics
    /// When the index is outside the shape.
    #[inline]
    pub fn set(&mut self, index: [usize; R], value: T) {
        self.data[self.layout.offset(index)] = value;
    }

    /// All elements in row-major order, if they lie so with no gaps.
    pub fn as_mut_slice(&mut self) -> Option<&mut [T]> {
        self.layout.is_contiguous().then(|| &mut self.data[..self.layout.span()])
    }

    /// The run from `index` to the end of the last axis, if it lies in one piece.
    ///
    /// # Panics
    /// When the index is outside the shape.
    #[inline]
    pub fn row_mut(&mut self, index: [usize; R]) -> Option<&mut [T]> {
        if R == 0 || !self.layout.has_contiguous_rows() {
            return None;
        }
        let start = self.layout.offset(index);
        Some(&mut self.data[start..start + self.layout.shape()[R - 1] - index[R - 1]])
    }

    /// A part of one axis.
    ///
    /// # Errors
    /// [`LayoutError::Narrow`] when the part is not inside the axis.
    pub fn narrow(self, axis: usize, start: usize, len: usize) -> Result<Self, LayoutError> {
        let (offset, layout) = self.layout.narrow(axis, start, len)?;
        Self::new(&mut self.data[offset..], layout)
    }
}

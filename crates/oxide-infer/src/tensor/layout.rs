use crate::LayoutError;
use std::fmt;

/// The highest rank that an operand of any contract has.
pub const MAX_RANK: usize = 4;

/// A shape or a list of strides of any rank up to [`MAX_RANK`], stored inline; for errors and descriptions.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dims {
    rank: u8,
    dims: [usize; MAX_RANK],
}

impl Dims {
    /// The extents.
    pub fn as_slice(&self) -> &[usize] {
        &self.dims[..usize::from(self.rank)]
    }
}

impl<const R: usize> From<[usize; R]> for Dims {
    fn from(extents: [usize; R]) -> Self {
        const { assert!(R <= MAX_RANK) };
        let mut dims = [0; MAX_RANK];
        dims[..R].copy_from_slice(&extents);
        Self { rank: R as u8, dims }
    }
}

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A shape and the strides of its axes, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout<const R: usize> {
    shape: [usize; R],
    strides: [usize; R],
    span: usize,
}

impl<const R: usize> Layout<R> {
    /// Row-major with no gaps: the last axis has stride 1.
    ///
    /// # Errors
    /// [`LayoutError::Overflow`] when the elements cannot be counted.
    pub fn contiguous(shape: [usize; R]) -> Result<Self, LayoutError> {
        let mut strides = [1usize; R];
        for axis in (1..R).rev() {
            // An axis of extent 0 must not zero the strides before it.
            strides[axis - 1] = strides[axis]
                .checked_mul(shape[axis].max(1))
                .ok_or(LayoutError::Overflow { shape: shape.into(), strides: strides.into() })?;
        }
        Self::strided(shape, strides)
    }

    /// Any strides, in elements. A stride of 0 repeats one element along its axis.
    ///
    /// # Errors
    /// [`LayoutError::Overflow`] when the span cannot be counted.
    pub fn strided(shape: [usize; R], strides: [usize; R]) -> Result<Self, LayoutError> {
        let overflow = || LayoutError::Overflow { shape: shape.into(), strides: strides.into() };
        let mut span = 1usize;
        for (extent, stride) in shape.iter().zip(&strides) {
            let reach = extent.saturating_sub(1).checked_mul(*stride).ok_or_else(overflow)?;
            span = span.checked_add(reach).ok_or_else(overflow)?;
        }
        let span = if shape.contains(&0) { 0 } else { span };
        Ok(Self { shape, strides, span })
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> [usize; R] {
        self.shape
    }

    /// Strides in elements, outermost first.
    pub fn strides(&self) -> [usize; R] {
        self.strides
    }

    /// Elements from the first to the last addressed one; 0 for an empty shape.
    pub fn span(&self) -> usize {
        self.span
    }

    /// Whether no element is addressed.
    pub fn is_empty(&self) -> bool {
        self.span == 0
    }

    /// Whether the elements lie in row-major order with no gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if extent > 1 && stride != expected {
                return self.is_empty();
            }
            // Only an empty shape can saturate: the elements of others were counted.
            expected = expected.saturating_mul(extent.max(1));
        }
        true
    }

    /// Whether each run along the last axis lies in one piece.
    pub fn has_contiguous_rows(&self) -> bool {
        R == 0 || self.strides[R - 1] == 1 || self.shape[R - 1] <= 1
    }

    /// Where an element lies, in elements from the first.
    ///
    /// # Panics
    /// When the index is outside the shape, as indexing a slice does.
    #[inline]
    pub fn offset(&self, index: [usize; R]) -> usize {
        let mut offset = 0;
        for ((&i, &extent), &stride) in index.iter().zip(&self.shape).zip(&self.strides) {
            assert!(i < extent, "index {index:?} is outside shape {:?}", self.shape);
            offset += i * stride;
        }
        offset
    }

    /// A part of one axis, and where its first element lies.
    ///
    /// # Errors
    /// [`LayoutError::Narrow`] when the part is not inside the axis.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<(usize, Self), LayoutError> {
        let end = start.saturating_add(len);
        if axis >= R || end > self.shape[axis] {
            return Err(LayoutError::Narrow { shape: self.shape.into(), axis, start, end });
        }
        let mut shape = self.shape;
        shape[axis] = len;
        let part = Self::strided(shape, self.strides)?;
        let offset = if part.is_empty() { 0 } else { start * self.strides[axis] };
        Ok((offset, part))
    }

    pub(crate) fn check_span(&self, got: usize) -> Result<(), LayoutError> {
        if self.span > got {
            let (shape, strides) = (self.shape.into(), self.strides.into());
            return Err(LayoutError::TooShort { shape, strides, needed: self.span, got });
        }
        Ok(())
    }

    /// Refuses layouts in which two elements may share a place: with axes sorted by stride, each stride must reach past
    /// everything that the smaller ones span.
    pub(crate) fn check_no_overlap(&self) -> Result<(), LayoutError> {
        let mut axes: [usize; R] = std::array::from_fn(|axis| axis);
        axes.sort_by_key(|&axis| self.strides[axis]);
        let mut reach = 0;
        for axis in axes {
            if self.is_empty() || self.shape[axis] == 1 {
                continue;
            }
            if self.strides[axis] <= reach {
                return Err(LayoutError::Overlap { shape: self.shape.into(), strides: self.strides.into() });
            }
            reach += (self.shape[axis] - 1) * self.strides[axis];
        }
        Ok(())
    }
}

//! Rows of operands as `f32` slices, whatever their element type and strides.
//!
//! Rows of contiguous `f32`, which is what an engine has, are used where they lie; others are widened into a buffer and
//! rounded back.

use crate::disjoint::Disjoint;
use crate::{TASK_ELEMENTS, Team};
use half::{bf16, f16};
use oxide_infer::{Float, FloatView, FloatViewMut, Layout, View};

/// The run of `len` elements from `index` along the last axis.
pub(crate) fn read<'b, const R: usize>(
    view: &FloatView<'b, R>,
    index: [usize; R],
    len: usize,
    buffer: &'b mut Vec<f32>,
) -> &'b [f32] {
    match view {
        FloatView::F32(view) => match view.row(index) {
            Some(row) => &row[..len],
            None => widen(view, index, len, buffer),
        },
        FloatView::F16(view) => widen(view, index, len, buffer),
        FloatView::BF16(view) => widen(view, index, len, buffer),
    }
}

fn widen<'b, T: Float, const R: usize>(
    view: &View<'_, T, R>,
    mut index: [usize; R],
    len: usize,
    buffer: &'b mut Vec<f32>,
) -> &'b [f32] {
    buffer.clear();
    let first = index[R - 1];
    buffer.extend((first..first + len).map(|i| {
        index[R - 1] = i;
        view.at(index).to_f32()
    }));
    buffer
}

/// Lets `change` write every row of an operand, each once, on any thread: its index, and the row.
pub(crate) fn for_each<const R: usize>(
    team: &Team<'_>,
    view: &mut FloatViewMut<'_, R>,
    change: &(dyn Fn([usize; R], &mut [f32]) + Sync),
) {
    let shape = view.shape();
    let (len, outer) = (shape[R - 1], &shape[..R - 1]);
    let rows = SharedRows::new(view);
    team.run_ranges(outer.iter().product(), TASK_ELEMENTS.div_ceil(len.max(1)), &|range| {
        for row in range {
            let (mut index, mut rest) = ([0; R], row);
            for axis in (0..R - 1).rev() {
                index[axis] = rest % shape[axis];
                rest /= shape[axis];
            }
            // SAFETY: every row is visited once.
            unsafe { rows.update(index, len, |row| change(index, row)) };
        }
    });
}

/// A written operand whose rows different threads write.
pub(crate) struct SharedRows<'a, const R: usize> {
    cells: Cells<'a>,
    layout: Layout<R>,
}

enum Cells<'a> {
    F32(Disjoint<'a, f32>),
    F16(Disjoint<'a, f16>),
    BF16(Disjoint<'a, bf16>),
}

impl<'a, const R: usize> SharedRows<'a, R> {
    pub(crate) fn new(view: &'a mut FloatViewMut<'_, R>) -> Self {
        let layout = *view.layout();
        let cells = match view {
            FloatViewMut::F32(view) => Cells::F32(Disjoint::new(view.data_mut())),
            FloatViewMut::F16(view) => Cells::F16(Disjoint::new(view.data_mut())),
            FloatViewMut::BF16(view) => Cells::BF16(Disjoint::new(view.data_mut())),
        };
        Self { cells, layout }
    }

    /// Lets `update` change the run of `len` elements from `index` along the last axis.
    ///
    /// # Safety
    /// No other thread may use these elements at the same time.
    #[inline]
    pub(crate) unsafe fn update(&self, index: [usize; R], len: usize, update: impl FnOnce(&mut [f32])) {
        // SAFETY: passed on to the caller.
        unsafe {
            match &self.cells {
                Cells::F32(cells) if self.layout.has_contiguous_rows() => {
                    if len > 0 {
                        update(cells.slice(self.layout.offset(index), len));
                    }
                }
                Cells::F32(cells) => self.update_rounded(cells, index, len, update),
                Cells::F16(cells) => self.update_rounded(cells, index, len, update),
                Cells::BF16(cells) => self.update_rounded(cells, index, len, update),
            }
        }
    }

    /// # Safety
    /// As [`Self::update`].
    unsafe fn update_rounded<T: Float>(
        &self,
        cells: &Disjoint<'_, T>,
        index: [usize; R],
        len: usize,
        update: impl FnOnce(&mut [f32]),
    ) {
        let places = (0..len).map(|i| {
            let mut place = index;
            place[R - 1] += i;
            self.layout.offset(place)
        });
        // SAFETY: passed on to the caller.
        let cell = |place| unsafe { &mut cells.slice(place, 1)[0] };
        let mut buffer: Vec<f32> = places.clone().map(|place| cell(place).to_f32()).collect();
        update(&mut buffer);
        for (place, value) in places.zip(buffer) {
            *cell(place) = T::from_f32(value);
        }
    }
}

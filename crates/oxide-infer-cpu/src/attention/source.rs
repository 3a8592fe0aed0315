//! Keys and values where they lie.

use crate::math::load;
use crate::simd::{Isa, LANES};
use half::{bf16, f16};
use oxide_infer::kv_cache::{PageLayout, PageTables};
use oxide_infer::{FloatView, Layout};
use std::ops::Range;

/// The keys, or the values, of one head of one sequence, by position.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    cells: Cells<'a>,
    places: Places<'a>,
    /// Where the head's elements begin, from the start of a page (or of the keys).
    head: usize,
    /// From one position to the next.
    position_stride: usize,
    element_stride: usize,
    head_dim: usize,
}

#[derive(Clone, Copy)]
enum Cells<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

/// Where positions lie.
#[derive(Clone, Copy)]
enum Places<'a> {
    /// One after another.
    Flat,
    /// In the pages that a row of the block table lists.
    Pages { tables: PageTables<'a>, sequence: usize, page_stride: usize },
}

fn cells<'a, const R: usize>(view: &FloatView<'a, R>) -> Cells<'a> {
    match view {
        FloatView::F32(view) => Cells::F32(view.data()),
        FloatView::F16(view) => Cells::F16(view.data()),
        FloatView::BF16(view) => Cells::BF16(view.data()),
    }
}

impl<'a> Source<'a> {
    /// From `[kv_tokens, num_kv_heads, head_dim]`, with position 0 at token `first`.
    pub(super) fn flat(view: &FloatView<'a, 3>, first: usize, head: usize) -> Self {
        let layout: &Layout<3> = view.layout();
        let ([_, _, head_dim], [position_stride, head_stride, element_stride]) =
            (layout.shape(), layout.strides());
        let head = first * position_stride + head * head_stride;
        Self { cells: cells(view), places: Places::Flat, head, position_stride, element_stride, head_dim }
    }

    /// From a pool, through the block table's row `sequence`.
    pub(super) fn paged(
        view: &FloatView<'a, 4>,
        tables: PageTables<'a>,
        sequence: usize,
        head: usize,
    ) -> Self {
        let layout: &Layout<4> = view.layout();
        let [_, _, _, head_dim] = layout.shape();
        let [page_stride, outer, inner, element_stride] = layout.strides();
        let [position_stride, head_stride] = match tables.paging.layout {
            PageLayout::Nhd => [outer, inner],
            PageLayout::Hnd => [inner, outer],
        };
        let places = Places::Pages { tables, sequence, page_stride };
        Self {
            cells: cells(view),
            places,
            head: head * head_stride,
            position_stride,
            element_stride,
            head_dim,
        }
    }

    /// Hands each position of a range to `sink`, in chunks of sixteen elements (zeros past the head's end): the
    /// position's index in the range, the chunk, the elements.
    #[inline(always)]
    pub(super) fn read<I: Isa>(&self, positions: Range<usize>, mut sink: impl FnMut(usize, usize, I::F)) {
        let mut position = positions.start;
        while position < positions.end {
            let (offset, run) = self.run_from(position, positions.end);
            let index = position - positions.start;
            match self.cells {
                Cells::F32(cells) => self.rows::<I, _>(cells, offset, run, index, load::<I>, &mut sink),
                Cells::F16(cells) => self.rows::<I, _>(cells, offset, run, index, load_f16::<I>, &mut sink),
                Cells::BF16(cells) => self.rows::<I, _>(cells, offset, run, index, load_bf16::<I>, &mut sink),
            }
            position += run;
        }
    }

    /// Where a position's elements begin, and how many positions up to `end` follow at the same stride.
    #[inline(always)]
    fn run_from(&self, position: usize, end: usize) -> (usize, usize) {
        match self.places {
            Places::Flat => (self.head + position * self.position_stride, end - position),
            Places::Pages { tables, sequence, page_stride } => {
                let page_size = tables.paging.page_size;
                let (entry, slot) = (position / page_size, position % page_size);
                let page = tables.block_table.at([sequence, entry]) as usize;
                let offset = page * page_stride + self.head + slot * self.position_stride;
                (offset, (page_size - slot).min(end - position))
            }
        }
    }

    #[inline(always)]
    fn rows<I: Isa, T: Copy + Default>(
        &self,
        cells: &[T],
        offset: usize,
        run: usize,
        index: usize,
        widen: impl Fn(&[T], usize) -> I::F,
        sink: &mut impl FnMut(usize, usize, I::F),
    ) {
        for row in 0..run {
            let row_offset = offset + row * self.position_stride;
            for chunk in 0..self.head_dim.div_ceil(LANES) {
                let len = (self.head_dim - chunk * LANES).min(LANES);
                let first = row_offset + chunk * LANES * self.element_stride;
                if self.element_stride == 1 {
                    sink(index + row, chunk, widen(&cells[first..first + len], 0));
                } else {
                    let mut lanes = [T::default(); LANES];
                    for lane in 0..len {
                        lanes[lane] = cells[first + lane * self.element_stride];
                    }
                    sink(index + row, chunk, widen(&lanes[..len], 0));
                }
            }
        }
    }
}

#[inline(always)]
fn load_f16<I: Isa>(cells: &[f16], at: usize) -> I::F {
    I::widen_f16(&little_endian(cells, at))
}

#[inline(always)]
fn load_bf16<I: Isa>(cells: &[bf16], at: usize) -> I::F {
    I::widen_bf16(&little_endian(cells, at))
}

/// The bytes of up to sixteen half-width numbers, zeros after them.
#[inline(always)]
fn little_endian<T: bytemuck::Pod>(cells: &[T], at: usize) -> [u8; 2 * LANES] {
    let mut bytes = [0; 2 * LANES];
    let source: &[u8] = bytemuck::cast_slice(&cells[at..cells.len().min(at + LANES)]);
    match source.first_chunk() {
        Some(whole) => bytes = *whole,
        None => bytes[..source.len()].copy_from_slice(source),
    }
    if cfg!(target_endian = "big") {
        bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|pair| pair.reverse());
    }
    bytes
}

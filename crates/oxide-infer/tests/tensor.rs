//! Views: what they address, and the layouts they refuse.

use half::{bf16, f16};
use oxide_infer::{DType, Dims, FloatView, FloatViewMut, Layout, LayoutError, View, ViewMut};
use proptest::prelude::*;

fn dims<const R: usize>(extents: [usize; R]) -> Dims {
    extents.into()
}

#[test]
fn a_contiguous_view_is_row_major() {
    let data: Vec<i32> = (0..24).collect();
    let view = View::contiguous(&data, [2, 3, 4]).unwrap();
    assert_eq!(view.layout().strides(), [12, 4, 1]);
    assert_eq!(view.at([1, 2, 3]), 23);
    assert_eq!(view.row([1, 0, 1]), Some(&data[13..16]));
    assert_eq!(view.as_slice(), Some(&data[..]));
}

#[test]
fn the_stride_of_an_axis_of_one_does_not_matter() {
    let data: Vec<i32> = (0..12).collect();
    let view = View::strided(&data, [3, 1, 4], [4, 100, 1]).unwrap();
    assert_eq!(view.as_slice(), Some(&data[..]));
    let view = View::strided(&data, [2, 1, 4], [8, 4, 1]).unwrap();
    assert_eq!((view.as_slice(), view.row([1, 0, 0])), (None, Some(&data[8..])));
}

#[test]
fn a_transposed_view_reads_columns_and_has_no_rows_in_one_piece() {
    let data = [0, 1, 2, 3, 4, 5];
    let view = View::strided(&data, [3, 2], [1, 3]).unwrap();
    assert_eq!([view.at([0, 0]), view.at([0, 1]), view.at([2, 1])], [0, 3, 5]);
    assert_eq!((view.row([0, 0]), view.as_slice()), (None, None));
}

#[test]
fn a_part_of_a_fused_buffer_keeps_its_strides() {
    // Two tokens of [q0 q1 k v], as a fused product gives them.
    let data = [10, 11, 12, 13, 20, 21, 22, 23];
    let fused = View::contiguous(&data, [2, 4]).unwrap();
    let k = fused.narrow(1, 2, 1).unwrap();
    assert_eq!((k.shape(), k.layout().strides()), ([2, 1], [4, 1]));
    assert_eq!([k.at([0, 0]), k.at([1, 0])], [12, 22]);
    assert_eq!(fused.narrow(1, 4, 0).unwrap().shape(), [2, 0]);
    assert_eq!(
        fused.narrow(1, 3, 2).unwrap_err(),
        LayoutError::Narrow { shape: dims([2, 4]), axis: 1, start: 3, end: 5 }
    );
    assert!(fused.narrow(2, 0, 0).is_err() && fused.narrow(0, usize::MAX, 2).is_err());
}

#[test]
fn an_empty_view_needs_no_elements() {
    let view = View::<f32, 3>::contiguous(&[], [4, 0, 7]).unwrap();
    assert!(view.layout().is_empty() && view.layout().is_contiguous());
    assert_eq!(view.as_slice(), Some(&[][..]));
}

#[test]
fn a_buffer_that_is_too_short_is_refused_with_both_lengths() {
    let error = View::strided(&[0u8; 10], [2, 3], [8, 1]).unwrap_err();
    let (shape, strides) = (dims([2, 3]), dims([8, 1]));
    assert_eq!(error, LayoutError::TooShort { shape, strides, needed: 11, got: 10 });
    assert_eq!(error.to_string(), "shape [2, 3] with strides [8, 1] spans 11 elements, the buffer has 10");
    assert!(View::strided(&[0u8; 11], [2, 3], [8, 1]).is_ok());
}

#[test]
fn spans_past_the_address_space_are_refused() {
    assert!(matches!(Layout::contiguous([usize::MAX, 2, 2]), Err(LayoutError::Overflow { .. })));
    assert!(matches!(Layout::strided([3, 3], [usize::MAX, 1]), Err(LayoutError::Overflow { .. })));
    assert!(matches!(Layout::strided([2, 2], [usize::MAX, 1]), Err(LayoutError::Overflow { .. })));
}

#[test]
fn a_row_may_be_read_again_and_again_but_not_written() {
    let mut data = [1.0, 2.0];
    let repeated = View::strided(&data, [3, 2], [0, 1]).unwrap();
    assert_eq!(repeated.at([2, 1]), 2.0);
    let error = ViewMut::strided(&mut data, [3, 2], [0, 1]).unwrap_err();
    assert_eq!(error, LayoutError::Overlap { shape: dims([3, 2]), strides: dims([0, 1]) });
    assert!(ViewMut::strided(&mut [0; 9], [3, 3], [2, 1]).is_err(), "rows of 3 every 2 elements");
    assert!(ViewMut::strided(&mut [0; 9], [3, 3], [1, 3]).is_ok(), "a transposed matrix");
    assert!(ViewMut::strided(&mut [0; 9], [1, 3], [0, 1]).is_ok(), "one row, whatever its stride");
}

#[test]
fn a_write_view_writes_where_it_says_and_nowhere_else() {
    let mut data = [0; 8];
    let mut view = ViewMut::strided(&mut data, [2, 2], [4, 1]).unwrap();
    view.set([1, 0], 7);
    view.row_mut([0, 0]).unwrap().fill(3);
    assert!(view.as_mut_slice().is_none());
    assert_eq!(view.as_view().at([1, 0]), 7);
    let mut right = view.narrow(1, 1, 1).unwrap();
    right.reborrow().set([1, 0], 9);
    assert_eq!(data, [3, 3, 0, 0, 7, 9, 0, 0]);
}

#[test]
fn float_views_widen_exactly_and_round_to_even() {
    let mut halves = [f16::from_f32(0.1); 2];
    let mut view = FloatViewMut::contiguous(&mut halves, [2]).unwrap();
    assert_eq!((view.dtype(), view.at([0])), (DType::F16, f16::from_f32(0.1).to_f32()));
    // 1 + 2⁻¹¹ lies between 1 and 1 + 2⁻¹⁰: the tie goes to the even one.
    view.set([1], 1.0 + 2f32.powi(-11));
    assert_eq!(view.as_view().at([1]), 1.0);
    assert!(view.reborrow().typed::<bf16>().is_none() && view.typed::<f16>().is_some());

    let brain = [bf16::from_f32(-2.5)];
    let view = FloatView::contiguous(&brain, [1]).unwrap();
    assert_eq!((view.dtype(), view.at([0])), (DType::BF16, -2.5));
    assert!(view.typed::<f32>().is_none());
}

proptest! {
    #[test]
    fn a_layout_that_may_be_written_gives_every_index_its_own_place(
        shape in proptest::array::uniform3(1usize..5),
        strides in proptest::array::uniform3(0usize..20),
    ) {
        let layout = Layout::strided(shape, strides).unwrap();
        let mut buffer = vec![0u8; layout.span()];
        if ViewMut::new(&mut buffer, layout).is_ok() {
            let mut seen = vec![false; layout.span()];
            for flat in 0..shape.iter().product() {
                let index = [flat / (shape[1] * shape[2]), flat / shape[2] % shape[1], flat % shape[2]];
                let place = layout.offset(index);
                prop_assert!(!std::mem::replace(&mut seen[place], true), "{index:?} shares {place}");
            }
        }
    }

    #[test]
    fn contiguous_layouts_are_found_contiguous(shape in proptest::array::uniform4(0usize..4)) {
        let layout = Layout::contiguous(shape).unwrap();
        prop_assert!(layout.is_contiguous());
        prop_assert_eq!(layout.span(), shape.iter().product::<usize>());
    }
}

//! Attention over pages is attention over the keys in them.

use oxide_infer::attention::{Attention, Mask, paged_decode, paged_prefill, ragged_prefill, single_decode};
use oxide_infer::kv_cache::{PageLayout, Paging};
use oxide_infer::{
    Contract, DType, DataError, FloatView, FloatViewMut, OperandError, Presence, View, ViewMut,
};
use proptest::prelude::*;

fn paging(layout: PageLayout, page_size: usize) -> Paging {
    Paging { dtype: DType::F32, layout, page_size }
}

/// A batch of paged sequences, and the same keys in one piece.
#[derive(Debug)]
struct Batch {
    paging: Paging,
    /// `(query rows, keys)`
    lens: Vec<(usize, usize)>,
    table: Vec<i32>,
    max_pages: usize,
    num_pages: usize,
    flat: [Vec<f32>; 2],
    pools: [Vec<f32>; 2],
    q: Vec<f32>,
    attention: Attention,
    mask: Mask,
}

const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 4;
const Q_HEADS: usize = 4;

/// Numbers of no pattern.
fn number(i: usize) -> f32 {
    ((i * 2_654_435_761 + 12_345) % 1009) as f32 / 504.5 - 1.0
}

impl Batch {
    fn new(
        layout: PageLayout,
        page_size: usize,
        lens: Vec<(usize, usize)>,
        window: Option<usize>,
        mask: Mask,
    ) -> Self {
        let paging = paging(layout, page_size);
        let max_pages = lens.iter().map(|&(_, keys)| paging.pages_for(keys)).max().unwrap_or(0);
        let needed: usize = lens.iter().map(|&(_, keys)| paging.pages_for(keys)).sum();
        let num_pages = needed + 1;
        let keys: usize = lens.iter().map(|&(_, keys)| keys).sum();
        let rows: usize = lens.iter().map(|&(rows, _)| rows).sum();
        let flat =
            [1, 2].map(|seed| (0..keys * KV_HEADS * HEAD_DIM).map(|i| number(seed * 7777 + i)).collect());
        let mut batch = Self {
            paging,
            table: vec![-1; lens.len() * max_pages],
            max_pages,
            num_pages,
            flat,
            // What no key needs may be any finite number.
            pools: [(); 2].map(|()| vec![1e3; num_pages * page_size * KV_HEADS * HEAD_DIM]),
            q: (0..rows * Q_HEADS * HEAD_DIM).map(|i| 3.0 * number(99 + i)).collect(),
            attention: Attention {
                dtype: DType::F32,
                num_q_heads: Q_HEADS,
                num_kv_heads: KV_HEADS,
                head_dim: HEAD_DIM,
                scale: 0.5,
                window,
                soft_cap: None,
                lse: Presence::Present,
            },
            mask,
            lens,
        };
        batch.fill_pages();
        batch
    }

    /// Pages from the last one down, so that no table is in order.
    fn fill_pages(&mut self) {
        let (mut first_key, mut page) = (0, self.num_pages);
        for (sequence, &(_, keys)) in self.lens.iter().enumerate() {
            for position in 0..keys {
                let (entry, slot) = (position / self.paging.page_size, position % self.paging.page_size);
                if slot == 0 {
                    page -= 1;
                    self.table[sequence * self.max_pages + entry] = page as i32;
                }
                for (head, dim) in (0..KV_HEADS).flat_map(|head| (0..HEAD_DIM).map(move |dim| (head, dim))) {
                    let from = ((first_key + position) * KV_HEADS + head) * HEAD_DIM + dim;
                    let to = self.paging.index(page, slot, head, dim);
                    let shape = self.paging.pool_shape(self.num_pages, KV_HEADS, HEAD_DIM);
                    let to = to.iter().zip(shape).fold(0, |at, (i, extent)| at * extent + i);
                    (0..2).for_each(|i| self.pools[i][to] = self.flat[i][from]);
                }
            }
            first_key += keys;
        }
    }

    fn starts(&self, len: impl Fn(&(usize, usize)) -> usize) -> Vec<i32> {
        let mut sum = 0;
        let ends = self.lens.iter().map(|lens| {
            sum += len(lens);
            sum as i32
        });
        std::iter::once(0).chain(ends.collect::<Vec<_>>()).collect()
    }

    fn pool_views(&self) -> [FloatView<'_, 4>; 2] {
        let shape = self.paging.pool_shape(self.num_pages, KV_HEADS, HEAD_DIM);
        [0, 1].map(|i| FloatView::contiguous(&self.pools[i], shape).unwrap())
    }

    fn flat_views(&self) -> [FloatView<'_, 3>; 2] {
        let keys = self.flat[0].len() / (KV_HEADS * HEAD_DIM);
        [0, 1].map(|i| FloatView::contiguous(&self.flat[i], [keys, KV_HEADS, HEAD_DIM]).unwrap())
    }

    fn paged_prefill(&self) -> Result<(Vec<f32>, Vec<f32>), OperandError> {
        let (attention, paging, mask) = (self.attention.clone(), self.paging, self.mask);
        let spec = paged_prefill::Spec::new(paged_prefill::Config { attention, paging, mask }).unwrap();
        let (rows, batch) = (self.q.len() / (Q_HEADS * HEAD_DIM), self.lens.len());
        let (mut output, mut lse) = (vec![f32::NAN; self.q.len()], vec![f32::NAN; rows * Q_HEADS]);
        let kv_len: Vec<i32> = self.lens.iter().map(|&(_, keys)| keys as i32).collect();
        let query_start = self.starts(|&(rows, _)| rows);
        let [k_pages, v_pages] = self.pool_views();
        let operands = paged_prefill::Operands {
            q: FloatView::contiguous(&self.q, [rows, Q_HEADS, HEAD_DIM]).unwrap(),
            k_pages,
            v_pages,
            block_table: View::contiguous(&self.table, [batch, self.max_pages]).unwrap(),
            kv_len: View::contiguous(&kv_len, [batch]).unwrap(),
            query_start: View::contiguous(&query_start, [batch + 1]).unwrap(),
            output: FloatViewMut::contiguous(&mut output, [rows, Q_HEADS, HEAD_DIM]).unwrap(),
            lse: Some(ViewMut::contiguous(&mut lse, [rows, Q_HEADS]).unwrap()),
        };
        paged_prefill::reference(&spec, operands)?;
        Ok((output, lse))
    }

    fn paged_decode(&self) -> Result<(Vec<f32>, Vec<f32>), OperandError> {
        let (attention, paging) = (self.attention.clone(), self.paging);
        let spec = paged_decode::Spec::new(paged_decode::Config { attention, paging }).unwrap();
        let batch = self.lens.len();
        let (mut output, mut lse) = (vec![f32::NAN; self.q.len()], vec![f32::NAN; batch * Q_HEADS]);
        let kv_len: Vec<i32> = self.lens.iter().map(|&(_, keys)| keys as i32).collect();
        let [k_pages, v_pages] = self.pool_views();
        let operands = paged_decode::Operands {
            q: FloatView::contiguous(&self.q, [batch, Q_HEADS, HEAD_DIM]).unwrap(),
            k_pages,
            v_pages,
            block_table: View::contiguous(&self.table, [batch, self.max_pages]).unwrap(),
            kv_len: View::contiguous(&kv_len, [batch]).unwrap(),
            output: FloatViewMut::contiguous(&mut output, [batch, Q_HEADS, HEAD_DIM]).unwrap(),
            lse: Some(ViewMut::contiguous(&mut lse, [batch, Q_HEADS]).unwrap()),
        };
        paged_decode::reference(&spec, operands)?;
        Ok((output, lse))
    }

    fn ragged_prefill(&self) -> (Vec<f32>, Vec<f32>) {
        let config = ragged_prefill::Config { attention: self.attention.clone(), mask: self.mask };
        let spec = ragged_prefill::Spec::new(config).unwrap();
        let (rows, batch) = (self.q.len() / (Q_HEADS * HEAD_DIM), self.lens.len());
        let (mut output, mut lse) = (vec![f32::NAN; self.q.len()], vec![f32::NAN; rows * Q_HEADS]);
        let (query_start, kv_start) = (self.starts(|&(rows, _)| rows), self.starts(|&(_, keys)| keys));
        let [k, v] = self.flat_views();
        let operands = ragged_prefill::Operands {
            q: FloatView::contiguous(&self.q, [rows, Q_HEADS, HEAD_DIM]).unwrap(),
            k,
            v,
            query_start: View::contiguous(&query_start, [batch + 1]).unwrap(),
            kv_start: View::contiguous(&kv_start, [batch + 1]).unwrap(),
            output: FloatViewMut::contiguous(&mut output, [rows, Q_HEADS, HEAD_DIM]).unwrap(),
            lse: Some(ViewMut::contiguous(&mut lse, [rows, Q_HEADS]).unwrap()),
        };
        ragged_prefill::reference(&spec, operands).unwrap();
        (output, lse)
    }

    fn single_decodes(&self) -> (Vec<f32>, Vec<f32>) {
        let spec = single_decode::Spec::new(self.attention.clone()).unwrap();
        let (mut outputs, mut lses) = (vec![], vec![]);
        let starts = self.starts(|&(_, keys)| keys);
        for (sequence, &(_, keys)) in self.lens.iter().enumerate() {
            let (mut output, mut lse) = (vec![f32::NAN; Q_HEADS * HEAD_DIM], vec![f32::NAN; Q_HEADS]);
            let [k, v] =
                self.flat_views().map(|flat| flat.narrow(0, starts[sequence] as usize, keys).unwrap());
            let q = &self.q[sequence * Q_HEADS * HEAD_DIM..];
            let operands = single_decode::Operands {
                q: FloatView::contiguous(q, [1, Q_HEADS, HEAD_DIM]).unwrap(),
                k,
                v,
                output: FloatViewMut::contiguous(&mut output, [1, Q_HEADS, HEAD_DIM]).unwrap(),
                lse: Some(ViewMut::contiguous(&mut lse, [1, Q_HEADS]).unwrap()),
            };
            single_decode::reference(&spec, operands).unwrap();
            outputs.extend(output);
            lses.extend(lse);
        }
        (outputs, lses)
    }
}

#[test]
fn a_single_key_is_the_answer_whatever_its_score() {
    let batch = Batch::new(PageLayout::Nhd, 3, vec![(1, 1)], None, Mask::Causal);
    let (output, lse) = batch.paged_decode().unwrap();
    let v = &batch.flat[1];
    // Query heads 0 and 1 read key/value head 0; 2 and 3 read 1.
    assert_eq!(output, [&v[..4], &v[..4], &v[4..], &v[4..]].concat());
    let score: f32 = (0..4).map(|dim| batch.q[dim] * batch.flat[0][dim]).sum::<f32>() * 0.5;
    assert!((lse[0] - score).abs() < 1e-6);
}

#[test]
fn a_row_with_no_keys_is_zero_with_a_log_sum_of_minus_infinity() {
    let batch = Batch::new(PageLayout::Hnd, 2, vec![(1, 0), (1, 3)], None, Mask::Causal);
    let (output, lse) = batch.paged_decode().unwrap();
    assert_eq!(output[..16], [0.0; 16]);
    assert_eq!(lse[..4], [f32::NEG_INFINITY; 4]);
    assert!(output[16..].iter().all(|x| *x != 0.0) && lse[4..].iter().all(|x| x.is_finite()));
}

#[test]
fn two_equal_scores_average_their_values() {
    let mut batch = Batch::new(PageLayout::Nhd, 2, vec![(1, 2)], None, Mask::Causal);
    batch.q.fill(0.0);
    let (output, lse) = batch.paged_decode().unwrap();
    let v = &batch.flat[1];
    assert!((output[0] - (v[0] + v[8]) / 2.0).abs() < 1e-7);
    assert!((lse[0] - 2f32.ln()).abs() < 1e-7);
}

#[test]
fn a_page_before_the_window_is_never_read() {
    // Pages of 2; a window of 3 on 7 keys reads positions 4, 5 and 6: entries 2 and 3.
    let mut batch = Batch::new(PageLayout::Nhd, 2, vec![(1, 7)], Some(3), Mask::Causal);
    let (want, _) = batch.paged_decode().unwrap();
    batch.table[..2].fill(-1);
    assert_eq!(batch.paged_decode().unwrap().0, want);
    assert_eq!(batch.paged_prefill().unwrap().0, want);
    batch.table[2] = -1;
    let error = DataError::Page { sequence: 0, entry: 2, page: -1, num_pages: 5 };
    assert_eq!(
        batch.paged_decode().unwrap_err(),
        OperandError::Data { contract: Contract::PAGED_DECODE, error }
    );
    assert_eq!(
        batch.paged_prefill().unwrap_err(),
        OperandError::Data { contract: Contract::PAGED_PREFILL, error }
    );
}

#[test]
fn lengths_outside_the_table_and_rows_without_keys_are_refused() {
    let mut batch = Batch::new(PageLayout::Nhd, 2, vec![(1, 3)], None, Mask::Causal);
    batch.lens[0].1 = 5;
    let error = DataError::KvLen { sequence: 0, kv_len: 5, capacity: 4 };
    assert_eq!(
        batch.paged_decode().unwrap_err(),
        OperandError::Data { contract: Contract::PAGED_DECODE, error }
    );
    let mut batch = Batch::new(PageLayout::Nhd, 2, vec![(3, 3)], None, Mask::Causal);
    batch.lens[0].1 = 2;
    let error = DataError::QueryLongerThanKv { sequence: 0, query_len: 3, kv_len: 2 };
    assert_eq!(
        batch.paged_prefill().unwrap_err(),
        OperandError::Data { contract: Contract::PAGED_PREFILL, error }
    );
}

prop_compose! {
    fn batches(rows: impl Strategy<Value = usize> + Clone + 'static)(
        layout in prop_oneof![Just(PageLayout::Nhd), Just(PageLayout::Hnd)],
        page_size in 1usize..6,
        lens in proptest::collection::vec((rows, 0usize..14), 0..4),
        window in proptest::option::of(1usize..8),
        mask in prop_oneof![Just(Mask::Causal), Just(Mask::Full)],
    ) -> Batch {
        let lens = lens.into_iter().map(|(rows, before)| (rows, rows + before)).collect();
        Batch::new(layout, page_size, lens, window, mask)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn prefill_over_pages_is_prefill_over_the_keys_in_them(batch in batches(0usize..6)) {
        prop_assert_eq!(batch.paged_prefill().unwrap(), batch.ragged_prefill());
    }

    #[test]
    fn decode_over_pages_is_decode_of_each_sequence_alone(batch in batches(Just(1))) {
        prop_assert_eq!(batch.paged_decode().unwrap(), batch.single_decodes());
    }
}

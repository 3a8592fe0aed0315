use super::*;
use crate::testing::{provider, random_floats};
use crate::{CpuProvider, Plan};
use oxide_infer::kv_cache::PageLayout;
use oxide_infer::{DType, Presence};
use proptest::prelude::*;

const HEADS: [usize; 2] = [6, 2];
const HEAD_DIM: usize = 24;
const PAGE: usize = 16;

/// One sequence: all its queries, and its keys and values in a pool.
struct Case {
    plan: Plan<paged_prefill::Spec>,
    q: Vec<f32>,
    k_pages: Vec<f32>,
    v_pages: Vec<f32>,
    pages: Vec<i32>,
    num_pages: usize,
}

impl Case {
    fn new(len: usize, window: Option<usize>, soft_cap: Option<f32>, seed: u64) -> Self {
        let [num_q_heads, num_kv_heads] = HEADS;
        let attention = Attention {
            dtype: DType::F32,
            num_q_heads,
            num_kv_heads,
            head_dim: HEAD_DIM,
            scale: 0.5,
            window,
            soft_cap,
            lse: Presence::Present,
        };
        let paging = Paging { dtype: DType::F32, layout: PageLayout::Hnd, page_size: PAGE };
        let spec = paged_prefill::Spec::new(paged_prefill::Config { attention, paging, mask: Mask::Causal });
        let needed = len.div_ceil(PAGE);
        let num_pages = needed + 3;
        // Pages in an order of their own, some unused.
        let pages = (0..needed).map(|i| ((i * 7 + seed as usize) % num_pages) as i32).collect::<Vec<_>>();
        let distinct = pages.iter().collect::<std::collections::BTreeSet<_>>().len() == pages.len();
        let pages = if distinct { pages } else { (0..needed as i32).rev().collect() };
        let pool = num_pages * num_kv_heads * PAGE * HEAD_DIM;
        Self {
            plan: Plan::new(spec.unwrap()),
            q: random_floats(len * num_q_heads * HEAD_DIM, seed),
            k_pages: random_floats(pool, seed ^ 1),
            v_pages: random_floats(pool, seed ^ 2),
            pages,
            num_pages,
        }
    }

    /// The rows `chunks` of this sequence, as so many sequences of one batch; output and log-sum-exp of each row.
    fn attend(&self, cpu: &mut CpuProvider, chunks: &[Range<usize>]) -> Vec<u32> {
        let row = HEADS[0] * HEAD_DIM;
        let mut q = Vec::new();
        let (mut query_start, mut kv_len, mut block_table) = (vec![0], Vec::new(), Vec::new());
        for chunk in chunks {
            q.extend_from_slice(&self.q[chunk.start * row..chunk.end * row]);
            query_start.push((q.len() / row) as i32);
            kv_len.push(chunk.end as i32);
            // Entries past the chunk's keys must not be read.
            let known = chunk.end.div_ceil(PAGE);
            block_table
                .extend(self.pages.iter().enumerate().map(|(i, &page)| if i < known { page } else { -1 }));
        }
        let tokens = q.len() / row;
        let (mut output, mut lse) = (vec![f32::NAN; q.len()], vec![f32::NAN; tokens * HEADS[0]]);
        let shape = [tokens, HEADS[0], HEAD_DIM];
        let pool = [self.num_pages, HEADS[1], PAGE, HEAD_DIM];
        let operands = paged_prefill::Operands {
            q: FloatView::contiguous(&q, shape).unwrap(),
            k_pages: FloatView::contiguous(&self.k_pages, pool).unwrap(),
            v_pages: FloatView::contiguous(&self.v_pages, pool).unwrap(),
            block_table: View::contiguous(&block_table, [chunks.len(), self.pages.len()]).unwrap(),
            kv_len: View::contiguous(&kv_len, [chunks.len()]).unwrap(),
            query_start: View::contiguous(&query_start, [chunks.len() + 1]).unwrap(),
            output: FloatViewMut::contiguous(&mut output, shape).unwrap(),
            lse: Some(ViewMut::contiguous(&mut lse, [tokens, HEADS[0]]).unwrap()),
        };
        cpu.step(|team| self.plan.run(team, operands)).unwrap();
        output
            .chunks(row)
            .zip(lse.chunks(HEADS[0]))
            .flat_map(|(output, lse)| output.iter().chain(lse).map(|x| x.to_bits()))
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_row_has_the_same_bits_in_any_chunk_batch_and_on_any_number_of_threads(
        len in prop_oneof![1..200usize, 500..1100usize],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        window in prop::option::of(1..600usize),
        soft_cap in prop::option::of(Just(3.0f32)),
        seed in any::<u32>(),
    ) {
        let case = Case::new(len, window, soft_cap, seed.into());
        let whole = case.attend(&mut provider(1), std::slice::from_ref(&(0..len)));
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).chain([0, len]).collect();
        cuts.sort_unstable();
        let chunks: Vec<_> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
        prop_assert!(whole == case.attend(&mut provider(3), &chunks), "in chunks {:?}", chunks);
        // The last row alone is a decode step; with one row and three threads, long ones are split among them.
        let row = whole.len() / len;
        let last = case.attend(&mut provider(3), std::slice::from_ref(&(len - 1..len)));
        prop_assert!(last == whole[(len - 1) * row..], "the last row alone");
        prop_assert!(last == case.attend(&mut provider(1), std::slice::from_ref(&(len - 1..len))));
    }
}

#[test]
fn the_portable_path_gives_the_same_bits() {
    for (window, soft_cap) in [(None, None), (Some(70), Some(2.0))] {
        let case = Case::new(530, window, soft_cap, 3);
        let rows = std::slice::from_ref(&(400..530));
        let fast = case.attend(&mut provider(1), rows);
        assert!(fast == case.attend(&mut provider(1).portable(), rows));
    }
}

#[test]
fn a_row_with_one_key_gives_its_value_and_score() {
    let spec = single_decode::Spec::new(Attention {
        dtype: DType::F32,
        num_q_heads: 1,
        num_kv_heads: 1,
        head_dim: 2,
        scale: 0.5,
        window: None,
        soft_cap: None,
        lse: Presence::Present,
    });
    let (mut output, mut lse) = ([0.0f32; 2], [0.0f32; 1]);
    let operands = single_decode::Operands {
        q: FloatView::contiguous(&[3.0f32, 4.0], [1, 1, 2]).unwrap(),
        k: FloatView::contiguous(&[1.0f32, 0.5], [1, 1, 2]).unwrap(),
        v: FloatView::contiguous(&[7.0f32, -2.0], [1, 1, 2]).unwrap(),
        output: FloatViewMut::contiguous(&mut output, [1, 1, 2]).unwrap(),
        lse: Some(ViewMut::contiguous(&mut lse, [1, 1]).unwrap()),
    };
    provider(2).step(|team| Plan::new(spec.unwrap()).run(team, operands)).unwrap();
    // 0.5 · (3 · 1 + 4 · 0.5)
    assert_eq!((output, lse), ([7.0, -2.0], [2.5]));
}

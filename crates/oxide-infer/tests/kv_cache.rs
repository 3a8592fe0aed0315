//! Where new keys and values go.

use half::bf16;
use oxide_infer::kv_cache::{PageLayout, Paging, paged_append, rope_append};
use oxide_infer::position::rope::{self, Pairing, Scaling};
use oxide_infer::{Contract, DType, DataError, FloatView, FloatViewMut, OperandError, View};
use proptest::prelude::*;

fn paging(layout: PageLayout, page_size: usize) -> Paging {
    Paging { dtype: DType::F32, layout, page_size }
}

fn append_spec(layout: PageLayout) -> paged_append::Spec {
    let paging = paging(layout, 2);
    paged_append::Spec::new(paged_append::Config { dtype: DType::F32, num_kv_heads: 2, head_dim: 1, paging })
        .unwrap()
}

/// Appends K = 1, 2, … and V = −K to pools of three pages of two tokens, two heads of one element.
fn append(
    layout: PageLayout,
    positions: &[i32],
    query_start: &[i32],
    table: &[i32],
) -> Result<[Vec<f32>; 2], OperandError> {
    let tokens = positions.len();
    let k: Vec<f32> = (1..=2 * tokens).map(|i| i as f32).collect();
    let v: Vec<f32> = k.iter().map(|k| -k).collect();
    let mut pools = [vec![0.0; 12], vec![0.0; 12]];
    let [k_pool, v_pool] = &mut pools;
    let pool = paging(layout, 2).pool_shape(3, 2, 1);
    let batch = query_start.len() - 1;
    let operands = paged_append::Operands {
        k: FloatView::contiguous(&k, [tokens, 2, 1]).unwrap(),
        v: FloatView::contiguous(&v, [tokens, 2, 1]).unwrap(),
        positions: View::contiguous(positions, [tokens]).unwrap(),
        query_start: View::contiguous(query_start, [batch + 1]).unwrap(),
        block_table: View::contiguous(table, [batch, table.len() / batch.max(1)]).unwrap(),
        k_pages: FloatViewMut::contiguous(k_pool, pool).unwrap(),
        v_pages: FloatViewMut::contiguous(v_pool, pool).unwrap(),
    };
    paged_append::reference(&append_spec(layout), operands)?;
    Ok(pools)
}

#[test]
fn tokens_cross_a_page_boundary_into_the_next_page_of_their_own_table() {
    // Sequence 0 writes positions 1 and 2: page 2 slot 1, page 0 slot 0. Sequence 1 writes position 0: page 1 slot 0.
    let (positions, query_start, table) = ([1, 2, 0], [0, 2, 3], [2, 0, 1, -1]);
    let [k, v] = append(PageLayout::Nhd, &positions, &query_start, &table).unwrap();
    assert_eq!(k, [3.0, 4.0, 0.0, 0.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]);
    assert!(v.iter().zip(&k).all(|(v, k)| *v == -k));
    // Heads before slots.
    let [k, _] = append(PageLayout::Hnd, &positions, &query_start, &table).unwrap();
    assert_eq!(k, [3.0, 0.0, 4.0, 0.0, 5.0, 0.0, 6.0, 0.0, 0.0, 1.0, 0.0, 2.0]);
}

#[test]
fn appending_nothing_changes_nothing() {
    assert_eq!(append(PageLayout::Hnd, &[], &[0], &[]).unwrap(), [vec![0.0; 12], vec![0.0; 12]]);
    assert_eq!(append(PageLayout::Hnd, &[], &[0, 0], &[-1]).unwrap(), [vec![0.0; 12], vec![0.0; 12]]);
}

#[test]
fn bad_indices_are_named_with_their_place_and_range() {
    let fails = |positions: &[i32], query_start: &[i32], table: &[i32]| match append(
        PageLayout::Nhd,
        positions,
        query_start,
        table,
    )
    .unwrap_err()
    {
        OperandError::Data { contract, error } if contract == Contract::PAGED_APPEND => error,
        other => panic!("{other}"),
    };
    assert_eq!(fails(&[0], &[0, 1], &[3]), DataError::Page { sequence: 0, entry: 0, page: 3, num_pages: 3 });
    assert_eq!(
        fails(&[0, 2], &[0, 1, 2], &[1, -1, 0, -5]),
        DataError::Page { sequence: 1, entry: 1, page: -5, num_pages: 3 }
    );
    assert_eq!(fails(&[-1], &[0, 1], &[0]), DataError::Position { token: 0, position: -1, limit: 2 });
    assert_eq!(fails(&[2], &[0, 1], &[0]), DataError::Position { token: 0, position: 2, limit: 2 });
    let operand = "query_start";
    assert_eq!(fails(&[0], &[1, 1], &[0]), DataError::Start { operand, entry: 0, start: 1, low: 0, high: 0 });
    assert_eq!(fails(&[0], &[0, 2], &[0]), DataError::Start { operand, entry: 1, start: 2, low: 1, high: 1 });
    assert_eq!(
        fails(&[0, 1], &[0, -1, 2], &[0, 1]),
        DataError::Start { operand, entry: 1, start: -1, low: 0, high: 2 }
    );
    assert_eq!(fails(&[0], &[0, 1], &[3]).to_string(), "block_table[0][0] must be a page in 0..3, got 3");
}

#[test]
fn appending_narrows_to_the_pages_element_type() {
    let paging = Paging { dtype: DType::BF16, ..paging(PageLayout::Nhd, 1) };
    let config = paged_append::Config { dtype: DType::F32, num_kv_heads: 1, head_dim: 1, paging };
    let (k, mut k_pool, mut v_pool) = ([1.0 + 2f32.powi(-9)], [bf16::ZERO], [bf16::ZERO]);
    let operands = paged_append::Operands {
        k: FloatView::contiguous(&k, [1, 1, 1]).unwrap(),
        v: FloatView::contiguous(&k, [1, 1, 1]).unwrap(),
        positions: View::contiguous(&[0], [1]).unwrap(),
        query_start: View::contiguous(&[0, 1], [2]).unwrap(),
        block_table: View::contiguous(&[0], [1, 1]).unwrap(),
        k_pages: FloatViewMut::contiguous(&mut k_pool, [1, 1, 1, 1]).unwrap(),
        v_pages: FloatViewMut::contiguous(&mut v_pool, [1, 1, 1, 1]).unwrap(),
    };
    paged_append::reference(&paged_append::Spec::new(config).unwrap(), operands).unwrap();
    assert_eq!(k_pool[0].to_f32(), 1.0);
}

const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 4;
const Q_HEADS: usize = 4;

/// Numbers of no pattern.
fn number(i: usize) -> f32 {
    ((i * 2_654_435_761 + 12_345) % 1009) as f32 / 504.5 - 1.0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rope_and_append_in_one_pass_is_rope_then_append(
        layout in prop_oneof![Just(PageLayout::Nhd), Just(PageLayout::Hnd)],
        page_size in 1usize..5,
        positions in proptest::collection::btree_set(0i32..12, 0..9),
    ) {
        let positions: Vec<i32> = positions.into_iter().collect();
        let (tokens, paging) = (positions.len(), paging(layout, page_size));
        let query_start = [0, tokens as i32];
        let max_pages = 12usize.div_ceil(page_size);
        let table: Vec<i32> = (0..max_pages as i32).rev().collect();
        let rope = rope::Config {
            dtype: DType::F32,
            head_dim: HEAD_DIM,
            rotary_dim: 2,
            pairing: Pairing::NeoX,
            theta: 100.0,
            scaling: Scaling::None,
        };
        let q: Vec<f32> = (0..tokens * Q_HEADS * HEAD_DIM).map(number).collect();
        let k: Vec<f32> = (0..tokens * KV_HEADS * HEAD_DIM).map(|i| number(i + 500)).collect();
        let v: Vec<f32> = (0..tokens * KV_HEADS * HEAD_DIM).map(|i| number(i + 900)).collect();
        let (heads, kv_heads) = ([tokens, Q_HEADS, HEAD_DIM], [tokens, KV_HEADS, HEAD_DIM]);
        let pool = paging.pool_shape(max_pages, KV_HEADS, HEAD_DIM);
        let pools = || [(); 2].map(|()| vec![0.0f32; pool.iter().product()]);

        let turned = |x: &[f32], shape: [usize; 3]| {
            let mut out = vec![0.0f32; x.len()];
            let operands = rope::Operands {
                input: FloatView::contiguous(x, shape).unwrap(),
                positions: View::contiguous(&positions, [tokens]).unwrap(),
                output: FloatViewMut::contiguous(&mut out, shape).unwrap(),
            };
            rope::reference(&rope::Spec::new(rope.clone()).unwrap(), operands).unwrap();
            out
        };
        let (q_turned, k_turned) = (turned(&q, heads), turned(&k, kv_heads));
        let mut apart = pools();
        let [k_pool, v_pool] = &mut apart;
        let config = paged_append::Config { dtype: DType::F32, num_kv_heads: KV_HEADS, head_dim: HEAD_DIM, paging };
        let operands = paged_append::Operands {
            k: FloatView::contiguous(&k_turned, kv_heads).unwrap(),
            v: FloatView::contiguous(&v, kv_heads).unwrap(),
            positions: View::contiguous(&positions, [tokens]).unwrap(),
            query_start: View::contiguous(&query_start, [2]).unwrap(),
            block_table: View::contiguous(&table, [1, max_pages]).unwrap(),
            k_pages: FloatViewMut::contiguous(k_pool, pool).unwrap(),
            v_pages: FloatViewMut::contiguous(v_pool, pool).unwrap(),
        };
        paged_append::reference(&paged_append::Spec::new(config).unwrap(), operands).unwrap();

        let (mut fused, mut q_out) = (pools(), vec![0.0f32; q.len()]);
        let [k_pool, v_pool] = &mut fused;
        let config = rope_append::Config { rope, num_q_heads: Q_HEADS, num_kv_heads: KV_HEADS, paging };
        let operands = rope_append::Operands {
            q: FloatView::contiguous(&q, heads).unwrap(),
            k: FloatView::contiguous(&k, kv_heads).unwrap(),
            v: FloatView::contiguous(&v, kv_heads).unwrap(),
            positions: View::contiguous(&positions, [tokens]).unwrap(),
            query_start: View::contiguous(&query_start, [2]).unwrap(),
            block_table: View::contiguous(&table, [1, max_pages]).unwrap(),
            q_out: FloatViewMut::contiguous(&mut q_out, heads).unwrap(),
            k_pages: FloatViewMut::contiguous(k_pool, pool).unwrap(),
            v_pages: FloatViewMut::contiguous(v_pool, pool).unwrap(),
        };
        rope_append::reference(&rope_append::Spec::new(config).unwrap(), operands).unwrap();
        prop_assert_eq!((q_out, fused), (q_turned, apart));
    }
}

use super::paged::{Batch, pagings, starts};
use super::{DTYPES, rope};
use crate::conformance::Operators;
use crate::conformance::buffer::{Floats, Numbers, Spacing, Tolerance, list};
use crate::conformance::suite::{Run, Suite, named};
use crate::kv_cache::{PageLayout, Paging, paged_append, rope_append};
use crate::position::rope::{Config, Pairing};
use crate::{Contract, DType, Spec as _};

/// The types and sizes that a spec asks for, and that operands are made with.
#[derive(Clone, Copy)]
struct Shape {
    dtype: DType,
    num_q_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    paging: Paging,
}

/// The operands of a case.
#[derive(Clone)]
struct Case {
    shape: Shape,
    tokens: usize,
    positions: Vec<i32>,
    query_start: Vec<i32>,
    batch: Batch,
}

impl Case {
    /// `lens` are the new tokens of each sequence and its keys after them.
    fn new(shape: Shape, lens: &[(i32, i32)], spacing: Spacing) -> Self {
        let kv_len: Vec<_> = lens.iter().map(|&(_, kv_len)| kv_len).collect();
        let positions: Vec<_> = lens.iter().flat_map(|&(new, kv_len)| kv_len - new..kv_len).collect();
        Self {
            shape,
            tokens: positions.len(),
            positions,
            query_start: starts(&lens.iter().map(|&(new, _)| new).collect::<Vec<_>>()),
            batch: Batch::new(shape.paging, [shape.num_kv_heads, shape.head_dim], &kv_len, spacing),
        }
    }

    fn heads(&self, numbers: &mut Numbers, num_heads: usize) -> Floats<3> {
        let layout = self.batch.spacing.layout([self.tokens, num_heads, self.shape.head_dim]);
        Floats::random(numbers, self.shape.dtype, layout, 1.0)
    }

    fn name(&self, described: String) -> String {
        format!(
            "{described} query_start={:?} kv_len={:?} {:?}",
            self.query_start, self.batch.kv_len, self.batch.spacing
        )
    }
}

/// Batches of none, one, and several sequences, with tokens on both sides of page boundaries.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for paging in DTYPES.into_iter().flat_map(pagings) {
        let page = paging.page_size as i32;
        let shape = Shape { dtype: paging.dtype, num_q_heads: 6, num_kv_heads: 2, head_dim: 64, paging };
        let several = [(1, page), (1, page + 1), (page + 2, 2 * page + 3), (0, 5), (2, 2)];
        cases.push(Case::new(shape, &[], Spacing::Dense));
        cases.push(Case::new(shape, &[(1, 1)], Spacing::Dense));
        cases.push(Case::new(shape, &several, Spacing::Dense));
        cases.push(Case::new(shape, &several, Spacing::Gapped));
    }
    let mixed = [(DType::F32, DType::BF16, [4, 4], 128), (DType::F16, DType::F32, [3, 1], 6)];
    for (dtype, kv_dtype, [num_q_heads, num_kv_heads], head_dim) in mixed {
        let paging = Paging { dtype: kv_dtype, layout: PageLayout::Hnd, page_size: 16 };
        let shape = Shape { dtype, num_q_heads, num_kv_heads, head_dim, paging };
        cases.push(Case::new(shape, &[(3, 17), (1, 33)], Spacing::Spread));
    }
    cases
}

/// Layouts and sizes of pages that kernels on a device are made for, that of the engine first.
const PAGES: [(PageLayout, usize); 4] =
    [(PageLayout::Hnd, 64), (PageLayout::Nhd, 16), (PageLayout::Hnd, 16), (PageLayout::Nhd, 64)];

fn shape_in(
    (layout, page_size): (PageLayout, usize),
    [num_q_heads, num_kv_heads]: [usize; 2],
    head_dim: usize,
) -> Shape {
    let paging = Paging { dtype: DType::BF16, layout, page_size };
    Shape { dtype: DType::BF16, num_q_heads, num_kv_heads, head_dim, paging }
}

/// What model kernels on a device are made for: `bf16`, pages of 64 tokens one head after another as the engine has them,
/// and as others have them; heads of several models, and decode batches up to 256.
fn models() -> Vec<Case> {
    let shape =
        |num_q_heads, num_kv_heads, head_dim| shape_in(PAGES[0], [num_q_heads, num_kv_heads], head_dim);
    let mixed = [(1, 64), (1, 65), (66, 131), (0, 5), (2, 2), (64, 64), (1, 1)];
    let mut cases = Vec::new();
    for (head_dim, [q, kv]) in [64, 128]
        .into_iter()
        .flat_map(|dim| [[2, 2], [4, 2], [9, 3], [12, 2], [7, 1], [16, 2]].map(|h| (dim, h)))
    {
        cases.push(Case::new(shape(q, kv, head_dim), &mixed, Spacing::Dense));
    }
    for (pages, head_dim) in PAGES[1..].iter().flat_map(|pages| [64, 128].map(|head_dim| (*pages, head_dim)))
    {
        for heads in [[9, 3], [16, 2]] {
            cases.push(Case::new(shape_in(pages, heads, head_dim), &mixed, Spacing::Dense));
        }
        let decodes = [(1, 15), (1, 16), (1, 17), (1, 64), (0, 3), (1, 129)];
        cases.push(Case::new(shape_in(pages, [7, 1], head_dim), &decodes, Spacing::Dense));
    }
    for head_dim in [64, 128] {
        for ([q, kv], kv_len) in [([9, 3], 131), ([12, 2], 64), ([7, 1], 65), ([2, 2], 1)] {
            cases.push(Case::new(shape(q, kv, head_dim), &[(1, kv_len)], Spacing::Dense));
        }
    }
    for (batch, [q, kv], head_dim) in
        [(17, [2, 1], 128), (256, [2, 1], 64), (33, [9, 3], 64), (33, [9, 3], 128), (8, [12, 2], 128)]
    {
        let lens: Vec<_> = (0..batch).map(|i| (1, (i * 37 + 63) % 131 + 1)).collect();
        cases.push(Case::new(shape(q, kv, head_dim), &lens, Spacing::Dense));
    }
    cases
}

/// What is wrong, and how: in the spec's shape, or in the operands.
type Fault = (&'static str, fn(&mut Shape, &mut Case));

const FAULTS: [Fault; 15] = [
    ("new keys of another type", |spec, _| spec.dtype = DType::F16),
    ("another number of heads", |spec, _| spec.num_kv_heads = 3),
    ("another head size", |spec, _| spec.head_dim = 10),
    ("pages of another type", |spec, _| spec.paging.dtype = DType::F16),
    ("pages of another size", |spec, _| spec.paging.page_size = 8),
    ("pages of another layout", |spec, _| {
        let nhd = spec.paging.layout == PageLayout::Nhd;
        spec.paging.layout = if nhd { PageLayout::Hnd } else { PageLayout::Nhd };
    }),
    ("too few positions", |_, case| case.positions.truncate(3)),
    ("too many starts", |_, case| case.query_start.push(4)),
    ("starts that do not begin at 0", |_, case| case.query_start[0] = 1),
    ("starts that fall", |_, case| case.query_start[1] = 5),
    ("starts that end early", |_, case| case.query_start[2] = 3),
    ("a negative position", |_, case| case.positions[0] = -1),
    ("a position past the block table", |_, case| case.positions[3] = case.batch.capacity()),
    ("a page past the pool", |_, case| case.batch.table[1][1] = case.batch.num_pages as i32),
    ("a negative page", |_, case| case.batch.table[0][0] = -7),
];

/// What may be wrong with the only token of a batch.
const FAULTS_OF_ONE: [Fault; 4] = [
    ("a negative position of the only token", |_, case| case.positions[0] = -1),
    ("a position of the only token past the block table", |_, case| {
        case.positions[0] = case.batch.capacity();
    }),
    ("a page of the only token past the pool", |_, case| {
        case.batch.table[0][1] = case.batch.num_pages as i32;
    }),
    ("a negative page of the only token", |_, case| case.batch.table[0][1] = -7),
];

/// What may be wrong with one of the tokens of a decode batch.
const FAULTS_OF_DECODE: [Fault; 3] = [
    ("a negative position in a decode batch", |_, case| case.positions[1] = -1),
    ("a position in a decode batch past the block table", |_, case| {
        case.positions[1] = case.batch.capacity();
    }),
    ("a page in a decode batch past the pool", |_, case| {
        case.batch.table[1][0] = case.batch.num_pages as i32;
    }),
];

/// Batches that are right until a fault is put in: 3 + 1 tokens, the last one just over a page, 3 pages to a row. Small,
/// and as models have it.
fn good() -> impl Iterator<Item = Case> {
    let small = (DType::F32, PageLayout::Nhd, 4, 8);
    let models = PAGES
        .into_iter()
        .flat_map(|(layout, page_size)| [64, 128].map(|head_dim| (DType::BF16, layout, page_size, head_dim)));
    [small].into_iter().chain(models).map(|(dtype, layout, page_size, head_dim)| {
        let paging = Paging { dtype, layout, page_size };
        let shape = Shape { dtype, num_q_heads: 4, num_kv_heads: 2, head_dim, paging };
        Case::new(shape, &[(3, 3), (1, page_size as i32 + 1)], Spacing::Dense)
    })
}

/// One token, just over a page.
fn good_of_one() -> impl Iterator<Item = Case> {
    good().map(|case| Case::new(case.shape, &[(1, case.shape.paging.page_size as i32 + 1)], Spacing::Dense))
}

/// One token of each of three sequences.
fn good_of_decode() -> impl Iterator<Item = Case> {
    good().map(|case| Case::new(case.shape, &[(1, 3), (1, 2), (1, 1)], Spacing::Dense))
}

/// Every batch that is right, with every fault of it.
fn faulty() -> impl Iterator<Item = (Case, Fault)> {
    let of_one = good_of_one().flat_map(|case| FAULTS_OF_ONE.map(|fault| (case.clone(), fault)));
    let of_decode = good_of_decode().flat_map(|case| FAULTS_OF_DECODE.map(|fault| (case.clone(), fault)));
    good().flat_map(|case| FAULTS.map(|fault| (case.clone(), fault))).chain(of_one).chain(of_decode)
}

pub(super) fn run_append(suite: &mut Suite<'_>) {
    for case in cases().into_iter().chain(models()) {
        append(suite, case.shape, &case, "");
    }
    for (mut case, (what, fault)) in faulty() {
        let mut spec = case.shape;
        fault(&mut spec, &mut case);
        append(suite, spec, &case, what);
    }
}

pub(super) fn run_rope_append(suite: &mut Suite<'_>) {
    for case in models() {
        rope_and_append(suite, case.shape, Pairing::NeoX, &case, "");
    }
    for case in cases() {
        for pairing in [Pairing::NeoX, Pairing::Interleaved] {
            rope_and_append(suite, case.shape, pairing, &case, "");
        }
    }
    for (mut case, (what, fault)) in faulty() {
        let mut spec = case.shape;
        fault(&mut spec, &mut case);
        rope_and_append(suite, spec, Pairing::NeoX, &case, what);
    }
}

fn append(suite: &mut Suite<'_>, spec: Shape, case: &Case, fault: &str) {
    let Shape { dtype, num_kv_heads, head_dim, paging, .. } = spec;
    let config = paged_append::Config { dtype, num_kv_heads, head_dim, paging };
    let spec = paged_append::Spec::new(config).expect("a valid spec");
    let mut numbers = Numbers::new(6);
    let [k, v] = [0, 1].map(|_| case.heads(&mut numbers, case.shape.num_kv_heads));
    let pools = [0, 1].map(|_| case.batch.pool(&mut numbers));
    let (positions, query_start) = (list(&case.positions), list(&case.query_start));
    let block_table = case.batch.block_table();
    let run = |operators: &mut dyn Operators| {
        let [mut k_pages, mut v_pages] = pools.clone();
        let operands = paged_append::Operands {
            k: k.view(),
            v: v.view(),
            positions: positions.view(),
            query_start: query_start.view(),
            block_table: block_table.view(),
            k_pages: k_pages.view_mut(),
            v_pages: v_pages.view_mut(),
        };
        let result = operators.paged_append(&spec, operands);
        Run { result, written: vec![k_pages.written("k_pages"), v_pages.written("v_pages")] }
    };
    // A copy that at most rounds to the element type of the pages.
    suite.case(Contract::PAGED_APPEND, named(fault, case.name(spec.describe())), Tolerance::exact(), run);
}

fn rope_and_append(suite: &mut Suite<'_>, spec: Shape, pairing: Pairing, case: &Case, fault: &str) {
    let Shape { dtype, num_q_heads, num_kv_heads, head_dim, paging } = spec;
    let rope = Config { pairing, ..rope::config(dtype, head_dim, head_dim) };
    let config = rope_append::Config { rope, num_q_heads, num_kv_heads, paging };
    let spec = rope_append::Spec::new(config).expect("a valid spec");
    let mut numbers = Numbers::new(7);
    let q = case.heads(&mut numbers, case.shape.num_q_heads);
    let [k, v] = [0, 1].map(|_| case.heads(&mut numbers, case.shape.num_kv_heads));
    let pools = [0, 1].map(|_| case.batch.pool(&mut numbers));
    let (positions, query_start) = (list(&case.positions), list(&case.query_start));
    let block_table = case.batch.block_table();
    let q_shape = case.batch.spacing.layout(q.view().shape());
    let run = |operators: &mut dyn Operators| {
        let [mut k_pages, mut v_pages] = pools.clone();
        let mut q_out = Floats::poisoned(case.shape.dtype, q_shape);
        let operands = rope_append::Operands {
            q: q.view(),
            k: k.view(),
            v: v.view(),
            positions: positions.view(),
            query_start: query_start.view(),
            block_table: block_table.view(),
            q_out: q_out.view_mut(),
            k_pages: k_pages.view_mut(),
            v_pages: v_pages.view_mut(),
        };
        let result = operators.rope_append(&spec, operands);
        let written = [q_out.written("q_out")];
        let pools = [k_pages.written("k_pages"), v_pages.written("v_pages")];
        Run { result, written: written.into_iter().chain(pools).collect() }
    };
    // Each is rounded to its own type; the coarser one bounds both.
    let coarse = if case.shape.dtype == DType::F32 { paging.dtype } else { case.shape.dtype };
    suite.case(Contract::ROPE_APPEND, named(fault, case.name(spec.describe())), Tolerance::of(coarse), run);
}

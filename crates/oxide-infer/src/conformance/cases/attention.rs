use super::DTYPES;
use super::paged::{Batch, starts};
use crate::attention::{Attention, Mask, paged_decode, paged_prefill, ragged_prefill, single_decode};
use crate::conformance::Operators;
use crate::conformance::buffer::{Floats, Numbers, Spacing, Tolerance, list};
use crate::conformance::suite::{Run, Suite, named};
use crate::kv_cache::{PageLayout, Paging};
use crate::{Contract, DType, FloatViewMut, Presence, Spec as _, ViewMut};

/// What a spec asks for.
#[derive(Clone)]
struct Asked {
    attention: Attention,
    paging: Paging,
    mask: Mask,
}

/// The operands of a case, for whichever contract.
#[derive(Clone)]
struct Case {
    made: Asked,
    rows: usize,
    query_start: Vec<i32>,
    kv_start: Vec<i32>,
    batch: Batch,
    lse: Presence,
    spacing: Spacing,
}

impl Case {
    /// `lens` are the query rows and the keys of each sequence.
    fn new(made: Asked, lens: &[(i32, i32)], spacing: Spacing) -> Self {
        let kv_len: Vec<_> = lens.iter().map(|&(_, kv_len)| kv_len).collect();
        let heads = [made.attention.num_kv_heads, made.attention.head_dim];
        Self {
            rows: lens.iter().map(|&(rows, _)| rows as usize).sum(),
            query_start: starts(&lens.iter().map(|&(rows, _)| rows).collect::<Vec<_>>()),
            kv_start: starts(&kv_len),
            batch: Batch::new(made.paging, heads, &kv_len, spacing),
            lse: made.attention.lse,
            made,
            spacing,
        }
    }

    /// `[rows, heads, head_dim]`. Queries are large enough that some keys weigh much more than others.
    fn heads(&self, numbers: &mut Numbers, rows: usize, num_heads: usize, scale: f32) -> Floats<3> {
        let layout = self.spacing.layout([rows, num_heads, self.made.attention.head_dim]);
        Floats::random(numbers, self.made.attention.dtype, layout, scale)
    }

    fn name(&self, described: String) -> String {
        let Asked { attention: Attention { window, soft_cap, .. }, .. } = &self.made;
        format!(
            "{described} window={window:?} soft_cap={soft_cap:?} query_start={:?} kv_len={:?} {:?}",
            self.query_start, self.batch.kv_len, self.spacing
        )
    }
}

/// Poisoned results of `rows` rows, and how they are handed over and taken back.
struct Results {
    output: Floats<3>,
    lse: Option<Floats<2>>,
}

impl Results {
    fn new(case: &Case) -> Self {
        let rows = case.rows;
        let Attention { dtype, num_q_heads, head_dim, .. } = case.made.attention;
        let lse = || Floats::poisoned(DType::F32, case.spacing.layout([rows, num_q_heads]));
        Self {
            output: Floats::poisoned(dtype, case.spacing.layout([rows, num_q_heads, head_dim])),
            lse: (case.lse == Presence::Present).then(lse),
        }
    }

    fn views(&mut self) -> (FloatViewMut<'_, 3>, Option<ViewMut<'_, f32, 2>>) {
        let lse = self.lse.as_mut().and_then(|lse| lse.view_mut().typed());
        (self.output.view_mut(), lse)
    }

    fn run(self, result: Result<(), crate::conformance::Refusal>) -> Run {
        let lse = self.lse.map(|lse| lse.written("lse"));
        Run { result, written: [self.output.written("output")].into_iter().chain(lse).collect() }
    }
}

/// `(num_q_heads, num_kv_heads)`: one head, multi-head, grouped, multi-query; groups that are no power of two.
const HEADS: [(usize, usize); 5] = [(1, 1), (3, 3), (8, 2), (9, 3), (6, 1)];

fn asked(
    dtype: DType,
    (num_q_heads, num_kv_heads): (usize, usize),
    head_dim: usize,
    page_size: usize,
) -> Asked {
    let scale = 1.0 / (head_dim as f32).sqrt();
    let (window, soft_cap, lse) = (None, None, Presence::Present);
    Asked {
        attention: Attention { dtype, num_q_heads, num_kv_heads, head_dim, scale, window, soft_cap, lse },
        paging: Paging { dtype, layout: PageLayout::Nhd, page_size },
        mask: Mask::Causal,
    }
}

/// What is asked for in the cases that are admitted: heads and sizes first, then one change at a time.
fn matrix() -> Vec<Asked> {
    let mut matrix = Vec::new();
    for (dtype, head_dim) in DTYPES.into_iter().flat_map(|dtype| [64, 128].map(|head_dim| (dtype, head_dim)))
    {
        for (i, heads) in HEADS.into_iter().enumerate() {
            let mut asked = asked(dtype, heads, head_dim, [16, 64, 1][i % 3]);
            asked.paging.layout = [PageLayout::Nhd, PageLayout::Hnd][i % 2];
            matrix.push(asked);
        }
        let changes: [fn(&mut Asked); 8] = [
            |asked| asked.attention.window = Some(1),
            |asked| asked.attention.window = Some(7),
            |asked| asked.attention.window = Some(1000),
            |asked| asked.attention.soft_cap = Some(1.5),
            |asked| asked.attention.lse = Presence::Absent,
            |asked| asked.attention.scale = 0.3,
            |asked| asked.mask = Mask::Full,
            |asked| (asked.mask, asked.attention.window) = (Mask::Full, Some(5)),
        ];
        for change in changes {
            let mut asked = asked(dtype, (4, 2), head_dim, 16);
            asked.paging.layout = PageLayout::Hnd;
            change(&mut asked);
            matrix.push(asked);
        }
    }
    for (dtype, kv_dtype) in [(DType::F32, DType::BF16), (DType::BF16, DType::F16)] {
        let mut asked = asked(dtype, (4, 2), 40, 5);
        asked.paging.dtype = kv_dtype;
        matrix.push(asked);
    }
    matrix
}

/// Query rows and keys: decoding on both sides of page boundaries, with a padding row of no keys.
fn decodes(page: i32) -> [Vec<(i32, i32)>; 3] {
    [vec![], vec![(1, 1)], vec![(1, page), (1, page + 1), (1, 0), (1, 2 * page + 3), (1, page - 1)]]
}

/// Query rows and keys: whole prompts, chunks, a decode among prefills, a sequence with no rows.
fn prefills(page: i32) -> [Vec<(i32, i32)>; 3] {
    [vec![], vec![(1, 1)], vec![(page, page), (1, page + 3), (5, page.max(4) + 1), (0, 4), (0, 0), (7, 7)]]
}

/// Batches with no gaps; for every fourth entry of the matrix, the last one again with gaps.
fn spaced(i: usize, batches: [Vec<(i32, i32)>; 3]) -> Vec<(Vec<(i32, i32)>, Spacing)> {
    let again = if i.is_multiple_of(4) { vec![Spacing::Gapped, Spacing::Spread] } else { vec![] };
    let again: Vec<_> = again.into_iter().map(|spacing| (batches[2].clone(), spacing)).collect();
    batches.into_iter().map(|lens| (lens, Spacing::Dense)).chain(again).collect()
}

/// What kernels on a device are made for: `bf16`, pages of 64 tokens one head after another as the engine has them, no
/// log-sum-exp; groups of 1, 2, 3, 6, 7, 8 and 16 query heads.
fn models() -> impl Iterator<Item = Asked> {
    let heads = [(2, 2), (4, 2), (9, 3), (12, 2), (7, 1), (16, 2), (16, 1)];
    [64, 128].into_iter().flat_map(move |head_dim| heads.map(|heads| model(heads, head_dim)))
}

fn model(heads: (usize, usize), head_dim: usize) -> Asked {
    model_in(heads, head_dim, (PageLayout::Hnd, 64))
}

/// What kernels on a device are made for beside [`models`]: pages as other engines have them.
fn others() -> impl Iterator<Item = Asked> {
    let heads = [(2, 2), (9, 3), (7, 1), (16, 2)];
    let of = move |pages| {
        [64, 128].into_iter().flat_map(move |dim| heads.map(|heads| model_in(heads, dim, pages)))
    };
    OTHER_PAGES.into_iter().flat_map(of)
}

/// Layouts and sizes of pages that engines have, but for that of [`model`].
const OTHER_PAGES: [(PageLayout, usize); 3] =
    [(PageLayout::Nhd, 16), (PageLayout::Hnd, 16), (PageLayout::Nhd, 64)];

fn model_in(heads: (usize, usize), head_dim: usize, (layout, page_size): (PageLayout, usize)) -> Asked {
    let mut asked = asked(DType::BF16, heads, head_dim, page_size);
    (asked.attention.lse, asked.paging.layout) = (Presence::Absent, layout);
    asked
}

/// A batch of every size class up to 256, lengths in no order, some rows of padding: `rows` of a sequence by its keys.
fn many(batch: i32, rows: impl Fn(i32, i32) -> i32) -> Vec<(i32, i32)> {
    let kv_len = |i: i32| if i % 11 == 10 { 0 } else { (i * 37 + 63) % 131 + 1 };
    (0..batch).map(|i| (rows(i, kv_len(i)), kv_len(i))).collect()
}

/// Rows and keys over several tiles of a kernel, and ends on both sides of their borders.
const TILES: [(i32, i32); 4] = [(129, 129), (63, 127), (64, 192), (5, 257)];

/// What those batches are asked of.
fn several_tiles() -> impl Iterator<Item = Asked> {
    let pages = OTHER_PAGES.into_iter().chain([(PageLayout::Hnd, 64)]);
    pages.flat_map(|pages| [64, 128].map(|head_dim| model_in((2, 1), head_dim, pages)))
}

/// Query rows of a sequence of a large batch, by its keys.
fn few_rows(i: i32, kv_len: i32) -> i32 {
    [1, 0, 3, 1][i as usize % 4].min(kv_len)
}

pub(super) fn run_paged_decode(suite: &mut Suite<'_>) {
    for (i, made) in matrix().into_iter().enumerate() {
        for (lens, spacing) in spaced(i, decodes(made.paging.page_size as i32)) {
            paged_decode(suite, &made, &Case::new(made.clone(), &lens, spacing), "");
        }
    }
    let lens = [1, 63, 64, 65, 0, 127, 128, 129, 200, 320].map(|kv_len| (1, kv_len));
    for made in models() {
        paged_decode(suite, &made, &Case::new(made.clone(), &lens, Spacing::Dense), "");
        paged_decode(suite, &made, &Case::new(made.clone(), &[(1, 449)], Spacing::Dense), "");
    }
    // Ends on both sides of the borders of pages of 16 and of the tiles of kernels; a row that eight blocks share unevenly.
    let lens = [1, 15, 16, 17, 0, 63, 65, 112, 129, 333].map(|kv_len| (1, kv_len));
    for made in others() {
        paged_decode(suite, &made, &Case::new(made.clone(), &lens, Spacing::Dense), "");
        paged_decode(suite, &made, &Case::new(made.clone(), &[(1, 1201)], Spacing::Dense), "");
    }
    for (batch, head_dim) in [(2, 128), (17, 64), (64, 128), (256, 64)] {
        for made in [model((2, 1), head_dim), model_in((2, 1), head_dim, OTHER_PAGES[0])] {
            let case = Case::new(made.clone(), &many(batch, |_, _| 1), Spacing::Dense);
            paged_decode(suite, &made, &case, "");
        }
    }
    refusals(suite, [1, 1], &[&ANY, &PAGED, &LENGTHS], paged_decode);
}

pub(super) fn run_paged_prefill(suite: &mut Suite<'_>) {
    for (i, made) in matrix().into_iter().enumerate() {
        for (lens, spacing) in spaced(i, prefills(made.paging.page_size.min(16) as i32)) {
            paged_prefill(suite, &made, &Case::new(made.clone(), &lens, spacing), "");
        }
    }
    let lens = [(64, 64), (1, 65), (3, 129), (0, 64), (0, 0), (7, 7), (5, 200)];
    for made in models() {
        paged_prefill(suite, &made, &Case::new(made.clone(), &lens, Spacing::Dense), "");
        paged_prefill(suite, &made, &Case::new(made.clone(), &[(1, 1)], Spacing::Dense), "");
    }
    let lens = [(16, 16), (1, 17), (3, 127), (0, 64), (0, 0), (7, 7), (5, 200), (20, 33)];
    for made in others() {
        paged_prefill(suite, &made, &Case::new(made.clone(), &lens, Spacing::Dense), "");
    }
    for made in several_tiles() {
        paged_prefill(suite, &made, &Case::new(made.clone(), &TILES, Spacing::Dense), "");
    }
    for (batch, head_dim) in [(2, 128), (17, 64), (64, 128), (256, 64)] {
        let made = model((2, 1), head_dim);
        paged_prefill(suite, &made, &Case::new(made.clone(), &many(batch, few_rows), Spacing::Dense), "");
    }
    refusals(suite, [3, 2], &[&ANY, &PAGED, &LENGTHS, &ROWS], paged_prefill);
}

pub(super) fn run_ragged_prefill(suite: &mut Suite<'_>) {
    let flat = matrix().into_iter().filter(|made| made.paging.dtype == made.attention.dtype);
    for (i, made) in flat.enumerate() {
        for (lens, spacing) in spaced(i, prefills(13)) {
            ragged_prefill(suite, &made, &Case::new(made.clone(), &lens, spacing), "");
        }
    }
    let lens = [(64, 64), (1, 65), (3, 129), (0, 64), (0, 0), (7, 7), (5, 200)];
    for made in models() {
        ragged_prefill(suite, &made, &Case::new(made.clone(), &lens, Spacing::Dense), "");
        ragged_prefill(suite, &made, &Case::new(made.clone(), &[(1, 1)], Spacing::Dense), "");
    }
    for head_dim in [64, 128] {
        let made = model((2, 1), head_dim);
        ragged_prefill(suite, &made, &Case::new(made.clone(), &TILES, Spacing::Dense), "");
    }
    for (batch, head_dim) in [(2, 128), (64, 128), (256, 64)] {
        let made = model((2, 1), head_dim);
        ragged_prefill(suite, &made, &Case::new(made.clone(), &many(batch, few_rows), Spacing::Dense), "");
    }
    refusals(suite, [3, 2], &[&ANY, &ROWS, &RAGGED], ragged_prefill);
}

pub(super) fn run_single_decode(suite: &mut Suite<'_>) {
    for made in matrix().into_iter().filter(|made| made.mask == Mask::Causal) {
        for (kv_len, spacing) in [
            (0, Spacing::Dense),
            (1, Spacing::Dense),
            (33, Spacing::Dense),
            (65, Spacing::Gapped),
            (9, Spacing::Spread),
        ] {
            let case = Case::new(made.clone(), &[(1, kv_len)], spacing);
            single_decode(suite, &made, &case, "");
        }
    }
    // Keys on both sides of the shares and steps of kernels, with and without a log-sum-exp.
    for (made, kv_len) in models().flat_map(|made| [1, 64, 65, 1201].map(|kv_len| (made.clone(), kv_len))) {
        for lse in [Presence::Absent, Presence::Present] {
            let attention = Attention { lse, ..made.attention.clone() };
            let made = Asked { attention, ..made.clone() };
            single_decode(suite, &made, &Case::new(made.clone(), &[(1, kv_len)], Spacing::Dense), "");
        }
    }
    refusals(suite, [1, 0], &[&ANY], single_decode);
}

/// What is wrong, and how: in what the spec asks for, or in the operands.
type Fault = (&'static str, fn(&mut Asked, &mut Case));

const ANY: [Fault; 5] = [
    ("operands of another type", |asked, _| asked.attention.dtype = DType::F16),
    ("another number of heads", |asked, _| asked.attention.num_q_heads = 8),
    ("another head size", |asked, _| asked.attention.head_dim = 10),
    ("no log-sum-exp", |asked, case| {
        (asked.attention.lse, case.lse) = (Presence::Present, Presence::Absent);
    }),
    ("a log-sum-exp nobody asked for", |asked, case| {
        (asked.attention.lse, case.lse) = (Presence::Absent, Presence::Present);
    }),
];
const PAGED: [Fault; 5] = [
    ("pages of another type", |asked, _| asked.paging.dtype = DType::F16),
    ("pages of another size", |asked, _| asked.paging.page_size = 8),
    ("pages of another layout", |asked, _| asked.paging.layout = other(asked.paging.layout)),
    ("a page past the pool", |_, case| case.batch.table[0][1] = case.batch.num_pages as i32),
    ("a negative page", |_, case| case.batch.table[1][0] = -7),
];
const LENGTHS: [Fault; 3] = [
    ("a negative length", |_, case| case.batch.kv_len[1] = -1),
    ("a length past the block table", |_, case| case.batch.kv_len[0] = case.batch.capacity() + 1),
    ("too few lengths", |_, case| case.batch.kv_len.truncate(1)),
];
const ROWS: [Fault; 5] = [
    ("too many starts", |_, case| case.query_start.push(5)),
    ("starts that do not begin at 0", |_, case| case.query_start[0] = 1),
    ("starts that fall", |_, case| case.query_start[1] = 6),
    ("starts that end early", |_, case| case.query_start[2] = 4),
    ("more rows than keys", |_, case| {
        (case.batch.kv_len[1], case.kv_start[2]) = (1, case.kv_start[1] + 1);
    }),
];
const RAGGED: [Fault; 3] = [
    ("too few key starts", |_, case| case.kv_start.truncate(2)),
    ("key starts that fall", |_, case| case.kv_start[1] = case.kv_start[2] + 1),
    ("key starts that begin late", |_, case| case.kv_start[0] = 1),
];

fn other(layout: PageLayout) -> PageLayout {
    if layout == PageLayout::Nhd { PageLayout::Hnd } else { PageLayout::Nhd }
}

/// Each fault in a batch of two sequences, one over a page and one under it, with these query rows: small, and as models
/// have it.
fn refusals(
    suite: &mut Suite<'_>,
    rows: [i32; 2],
    faults: &[&[Fault]],
    run: fn(&mut Suite<'_>, &Asked, &Case, &str),
) {
    let models = [64, 128].into_iter().flat_map(|head_dim| {
        let pages = [(PageLayout::Hnd, 64)].into_iter().chain(OTHER_PAGES);
        pages.map(move |pages| model_in((4, 2), head_dim, pages))
    });
    for good in [asked(DType::F32, (4, 2), 8, 4)].into_iter().chain(models) {
        let page = good.paging.page_size as i32;
        let lens = [(rows[0], page + 1), (rows[1], page - 1)];
        for &(what, fault) in faults.iter().copied().flatten() {
            let (mut asked, mut case) = (good.clone(), Case::new(good.clone(), &lens, Spacing::Dense));
            fault(&mut asked, &mut case);
            run(suite, &asked, &case, what);
        }
    }
}

fn paged_decode(suite: &mut Suite<'_>, asked: &Asked, case: &Case, fault: &str) {
    let config = paged_decode::Config { attention: asked.attention.clone(), paging: asked.paging };
    let spec = paged_decode::Spec::new(config).expect("a valid spec");
    let mut numbers = Numbers::new(8);
    let q = case.heads(&mut numbers, case.rows, case.made.attention.num_q_heads, 4.0);
    let [k_pages, v_pages] = [0, 1].map(|_| case.batch.pool(&mut numbers));
    let (block_table, kv_len) = (case.batch.block_table(), case.batch.kv_len());
    let run = |operators: &mut dyn Operators| {
        let mut results = Results::new(case);
        let (output, lse) = results.views();
        let operands = paged_decode::Operands {
            q: q.view(),
            k_pages: k_pages.view(),
            v_pages: v_pages.view(),
            block_table: block_table.view(),
            kv_len: kv_len.view(),
            output,
            lse,
        };
        let result = operators.paged_decode(&spec, operands);
        results.run(result)
    };
    suite.case(Contract::PAGED_DECODE, named(fault, case.name(spec.describe())), tolerance(case), run);
}

fn paged_prefill(suite: &mut Suite<'_>, asked: &Asked, case: &Case, fault: &str) {
    let Asked { attention, paging, mask } = asked.clone();
    let spec =
        paged_prefill::Spec::new(paged_prefill::Config { attention, paging, mask }).expect("a valid spec");
    let mut numbers = Numbers::new(9);
    let q = case.heads(&mut numbers, case.rows, case.made.attention.num_q_heads, 4.0);
    let [k_pages, v_pages] = [0, 1].map(|_| case.batch.pool(&mut numbers));
    let (block_table, kv_len) = (case.batch.block_table(), case.batch.kv_len());
    let query_start = list(&case.query_start);
    let run = |operators: &mut dyn Operators| {
        let mut results = Results::new(case);
        let (output, lse) = results.views();
        let operands = paged_prefill::Operands {
            q: q.view(),
            k_pages: k_pages.view(),
            v_pages: v_pages.view(),
            block_table: block_table.view(),
            kv_len: kv_len.view(),
            query_start: query_start.view(),
            output,
            lse,
        };
        let result = operators.paged_prefill(&spec, operands);
        results.run(result)
    };
    suite.case(Contract::PAGED_PREFILL, named(fault, case.name(spec.describe())), tolerance(case), run);
}

fn ragged_prefill(suite: &mut Suite<'_>, asked: &Asked, case: &Case, fault: &str) {
    let config = ragged_prefill::Config { attention: asked.attention.clone(), mask: asked.mask };
    let spec = ragged_prefill::Spec::new(config).expect("a valid spec");
    let mut numbers = Numbers::new(10);
    let q = case.heads(&mut numbers, case.rows, case.made.attention.num_q_heads, 4.0);
    let keys = case.batch.kv_len.iter().sum::<i32>() as usize;
    let [k, v] = [0, 1].map(|_| case.heads(&mut numbers, keys, case.made.attention.num_kv_heads, 1.0));
    let (query_start, kv_start) = (list(&case.query_start), list(&case.kv_start));
    let run = |operators: &mut dyn Operators| {
        let mut results = Results::new(case);
        let (output, lse) = results.views();
        let operands = ragged_prefill::Operands {
            q: q.view(),
            k: k.view(),
            v: v.view(),
            query_start: query_start.view(),
            kv_start: kv_start.view(),
            output,
            lse,
        };
        let result = operators.ragged_prefill(&spec, operands);
        results.run(result)
    };
    suite.case(Contract::RAGGED_PREFILL, named(fault, case.name(spec.describe())), tolerance(case), run);
}

fn single_decode(suite: &mut Suite<'_>, asked: &Asked, case: &Case, fault: &str) {
    let spec = single_decode::Spec::new(asked.attention.clone()).expect("a valid spec");
    let mut numbers = Numbers::new(11);
    let q = case.heads(&mut numbers, case.rows, case.made.attention.num_q_heads, 4.0);
    let keys = case.batch.kv_len[0] as usize;
    let [k, v] = [0, 1].map(|_| case.heads(&mut numbers, keys, case.made.attention.num_kv_heads, 1.0));
    let run = |operators: &mut dyn Operators| {
        let mut results = Results::new(case);
        let (output, lse) = results.views();
        let result = operators.single_decode(
            &spec,
            single_decode::Operands { q: q.view(), k: k.view(), v: v.view(), output, lse },
        );
        results.run(result)
    };
    suite.case(Contract::SINGLE_DECODE, named(fault, case.name(spec.describe())), tolerance(case), run);
}

/// A provider may round the weights of keys to the type of the queries; their sum is 1 and values are at most 1.
fn tolerance(case: &Case) -> Tolerance {
    Tolerance::of(case.made.attention.dtype).with_intermediate()
}

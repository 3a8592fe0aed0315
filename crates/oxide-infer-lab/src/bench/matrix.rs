//! The rows of `benchmarks/operators/matrix.json`, and what each asks of the registry.

use anyhow::{Context as _, Result, ensure};
use oxide_infer::attention::{self, Mask, paged_decode, paged_prefill, ragged_prefill};
use oxide_infer::gemm::dense;
use oxide_infer::kv_cache::{PageLayout, Paging, rope_append};
use oxide_infer::normalization::rms_norm;
use oxide_infer::position::rope;
use oxide_infer::{DType, Presence, WeightFormat};
use oxide_infer_cuda::artifact::Request;
use serde::Deserialize;
use std::path::Path;

const EMBEDDED: &str = include_str!("../../../../benchmarks/operators/matrix.json");
const BF16: DType = DType::BF16;
pub(super) const EPSILON: f32 = 1e-6;
/// How pages may lie, those of the peers first.
const PAGES: [(PageLayout, usize); 2] = [(PageLayout::Nhd, 16), (PageLayout::Hnd, 64)];

/// What is timed.
#[derive(Debug, Deserialize)]
pub(super) struct Matrix {
    pub(super) rows: Vec<Row>,
}

/// One operator with its sizes.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Row {
    pub(super) id: String,
    #[serde(flatten)]
    pub(super) work: Work,
}

/// The operators that are timed, all in bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Family {
    PagedDecode,
    PagedPrefill,
    RaggedPrefill,
    RopeAppend,
    Gemm,
    RmsNorm,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub(super) enum Work {
    PagedDecode(Sequences),
    PagedPrefill(Sequences),
    RaggedPrefill(Sequences),
    RopeAppend(Sequences),
    Gemm(Product),
    RmsNorm(Rows),
}

/// Query rows after, or among, the keys of sequences.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Sequences {
    /// Query and key/value heads.
    heads: [usize; 2],
    head_dim: usize,
    /// How many, and queries and keys of each.
    sequences: Vec<[usize; 3]>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Product {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Rows {
    tokens: usize,
    hidden_size: usize,
}

/// One way to ask for a row.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) request: Request,
    /// How the keys lie, where an operator reads or writes pages.
    pub(super) layout: Option<String>,
    /// Operands that hold integers.
    pub(super) integers: Vec<(&'static str, Vec<i32>)>,
}

impl Matrix {
    /// The matrix of a file, or the one that was built in.
    pub(super) fn load(file: Option<&Path>) -> Result<Self> {
        let text = match file {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("reading the matrix {}", path.display()))?,
            None => EMBEDDED.to_owned(),
        };
        let matrix: Self = serde_json::from_str(&text).context("the matrix of rows")?;
        for row in &matrix.rows {
            row.work.check().with_context(|| format!("row {:?}", row.id))?;
        }
        Ok(matrix)
    }
}

impl Family {
    pub(super) const ALL: [Self; 6] = [
        Self::PagedDecode,
        Self::PagedPrefill,
        Self::RaggedPrefill,
        Self::RopeAppend,
        Self::Gemm,
        Self::RmsNorm,
    ];

    /// Of the gate in the record.
    pub(super) const fn gate(self) -> &'static str {
        match self {
            Self::PagedDecode => "bench paged_decode",
            Self::PagedPrefill => "bench paged_prefill",
            Self::RaggedPrefill => "bench ragged_prefill",
            Self::RopeAppend => "bench rope_append",
            Self::Gemm => "bench gemm",
            Self::RmsNorm => "bench rms_norm",
        }
    }
}

impl Work {
    pub(super) const fn family(&self) -> Family {
        match self {
            Self::PagedDecode(_) => Family::PagedDecode,
            Self::PagedPrefill(_) => Family::PagedPrefill,
            Self::RaggedPrefill(_) => Family::RaggedPrefill,
            Self::RopeAppend(_) => Family::RopeAppend,
            Self::Gemm(_) => Family::Gemm,
            Self::RmsNorm(_) => Family::RmsNorm,
        }
    }

    fn check(&self) -> Result<()> {
        let (Self::PagedDecode(s) | Self::PagedPrefill(s) | Self::RaggedPrefill(s) | Self::RopeAppend(s)) =
            self
        else {
            return Ok(());
        };
        ensure!(!s.sequences.is_empty(), "there are no sequences");
        for &[count, queries, keys] in &s.sequences {
            let decode = !matches!(self, Self::PagedDecode(_)) || queries == 1;
            ensure!(
                count > 0 && (1..=keys).contains(&queries) && decode && i32::try_from(keys).is_ok(),
                "sequences [{count}, {queries}, {keys}] must be [at least 1, 1 to keys (1 in a decode), keys]"
            );
        }
        Ok(())
    }

    /// Bytes that the operator must move at least: every operand once.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::PagedDecode(s) | Self::PagedPrefill(s) | Self::RaggedPrefill(s) => {
                4 * s.tokens() * s.heads[0] * s.head_dim + s.cache_bytes()
            }
            Self::RopeAppend(s) => 4 * s.tokens() * (s.heads[0] + 2 * s.heads[1]) * s.head_dim,
            Self::Gemm(Product { m, n, k }) => 2 * (n * k + m * k + m * n),
            Self::RmsNorm(Rows { tokens, hidden_size }) => 4 * tokens * hidden_size,
        };
        bytes as u64
    }

    /// Bytes of keys and values that it reads.
    pub(super) fn cache_bytes(&self) -> u64 {
        match self {
            Self::PagedDecode(s) | Self::PagedPrefill(s) | Self::RaggedPrefill(s) => s.cache_bytes() as u64,
            Self::RopeAppend(_) | Self::Gemm(_) | Self::RmsNorm(_) => 0,
        }
    }

    /// What to ask the registry for, the peers' layout first.
    pub(super) fn asks(&self) -> Result<Vec<Ask>> {
        match self {
            Self::PagedDecode(s) => s.paged(|s, paging| {
                let config = paged_decode::Config { attention: s.attention(), paging };
                Ok(Request::from(&paged_decode::Spec::new(config)?))
            }),
            Self::PagedPrefill(s) => s.paged_prefill(),
            // Where no artifact takes keys with no pages, those of the same sequences in pages.
            Self::RaggedPrefill(s) => {
                let mut asks = vec![s.ragged()?];
                asks.extend(s.paged_prefill()?);
                Ok(asks)
            }
            // Where no artifact takes queries, keys and values apart, as the contract has them, one that takes them packed.
            Self::RopeAppend(s) => {
                let mut asks = s.paged(Sequences::append)?;
                asks.extend(s.paged(|s, paging| {
                    let request = s.append(paging)?;
                    Ok(request.property("qkv", "packed").property("qk_norm", "absent"))
                })?);
                Ok(asks)
            }
            Self::Gemm(product) => Ok(vec![Ask::plain(product.request()?)]),
            Self::RmsNorm(rows) => Ok(vec![Ask::plain(rows.request()?)]),
        }
    }
}

impl Ask {
    fn plain(request: Request) -> Self {
        Self { request, layout: None, integers: Vec::new() }
    }
}

impl Product {
    /// `output = input · weightᵀ`, all bf16, with nothing added.
    pub(super) fn request(self) -> Result<Request> {
        let (weight, residual) = (WeightFormat::Dense(BF16), Presence::Absent);
        let (n, k) = (self.n, self.k);
        let spec = dense::Spec::new(dense::Config {
            input: BF16,
            weight,
            output: BF16,
            n,
            k,
            bias: None,
            residual,
        })?;
        Ok(Request::from(&spec).dimension("m", self.m as u64))
    }
}

impl Rows {
    fn request(self) -> Result<Request> {
        let spec = rms_norm::Spec::new(rms_norm::Config {
            dtype: BF16,
            weight_dtype: BF16,
            output_dtype: BF16,
            hidden_size: self.hidden_size,
            epsilon: EPSILON,
            residual: Presence::Absent,
        })?;
        Ok(Request::from(&spec).dimension("tokens", self.tokens as u64).dimension("heads", 1))
    }
}

impl Sequences {
    fn each(&self) -> impl Iterator<Item = (usize, usize)> {
        self.sequences.iter().flat_map(|&[count, queries, keys]| std::iter::repeat_n((queries, keys), count))
    }

    fn batch(&self) -> usize {
        self.each().count()
    }

    /// Query rows of all sequences.
    fn tokens(&self) -> usize {
        self.each().map(|(queries, _)| queries).sum()
    }

    fn keys(&self) -> usize {
        self.each().map(|(_, keys)| keys).sum()
    }

    fn cache_bytes(&self) -> usize {
        4 * self.keys() * self.heads[1] * self.head_dim
    }

    pub(super) fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    fn attention(&self) -> attention::Attention {
        attention::Attention {
            dtype: BF16,
            num_q_heads: self.heads[0],
            num_kv_heads: self.heads[1],
            head_dim: self.head_dim,
            scale: self.scale(),
            window: None,
            soft_cap: None,
            lse: Presence::Absent,
        }
    }

    fn append(&self, paging: Paging) -> Result<Request> {
        let rope = rope::Config {
            dtype: BF16,
            head_dim: self.head_dim,
            rotary_dim: self.head_dim,
            pairing: rope::Pairing::NeoX,
            theta: 10_000.0,
            scaling: rope::Scaling::None,
        };
        let [num_q_heads, num_kv_heads] = self.heads;
        let spec = rope_append::Spec::new(rope_append::Config { rope, num_q_heads, num_kv_heads, paging })?;
        let positions = self.each().map(|(_, keys)| keys).max().unwrap_or(1);
        Ok(Request::from(&spec).dimension("max_positions", positions as u64))
    }

    fn paged_prefill(&self) -> Result<Vec<Ask>> {
        self.paged(|s, paging| {
            let config = paged_prefill::Config { attention: s.attention(), paging, mask: Mask::Causal };
            Ok(Request::from(&paged_prefill::Spec::new(config)?))
        })
    }

    fn paged(&self, request: impl Fn(&Self, Paging) -> Result<Request>) -> Result<Vec<Ask>> {
        let ask = |(layout, page_size)| {
            let request = request(self, Paging { dtype: BF16, layout, page_size })?;
            let (num_pages, max_pages) = self.pages(page_size);
            let sizes = [
                ("batch", self.batch()),
                ("tokens", self.tokens()),
                ("num_pages", num_pages),
                ("max_pages", max_pages),
            ];
            // A decode has one token a sequence and no dimension for them.
            let is_decode = request.contract() == oxide_infer::Contract::PAGED_DECODE.name();
            let named = sizes.into_iter().filter(|(name, _)| !(is_decode && *name == "tokens"));
            let request = named.fold(request, |request, (name, value)| request.dimension(name, value as u64));
            let layout = Some(format!("{} {page_size}", layout.name()));
            Ok(Ask { request, layout, integers: self.integers(page_size) })
        };
        PAGES.into_iter().map(ask).collect()
    }

    fn ragged(&self) -> Result<Ask> {
        let config = ragged_prefill::Config { attention: self.attention(), mask: Mask::Causal };
        let spec = ragged_prefill::Spec::new(config)?;
        let sizes = [("batch", self.batch()), ("tokens", self.tokens()), ("kv_tokens", self.keys())];
        let request = sizes
            .into_iter()
            .fold(Request::from(&spec), |request, (name, value)| request.dimension(name, value as u64));
        Ok(Ask { request, layout: Some("ragged".to_owned()), integers: self.integers(1) })
    }

    /// Pages of all sequences, and of the longest.
    fn pages(&self, page_size: usize) -> (usize, usize) {
        let pages = |(_, keys): (usize, usize)| keys.div_ceil(page_size);
        let longest = self.each().map(pages).max().unwrap_or(1);
        (longest * self.batch(), longest)
    }

    fn integers(&self, page_size: usize) -> Vec<(&'static str, Vec<i32>)> {
        let starts = |of: fn((usize, usize)) -> usize| {
            let ends = self.each().scan(0, move |end, sequence| {
                *end += of(sequence);
                Some(*end as i32)
            });
            std::iter::once(0).chain(ends).collect()
        };
        let positions = self.each().flat_map(|(queries, keys)| (keys - queries..keys).map(|p| p as i32));
        let (num_pages, _) = self.pages(page_size);
        vec![
            ("kv_len", self.each().map(|(_, keys)| keys as i32).collect()),
            ("query_start", starts(|(queries, _)| queries)),
            ("kv_start", starts(|(_, keys)| keys)),
            ("positions", positions.collect()),
            ("block_table", shuffled(num_pages)),
        ]
    }
}

/// The numbers below `count` in an order that is not theirs, the same each time (Fisher and Yates, with a congruential
/// generator).
fn shuffled(count: usize) -> Vec<i32> {
    let mut numbers: Vec<_> = (0..count as i32).collect();
    let mut state = 1_u64;
    for last in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(last, (state >> 33) as usize % (last + 1));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(json: &str) -> Result<Matrix> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), format!("{{\"rows\": [{json}]}}"))?;
        Matrix::load(Some(file.path()))
    }

    #[test]
    fn the_built_in_matrix_names_every_row_once_and_has_every_family() {
        let matrix = Matrix::load(None).unwrap();
        let ids: std::collections::BTreeSet<_> = matrix.rows.iter().map(|row| &row.id).collect();
        assert_eq!(ids.len(), matrix.rows.len());
        let families: std::collections::BTreeSet<_> =
            matrix.rows.iter().map(|row| row.work.family()).collect();
        assert_eq!(families.len(), Family::ALL.len());
        // Two models, four products of a layer at ten sizes, and a head at seven.
        let products = matrix.rows.iter().filter(|row| row.work.family() == Family::Gemm);
        assert_eq!(products.count(), 2 * (4 * 10 + 7));
    }

    #[test]
    fn starts_positions_and_lengths_are_those_of_the_sequences() {
        let matrix = row(r#"{"id": "a", "family": "paged_prefill", "heads": [4, 2], "head_dim": 128,
                "sequences": [[2, 3, 5], [1, 1, 130]]}"#);
        let asks = matrix.unwrap().rows[0].work.asks().unwrap();
        let hnd = asks.iter().find(|ask| ask.layout.as_deref() == Some("hnd 64")).unwrap();
        let integers = |name| hnd.integers.iter().find(|(found, _)| *found == name).unwrap().1.clone();
        assert_eq!(integers("query_start"), [0, 3, 6, 7]);
        assert_eq!(integers("kv_start"), [0, 5, 10, 140]);
        assert_eq!(integers("positions"), [2, 3, 4, 2, 3, 4, 129]);
        assert_eq!(integers("kv_len"), [5, 5, 130]);
        // Three pages for the longest, a row of the table for each of three sequences.
        let mut table = integers("block_table");
        table.sort_unstable();
        assert_eq!(table, (0..9).collect::<Vec<_>>());
        assert_eq!(hnd.request.dimensions()["max_pages"], 3);
    }

    #[test]
    fn bytes_are_those_of_every_operand_once() {
        let work = |json| row(json).unwrap().rows.remove(0).work;
        let gemm = work(r#"{"id": "a", "family": "gemm", "m": 2, "n": 8, "k": 16}"#);
        assert_eq!(gemm.bytes(), 2 * (8 * 16 + 2 * 16 + 2 * 8));
        let decode = work(
            r#"{"id": "a", "family": "paged_decode", "heads": [4, 2], "head_dim": 128, "sequences": [[3, 1, 10]]}"#,
        );
        // Keys and values of ten positions of two heads for each of three sequences; a query and an output row each.
        assert_eq!(decode.cache_bytes(), 3 * 10 * 2 * 128 * 2 * 2);
        assert_eq!(decode.bytes(), decode.cache_bytes() + 3 * 4 * 128 * 2 * 2);
    }

    #[test]
    fn a_row_that_no_operator_admits_is_refused_by_name() {
        let error = row(
            r#"{"id": "long", "family": "paged_decode", "heads": [4, 2], "head_dim": 128, "sequences": [[1, 2, 10]]}"#,
        );
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("\"long\"") && error.contains("[1, 2, 10]"), "{error}");
    }
}

//! Requests of what follows a step's body.

use super::{Requests, dense_request, norm_request, request, with};
use crate::cuda::classes::DecodeClass;
use crate::cuda::deterministic::Phase;
use crate::cuda::head::MAX_ADJUSTMENTS;
use crate::cuda::history;
use crate::cuda::inputs::TOP_TOKENS;
use crate::cuda::lower::Activation;
use oxide_infer::DType;
use oxide_infer_cuda::artifact::Request;

/// Tokens of a tile of the vocabulary, of which greedy rows need the best alone.
pub(in crate::cuda) const CANDIDATE_TILE: usize = 192;
/// Rows from which on tokens are chosen by tiles: for fewer, product and sampler take no longer.
const LEAST_CANDIDATE_ROWS: usize = 16;

/// The operators of a head class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum HeadOperator {
    /// Picks the rows of an activation whose logits are needed.
    Pick(Activation),
    Norm,
    Logits,
    /// Rows that take their best token.
    Greedy,
    /// Rows with anything of the sampling contract.
    Sample,
    LogProbs,
}

impl HeadOperator {
    pub(in crate::cuda) const ALL: [Self; 7] = [
        Self::Pick(Activation::Hidden),
        Self::Pick(Activation::Attention),
        Self::Norm,
        Self::Logits,
        Self::Greedy,
        Self::Sample,
        Self::LogProbs,
    ];

    /// What errors call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pick(_) => "rows of the logits",
            Self::Norm => "final normalization",
            Self::Logits => "output projection",
            Self::Greedy => "greedy sampling",
            Self::Sample => "sampling",
            Self::LogProbs => "log-probabilities",
        }
    }
}

impl Requests<'_> {
    /// An operator over the rows whose logits are needed.
    pub(in crate::cuda) fn head(&self, operator: HeadOperator, rows: usize) -> Request {
        let (vocab_size, max_sequences) = (self.config.vocab_size, self.sizes.max_sequences);
        let request = match operator {
            HeadOperator::Pick(activation) => {
                let dimensions = [
                    ("tokens", rows),
                    ("vocab_size", self.sizes.max_tokens()),
                    ("hidden_size", activation.width(self.config)),
                ];
                let dtype = activation.dtype().name();
                with(request("embedding.gather"), &[("table", dtype), ("output", dtype)], &dimensions)
            }
            HeadOperator::Norm => norm_request(rows, self.config.hidden_size),
            HeadOperator::Logits => {
                let properties = [("bias", "absent"), ("residual", "absent")];
                dense_request(rows, &[self.model.head.output], DType::F32, &properties)
            }
            HeadOperator::Greedy => with(
                request("sampling.sample"),
                &[("logits", "f32"), ("method", "greedy")],
                &[("rows", rows), ("vocab_size", vocab_size), ("max_sequences", max_sequences)],
            ),
            HeadOperator::Sample => {
                let dimensions = [
                    ("rows", rows),
                    ("vocab_size", vocab_size),
                    ("max_sequences", max_sequences),
                    ("mask_rows", rows),
                    ("max_adjust", MAX_ADJUSTMENTS),
                ];
                let properties = [("logits", "f32"), ("method", "full")];
                with(request("sampling.sample"), &properties, &dimensions)
            }
            HeadOperator::LogProbs => {
                let request = request("sampling.log_probabilities").property("top", TOP_TOKENS as u64);
                with(request, &[("logits", "f32")], &[("rows", rows), ("vocab_size", vocab_size)])
            }
        };
        self.algorithms.settle(Phase::Head, request)
    }

    /// What it takes to choose the tokens of greedy rows in a decode step with no logits in memory: the best of every tile
    /// of the vocabulary, and the best of those. `None` where that is not faster, or could give other tokens than logits
    /// do because these are not summed in one run over the hidden size.
    pub(in crate::cuda) fn candidates(&self, class: DecodeClass) -> Option<[Request; 2]> {
        let logits = self.head(HeadOperator::Logits, class.rows);
        if class.rows < LEAST_CANDIDATE_ROWS || !self.sums_in_one_run(&logits) {
            return None;
        }
        let (vocab_size, hidden_size) = (self.config.vocab_size, self.config.hidden_size);
        let tiles = request("sampling.candidates").property("tile", CANDIDATE_TILE as u64);
        let tiles = with(
            tiles,
            &[("input", "bf16"), ("weight", "bf16"), ("logits", "f32")],
            &[("rows", class.rows), ("vocab_size", vocab_size), ("hidden_size", hidden_size)],
        );
        let candidates = vocab_size.div_ceil(CANDIDATE_TILE);
        let best = with(
            request("sampling.sample"),
            &[("logits", "candidates"), ("method", "greedy")],
            &[("rows", class.rows), ("candidates", candidates), ("max_sequences", self.sizes.max_sequences)],
        );
        let admitted = [&tiles, &best].into_iter().all(|request| self.registry.select(request).is_ok());
        admitted.then_some([tiles, best])
    }

    /// Whether every element of a product is one sum in the order of k.
    fn sums_in_one_run(&self, product: &Request) -> bool {
        let artifact = self.registry.select(product);
        let reduction = artifact.ok().and_then(|found| found.manifest().reduction(product.dimensions()));
        reduction.is_some_and(|reduction| reduction.ends.len() == 1)
    }

    /// Notes what a sequence has used already.
    pub(in crate::cuda) fn record_history(&self) -> Request {
        let dimensions = [
            ("entries", history::MAX_ENTRIES),
            ("max_sequences", self.sizes.max_sequences),
            ("vocab_size", self.config.vocab_size),
        ];
        with(request("sampling.record_history"), &[], &dimensions)
    }
}

//! Which artifact computes each operator, in each class.

mod head;

pub(super) use head::{CANDIDATE_TILE, HeadOperator};

use super::classes::{Classes, DecodeClass, Reach, SHORT, StepClass};
use super::deterministic::{Algorithms, NotDeterministicError, Phase};
use super::fuse::Embedding;
use super::lower::{Activation, CudaModel, CudaOperator, HeadNorms, Residual};
use super::memory::PAGE_SIZE;
use super::options::CudaOptions;
use crate::batch::PlanGoal;
use crate::model::{DenseDecoder, Matrix, ModelConfig};
use oxide_infer::DType;
use oxide_infer_cuda::artifact::{Registry, Request, SelectError};
use oxide_infer_cuda::runtime::{Loader, OperatorPlan, PlanError, Workspace};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::num::NonZeroU32;
use std::rc::Rc;

/// An operator of a model that no artifact computes.
#[derive(Clone, Debug)]
pub struct Uncovered {
    /// What the model needs it for.
    pub operator: String,
    /// Why none does; names contract, properties and dimensions.
    pub reason: String,
}

/// A model that the artifacts do not wholly cover.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the artifacts do not cover the model, {}:{}", missing(operators.len()), list(operators))]
pub struct UncoveredError {
    /// Every operator that is missing, in the model's order.
    pub operators: Vec<Uncovered>,
}

/// Why no plan can be made of the artifacts that there are.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CoverageError {
    /// Operators have no artifact.
    #[error(transparent)]
    Uncovered(#[from] UncoveredError),
    /// All have, but not in one order.
    #[error(transparent)]
    NotDeterministic(#[from] NotDeterministicError),
}

fn missing(operators: usize) -> String {
    match operators {
        1 => "1 operator is missing".to_owned(),
        more => format!("{more} operators are missing"),
    }
}

pub(super) fn list(operators: &[Uncovered]) -> String {
    operators.iter().map(|operator| format!("\n  {operator}")).collect()
}

impl fmt::Display for Uncovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operator, self.reason)
    }
}

/// Of an H100 SXM and an H200. Only how many blocks share a sequence in decode attention depends on it.
const HOPPER_MULTIPROCESSORS: usize = 132;

/// Checks that artifacts cover a model, as far as that can be told with no device.
///
/// # Errors
/// [`CoverageError`] with every operator that is missing.
pub fn check_coverage(
    config: &ModelConfig,
    registry: &Registry,
    options: &CudaOptions,
) -> Result<(), CoverageError> {
    let max_model_len = options.wanted_len(config);
    let sizes = PlanSizes {
        goal: options.goal,
        classes: Classes::of(options, max_model_len),
        max_sequences: options.max_sequences,
        max_model_len,
        pool_pages: 2,
        multiprocessors: HOPPER_MULTIPROCESSORS,
    };
    let model = CudaModel::new(&DenseDecoder::new(config));
    Ok(Requests::new(config, &model, &sizes, registry)?.cover().map(drop)?)
}

/// What requests depend on beside the model.
#[derive(Clone, Debug)]
pub(super) struct PlanSizes {
    pub(super) goal: PlanGoal,
    pub(super) classes: Classes,
    pub(super) max_sequences: usize,
    pub(super) max_model_len: usize,
    /// Pages of the pools, the null page included.
    pub(super) pool_pages: usize,
    /// Multiprocessors of the device.
    pub(super) multiprocessors: usize,
}

impl PlanSizes {
    /// Entries of a sequence's row in the block table.
    pub(super) fn max_pages(&self) -> usize {
        self.max_model_len.div_ceil(PAGE_SIZE)
    }

    /// Tokens of the largest step.
    pub(super) fn max_tokens(&self) -> usize {
        let last = |sizes: &[usize]| sizes.last().copied().unwrap_or(1);
        last(&self.classes.tokens).max(last(&self.classes.head))
    }
}

/// The requests of a model.
pub(super) struct Requests<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) model: &'a CudaModel,
    pub(super) sizes: &'a PlanSizes,
    pub(super) registry: &'a Registry,
    /// What is asked for by name.
    algorithms: Rc<Algorithms>,
    /// Whether what these ask for stands for operators as they were lowered.
    pub(super) decisions: RefCell<HashMap<[String; 2], bool>>,
}

fn request(contract: &str) -> Request {
    Request::new(contract, 1)
}

pub(super) fn with(request: Request, properties: &[(&str, &str)], dimensions: &[(&str, usize)]) -> Request {
    let request = properties.iter().fold(request, |r, (name, value)| r.property(name, *value));
    dimensions.iter().fold(request, |r, (name, value)| r.dimension(name, *value as u64))
}

impl<'a> Requests<'a> {
    /// The requests of a model; of a deterministic plan those for algorithms of one order.
    ///
    /// # Errors
    /// A deterministic plan is asked for and cannot be made.
    pub(super) fn new(
        config: &'a ModelConfig,
        model: &'a CudaModel,
        sizes: &'a PlanSizes,
        registry: &'a Registry,
    ) -> Result<Self, CoverageError> {
        let plain =
            Self { config, model, sizes, registry, algorithms: Rc::default(), decisions: RefCell::default() };
        if sizes.goal == PlanGoal::Fastest {
            return Ok(plain);
        }
        plain.cover()?;
        let asked =
            plain.all().into_iter().filter_map(|(phase, name, asked)| Some((phase, name, asked.ok()?)));
        let algorithms = Rc::new(Algorithms::choose(&plain, asked)?);
        Ok(Self { algorithms, ..plain })
    }
}

impl Requests<'_> {
    /// Token ids, of the host or sampled last, to the residual stream.
    pub(super) fn embed(&self, embedding: &Embedding, class: StepClass) -> Request {
        let output = Activation::Hidden.dtype().name();
        let properties = [("table", "bf16"), ("output", output), ("feedback", "present")];
        let dimensions = [
            ("tokens", class.tokens()),
            ("vocab_size", self.config.vocab_size),
            ("hidden_size", self.config.hidden_size),
            ("max_sequences", self.sizes.max_sequences),
        ];
        let plain = with(request("embedding.gather"), &properties, &dimensions);
        let request = match embedding {
            Embedding::Plain => plain,
            Embedding::Weighted { .. } => plain.property("norm", "weighted"),
        };
        self.algorithms.settle(Phase::of(class), request)
    }

    /// An operator of a layer; `None` for one that no contract describes.
    pub(super) fn layer(&self, operator: &CudaOperator, class: StepClass) -> Option<Request> {
        let request = match operator {
            CudaOperator::RopeAppend { head_norms } => self.rope_append(class, head_norms.as_ref()),
            CudaOperator::Attention { window } => self.windowed(self.attention(class), *window),
            CudaOperator::Fused(fused) => self.fused(fused, class.tokens()),
            by_rows => row_wise(by_rows, class.tokens())?,
        };
        Some(self.algorithms.settle(Phase::of(class), request))
    }

    /// An operator after the last attention of a step that reads prompts, over the rows whose logits are needed.
    pub(super) fn last(&self, operator: &CudaOperator, rows: usize) -> Option<Request> {
        Some(self.algorithms.settle(Phase::Prompt, row_wise(operator, rows)?))
    }

    fn rope_append(&self, class: StepClass, head_norms: Option<&HeadNorms>) -> Request {
        let properties = [("qkv", "packed"), ("qk_norm", head_norms.map_or("absent", |_| "present"))];
        with(self.rope(class.tokens()), &properties, &[("batch", class.table_rows())])
    }

    /// What every form of the rotary append has.
    pub(super) fn rope(&self, tokens: usize) -> Request {
        let properties =
            [("dtype", "bf16"), ("pairing", "neox"), ("kv_dtype", "bf16"), ("page_layout", "hnd")];
        let dimensions = [
            ("tokens", tokens),
            ("rotary_dim", self.config.head_dim),
            ("max_positions", self.sizes.max_model_len),
        ];
        with(self.paged("kv_cache.rope_append"), &properties, &dimensions)
    }

    fn attention(&self, class: StepClass) -> Request {
        match class {
            StepClass::Decode(class) => match self.splits(class) {
                None => self.paged_decode(class.rows),
                Some(splits) => self.paged_decode(class.rows).dimension("splits", splits as u64),
            },
            StepClass::Mixed { tokens, sequences } => {
                let request = self.attends("attention.paged_prefill", sequences);
                with(request, &[("mask", "causal")], &[("tokens", tokens)])
            }
        }
    }

    /// Attention of one query a sequence.
    pub(super) fn paged_decode(&self, rows: usize) -> Request {
        self.attends("attention.paged_decode", rows)
    }

    fn attends(&self, contract: &str, sequences: usize) -> Request {
        let properties = [
            ("dtype", "bf16"),
            ("soft_cap", "none"),
            ("lse", "absent"),
            ("kv_dtype", "bf16"),
            ("page_layout", "hnd"),
        ];
        with(self.paged(contract), &properties, &[("batch", sequences)])
    }

    /// Attention with a window. One that no sequence outgrows hides nothing.
    pub(super) fn windowed(&self, attention: Request, window: Option<NonZeroU32>) -> Request {
        let window = window.filter(|window| (window.get() as usize) < self.sizes.max_model_len);
        let window = window.map_or("none".to_owned(), |window| window.to_string());
        attention.property("window", window.as_str())
    }

    /// Blocks that share the pages of a sequence where a second launch that merges them pays: of one sequence that may be
    /// long, one block a multiprocessor and no more than merging is worth. `None`: one launch, and the artifacts' rule
    /// says how many blocks (see `docs/artifacts.md`).
    fn splits(&self, class: DecodeClass) -> Option<usize> {
        const MAX_SPLITS: usize = 32;
        /// Blocks that share a sequence in one launch.
        const IN_ONE_LAUNCH: usize = 8;
        let splits = (self.sizes.multiprocessors / self.config.num_kv_heads.max(1)).min(MAX_SPLITS);
        let fastest = self.sizes.goal == PlanGoal::Fastest;
        let long = fastest && class.reach == Reach::Any && self.sizes.max_model_len > SHORT;
        (class.rows == 1 && long && splits > IN_ONE_LAUNCH).then_some(splits)
    }

    fn paged(&self, contract: &str) -> Request {
        let dimensions = [
            ("num_q_heads", self.config.num_heads),
            ("num_kv_heads", self.config.num_kv_heads),
            ("head_dim", self.config.head_dim),
            ("page_size", PAGE_SIZE),
            ("num_pages", self.sizes.pool_pages),
            ("max_pages", self.sizes.max_pages()),
        ];
        with(request(contract), &[], &dimensions)
    }

    /// Every request of the model with the name of its operator; layers that ask for the same are asked once.
    fn all(&self) -> Vec<(Phase, String, Result<Request, String>)> {
        let mut all = Vec::new();
        for class in self.sizes.classes.steps() {
            let phase = Phase::of(class);
            let mut seen = Vec::new();
            let step = self.step(class);
            all.push((phase, "embedding".to_owned(), Ok(self.embed(&step.embedding, class))));
            for operator in step.layers.iter().flatten() {
                let asked = self.layer(operator, class).ok_or_else(|| no_contract(operator));
                if !seen.contains(&asked) {
                    seen.push(asked.clone());
                    all.push((phase, operator.name().to_owned(), asked));
                }
            }
            if let Some(logits) = step.logits {
                all.push((Phase::Head, HeadOperator::Logits.name().to_owned(), Ok(logits)));
            }
        }
        for &rows in &self.sizes.classes.head {
            let of = |operator: HeadOperator| {
                (Phase::Head, operator.name().to_owned(), Ok(self.head(operator, rows)))
            };
            all.extend(HeadOperator::ALL.map(of));
            all.extend(self.model.last_layer().1.iter().map(|operator| {
                let asked = self.last(operator, rows).ok_or_else(|| no_contract(operator));
                (Phase::Prompt, operator.name().to_owned(), asked)
            }));
        }
        all.push((Phase::Head, "token histories".to_owned(), Ok(self.record_history())));
        all
    }

    /// Checks that every operator has its artifact in every class, and says how many bytes of workspace the largest needs.
    pub(super) fn cover(&self) -> Result<usize, UncoveredError> {
        let mut operators = Vec::new();
        let mut named = HashSet::new();
        let mut workspace = 0;
        for (_, operator, asked) in self.all() {
            match asked
                .as_ref()
                .map_err(String::clone)
                .and_then(|asked| workspace_bytes(self.registry, asked))
            {
                Ok(bytes) => workspace = workspace.max(bytes),
                // Of the classes that ask for the same but for its dimensions, the first that is missing says enough.
                Err(reason) => {
                    let kind = match asked {
                        Ok(request) => format!("{} {:?}", request.contract(), request.properties()),
                        Err(text) => text,
                    };
                    if named.insert((operator.clone(), kind)) {
                        operators.push(Uncovered { operator, reason });
                    }
                }
            }
        }
        match operators.is_empty() {
            true => Ok(workspace),
            false => Err(UncoveredError { operators }),
        }
    }
}

fn no_contract(operator: &CudaOperator) -> String {
    match operator {
        CudaOperator::Other(text) => format!("no artifact computes \"{text}\""),
        _ => unreachable!("every other operator has a contract"),
    }
}

fn workspace_bytes(registry: &Registry, request: &Request) -> Result<usize, String> {
    let artifact = registry.select(request).map_err(|error: SelectError| error.to_string())?;
    let parts =
        Workspace::of(artifact.manifest(), request.dimensions()).map_err(|error| error.to_string())?;
    Ok(parts.iter().map(|part| (part.bytes as usize).next_multiple_of(WORKSPACE_ALIGNMENT)).sum())
}

/// Parts of a workspace begin at multiples of this.
pub(super) const WORKSPACE_ALIGNMENT: usize = 256;

/// An operator whose rows have nothing to do with one another; `None` for any other.
fn row_wise(operator: &CudaOperator, rows: usize) -> Option<Request> {
    match operator {
        CudaOperator::RmsNorm(norm) => Some(norm_request(rows, norm.weight.len)),
        CudaOperator::Dense { weights, bias, residual, output, .. } => {
            let bias = bias.as_ref().map_or("absent", |_| "bf16");
            let residual = match residual {
                Residual::Absent => "absent",
                Residual::Present => "present",
            };
            let epilogue = [("bias", bias), ("residual", residual)];
            Some(dense_request(rows, weights, output.dtype(), &epilogue))
        }
        CudaOperator::DenseSwiGlu { gate, .. } => {
            Some(dense_request(rows, &[*gate], DType::BF16, &[("activation", "swiglu")]))
        }
        _ => None,
    }
}

fn norm_request(tokens: usize, hidden_size: usize) -> Request {
    let properties = [
        ("dtype", Activation::Hidden.dtype().name()),
        ("weight_dtype", "bf16"),
        ("output_dtype", Activation::Normed.dtype().name()),
        ("residual", "absent"),
    ];
    let dimensions = [("tokens", tokens), ("heads", 1), ("hidden_size", hidden_size)];
    with(request("normalization.rms_norm"), &properties, &dimensions)
}

pub(super) fn dense_request(
    tokens: usize,
    weights: &[Matrix],
    output: DType,
    epilogue: &[(&str, &str)],
) -> Request {
    let (n, k) = (weights.iter().map(|weight| weight.rows).sum(), weights[0].cols);
    let properties = [("input", "bf16"), ("weight", "bf16"), ("output", output.name())];
    let plain = with(request("gemm.dense"), &properties, &[("m", tokens), ("n", n), ("k", k)]);
    with(plain, epilogue, &[])
}

impl CudaOperator {
    /// What errors call it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::RmsNorm(_) => "normalization",
            Self::Dense { output: Activation::Projected, .. } => "query, key and value projection",
            Self::Dense { input: Activation::Attention, .. } => "attention output projection",
            Self::Dense { .. } => "down projection",
            Self::DenseSwiGlu { .. } => "gate and up projection",
            Self::RopeAppend { .. } => "rotary embedding and append",
            Self::Attention { .. } => "attention",
            Self::Fused(fused) => fused.name(),
            Self::Other(_) => "an operator of the decoder",
        }
    }
}

/// Plans by request, each made once.
pub(super) struct Plans<'a> {
    loader: &'a mut Loader,
    made: HashMap<String, Rc<OperatorPlan>>,
}

impl<'a> Plans<'a> {
    pub(super) fn new(loader: &'a mut Loader) -> Self {
        Self { loader, made: HashMap::new() }
    }

    pub(super) fn plan(&mut self, request: &Request) -> Result<Rc<OperatorPlan>, PlanError> {
        let key = request.to_string();
        if let Some(plan) = self.made.get(&key) {
            return Ok(plan.clone());
        }
        let plan = Rc::new(self.loader.plan(request)?);
        self.made.insert(key, plan.clone());
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::classes::Classes;
    use crate::cuda::tests::published;
    use crate::model::{Architecture, DenseDecoder};
    use oxide_infer_cuda::artifact::Target;

    /// The splits that decode attention asks for, and the algorithm that it gets.
    fn attention(
        num_kv_heads: usize,
        rows: usize,
        max_model_len: usize,
        reach: Reach,
    ) -> (Option<u64>, String) {
        let config =
            published(Architecture::Qwen2, [1536, 8960, 4 * num_kv_heads, num_kv_heads, 128, 151_936]);
        let model = CudaModel::new(&DenseDecoder::new(&config));
        let sizes = PlanSizes {
            goal: PlanGoal::Fastest,
            classes: Classes::new(64, 64, max_model_len),
            max_sequences: 64,
            max_model_len,
            pool_pages: 100,
            multiprocessors: 132,
        };
        let registry = Registry::embedded(Target::hopper()).unwrap();
        let requests = Requests::new(&config, &model, &sizes, &registry).unwrap();
        let request =
            requests.windowed(requests.attention(StepClass::Decode(DecodeClass { rows, reach })), None);
        let splits = request.dimensions().get("splits").copied();
        (splits, registry.select(&request).unwrap().manifest().algorithm.clone())
    }

    #[test]
    fn only_one_sequence_that_may_be_long_is_merged_by_a_second_launch() {
        let any = |heads, rows, longest| attention(heads, rows, longest, Reach::Any);
        assert_eq!(any(2, 1, 4097), (Some(32), "rows16".to_owned()));
        assert_eq!(any(8, 1, 32_768), (Some(16), "rows16".to_owned()));
        assert_eq!(any(2, 1, 4096), (None, "cluster_8".to_owned()));
        assert_eq!(any(16, 1, 32_768), (None, "cluster_8".to_owned()));
        assert_eq!(any(2, 2, 32_768), (None, "cluster_8".to_owned()));
        assert_eq!(any(2, 32, 32_768), (None, "cluster_2_deep".to_owned()));
        assert_eq!(any(2, 64, 32_768), (None, "cluster_2".to_owned()));
        assert_eq!(attention(2, 1, 32_768, Reach::Short), (None, "cluster_8".to_owned()));
    }
}

//! Norms of a decode step of a few rows, spread over the products around them; and projections that turn and append.

use super::{CudaOperator, Embedding, Fused, Requests, Step};
use crate::batch::PlanGoal;
use crate::cuda::classes::{DecodeClass, StepClass};
use crate::cuda::deterministic::{Phase, has_order};
use crate::cuda::lower::{Activation, Residual};
use crate::model::Vector;
use oxide_infer::DType;
use oxide_infer_cuda::artifact::Request;

/// Nanoseconds that a launch of a norm, or of rotation and append, takes between two products: a layer of the 1.5B shape takes
/// 4.0 us less without three of them (docs/evidence/2026-11-30-h200-fusion-layers.json, 8 rows).
const LAUNCH: u64 = 1300;
/// Bytes that rotation and append read and write in a nanosecond: 3,620 of 537 MB when the costs of products were measured, rounded
/// down. It is 3,970 now (docs/evidence/2026-12-01-h200-operators.json, `rope append 21856 tokens`).
const APPENDED_BYTES: u64 = 3500;

/// A product that ends a block, the norm after it, and the operators that read the norm: as they were lowered, and as two.
struct Link {
    weighted: Fused,
    scaled: Fused,
    /// Operators after the norm that `scaled` stands for.
    readers: usize,
}

/// What stands for the embedding, the first norm, and the operators that read it.
struct Opening {
    embedding: Embedding,
    scaled: Fused,
}

/// Predicted nanoseconds of operators that share a norm, and of what they stand for, the launches between them included.
struct Times {
    spread: u64,
    apart: u64,
}

/// Rows of a step over which a norm is spread where it need not be: over more it takes longer (docs/performance.md).
const MOST_SPREAD: usize = 64;

/// Operators that a projection stands for: the product, and rotation and append.
const PROJECTING: usize = 2;

impl<'a> Requests<'a> {
    /// The operators of a class, with every norm between two products spread over them where that is predicted to take no
    /// longer. The first is spread over the embedding and the projection after it alike. The last is what it was, but that of one
    /// row goes into the logits.
    ///
    /// A norm that is spread rounds elsewhere than one that is not, and so does a projection that is turned by its product. So
    /// a deterministic plan has a norm spread in all classes of decodes or in none, and nothing that only some of them have.
    pub(super) fn chain(&self, decode: DecodeClass) -> Step {
        let class = StepClass::Decode(decode);
        let (embedding, mut layers) = self.chained(class);
        let alone = decode.rows == 1 && self.sizes.goal == PlanGoal::Fastest;
        let logits = if alone { self.close(&mut layers) } else { None };
        Step { embedding, layers, logits }
    }

    fn chained(&self, class: StepClass) -> (Embedding, Vec<Vec<CudaOperator>>) {
        let layers = &self.model.layers;
        let numbered = layers.iter().enumerate();
        let all: Vec<(usize, &CudaOperator)> =
            numbered.flat_map(|(layer, operators)| operators.iter().map(move |one| (layer, one))).collect();
        let mut chained = vec![Vec::new(); layers.len()];
        let mut rest = &all[..];
        let opened = opening(rest).filter(|opening| self.opens(opening, rest, class));
        let embedding = match opened {
            Some(Opening { embedding, scaled }) => {
                chained[0].push(CudaOperator::Fused(scaled));
                rest = &rest[1 + PROJECTING..];
                embedding
            }
            None => Embedding::Plain,
        };
        while let Some(&(layer, operator)) = rest.first() {
            let used = match link(rest).filter(|link| self.links(link, rest, class)) {
                Some(Link { weighted, scaled, readers }) => {
                    chained[layer].push(CudaOperator::Fused(weighted));
                    chained[rest[2].0].push(CudaOperator::Fused(scaled));
                    2 + readers
                }
                None => {
                    let fused = projection(rest).filter(|fused| self.gains(fused, operator, class));
                    let used = if fused.is_some() { 2 } else { 1 };
                    chained[layer].push(fused.map_or_else(|| operator.clone(), CudaOperator::Fused));
                    used
                }
            };
            rest = &rest[used..];
        }
        (embedding, chained)
    }

    /// Whether the embedding and the first projection share a norm.
    fn opens(&self, opening: &Opening, first: &[(usize, &CudaOperator)], class: StepClass) -> bool {
        let asked = |class: StepClass| {
            [self.embed(&opening.embedding, class), self.fused(&opening.scaled, class.tokens())]
        };
        let times = |class: StepClass| {
            let [_, scaled] = asked(class);
            let plain = self.predicted(&self.layer(first[1].1, class)?)?;
            Some(Times { spread: self.predicted(&scaled)?, apart: plain + LAUNCH * PROJECTING as u64 })
        };
        self.spreads(asked, times, class)
    }

    /// Whether both products of a link share its norm.
    fn links(&self, link: &Link, rest: &[(usize, &CudaOperator)], class: StepClass) -> bool {
        let asked =
            |class: StepClass| [&link.weighted, &link.scaled].map(|fused| self.fused(fused, class.tokens()));
        let times = |class: StepClass| {
            let sum = |requests: [Option<Request>; 2]| -> Option<u64> {
                let [first, second] = requests;
                Some(self.predicted(&first?)? + self.predicted(&second?)?)
            };
            let spread = sum(asked(class).map(Some))?;
            let apart = sum([rest[0].1, rest[2].1].map(|plain| self.layer(plain, class)))?;
            Some(Times { spread, apart: apart + LAUNCH * link.readers as u64 })
        };
        self.spreads(asked, times, class)
    }

    /// Whether two operators share a norm in a class: at one row if both have artifacts, which are made for it, at more if they
    /// take no longer than what they stand for; of a deterministic plan, in all classes alike.
    fn spreads(
        &self,
        asked: impl Fn(StepClass) -> [Request; 2],
        times: impl Fn(StepClass) -> Option<Times>,
        class: StepClass,
    ) -> bool {
        if self.sizes.goal == PlanGoal::Deterministic {
            return self.spreads_everywhere(asked, times);
        }
        if class.tokens() > MOST_SPREAD {
            return false;
        }
        let longer = || times(class).is_none_or(|times| times.spread > times.apart);
        let requests = asked(class);
        self.decided(&requests, || {
            requests.iter().all(|request| self.admitted(request)) && (class.tokens() == 1 || !longer())
        })
    }

    /// What was decided for these requests before, which layers that are alike ask again, or is now.
    fn decided(&self, requests: &[Request; 2], decide: impl FnOnce() -> bool) -> bool {
        let key = requests.each_ref().map(Request::to_string);
        if let Some(&known) = self.decisions.borrow().get(&key) {
            return known;
        }
        let verdict = decide();
        self.decisions.borrow_mut().insert(key, verdict);
        verdict
    }

    /// Whether both operators have one order of sums in all classes of decodes, and those whose speed decides lose less by them
    /// than by what they stand for, in the class that loses most.
    fn spreads_everywhere(
        &self,
        asked: impl Fn(StepClass) -> [Request; 2],
        times: impl Fn(StepClass) -> Option<Times>,
    ) -> bool {
        let classes = || self.sizes.classes.decode.iter().map(|&class| StepClass::Decode(class));
        let Some(first) = classes().next() else { return false };
        let deciding = classes().filter(|class| Phase::Generated.decides(class.tokens() as u64, 0));
        let quicker = || {
            deciding.map(times).collect::<Option<Vec<_>>>().is_some_and(|times| {
                let most = |ratio: fn(f64, f64) -> f64| {
                    let ratios = times.iter().map(|times| ratio(times.spread as f64, times.apart as f64));
                    ratios.fold(1.0, f64::max)
                };
                most(|spread, apart| spread / apart) <= most(|spread, apart| apart / spread)
            })
        };
        let one_order =
            |which: usize| has_order(self.registry, classes().map(|class| asked(class)[which].clone()));
        self.decided(&asked(first), || quicker() && one_order(0) && one_order(1))
    }

    /// Whether heads that are projected, turned and appended in one launch are predicted to take no longer than in two.
    fn gains(&self, fused: &Fused, product: &CudaOperator, class: StepClass) -> bool {
        if self.sizes.goal == PlanGoal::Deterministic {
            return false;
        }
        let Some(product) = self.layer(product, class) else { return false };
        let requests = [self.fused(fused, class.tokens()), product];
        let moved = 2 * class.tokens() * Activation::Projected.width(self.config) * DType::BF16.size();
        let append = LAUNCH + moved as u64 / APPENDED_BYTES;
        self.decided(&requests, || {
            let times = requests.each_ref().map(|request| self.predicted(request));
            matches!(times, [Some(fused), Some(product)] if fused <= product + append)
        })
    }

    /// Nanoseconds of the artifact that is chosen for a request, if one is and its rule says them.
    fn predicted(&self, request: &Request) -> Option<u64> {
        let times = self.registry.predictions(request).ok()?;
        times.into_iter().filter_map(|prediction| prediction.nanoseconds).min()
    }

    /// Spreads the head's norm over the last product and the logits of one row, and returns what is asked for these.
    fn close(&self, layers: &mut [Vec<CudaOperator>]) -> Option<Request> {
        let last = layers.last_mut()?.last_mut()?;
        let (weighted, logits) = (weighted(last, self.model.head.norm.weight)?, self.scaled_logits());
        let admitted = [&self.fused(&weighted, 1), &logits].into_iter().all(|request| self.admitted(request));
        admitted.then(|| {
            *last = CudaOperator::Fused(weighted);
            logits
        })
    }
}

/// The link that the first operators make.
fn link(operators: &[(usize, &CudaOperator)]) -> Option<Link> {
    use CudaOperator as O;
    let (&[(_, product), (_, norm)], readers) = operators.split_first_chunk()?;
    let O::RmsNorm(norm) = norm else { return None };
    let weighted = weighted(product, norm.weight)?;
    let (scaled, readers) = match readers {
        [(_, O::DenseSwiGlu { gate, up }), ..] => {
            (Fused::ScaledSwiGlu { eps: norm.eps, gate: *gate, up: *up }, 1)
        }
        _ => (scaled_projection(norm.eps, readers)?, PROJECTING),
    };
    Some(Link { weighted, scaled, readers })
}

/// What the first operators of a model open with.
fn opening(operators: &[(usize, &CudaOperator)]) -> Option<Opening> {
    let (&(_, norm), readers) = operators.split_first()?;
    let CudaOperator::RmsNorm(norm) = norm else { return None };
    let scaled = scaled_projection(norm.eps, readers)?;
    Some(Opening { embedding: Embedding::Weighted { norm: norm.weight }, scaled })
}

/// The projection of heads whose norm is shared with what stands before it, if the first operators are that and an append.
fn scaled_projection(eps: f32, operators: &[(usize, &CudaOperator)]) -> Option<Fused> {
    match operators {
        [
            (_, CudaOperator::Dense { weights, bias, output: Activation::Projected, .. }),
            (_, CudaOperator::RopeAppend { head_norms: None }),
            ..,
        ] => Some(Fused::ScaledProjection { eps, weights: weights.clone(), bias: bias.clone() }),
        _ => None,
    }
}

/// The projection of heads of a normalized input, if the first operators are that and an append.
fn projection(operators: &[(usize, &CudaOperator)]) -> Option<Fused> {
    use CudaOperator as O;
    match operators {
        [
            (
                _,
                O::Dense {
                    input: Activation::Normed,
                    weights,
                    bias,
                    residual: Residual::Absent,
                    output: Activation::Projected,
                },
            ),
            (_, O::RopeAppend { head_norms: None }),
            ..,
        ] => Some(Fused::Projection { weights: weights.clone(), bias: bias.clone() }),
        _ => None,
    }
}

/// A product that ends a block, with what the norm after it needs.
fn weighted(product: &CudaOperator, norm: Vector) -> Option<Fused> {
    let CudaOperator::Dense { input, weights, bias: None, residual: Residual::Present, output } = product
    else {
        return None;
    };
    let (&[weight], Activation::Hidden) = (&weights[..], output) else { return None };
    Some(Fused::Weighted { input: *input, weight, norm })
}

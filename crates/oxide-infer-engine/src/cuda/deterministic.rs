//! Which artifacts a deterministic plan is made of: those with which a token has the same bits in every class.
//!
//! Steps of prompts and of generated tokens are apart ([`crate::batch::StepMix`]), so each [`Phase`] has an order of sums of
//! its own. Of each operator every order is considered that some artifact has in every class of the phase, and that one
//! is taken whose predicted times are least above those of a plan that need not care.

#[cfg(test)]
mod tests;

use super::classes::StepClass;
use super::plan::{Requests, Uncovered, list};
use oxide_infer_cuda::artifact::{Artifact, Prediction, Reduction, Registry, Request, SelectError};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A model that no deterministic plan can be made for.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the artifacts compute the model, but not every operator of it in the same order in all steps, {} do not:{}",
    operators.len(), list(operators)
)]
pub struct NotDeterministicError {
    /// Every operator that has no order.
    pub operators: Vec<Uncovered>,
}

/// What a plan's operators compute with one another's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Phase {
    /// Prompts: steps of any classes but those of decodes.
    Prompt,
    /// Generated tokens.
    Generated,
    /// Rows whose logits are needed, of either.
    Head,
}

impl Phase {
    pub(super) fn of(class: StepClass) -> Self {
        match class {
            StepClass::Decode(_) => Self::Generated,
            StepClass::Mixed { .. } => Self::Prompt,
        }
    }

    /// Whether speed at this size decides which order is taken. A decode step is worth most where it is short, and a prompt
    /// where it is long.
    pub(super) fn decides(self, size: u64, largest: u64) -> bool {
        match self {
            Self::Prompt => size >= largest.min(1024),
            Self::Generated | Self::Head => size <= 64,
        }
    }
}

/// Two artifacts of one order give the same bits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Sums(Reduction),
    /// Of an artifact that has its order to itself.
    Algorithm(String),
}

impl Order {
    fn of(artifact: &Artifact, request: &Request) -> Self {
        let manifest = artifact.manifest();
        match manifest.reduction(request.dimensions()) {
            Some(reduction) => Self::Sums(reduction),
            None => Self::Algorithm(manifest.algorithm.clone()),
        }
    }
}

/// Whether artifacts have one order of sums for all of these.
pub(super) fn has_order(registry: &Registry, requests: impl IntoIterator<Item = Request>) -> bool {
    let mut common: Option<BTreeSet<Order>> = None;
    for request in requests {
        let Ok(candidates) = registry.candidates(&request) else { return false };
        let orders = candidates.into_iter().map(|artifact| Order::of(artifact, &request));
        common = Some(match &common {
            None => orders.collect(),
            Some(common) => orders.filter(|order| common.contains(order)).collect(),
        });
    }
    common.is_some_and(|common| !common.is_empty())
}

/// The algorithm of every request for which several artifacts would do.
#[derive(Clone, Debug, Default)]
pub(super) struct Algorithms(HashMap<(Phase, String), String>);

impl Algorithms {
    /// The request, for the algorithm that has the phase's order.
    pub(super) fn settle(&self, phase: Phase, request: Request) -> Request {
        match self.0.get(&(phase, request.to_string())) {
            Some(algorithm) => request.algorithm(algorithm),
            None => request,
        }
    }

    /// Chooses for requests of a model, each with what errors call it. Those that no artifact serves are left as they are.
    pub(super) fn choose(
        requests: &Requests<'_>,
        asked: impl IntoIterator<Item = (Phase, String, Request)>,
    ) -> Result<Self, NotDeterministicError> {
        let mut operators: BTreeMap<(Phase, String), Operator> = BTreeMap::new();
        for (phase, name, request) in asked {
            let operator = operators.entry((phase, sizeless(&request))).or_default();
            operator.name = name;
            operator.sizes.insert(size(&request), request);
        }
        let (mut chosen, mut missing) = (HashMap::new(), Vec::new());
        for ((phase, _), operator) in operators {
            match operator.algorithms(phase, requests) {
                Ok(algorithms) => {
                    let named = operator.sizes.into_values().zip(algorithms);
                    chosen
                        .extend(named.map(|(request, algorithm)| ((phase, request.to_string()), algorithm)));
                }
                Err(Missing::Order(reason)) => missing.push(Uncovered { operator: operator.name, reason }),
                // `Requests::cover` lists it.
                Err(Missing::Artifact) => {}
            }
        }
        match missing.is_empty() {
            true => Ok(Self(chosen)),
            false => Err(NotDeterministicError { operators: missing }),
        }
    }
}

/// Dimensions that grow with a step.
const SIZES: [&str; 5] = ["m", "tokens", "batch", "rows", "mask_rows"];

/// A request without its step's sizes.
fn sizeless(request: &Request) -> String {
    let dimensions = request.dimensions().iter().filter(|(name, _)| !SIZES.contains(&name.as_str()));
    let dimensions: Vec<_> = dimensions.map(|(name, value)| format!("{name}={value}")).collect();
    format!("{} {:?} {}", request.contract(), request.properties(), dimensions.join(" "))
}

/// Its step's sizes, the one that counts first.
fn size(request: &Request) -> Vec<u64> {
    SIZES.iter().filter_map(|name| request.dimensions().get(*name).copied()).collect()
}

/// One operator in every class of a phase.
#[derive(Debug, Default)]
struct Operator {
    name: String,
    /// By size, ascending.
    sizes: BTreeMap<Vec<u64>, Request>,
}

enum Missing {
    Order(String),
    Artifact,
}

/// What an artifact's time is in one class, as far as a rule predicts it, and its algorithm.
type Timed = (Option<u64>, String);

impl Operator {
    /// The algorithm for each size.
    fn algorithms(&self, phase: Phase, requests: &Requests<'_>) -> Result<Vec<String>, Missing> {
        let uncovered = |_: SelectError| Missing::Artifact;
        let mut by_size: Vec<BTreeMap<Order, Vec<Timed>>> = Vec::new();
        for request in self.sizes.values() {
            let mut orders: BTreeMap<Order, Vec<Timed>> = BTreeMap::new();
            for Prediction { artifact, nanoseconds } in
                requests.registry.predictions(request).map_err(uncovered)?
            {
                let timed = (nanoseconds, artifact.manifest().algorithm.clone());
                orders.entry(Order::of(artifact, request)).or_default().push(timed);
            }
            by_size.push(orders);
        }
        let everywhere = |order: &&Order| by_size.iter().all(|orders| orders.contains_key(*order));
        let orders: Vec<&Order> =
            by_size.first().map_or(Vec::new(), |first| first.keys().filter(everywhere).collect());
        let [first, ..] = orders.as_slice() else { return Err(Missing::Order(self.no_order())) };
        // Attention's costs are those of the longest sequences; its record says what shorter ones take.
        let preferred = self.preferred().map(Order::Algorithm);
        if let Some(order) = orders.iter().find(|order| Some(**order) == preferred.as_ref()) {
            return Ok(cheapest(&by_size, order).into_iter().map(|(_, algorithm)| algorithm).collect());
        }
        let best: Vec<_> = by_size
            .iter()
            .map(|orders| orders.values().flatten().filter_map(|timed| timed.0).min())
            .collect();
        let sizes: Vec<u64> = self.sizes.keys().map(|size| size.first().copied().unwrap_or(0)).collect();
        let largest = sizes.last().copied().unwrap_or(0);
        let mut least: Option<(f64, Vec<Timed>)> = None;
        for order in &orders {
            let timed = cheapest(&by_size, order);
            let above = |(((cost, _), best), size): ((&Timed, &Option<u64>), &u64)| match (cost, best) {
                _ if !phase.decides(*size, largest) => None,
                (Some(cost), Some(best)) => Some(*cost as f64 / (*best).max(1) as f64),
                _ => Some(f64::INFINITY),
            };
            let worst = timed.iter().zip(&best).zip(&sizes).filter_map(above).fold(1.0, f64::max);
            if worst.is_finite() && least.as_ref().is_none_or(|(least, _)| worst < *least) {
                least = Some((worst, timed));
            }
        }
        match least {
            Some((_, timed)) => Ok(timed.into_iter().map(|(_, algorithm)| algorithm).collect()),
            None => {
                // Without predictions: what is chosen for a small size, which is in a hurry, if every size has it.
                let selected = self.sizes.values().filter_map(|request| {
                    let artifact = requests.registry.select(request).ok()?;
                    Some(Order::of(&artifact, request))
                });
                let order = first_of(&orders, selected).unwrap_or(first);
                Ok(cheapest(&by_size, order).into_iter().map(|(_, algorithm)| algorithm).collect())
            }
        }
    }

    /// The algorithm that a measurement speaks for.
    fn preferred(&self) -> Option<String> {
        let largest = self.sizes.values().next_back()?;
        let rows = *largest.dimensions().get("batch")?;
        // Blocks that share a sequence (docs/evidence/2026-11-30-h200-decodes.json, 1.5B): of 1 row and 1,024 keys two take 6.8
        // us, four 4.9 and eight 4.2; of 64 rows 19.9, 26.5 and 33.5, and of 256 rows and 256 keys 28, 46 and 86.
        let algorithm = match rows {
            0..=8 => "cluster_8",
            9..=64 => "cluster_4",
            _ => "cluster_2",
        };
        (largest.contract() == "attention.paged_decode").then(|| algorithm.to_owned())
    }

    fn no_order(&self) -> String {
        let sizes: Vec<_> = self.sizes.values().map(ToString::to_string).collect();
        let [first, .., last] = sizes.as_slice() else { return sizes.concat() };
        format!("no order of sums that artifacts have from {first} to {last}")
    }
}

/// The first of the orders that are wanted that is among these.
fn first_of<'o>(orders: &[&'o Order], wanted: impl IntoIterator<Item = Order>) -> Option<&'o Order> {
    wanted.into_iter().find_map(|wanted| orders.iter().find(|order| ***order == wanted)).copied()
}

/// The quickest artifact of an order in each size. One whose time nothing predicts is taken to be as quick as the order's in
/// the next size, and is only there where no other is.
fn cheapest(by_size: &[BTreeMap<Order, Vec<Timed>>], order: &Order) -> Vec<Timed> {
    let mut next: Option<Timed> = None;
    let mut chosen: Vec<Timed> = Vec::new();
    for orders in by_size.iter().rev() {
        let timed = orders.get(order).map_or(&[][..], Vec::as_slice);
        let quickest = timed.iter().filter(|(cost, _)| cost.is_some()).min();
        let as_next = || {
            let (cost, wanted) = next.clone()?;
            let found = timed.iter().find(|(_, algorithm)| *algorithm == wanted)?;
            Some((cost, found.1.clone()))
        };
        let timed = quickest.cloned().or_else(as_next).or_else(|| timed.first().cloned());
        next.clone_from(&timed);
        chosen.extend(timed);
    }
    chosen.reverse();
    chosen
}

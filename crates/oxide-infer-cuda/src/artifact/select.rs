//! Choosing the one artifact for a request.

use super::choice::{Choice, CostError};
use super::expr::Dimensions;
use super::manifest::{Domain, Manifest, OutOfDomain, Property};
use super::registry::{Artifact, Registry};
use oxide_infer::Spec;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// What a plan needs: a contract with properties and dimensions.
///
/// Made from a contract's spec (`Request::from(&spec)`), it has all that a model fixes; what the operands add (`m`, `tokens`,
/// `batch`) is stated with [`Request::dimension`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    contract: String,
    version: u32,
    properties: BTreeMap<String, Property>,
    dimensions: Dimensions,
    algorithm: Option<String>,
}

impl Request {
    /// A request for a version of a contract, with no property and no dimension yet.
    pub fn new(contract: impl Into<String>, version: u32) -> Self {
        Self {
            contract: contract.into(),
            version,
            properties: BTreeMap::new(),
            dimensions: Dimensions::new(),
            algorithm: None,
        }
    }

    /// Ask for a property.
    #[must_use]
    pub fn property(mut self, name: &str, value: impl Into<Property>) -> Self {
        self.properties.insert(name.to_owned(), value.into());
        self
    }

    /// State a dimension.
    #[must_use]
    pub fn dimension(mut self, name: &str, value: u64) -> Self {
        self.dimensions.insert(name.to_owned(), value);
        self
    }

    /// Ask for one algorithm, whatever the selection rules would choose.
    #[must_use]
    pub fn algorithm(mut self, name: &str) -> Self {
        self.algorithm = Some(name.to_owned());
        self
    }

    /// Name of the contract.
    pub fn contract(&self) -> &str {
        &self.contract
    }

    /// Version of the contract.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The properties asked for so far.
    pub fn properties(&self) -> &BTreeMap<String, Property> {
        &self.properties
    }

    /// The dimensions stated so far.
    pub fn dimensions(&self) -> &Dimensions {
        &self.dimensions
    }
}

/// A spec's own properties and dimensions.
impl<S: Spec> From<&S> for Request {
    fn from(spec: &S) -> Self {
        let request = Self::new(S::CONTRACT.name(), S::CONTRACT.version());
        let request = spec.properties().into_iter().fold(request, |r, (name, value)| r.property(name, value));
        spec.dimensions().into_iter().fold(request, |r, (name, value)| r.dimension(name, value as u64))
    }
}

impl From<&Request> for Request {
    fn from(request: &Request) -> Self {
        request.clone()
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} v{}", self.contract, self.version)?;
        self.properties.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))?;
        self.dimensions.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))?;
        self.algorithm.iter().try_for_each(|name| write!(f, " algorithm={name}"))
    }
}

/// Why no single artifact serves a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectError {
    /// No artifact is of that contract and version.
    #[error("no artifact for {request}: none is of that contract")]
    NoContract {
        /// What was asked for.
        request: Box<Request>,
    },
    /// No artifact of the contract admits the properties and dimensions.
    #[error("no artifact for {request}: {}", by_field(misses))]
    NotCovered {
        /// What was asked for.
        request: Box<Request>,
        /// Why each artifact of the contract does not serve; those with equal properties alone if there are any.
        misses: Vec<Miss>,
    },
    /// Several artifacts admit the request and no rule says which serves it.
    #[error("several artifacts for {request} and no selection rule: {}", .candidates.join(", "))]
    NoRule {
        /// What was asked for.
        request: Box<Request>,
        /// The artifacts that admit it.
        candidates: Vec<String>,
    },
    /// Several rules match the request.
    #[error("several selection rules for {request}: {}", .choices.join(", "))]
    SeveralRules {
        /// What was asked for.
        request: Box<Request>,
        /// What the rules choose.
        choices: Vec<String>,
    },
    /// The rule that matches gives no cost to any artifact that admits the request.
    #[error("the selection rule for {request} has no cost of any that admits it: {}", .candidates.join(", "))]
    NoCost {
        /// What was asked for.
        request: Box<Request>,
        /// The artifacts that admit it.
        candidates: Vec<String>,
    },
    /// A cost that the rule compares has no value.
    #[error("the selection rule for {request}: {source}")]
    Cost {
        /// What was asked for.
        request: Box<Request>,
        /// Whose cost, and why.
        source: CostError,
    },
    /// The rule that matches chooses an algorithm that does not admit the request, or that two artifacts have.
    #[error(
        "the selection rule for {request} chooses algorithm {algorithm}, which {count} of its artifacts have"
    )]
    RuleMismatch {
        /// What was asked for.
        request: Box<Request>,
        /// The algorithm.
        algorithm: String,
        /// How many of the artifacts that admit the request have it.
        count: usize,
    },
}

/// Why one artifact does not serve a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Miss {
    /// A property is missing on one side, or differs.
    #[error("{artifact} has {property}={}, asked for {}", shown(.found.as_ref()), shown(.asked.as_ref()))]
    Property {
        /// The artifact.
        artifact: String,
        /// The property.
        property: String,
        /// The artifact's value.
        found: Option<Property>,
        /// The request's value.
        asked: Option<Property>,
    },
    /// A dimension is missing, or it or a condition is outside the artifact's domain.
    #[error("{artifact}: {source}")]
    Domain {
        /// The artifact.
        artifact: String,
        /// What is outside.
        source: OutOfDomain,
    },
    /// The request asks for another algorithm.
    #[error("{artifact} has algorithm {found}, asked for {asked}")]
    Algorithm {
        /// The artifact.
        artifact: String,
        /// Its algorithm.
        found: String,
        /// The request's.
        asked: String,
    },
    /// The request states a dimension that the artifact does not know.
    #[error("{artifact} has no dimension {dimension}")]
    UnknownDimension {
        /// The artifact.
        artifact: String,
        /// The dimension.
        dimension: String,
    },
}

impl Miss {
    /// What was asked for, and what the artifact has instead: a number to sort by, and the text.
    fn sides(&self) -> (String, (u64, String)) {
        match self {
            Self::Property { property, found, asked, .. } => {
                (format!("{property} is {}", shown(asked.as_ref())), (0, shown(found.as_ref())))
            }
            Self::Domain { source: OutOfDomain { what, domain, value }, .. } => {
                let has = match domain {
                    Domain { min, max, .. } if min == max => min.to_string(),
                    domain => domain.to_string(),
                };
                (format!("{what} is {}", shown(value.as_ref())), (domain.min, has))
            }
            Self::Algorithm { found, asked, .. } => (format!("algorithm is {asked}"), (0, found.clone())),
            Self::UnknownDimension { dimension, .. } => {
                (format!("{dimension} is stated"), (0, "no such dimension".to_owned()))
            }
        }
    }
}

/// Each property, dimension or condition that misses, once, with what artifacts have there.
fn by_field(misses: &[Miss]) -> String {
    let mut fields = BTreeMap::<_, BTreeSet<_>>::new();
    for (asked, has) in misses.iter().map(Miss::sides) {
        fields.entry(asked).or_default().insert(has);
    }
    let field = |(asked, has): (String, BTreeSet<(u64, String)>)| {
        let has: Vec<_> = has.into_iter().map(|(_, has)| has).collect();
        format!("{asked}, artifacts have {}", has.join(" or "))
    };
    fields.into_iter().map(field).collect::<Vec<_>>().join("; ")
}

fn shown<T: ToString>(value: Option<&T>) -> String {
    value.map_or("nothing".to_owned(), ToString::to_string)
}

/// An artifact that admits a request, and how long it will take.
#[derive(Clone, Copy, Debug)]
pub struct Prediction<'a> {
    /// The artifact.
    pub artifact: &'a Arc<Artifact>,
    /// What the rule for the request predicts, if it predicts anything of this artifact.
    pub nanoseconds: Option<u64>,
}

impl Registry {
    /// The artifact for a request: all properties equal, every dimension in its domain, and where several artifacts are left,
    /// the one whose algorithm the selection rules choose.
    pub fn select(&self, request: &Request) -> Result<Arc<Artifact>, SelectError> {
        let candidates = self.candidates(request)?;
        match candidates.as_slice() {
            [only] => Ok(Arc::clone(only)),
            several => self.decide(request, several),
        }
    }

    /// Every artifact that admits a request: at least one. [`Registry::select`] decides among them.
    ///
    /// # Errors
    ///
    /// [`SelectError::NoContract`] or [`SelectError::NotCovered`].
    pub fn candidates(&self, request: &Request) -> Result<Vec<&Arc<Artifact>>, SelectError> {
        let candidates: Vec<_> =
            self.artifacts().filter(|artifact| request.is_admitted_by(artifact.manifest())).collect();
        if !candidates.is_empty() {
            return Ok(candidates);
        }
        let misses: Vec<_> = self.survey(request).filter_map(|(_, miss)| miss).collect();
        match misses.is_empty() {
            true => Err(SelectError::NoContract { request: request.clone().into() }),
            false => {
                Err(SelectError::NotCovered { request: request.clone().into(), misses: nearest(misses) })
            }
        }
    }

    /// Every artifact that admits a request, with the nanoseconds that the rule for it predicts, if it predicts any.
    ///
    /// # Errors
    ///
    /// As [`Registry::candidates`], or the rule's cost of one of them has no value.
    pub fn predictions(&self, request: &Request) -> Result<Vec<Prediction<'_>>, SelectError> {
        let candidates = self.candidates(request)?;
        let costs = match self.choice(request, &candidates) {
            Ok(Choice::Costs(costs)) => costs.iter().collect::<BTreeMap<_, _>>(),
            _ => BTreeMap::new(),
        };
        let predict = |artifact: &Arc<Artifact>| {
            let algorithm = artifact.manifest().algorithm.as_str();
            let cost = costs.get(algorithm).map(|cost| cost.eval(&request.dimensions)).transpose();
            cost.map_err(|source| SelectError::Cost {
                request: request.clone().into(),
                source: CostError { algorithm: algorithm.to_owned(), source },
            })
        };
        let prediction = |artifact| Ok(Prediction { artifact, nanoseconds: predict(artifact)? });
        candidates.into_iter().map(prediction).collect()
    }

    /// Every artifact of the request's contract, in the order of names, and why it does not admit the request if it does not.
    pub fn survey(&self, request: &Request) -> impl Iterator<Item = (&Arc<Artifact>, Option<Miss>)> {
        let of_contract = |artifact: &&Arc<Artifact>| {
            let manifest = artifact.manifest();
            manifest.contract == request.contract && manifest.contract_version == request.version
        };
        self.artifacts().filter(of_contract).map(|artifact| (artifact, request.miss(artifact.manifest())))
    }

    fn decide(&self, request: &Request, candidates: &[&Arc<Artifact>]) -> Result<Arc<Artifact>, SelectError> {
        let choice = self.choice(request, candidates)?;
        let of = |algorithm: &str| {
            let mut found = candidates.to_vec();
            found.retain(|artifact| artifact.manifest().algorithm == algorithm);
            found
        };
        let algorithm = match choice {
            Choice::Algorithm(algorithm) => algorithm.as_str(),
            Choice::Costs(costs) => {
                let admits = |algorithm: &str| !of(algorithm).is_empty();
                match costs.cheapest(admits, &request.dimensions) {
                    Ok(Some(algorithm)) => algorithm,
                    Ok(None) => {
                        let (request, candidates) = (request.clone().into(), names(candidates));
                        return Err(SelectError::NoCost { request, candidates });
                    }
                    Err(source) => return Err(SelectError::Cost { request: request.clone().into(), source }),
                }
            }
        };
        match of(algorithm).as_slice() {
            [only] => Ok(Arc::clone(only)),
            others => {
                let (request, algorithm, count) =
                    (request.clone().into(), algorithm.to_owned(), others.len());
                Err(SelectError::RuleMismatch { request, algorithm, count })
            }
        }
    }

    /// What the one rule for a request says.
    fn choice(&self, request: &Request, candidates: &[&Arc<Artifact>]) -> Result<&Choice, SelectError> {
        let matches =
            |rule: &&super::Rule| rule.matches(&request.contract, &request.properties, &request.dimensions);
        let choices: Vec<_> = self.rules().iter().filter(matches).map(|rule| &rule.choice).collect();
        let request = || Box::new(request.clone());
        match choices.as_slice() {
            [choice] => Ok(choice),
            [] => Err(SelectError::NoRule { request: request(), candidates: names(candidates) }),
            several => {
                let choices = several.iter().map(ToString::to_string).collect();
                Err(SelectError::SeveralRules { request: request(), choices })
            }
        }
    }
}

fn names(artifacts: &[&Arc<Artifact>]) -> Vec<String> {
    artifacts.iter().map(|artifact| artifact.manifest().name.clone()).collect()
}

impl Request {
    /// Why an artifact of the contract does not serve, if it does not.
    /// Whether there is no [`Request::miss`], of an artifact of any contract.
    fn is_admitted_by(&self, manifest: &Manifest) -> bool {
        manifest.contract == self.contract
            && manifest.contract_version == self.version
            && manifest.properties == self.properties
            && self.dimensions.keys().all(|name| manifest.dimensions.contains_key(name))
            && self.algorithm.as_ref().is_none_or(|asked| *asked == manifest.algorithm)
            && manifest.out_of_domain(&self.dimensions).is_none()
    }

    fn miss(&self, manifest: &Manifest) -> Option<Miss> {
        let artifact = || manifest.name.clone();
        let names = manifest.properties.keys().chain(self.properties.keys());
        for property in names {
            let (found, asked) = (manifest.properties.get(property), self.properties.get(property));
            if found != asked {
                let (property, found, asked) = (property.clone(), found.cloned(), asked.cloned());
                return Some(Miss::Property { artifact: artifact(), property, found, asked });
            }
        }
        if let Some(dimension) = self.dimensions.keys().find(|name| !manifest.dimensions.contains_key(*name))
        {
            return Some(Miss::UnknownDimension { artifact: artifact(), dimension: dimension.clone() });
        }
        if let Some(asked) = self.algorithm.as_ref().filter(|asked| **asked != manifest.algorithm) {
            let (found, asked) = (manifest.algorithm.clone(), asked.clone());
            return Some(Miss::Algorithm { artifact: artifact(), found, asked });
        }
        manifest.out_of_domain(&self.dimensions).map(|source| Miss::Domain { artifact: artifact(), source })
    }
}

/// The misses worth reading: those by dimension, unless every artifact misses by property.
fn nearest(misses: Vec<Miss>) -> Vec<Miss> {
    let by_property = |miss: &Miss| matches!(miss, Miss::Property { .. });
    if misses.iter().all(by_property) {
        return misses;
    }
    misses.into_iter().filter(|miss| !by_property(miss)).collect()
}

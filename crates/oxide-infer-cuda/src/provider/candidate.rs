use crate::artifact::Request;
use oxide_infer::{Algorithm, Provider, ProviderState};
use std::fmt;

/// One way to compute a request, or one reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Who would compute.
    pub provider: Provider,
    /// What [`super::Cuda::plan`] takes; `None` where the provider has no algorithm to name.
    pub algorithm: Option<Algorithm>,
    /// What stands behind it: the name of an artifact, or a library with its version.
    pub implementation: String,
    /// Whether it can be planned.
    pub state: Candidacy,
}

/// Whether a candidate can be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Candidacy {
    /// It can.
    Ready,
    /// It does not admit the request; the property or dimension, and what would be admitted.
    NotAdmitted(String),
    /// The provider cannot be asked.
    NoProvider(ProviderState),
}

impl Candidate {
    /// The one entry of a provider that cannot be asked.
    pub(super) fn unasked(provider: Provider, state: ProviderState) -> Self {
        let (algorithm, implementation) = (None, String::new());
        Self { provider, algorithm, implementation, state: Candidacy::NoProvider(state) }
    }

    /// The one entry of a provider that has nothing for the request's contract.
    pub(super) fn no_contract(provider: Provider, request: &Request) -> Self {
        let why = format!("it has nothing of {} v{}", request.contract(), request.version());
        let (algorithm, implementation) = (None, String::new());
        Self { provider, algorithm, implementation, state: Candidacy::NotAdmitted(why) }
    }
}

impl Candidacy {
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Ready => 0,
            Self::NotAdmitted(_) => 1,
            Self::NoProvider(_) => 2,
        }
    }
}

impl fmt::Display for Candidacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::NotAdmitted(why) => write!(f, "not admitted: {why}"),
            Self::NoProvider(state) => write!(f, "{state}"),
        }
    }
}

/// `provider/algorithm (implementation): state`, with what there is of it.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.algorithm {
            Some(algorithm) => write!(f, "{algorithm} ({}): {}", self.implementation, self.state),
            None => write!(f, "{}: {}", self.provider, self.state),
        }
    }
}

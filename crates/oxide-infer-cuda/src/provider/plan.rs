use crate::artifact::{Request, ResolveError};
use crate::runtime::{
    BindError, BoundOperator, CommandScope, EnqueueError, Operands, OperatorPlan, PlanError as ArtifactError,
    Workspace,
};
use oxide_infer::{Algorithm, Provider, ProviderState};

/// One operator of fixed dimensions, by one algorithm. Immutable.
#[derive(Clone)]
pub struct Plan {
    algorithm: Algorithm,
    operator: OperatorPlan,
}

/// A plan with its operands, enqueued as often as wanted. It asks nobody and allocates nothing.
pub struct BoundPlan {
    algorithm: Algorithm,
    operator: BoundOperator,
}

/// Why a plan by name is refused. Nothing else is planned in its place.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The provider cannot be asked.
    #[error("{provider} cannot plan: {state}")]
    Provider {
        /// The provider.
        provider: Provider,
        /// Why not.
        state: ProviderState,
    },
    /// There is no such algorithm of the contract.
    #[error("there is no algorithm {asked} for {request}; there are: {}", listed(.known))]
    UnknownAlgorithm {
        /// What was asked for.
        asked: Algorithm,
        /// For what.
        request: Box<Request>,
        /// The provider's algorithms of the contract.
        known: Vec<String>,
    },
    /// The algorithm does not admit the request.
    #[error("{asked} does not admit {request}: {why}")]
    NotAdmitted {
        /// What was asked for.
        asked: Algorithm,
        /// For what.
        request: Box<Request>,
        /// The property or dimension, and what would be admitted.
        why: String,
    },
    /// Several artifacts have the algorithm and admit the request.
    #[error("{asked} for {request} is each of {}", listed(.artifacts))]
    Several {
        /// What was asked for.
        asked: Algorithm,
        /// For what.
        request: Box<Request>,
        /// The artifacts.
        artifacts: Vec<String>,
    },
    /// An artifact cannot be loaded.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl Plan {
    pub(super) fn of_artifact(algorithm: Algorithm, operator: OperatorPlan) -> Self {
        Self { algorithm, operator }
    }

    /// Who computes, and how.
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// The regions that it needs beside its contract's operands.
    ///
    /// # Errors
    ///
    /// [`ResolveError`] if a size leaves the range of numbers.
    pub fn workspaces(&self) -> Result<Vec<Workspace>, ResolveError> {
        self.operator.workspaces()
    }

    /// Binds it to operands, by the names of its contract.
    ///
    /// # Errors
    ///
    /// Missing or unknown operands, a wrong type, too little memory, a misaligned address, aliasing, a missing
    /// attribute or status, or another context. Nothing is enqueued.
    pub fn bind(&self, operands: &Operands<'_>) -> Result<BoundPlan, BindError> {
        let operator = self.operator.bind(operands)?;
        Ok(BoundPlan { algorithm: self.algorithm.clone(), operator })
    }
}

impl BoundPlan {
    /// Who computes, and how.
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// Enqueues it.
    ///
    /// # Errors
    ///
    /// As [`CommandScope::launch`].
    pub fn enqueue(&self, scope: &mut CommandScope) -> Result<(), EnqueueError> {
        self.operator.enqueue(scope)
    }
}

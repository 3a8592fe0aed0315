use super::algorithm_of;
use super::cublas_lt::{BoundProduct, LoadError, ProductPlan};
use crate::artifact::{Artifact, Request, ResolveError};
use crate::driver::{CudaError, LibraryError};
use crate::runtime::{
    BindError, BoundOperator, CommandScope, EnqueueError, Operands, OperatorPlan, PlanError as ArtifactError,
    Workspace,
};
use oxide_infer::{Algorithm, Provider, ProviderState};

/// One operator of fixed dimensions, by one algorithm. Immutable.
#[derive(Clone)]
pub struct Plan {
    algorithm: Algorithm,
    operator: Operator<OperatorPlan, ProductPlan>,
}

/// What is planned or bound: launches of an artifact, or a call of a library.
#[derive(Clone)]
enum Operator<A, P> {
    Artifact(A),
    Product(P),
}

/// A plan with its operands, enqueued as often as wanted. It asks nobody and allocates nothing.
pub struct BoundPlan {
    algorithm: Algorithm,
    operator: Operator<BoundOperator, BoundProduct>,
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
    /// cuBLASLt is not there.
    #[error(transparent)]
    CublasLtAbsent(#[from] LoadError),
    /// cuBLASLt cannot say which algorithms it has.
    #[error(transparent)]
    CublasLt(#[from] LibraryError),
    /// The context is lost, or cannot be used from this thread.
    #[error(transparent)]
    Driver(#[from] CudaError),
    /// An artifact cannot be loaded.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// A plan of an artifact, among those of other providers.
impl From<OperatorPlan> for Plan {
    fn from(operator: OperatorPlan) -> Self {
        let algorithm = algorithm_of(operator.artifact());
        Self { algorithm, operator: Operator::Artifact(operator) }
    }
}

impl Plan {
    pub(super) fn of_product(plan: ProductPlan) -> Self {
        Self { algorithm: plan.algorithm().clone(), operator: Operator::Product(plan) }
    }

    /// Who computes, and how.
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// The artifact that runs, if it is one.
    pub fn artifact(&self) -> Option<&Artifact> {
        match &self.operator {
            Operator::Artifact(plan) => Some(plan.artifact()),
            Operator::Product(_) => None,
        }
    }

    /// The regions that it needs beside its contract's operands.
    ///
    /// # Errors
    ///
    /// [`ResolveError`] if a size leaves the range of numbers.
    pub fn workspaces(&self) -> Result<Vec<Workspace>, ResolveError> {
        match &self.operator {
            Operator::Artifact(plan) => plan.workspaces(),
            Operator::Product(plan) => Ok(plan.workspaces()),
        }
    }

    /// Binds it to operands, by the names of its contract.
    ///
    /// # Errors
    ///
    /// Missing or unknown operands, a wrong type, too little memory, a misaligned address, aliasing, a missing
    /// attribute or status, or another context. Nothing is enqueued.
    pub fn bind(&self, operands: &Operands<'_>) -> Result<BoundPlan, BindError> {
        let operator = match &self.operator {
            Operator::Artifact(plan) => Operator::Artifact(plan.bind(operands)?),
            Operator::Product(plan) => Operator::Product(plan.bind(operands)?),
        };
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
    /// Another context, a refused launch or call, or a poisoned context.
    pub fn enqueue(&self, scope: &mut CommandScope) -> Result<(), EnqueueError> {
        match &self.operator {
            Operator::Artifact(operator) => operator.enqueue(scope),
            Operator::Product(product) => product.enqueue(scope),
        }
    }
}

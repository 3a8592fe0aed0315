//! Who may compute an operator on one device, listed in the open, and planned by name.
//!
//! [`Cuda::candidates`] lists every algorithm of every provider for a request, and why those that do not serve it do not.
//! [`Cuda::plan`] takes one of them by name; where it cannot be had the plan is refused, and nothing else takes its place.
//! Every [`Plan`] is bound and enqueued in the same way, whoever computes.
//!
//! ```no_run
//! use oxide_infer::gemm::dense::{Config, Spec};
//! use oxide_infer::{DType, Presence, Provider, WeightFormat};
//! use oxide_infer_cuda::artifact::{Registry, Request, Target};
//! use oxide_infer_cuda::provider::Cuda;
//! use oxide_infer_cuda::runtime::Context;
//! use std::sync::Arc;
//!
//! let context = Context::primary(0)?;
//! let mut cuda = Cuda::new(&context).artifacts(Arc::new(Registry::embedded(Target::hopper())?));
//! let bf16 = DType::BF16;
//! let (weight, residual) = (WeightFormat::Dense(bf16), Presence::Absent);
//! let spec = Spec::new(Config { input: bf16, weight, output: bf16, n: 2048, k: 1536, bias: None, residual })?;
//! let request = Request::from(&spec).dimension("m", 8);
//! for candidate in cuda.candidates(&request) {
//!     println!("{candidate}");
//! }
//! let plan = cuda.plan(&request, Provider::OxideTile, "m8_64x128_s6")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod candidate;
pub mod cublas_lt;
mod plan;
#[cfg(test)]
mod tests;

pub use candidate::{Candidacy, Candidate};
pub use plan::{BoundPlan, Plan, PlanError};

use crate::artifact::{Artifact, Miss, Registry, Request};
use crate::runtime::{Context, Loader};
use cublas_lt::{CublasLt, LoadError, Search};
use oxide_infer::{Algorithm, Provider, ProviderState};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The providers of one device. It has none until it is given one.
pub struct Cuda {
    context: Context,
    /// Of those providers that have artifacts.
    artifacts: BTreeMap<Provider, Artifacts>,
    /// What came of loading it, once it was asked for.
    cublas_lt: Option<Result<CublasLt, LoadError>>,
}

/// A provider that computes with artifacts.
struct Artifacts {
    registry: Arc<Registry>,
    loader: Loader,
}

impl Cuda {
    /// Providers that a device may have.
    pub const PROVIDERS: [Provider; 3] = [Provider::OxideTile, Provider::OxideNative, Provider::CublasLt];

    /// No provider yet.
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), artifacts: BTreeMap::new(), cublas_lt: None }
    }

    /// With the provider whose verified artifacts these are: [`Provider::OxideTile`] ([`Registry::embedded`]) or
    /// [`Provider::OxideNative`] ([`Registry::embedded_native`]).
    #[must_use]
    pub fn artifacts(mut self, registry: Arc<Registry>) -> Self {
        let loader = Loader::new(&self.context, registry.clone());
        self.artifacts.insert(registry.provider(), Artifacts { registry, loader });
        self
    }

    /// With [`Provider::CublasLt`], if the library is found. If it is not, [`Cuda::candidates`] and [`Cuda::plan`] say so.
    #[must_use]
    pub fn cublas_lt(self, search: &Search) -> Self {
        let loaded = CublasLt::load(&self.context, search);
        self.with_cublas_lt(loaded)
    }

    fn with_cublas_lt(mut self, loaded: Result<CublasLt, LoadError>) -> Self {
        self.cublas_lt = Some(loaded);
        self
    }

    /// The device's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Whether a provider can be asked for plans.
    pub fn state(&self, provider: Provider) -> ProviderState {
        let device = &self.context.device().name;
        match (provider, &self.cublas_lt) {
            (Provider::OxideTile | Provider::OxideNative, _) if self.artifacts.contains_key(&provider) => {
                ProviderState::Ready(device.clone())
            }
            (Provider::OxideTile | Provider::OxideNative, _) => {
                ProviderState::Unavailable("no artifacts were given".to_owned())
            }
            (Provider::CublasLt, Some(Ok(library))) => {
                let (version, path) = (library.version(), library.path().display());
                ProviderState::Ready(format!("{device}, version {version} from {path}"))
            }
            (Provider::CublasLt, Some(Err(error))) => ProviderState::Unavailable(error.to_string()),
            (Provider::CublasLt, None) => ProviderState::Unavailable("it was not asked for".to_owned()),
            (Provider::Cpu, _) => ProviderState::Unavailable("it does not run on a CUDA device".to_owned()),
        }
    }

    /// Every algorithm for a request (a spec, or a spec with sizes of its operands), those that admit it first. Loads
    /// nothing, allocates nothing, and leaves the device alone. A provider that cannot be asked has one entry, which says why.
    pub fn candidates(&self, request: impl Into<Request>) -> Vec<Candidate> {
        let request = request.into();
        let mut candidates: Vec<_> =
            Self::PROVIDERS.into_iter().flat_map(|provider| self.of_provider(provider, &request)).collect();
        candidates.sort_by_key(|candidate| candidate.state.rank());
        candidates
    }

    /// Plans a request by exactly this algorithm of this provider.
    ///
    /// # Errors
    ///
    /// [`PlanError`] if the provider cannot be asked, has no such algorithm, or the algorithm does not admit the request.
    pub fn plan(
        &mut self,
        request: impl Into<Request>,
        provider: Provider,
        algorithm: &str,
    ) -> Result<Plan, PlanError> {
        let (request, state) = (request.into(), self.state(provider));
        match (provider, self.artifacts.get_mut(&provider), &self.cublas_lt) {
            (_, Some(artifacts), _) => artifacts.plan(&request, algorithm),
            (Provider::CublasLt, _, Some(Ok(library))) => {
                library.plan(&request, algorithm).map(Plan::of_product)
            }
            (Provider::CublasLt, _, Some(Err(absent))) => Err(absent.clone().into()),
            _ => Err(PlanError::Provider { provider, state }),
        }
    }

    fn of_provider(&self, provider: Provider, request: &Request) -> Vec<Candidate> {
        match (provider, self.artifacts.get(&provider), &self.cublas_lt) {
            (_, Some(artifacts), _) => artifacts.candidates(request),
            (Provider::CublasLt, _, Some(Ok(library))) => library.candidates(request),
            _ => vec![Candidate::unasked(provider, self.state(provider))],
        }
    }
}

impl Artifacts {
    fn candidates(&self, request: &Request) -> Vec<Candidate> {
        let provider = self.registry.provider();
        let candidates = self.registry.survey(request).map(|(artifact, miss)| Candidate {
            provider,
            algorithm: Some(algorithm_of(artifact)),
            implementation: artifact.manifest().name.clone(),
            state: miss.map_or(Candidacy::Ready, |miss| Candidacy::NotAdmitted(miss.to_string())),
        });
        let candidates: Vec<_> = candidates.collect();
        if candidates.is_empty() { vec![Candidate::no_contract(provider, request)] } else { candidates }
    }

    fn plan(&mut self, request: &Request, algorithm: &str) -> Result<Plan, PlanError> {
        let artifact = self.find(request, algorithm)?.clone();
        Ok(self.loader.plan_artifact(artifact, request.dimensions().clone())?.into())
    }

    /// The one artifact with that algorithm that admits the request.
    fn find(&self, request: &Request, algorithm: &str) -> Result<&Arc<Artifact>, PlanError> {
        let asked = || Algorithm::new(self.registry.provider(), algorithm.to_owned());
        let (named, others): (Vec<_>, Vec<_>) = self
            .registry
            .survey(request)
            .partition(|(artifact, _)| artifact.manifest().algorithm == algorithm);
        if named.is_empty() {
            let mut known: Vec<_> = others.iter().map(|(a, _)| a.manifest().algorithm.clone()).collect();
            known.sort_unstable();
            known.dedup();
            return Err(PlanError::UnknownAlgorithm {
                asked: asked(),
                request: request.clone().into(),
                known,
            });
        }
        let (admitted, missed): (Vec<_>, Vec<_>) = named.into_iter().partition(|(_, miss)| miss.is_none());
        match admitted.as_slice() {
            [(artifact, _)] => Ok(artifact),
            [] => {
                let misses = missed.into_iter().filter_map(|(_, miss)| miss);
                let why = misses.map(|miss: Miss| miss.to_string()).collect::<Vec<_>>().join("; ");
                Err(PlanError::NotAdmitted { asked: asked(), request: request.clone().into(), why })
            }
            several => {
                let artifacts = several.iter().map(|(a, _)| a.manifest().name.clone()).collect();
                Err(PlanError::Several { asked: asked(), request: request.clone().into(), artifacts })
            }
        }
    }
}

fn algorithm_of(artifact: &Artifact) -> Algorithm {
    let manifest = artifact.manifest();
    Algorithm::new(manifest.provider(), manifest.algorithm.clone())
}

//! From a spec to a run.

use crate::Team;
use oxide_infer::{Admission, Algorithm, Capability, Provider, Spec};

/// A contract that this provider implements.
pub trait Operator: Spec {
    /// Its operands.
    type Operands<'a>;

    /// What a plan computes ahead of its runs.
    type Prepared: Send + Sync;

    /// What a run gives back beside what it writes.
    type Output;

    /// Why a run is refused.
    type Error;

    /// The name of the one algorithm that this provider has for it.
    const ALGORITHM: &'static str;

    /// Computes what does not depend on the operands.
    fn prepare(&self) -> Self::Prepared;

    /// Computes, after checking the operands against the spec.
    ///
    /// # Errors
    /// When they do not fit, or a value in an index operand is wrong; nothing is written then.
    fn run(
        &self,
        prepared: &Self::Prepared,
        team: &Team<'_>,
        operands: Self::Operands<'_>,
    ) -> Result<Self::Output, Self::Error>;

    /// What this provider says about the spec: it admits every one.
    fn capability(&self) -> Capability {
        let algorithm = Algorithm::new(Provider::Cpu, Self::ALGORITHM);
        let admission = Admission::Admitted(vec![algorithm]);
        Capability { provider: Provider::Cpu, contract: Self::CONTRACT, admission }
    }
}

/// A spec that is ready to run. Immutable; one plan serves a model's whole life.
///
/// ```
/// use oxide_infer::activation::swiglu;
/// use oxide_infer::{DType, FloatView, FloatViewMut};
/// use oxide_infer_cpu::{CpuProvider, Plan};
///
/// let plan = Plan::new(swiglu::Spec::new(swiglu::Config { dtype: DType::F32, size: 2 })?);
/// let mut output = [0.0; 2];
/// let mut cpu = CpuProvider::new(std::num::NonZeroUsize::MIN)?;
/// cpu.step(|team| {
///     let operands = swiglu::Operands {
///         gate: FloatView::contiguous(&[0.0f32, 100.0], [1, 2])?,
///         up: FloatView::contiguous(&[5.0f32, 0.5], [1, 2])?,
///         output: FloatViewMut::contiguous(&mut output, [1, 2])?,
///     };
///     plan.run(team, operands)?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })?;
/// assert_eq!(output, [0.0, 50.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Plan<S: Operator> {
    spec: S,
    prepared: S::Prepared,
}

impl<S: Operator> Plan<S> {
    /// Prepares a spec.
    pub fn new(spec: S) -> Self {
        let prepared = spec.prepare();
        Self { spec, prepared }
    }

    /// What was planned.
    pub fn spec(&self) -> &S {
        &self.spec
    }

    /// Computes, after checking the operands against the spec.
    ///
    /// # Errors
    /// When they do not fit, or a value in an index operand is wrong; nothing is written then.
    pub fn run(&self, team: &Team<'_>, operands: S::Operands<'_>) -> Result<S::Output, S::Error> {
        self.spec.run(&self.prepared, team, operands)
    }
}

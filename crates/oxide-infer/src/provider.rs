use crate::Contract;
use std::borrow::Cow;
use std::fmt;

/// Who computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Provider {
    /// Ahead-of-time TileLang artifacts on an NVIDIA GPU: what models run on.
    OxideTile,
    /// Rust device kernels compiled ahead of time to PTX.
    OxideNative,
    /// NVIDIA's cuBLASLt, for operator users and comparisons.
    CublasLt,
    /// The host's processors.
    Cpu,
}

impl Provider {
    /// Every provider.
    pub const ALL: [Self; 4] = [Self::OxideTile, Self::OxideNative, Self::CublasLt, Self::Cpu];

    /// The name used in manifests, metrics and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OxideTile => "oxide_tile",
            Self::OxideNative => "oxide_native",
            Self::CublasLt => "cublas_lt",
            Self::Cpu => "cpu",
        }
    }

    /// The provider of that name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.name() == name)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A named implementation of a contract by one provider.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Algorithm {
    /// Who computes.
    pub provider: Provider,
    /// The provider's name for it, for example an artifact's schedule.
    pub name: Cow<'static, str>,
}

impl Algorithm {
    /// An algorithm by name.
    pub fn new(provider: Provider, name: impl Into<Cow<'static, str>>) -> Self {
        Self { provider, name: name.into() }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider, self.name)
    }
}

/// Whether a provider can be used in this process, on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderState {
    /// It can; what it would run on, in words.
    Ready(String),
    /// This build does not have it.
    NotBuilt,
    /// It is built in, but what it needs is not there; what and why, in words.
    Unavailable(String),
}

impl fmt::Display for ProviderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(device) => write!(f, "ready on {device}"),
            Self::NotBuilt => f.write_str("not in this build"),
            Self::Unavailable(why) => write!(f, "unavailable: {why}"),
        }
    }
}

/// What one provider says about one spec. A provider never picks an algorithm in the middle of a launch: it says here which
/// it admits, a planner names one, and the plan keeps that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Who was asked.
    pub provider: Provider,
    /// The contract of the spec.
    pub contract: Contract,
    /// The answer.
    pub admission: Admission,
}

/// Whether a spec is covered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// By these algorithms, best known first; never empty.
    Admitted(Vec<Algorithm>),
    /// By none; why, in words, with the property or dimension that is not covered.
    NotAdmitted(String),
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}: ", self.contract, self.provider)?;
        match &self.admission {
            Admission::NotAdmitted(why) => write!(f, "not admitted, {why}"),
            Admission::Admitted(algorithms) => {
                let names: Vec<_> = algorithms.iter().map(|algorithm| &*algorithm.name).collect();
                f.write_str(&names.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_found_by_their_names() {
        for provider in Provider::ALL {
            assert_eq!(Provider::find(provider.name()), Some(provider));
        }
        assert_eq!(Provider::find("tilelang"), None);
    }

    #[test]
    fn a_capability_says_who_does_what_or_why_not() {
        let provider = Provider::OxideTile;
        let algorithm = Algorithm::new(provider, "skinny_m8_64x128_s6");
        assert_eq!(algorithm.to_string(), "oxide_tile/skinny_m8_64x128_s6");
        let capability = |admission| Capability { provider, contract: Contract::DENSE, admission };
        assert_eq!(
            capability(Admission::Admitted(vec![algorithm])).to_string(),
            "gemm.dense v1 by oxide_tile: skinny_m8_64x128_s6"
        );
        assert_eq!(
            capability(Admission::NotAdmitted("k = 7 is not a multiple of 8".into())).to_string(),
            "gemm.dense v1 by oxide_tile: not admitted, k = 7 is not a multiple of 8"
        );
    }
}

use std::fmt;

/// The name and version of a contract, as artifact manifests and errors write them.
///
/// The version goes up when the meaning of an operand or the formula changes; a provider's artifact names the version it
/// was made for and never runs for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Contract(&'static Identity);

/// Behind a reference so that the errors that carry a contract stay small.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Identity {
    name: &'static str,
    version: u32,
}

macro_rules! contracts {
    ($($(#[$doc:meta])* $konst:ident = $name:literal v $version:literal;)*) => {
        impl Contract {
            $($(#[$doc])* pub const $konst: Contract = Contract(&Identity { name: $name, version: $version });)*

            /// Every contract of this crate, in the order of the operator catalogue.
            pub const ALL: &'static [Contract] = &[$(Self::$konst),*];
        }
    };
}

contracts! {
    /// [`crate::normalization::rms_norm`]
    RMS_NORM = "normalization.rms_norm" v 1;
    /// [`crate::position::rope`]
    ROPE = "position.rope" v 1;
    /// [`crate::kv_cache::paged_append`]
    PAGED_APPEND = "kv_cache.paged_append" v 1;
    /// [`crate::kv_cache::rope_append`]
    ROPE_APPEND = "kv_cache.rope_append" v 1;
    /// [`crate::attention::single_decode`]
    SINGLE_DECODE = "attention.single_decode" v 1;
    /// [`crate::attention::paged_decode`]
    PAGED_DECODE = "attention.paged_decode" v 1;
    /// [`crate::attention::ragged_prefill`]
    RAGGED_PREFILL = "attention.ragged_prefill" v 1;
    /// [`crate::attention::paged_prefill`]
    PAGED_PREFILL = "attention.paged_prefill" v 1;
    /// [`crate::gemm::dense`] and, with an activation, [`crate::gemm::dense_swiglu`]
    DENSE = "gemm.dense" v 1;
    /// [`crate::activation::swiglu`]
    SWIGLU = "activation.swiglu" v 1;
    /// [`crate::embedding::gather`]
    GATHER = "embedding.gather" v 1;
    /// [`crate::sampling`]
    SAMPLE = "sampling.sample" v 1;
}

impl Contract {
    /// The dotted name, for example `normalization.rms_norm`.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// The version, from 1.
    pub const fn version(self) -> u32 {
        self.0.version
    }

    /// The contract of this crate with that name and version.
    pub fn find(name: &str, version: u32) -> Option<Contract> {
        Self::ALL.iter().copied().find(|c| c.name() == name && c.version() == version)
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} v{}", self.name(), self.version())
    }
}

impl fmt::Debug for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contract_is_found_by_its_own_name_and_version_only() {
        for contract in Contract::ALL {
            assert_eq!(Contract::find(contract.name(), contract.version()), Some(*contract));
            assert_eq!(Contract::find(contract.name(), contract.version() + 1), None);
        }
        assert_eq!(Contract::find("normalization.layer_norm", 1), None);
        assert_eq!(Contract::RMS_NORM.to_string(), "normalization.rms_norm v1");
    }
}

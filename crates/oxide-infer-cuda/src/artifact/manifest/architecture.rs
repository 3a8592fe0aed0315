//! Names of the architectures that machine code is for.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An architecture that machine code is for, for example `sm_90a`; not only those of [`Architecture::ALL`], so that code for
/// another is refused by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Architecture {
    /// Ten times the major compute capability, and the minor one.
    capability: u32,
    features: Features,
}

/// The instructions that the code may use beside those that later architectures keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Features {
    Portable,
    OfFamily,
    OfArchitecture,
}

impl Features {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Portable => "",
            Self::OfFamily => "f",
            Self::OfArchitecture => "a",
        }
    }
}

impl Architecture {
    /// Hopper with its architecture-specific instructions: compute capability 9.0 and no other.
    pub const SM_90A: Self = Self { capability: 90, features: Features::OfArchitecture };

    /// Every architecture that artifacts are made for.
    pub const ALL: &'static [Self] = &[Self::SM_90A];

    /// The architecture whose code a device of this compute capability runs, if any is made for it.
    pub const fn of_device(major: u32, minor: u32) -> Option<Self> {
        match (major, minor) {
            (9, 0) => Some(Self::SM_90A),
            _ => None,
        }
    }
}

impl TryFrom<String> for Architecture {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parsed = text.strip_prefix("sm_").and_then(|rest| {
            let digits = rest.trim_end_matches(|c: char| !c.is_ascii_digit());
            let all = [Features::Portable, Features::OfFamily, Features::OfArchitecture];
            let features = all.into_iter().find(|features| features.suffix() == &rest[digits.len()..])?;
            let is_number = (2..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
            let capability = digits.parse().ok().filter(|_| is_number && !digits.starts_with('0'))?;
            Some(Self { capability, features })
        });
        parsed.ok_or_else(|| format!("architecture {text:?} is not of the form sm_90, sm_90a or sm_100f"))
    }
}

impl From<Architecture> for String {
    fn from(architecture: Architecture) -> String {
        architecture.to_string()
    }
}

/// The name in manifests and of the artifact folder.
impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.capability, self.features.suffix())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_alike_and_others_refused() {
        for name in ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100a", "sm_103f", "sm_120"] {
            assert_eq!(Architecture::try_from(name.to_owned()).unwrap().to_string(), name);
        }
        assert_eq!(Architecture::try_from("sm_90a".to_owned()), Ok(Architecture::SM_90A));
        for name in [
            "",
            "sm_",
            "sm_a",
            "sm_9",
            "sm_090",
            "sm_90b",
            "sm_90aa",
            "sm_9 0",
            "sm_1000",
            "compute_90",
            "SM_90",
            "sm_9é",
        ] {
            let error = Architecture::try_from(name.to_owned()).unwrap_err();
            assert!(error.starts_with(&format!("architecture {name:?} is not")), "{error}");
        }
    }
}

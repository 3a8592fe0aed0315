//! Field types of a manifest that admit only valid values.

use oxide_infer::Provider;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// A SHA-256 hash, in text as 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256Hex([u8; 32]);

impl Sha256Hex {
    /// The hash whose bytes these are.
    pub const fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }
}

impl TryFrom<String> for Sha256Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refuse = || format!("{text:?} is not 64 lowercase hexadecimal digits");
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(refuse());
        }
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit - b'0'),
            b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(refuse()),
        };
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(digest))
    }
}

impl From<Sha256Hex> for String {
    fn from(hash: Sha256Hex) -> String {
        hash.to_string()
    }
}

impl fmt::Display for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a kernel was written in and lowered by, for example `tilelang 0.1.15`: it says whose artifact it is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Lowering {
    text: String,
    provider: Provider,
}

impl Lowering {
    /// Who computes with what was lowered so.
    pub const fn provider(&self) -> Provider {
        self.provider
    }
}

impl TryFrom<String> for Lowering {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let provider = match text.split_whitespace().next() {
            Some("tilelang") => Provider::OxideTile,
            Some("rustc") => Provider::OxideNative,
            _ => return Err(format!("lowering {text:?} must begin with `tilelang` or `rustc`")),
        };
        Ok(Self { text, provider })
    }
}

impl From<Lowering> for String {
    fn from(lowering: Lowering) -> String {
        lowering.text
    }
}

impl fmt::Display for Lowering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An element type of operands and parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Element {
    F32,
    F16,
    Bf16,
    I32,
    U32,
    I64,
    U64,
    U8,
}

impl Element {
    /// Bytes of one element.
    pub const fn size(self) -> u32 {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::I64 | Self::U64 => 8,
        }
    }

    /// The name in manifests, which is also the contracts'.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::U8 => "u8",
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A value that a request must match exactly.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Property {
    /// A number, for example a head size.
    Number(u64),
    /// A name, for example an element type.
    Text(String),
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<&str> for Property {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for Property {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

/// The values of a dimension: from `min` to `max`, multiples of `multiple_of` only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// Least value.
    pub min: u64,
    /// Greatest value.
    pub max: u64,
    /// Every value is a multiple of this.
    pub multiple_of: u64,
}

impl Domain {
    /// Whether a value is in the domain.
    pub const fn contains(&self, value: u64) -> bool {
        // A domain that a manifest was parsed from has a positive `multiple_of`; one made by hand may not.
        self.multiple_of != 0
            && self.min <= value
            && value <= self.max
            && value.is_multiple_of(self.multiple_of)
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.min, self.max)?;
        if self.multiple_of > 1 { write!(f, " in steps of {}", self.multiple_of) } else { Ok(()) }
    }
}

/// Who provides an operand's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The operator's caller, by the contract's name.
    Operand,
    /// The plan: scratch memory whose contents mean nothing before and after.
    Workspace,
    /// The command scope: one word for errors that only the device can see, see [`super::super::status`].
    Status,
}

/// What the kernels do with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

impl Access {
    /// Whether the kernels may write the operand.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// What an artifact's results do not depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Determinism {
    /// Equal operands and dimensions give equal bits.
    RunToRun,
    /// Beyond that, a row's or sequence's result has the same bits whatever else is in the batch.
    BatchInvariant,
}

/// Deserialize a map, refusing a key that comes twice (serde would keep the last).
pub(super) fn unique_map<'de, D, V>(deserializer: D) -> Result<BTreeMap<String, V>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    struct Unique<V>(PhantomData<V>);

    impl<'de, V: Deserialize<'de>> Visitor<'de> for Unique<V> {
        type Value = BTreeMap<String, V>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = access.next_entry::<String, V>()? {
                if map.contains_key(&key) {
                    return Err(A::Error::custom(format!("key {key:?} comes twice")));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }

    deserializer.deserialize_map(Unique(PhantomData))
}

//! The index of a set of artifacts: what there is, and which algorithm serves shapes that several admit.

use super::bundle::INDEX;
use super::choice::Choice;
use super::expr::Dimensions;
use super::manifest::{Architecture, Property, Sha256Hex};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// The index schema that this version reads.
const SCHEMA: u32 = 2;

/// What `index.json` says.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object with schema, architecture, source, artifacts and selection"
)]
pub struct Index {
    schema: u32,
    /// The architecture of every artifact.
    pub architecture: Architecture,
    /// What the index and the manifests were made from, beside the kernels.
    pub source: IndexSource,
    /// Hash of the manifest of every artifact.
    pub artifacts: BTreeMap<String, Sha256Hex>,
    /// Rules, made by measurement.
    pub selection: Vec<Rule>,
}

/// Builder, profile and schedule files.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct IndexSource {
    /// Files under the provider's [`super::source::folder`].
    pub files: Vec<String>,
    /// Their hash, see [`super::source::hash_files`].
    pub sha256: Sha256Hex,
}

/// Chooses the algorithm for requests of a contract whose properties and dimensions match.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The contract.
    pub contract: String,
    /// Properties that the request must have; others may be anything.
    pub properties: BTreeMap<String, Property>,
    /// Ranges that the request's dimensions must be in; others may be anything.
    pub when: BTreeMap<String, Range>,
    /// Which algorithm serves such requests.
    pub choice: Choice,
}

/// Values from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// Least value.
    pub min: u64,
    /// Greatest value.
    pub max: u64,
}

/// Why a text is no index.
#[derive(Debug, Error)]
pub enum IndexError {
    /// Not JSON of the schema.
    #[error("{INDEX} is not an index of artifacts: {0}")]
    Json(#[from] serde_json::Error),
    /// A schema that this version does not read.
    #[error("index schema {found}, this version reads {SCHEMA}")]
    Schema {
        /// The index's.
        found: u64,
    },
}

#[derive(Deserialize)]
#[serde(expecting = "an object with schema, architecture, source, artifacts and selection")]
struct Header {
    schema: u64,
}

impl Index {
    /// Parse an index.
    pub fn parse(json: &[u8]) -> Result<Self, IndexError> {
        let Header { schema: found } = serde_json::from_slice(json)?;
        if found != u64::from(SCHEMA) {
            return Err(IndexError::Schema { found });
        }
        Ok(serde_json::from_slice(json)?)
    }
}

impl Rule {
    /// Whether the rule is for a request.
    pub fn matches(
        &self,
        contract: &str,
        properties: &BTreeMap<String, Property>,
        dimensions: &Dimensions,
    ) -> bool {
        let in_range = |(name, range): (&String, &Range)| {
            dimensions.get(name).is_some_and(|value| (range.min..=range.max).contains(value))
        };
        self.is_of(contract, properties) && self.when.iter().all(in_range)
    }

    /// Whether the rule is for some request with these properties, or for some artifact that has them.
    pub fn is_of(&self, contract: &str, properties: &BTreeMap<String, Property>) -> bool {
        self.contract == contract
            && self.properties.iter().all(|(name, value)| properties.get(name) == Some(value))
    }
}

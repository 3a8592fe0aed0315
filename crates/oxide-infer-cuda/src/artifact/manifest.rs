//! The manifest of an artifact: everything the host must know to launch its kernels. `docs/artifacts.md` explains each field.
//!
//! A [`Manifest`] is only made by [`Manifest::parse`], so whoever holds one may rely on every name in it being defined.

mod architecture;
mod check;
mod fields;

pub use architecture::Architecture;
pub use fields::{Access, Determinism, Domain, Element, Lowering, Property, Role, Sha256Hex};

use super::expr::{Dimensions, Expr};
use check::CheckError;
use fields::unique_map;
use oxide_infer::Provider;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// The manifest schema that this version reads and the builder writes.
pub const SCHEMA: u32 = 1;
/// The launch ABI that this version implements.
pub const ABI: u32 = 1;

/// What one artifact computes, for which shapes, and how it is launched.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    schema: u32,
    abi: u32,
    /// Unique name; the files of the artifact are named after it.
    pub name: String,
    /// Name of the operator contract, for example `gemm.dense`.
    pub contract: String,
    /// Version of the contract.
    pub contract_version: u32,
    /// Name of this implementation among those of the same contract and properties.
    pub algorithm: String,
    /// The machine code's architecture.
    pub architecture: Architecture,
    /// Least `cuDriverGetVersion` that loads the cubin: 12000 is CUDA 12.0, driver 525.
    pub minimum_driver: u32,
    /// What compiled it, for the record.
    pub toolchain: Toolchain,
    /// What it was compiled from.
    pub source: Source,
    /// The machine code's file.
    pub cubin: Cubin,
    /// Properties of a request that must equal these, all of them.
    #[serde(deserialize_with = "unique_map")]
    pub properties: BTreeMap<String, Property>,
    /// Dimensions of a request and the values they may take.
    #[serde(deserialize_with = "unique_map")]
    pub dimensions: BTreeMap<String, Domain>,
    /// Domains of what is computed from several dimensions (a number of heads per key/value head).
    pub conditions: Vec<Condition>,
    /// Numbers of the operator that are not dimensions (an epsilon), passed by value.
    #[serde(deserialize_with = "unique_map")]
    pub attributes: BTreeMap<String, Element>,
    /// Constants that were fixed at compile time (a page size, a number of multiprocessors).
    #[serde(deserialize_with = "unique_map")]
    pub constants: BTreeMap<String, u64>,
    /// Regions of device memory, in the kernel source's order.
    pub operands: Vec<Operand>,
    /// Kernel launches, in stream order.
    pub launches: Vec<Launch>,
    /// How it rounds.
    pub numerics: Numerics,
    /// What the result does not depend on.
    pub determinism: Determinism,
}

/// Compilers that made an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Toolchain {
    /// What lowered the kernel to CUDA C++ or PTX.
    pub lowering: Lowering,
    /// What compiled that to machine code.
    pub compiler: String,
    /// What compressed the machine code.
    pub compression: String,
}

/// Where a kernel comes from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Files under the provider's [`super::source::folder`] that decide the machine code.
    pub files: Vec<String>,
    /// Their hash, see [`super::source::hash_files`].
    pub sha256: Sha256Hex,
    /// Family and kernel, for example `gemm.dense`.
    pub kernel: String,
    /// The kernel's compile-time variant.
    #[serde(deserialize_with = "unique_map")]
    pub variant: BTreeMap<String, Property>,
    /// Tile sizes and the like.
    #[serde(deserialize_with = "unique_map")]
    pub schedule: BTreeMap<String, Property>,
}

/// A zstd-compressed cubin.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Cubin {
    /// File name beside the manifest.
    pub file: String,
    /// Hash of the uncompressed bytes.
    pub sha256: Sha256Hex,
    /// Number of uncompressed bytes.
    pub size: usize,
}

/// A value computed from dimensions and the domain that it must be in.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The value.
    pub value: Expr,
    /// Where it must be.
    pub domain: Domain,
}

/// A dense, row-major region of device memory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Operand {
    /// The contract's name of it.
    pub name: String,
    /// Who provides it.
    pub role: Role,
    /// Element type.
    pub element: Element,
    /// Extents, outermost first.
    pub shape: Vec<Expr>,
    /// What the kernels do with it.
    pub access: Access,
    /// The region's address is a multiple of this many bytes.
    pub alignment: u64,
    /// The operand whose region this one may also be, exactly; other overlaps are not admitted.
    #[serde(deserialize_with = "Option::deserialize")]
    pub same_as: Option<String>,
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Entry symbol in the cubin.
    pub symbol: String,
    /// Blocks along x, y and z.
    pub grid: [Expr; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Blocks of a cluster along x, y and z.
    #[serde(deserialize_with = "Option::deserialize")]
    pub cluster: Option<[u32; 3]>,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared_memory: u32,
    /// Whether all blocks must be resident at once.
    pub cooperative: bool,
    /// Whether the kernel waits for its predecessor itself, so that it may be launched before that ends.
    pub programmatic_stream_serialization: bool,
    /// Kernel parameters in order.
    pub parameters: Vec<Parameter>,
    /// What the compiler used.
    pub resources: Resources,
}

/// Resources of a compiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Registers of a thread at entry.
    pub registers: u32,
    /// Bytes of static shared memory of a block, the system's 1,024 among them.
    pub static_shared_memory: u32,
    /// Bytes of a thread's stack frame; anything but 0 means spilled or indexed registers.
    pub stack: u32,
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Parameter {
    /// The address of an operand, 8 bytes.
    Pointer {
        /// The operand.
        operand: String,
        /// Its element type.
        element: Element,
    },
    /// An integer computed from dimensions.
    Scalar {
        /// The integer's type.
        element: Element,
        /// Its value.
        value: Expr,
    },
    /// A number that the operator's caller gives.
    Attribute {
        /// The attribute.
        attribute: String,
        /// Its type.
        element: Element,
    },
    /// 1 if only the newest key and value of each sequence, of what the kernel reads of keys, lengths, positions, starts of
    /// sequences, block tables and rotations, may still be on its way when it begins (`EarlyLaunch::KeysSettled`); 0 if any
    /// of it may be.
    Settled {
        /// The integer's type.
        element: Element,
    },
    /// A tensor map, 128 bytes by value.
    TensorMap(TensorMap),
}

impl Parameter {
    /// Bytes of the parameter in the kernel's parameter buffer.
    pub fn size(&self) -> u32 {
        match self {
            Self::Pointer { .. } => 8,
            Self::Scalar { element, .. } | Self::Attribute { element, .. } | Self::Settled { element } => {
                element.size()
            }
            Self::TensorMap(_) => 128,
        }
    }
}

/// Every argument of `cuTensorMapEncodeTiled` but the address; dimensions are innermost first.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TensorMap {
    /// The operand that the map views.
    pub operand: String,
    /// Element type.
    pub element: Element,
    /// Extents in elements.
    pub dimensions: Vec<Expr>,
    /// Strides in bytes of every dimension but the innermost.
    pub strides: Vec<Expr>,
    /// Extents of the box that one copy moves.
    #[serde(rename = "box")]
    pub box_: Vec<u32>,
    /// Traversal strides in elements.
    pub element_strides: Vec<u32>,
    /// Interleaved layout.
    pub interleave: Interleave,
    /// Shared-memory swizzle.
    pub swizzle: Swizzle,
    /// L2 fetch granularity.
    pub l2_promotion: L2Promotion,
    /// What elements outside the tensor read as.
    pub fill: Fill,
}

/// `CUtensorMapInterleave`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[allow(missing_docs)]
pub enum Interleave {
    #[serde(rename = "none")]
    None,
    #[serde(rename = "16b")]
    B16,
    #[serde(rename = "32b")]
    B32,
}

/// `CUtensorMapSwizzle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[allow(missing_docs)]
pub enum Swizzle {
    #[serde(rename = "none")]
    None,
    #[serde(rename = "32b")]
    B32,
    #[serde(rename = "64b")]
    B64,
    #[serde(rename = "128b")]
    B128,
}

/// `CUtensorMapL2promotion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[allow(missing_docs)]
pub enum L2Promotion {
    #[serde(rename = "none")]
    None,
    #[serde(rename = "64b")]
    B64,
    #[serde(rename = "128b")]
    B128,
    #[serde(rename = "256b")]
    B256,
}

/// `CUtensorMapFloatOOBfill`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Fill {
    Zeros,
    Nan,
}

/// Arithmetic of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Numerics {
    /// Type that sums are kept in.
    pub accumulation: Element,
    /// How results are rounded to their element type.
    pub rounding: Rounding,
}

/// Rounding of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// To the nearest value, ties to even.
    NearestEven,
}

/// Why a text is no manifest.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// Not JSON of the schema: a missing, unknown or mistyped field.
    #[error("not a manifest: {0}")]
    Json(#[from] serde_json::Error),
    /// A schema that this version does not read.
    #[error("manifest schema {found}, this version reads {SCHEMA}")]
    Schema {
        /// The manifest's.
        found: u64,
    },
    /// A launch ABI that this version does not implement.
    #[error("launch ABI {found}, this version implements {ABI}")]
    Abi {
        /// The manifest's.
        found: u64,
    },
    /// Fields that contradict each other or a limit of the machine.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// The two fields that say whether the rest can be understood.
#[derive(Deserialize)]
struct Header {
    schema: u64,
    abi: u64,
}

impl Manifest {
    /// Parse and check a manifest.
    pub fn parse(json: &[u8]) -> Result<Self, ManifestError> {
        let header: Header = serde_json::from_slice(json)?;
        if header.schema != u64::from(SCHEMA) {
            return Err(ManifestError::Schema { found: header.schema });
        }
        if header.abi != u64::from(ABI) {
            return Err(ManifestError::Abi { found: header.abi });
        }
        let manifest: Self = serde_json::from_slice(json)?;
        check::check(&manifest)?;
        Ok(manifest)
    }

    /// Whose artifact it is.
    pub fn provider(&self) -> Provider {
        self.toolchain.lowering.provider()
    }

    /// The operand of that name.
    pub fn operand(&self, name: &str) -> Option<&Operand> {
        self.operands.iter().find(|operand| operand.name == name)
    }

    /// Why dimensions are outside the artifact's domain, if they are. Dimensions it does not know are ignored.
    pub fn out_of_domain(&self, dimensions: &Dimensions) -> Option<OutOfDomain> {
        let single = self.dimensions.iter().find_map(|(name, domain)| {
            let value = dimensions.get(name).copied();
            let outside = !value.is_some_and(|value| domain.contains(value));
            outside.then(|| OutOfDomain { what: name.clone(), domain: *domain, value })
        });
        single.or_else(|| {
            self.conditions.iter().find_map(|Condition { value: what, domain }| {
                let value = what.eval(dimensions).ok();
                let outside = !value.is_some_and(|value| domain.contains(value));
                outside.then(|| OutOfDomain { what: what.to_string(), domain: *domain, value })
            })
        })
    }
}

/// A dimension, or a value computed from dimensions, that an artifact does not admit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} must be {domain}, got {}", value.map_or("nothing".to_owned(), |value| value.to_string()))]
pub struct OutOfDomain {
    /// Name of the dimension, or the expression.
    pub what: String,
    /// What the artifact admits.
    pub domain: Domain,
    /// What was given; nothing if the dimension is missing or the expression has no value.
    pub value: Option<u64>,
}

pub use check::{CheckError as ManifestCheckError, MAX_CUBIN_SIZE};

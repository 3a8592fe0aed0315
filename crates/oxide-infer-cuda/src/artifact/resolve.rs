//! From a manifest and the values of its dimensions to the numbers that a launch passes to the driver.

use super::expr::{Dimensions, EvalError};
use super::manifest::{Element, Launch, Manifest, Operand, OutOfDomain, Parameter, TensorMap};
use thiserror::Error;

/// Limits of CUDA's grid along x, y and z.
const MAX_GRID: [u64; 3] = [(1 << 31) - 1, 65_535, 65_535];
/// `cuTensorMapEncodeTiled` admits extents up to 2^32 and strides below 2^40.
const MAX_MAP_EXTENT: u64 = 1 << 32;
const MAX_MAP_STRIDE: u64 = 1 << 40;

/// A launch with every expression replaced by its value.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedLaunch<'a> {
    /// What it is a launch of: symbol, block, cluster, shared memory.
    pub launch: &'a Launch,
    /// Blocks along x, y and z, each at least 1.
    pub grid: [u32; 3],
    /// Kernel parameters in order.
    pub parameters: Vec<ResolvedParameter<'a>>,
}

/// A kernel parameter, complete but for addresses and attribute values.
#[derive(Clone, Debug, PartialEq)]
pub enum ResolvedParameter<'a> {
    /// The address of an operand.
    Pointer(&'a Operand),
    /// The little-endian bytes of a number.
    Scalar(Vec<u8>),
    /// An attribute of this name and type.
    Attribute(&'a str, Element),
    /// Whether keys are settled when the kernel begins, as an `i32`.
    Settled,
    /// A tensor map to encode.
    TensorMap(ResolvedTensorMap<'a>),
}

/// Arguments of `cuTensorMapEncodeTiled`, but the address.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedTensorMap<'a> {
    /// The operand whose address it takes.
    pub operand: &'a Operand,
    /// The constant arguments.
    pub map: &'a TensorMap,
    /// Extents, innermost first.
    pub dimensions: Vec<u64>,
    /// Strides in bytes of every dimension but the innermost.
    pub strides: Vec<u64>,
}

/// Why dimensions give no launch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResolveError {
    /// A dimension is missing, or it or a condition is outside its domain.
    #[error("{artifact}: {source}")]
    Domain {
        /// The artifact.
        artifact: String,
        /// What is outside.
        source: OutOfDomain,
    },
    /// An expression has no value.
    #[error("{artifact}: {source}")]
    Expression {
        /// The artifact.
        artifact: String,
        /// What went wrong.
        source: EvalError,
    },
    /// A value is outside what CUDA admits there.
    #[error("{artifact}: {what} is {value}, must be {min} to {max}")]
    Limit {
        /// The artifact.
        artifact: String,
        /// What the value is.
        what: String,
        /// The value.
        value: u64,
        /// Least value admitted.
        min: u64,
        /// Greatest value admitted.
        max: u64,
    },
    /// A tensor map's stride is not a multiple of 16 bytes.
    #[error("{artifact}: stride {stride} of the tensor map of {operand} is not a multiple of 16")]
    Stride {
        /// The artifact.
        artifact: String,
        /// The operand.
        operand: String,
        /// The stride in bytes.
        stride: u64,
    },
}

impl Manifest {
    /// The launches for `dimensions`, which must hold a value in its domain for every dimension of the manifest.
    pub fn resolve(&self, dimensions: &Dimensions) -> Result<Vec<ResolvedLaunch<'_>>, ResolveError> {
        self.check_domains(dimensions)?;
        let resolver = Resolver { manifest: self, dimensions };
        self.launches.iter().map(|launch| resolver.launch(launch)).collect()
    }

    /// Bytes of an operand for `dimensions`.
    pub fn operand_bytes(&self, operand: &Operand, dimensions: &Dimensions) -> Result<u64, ResolveError> {
        self.check_domains(dimensions)?;
        let resolver = Resolver { manifest: self, dimensions };
        let mut bytes = u64::from(operand.element.size());
        for extent in &operand.shape {
            let extent = resolver.value(extent)?;
            bytes = bytes.checked_mul(extent).ok_or_else(|| ResolveError::Limit {
                artifact: self.name.clone(),
                what: format!("an extent of operand {}", operand.name),
                value: extent,
                min: 0,
                max: u64::MAX / bytes.max(1),
            })?;
        }
        Ok(bytes)
    }

    fn check_domains(&self, dimensions: &Dimensions) -> Result<(), ResolveError> {
        match self.out_of_domain(dimensions) {
            None => Ok(()),
            Some(source) => Err(ResolveError::Domain { artifact: self.name.clone(), source }),
        }
    }
}

struct Resolver<'a, 'd> {
    manifest: &'a Manifest,
    dimensions: &'d Dimensions,
}

impl<'a> Resolver<'a, '_> {
    fn launch(&self, launch: &'a Launch) -> Result<ResolvedLaunch<'a>, ResolveError> {
        let mut grid = [0; 3];
        for (axis, extent) in launch.grid.iter().enumerate() {
            let what = || format!("grid {} of {}", ["x", "y", "z"][axis], launch.symbol);
            grid[axis] = self.limited(extent, what, 1, MAX_GRID[axis])? as u32;
        }
        let parameters =
            launch.parameters.iter().map(|parameter| self.parameter(parameter)).collect::<Result<_, _>>()?;
        Ok(ResolvedLaunch { launch, grid, parameters })
    }

    fn parameter(&self, parameter: &'a Parameter) -> Result<ResolvedParameter<'a>, ResolveError> {
        match parameter {
            Parameter::Pointer { operand, .. } => Ok(ResolvedParameter::Pointer(self.operand(operand))),
            Parameter::Attribute { attribute, element } => {
                Ok(ResolvedParameter::Attribute(attribute, *element))
            }
            Parameter::Scalar { element, value } => self.scalar(*element, value),
            Parameter::Settled { .. } => Ok(ResolvedParameter::Settled),
            Parameter::TensorMap(map) => self.tensor_map(map),
        }
    }

    fn scalar(&self, element: Element, value: &super::Expr) -> Result<ResolvedParameter<'a>, ResolveError> {
        let max = match element {
            Element::I32 => i32::MAX as u64,
            Element::U32 => u64::from(u32::MAX),
            Element::I64 => i64::MAX as u64,
            _ => u64::MAX,
        };
        let number = self.limited(value, || format!("scalar {value}"), 0, max)?;
        Ok(ResolvedParameter::Scalar(number.to_le_bytes()[..element.size() as usize].to_vec()))
    }

    fn tensor_map(&self, map: &'a TensorMap) -> Result<ResolvedParameter<'a>, ResolveError> {
        let extent =
            |expr| self.limited(expr, || format!("tensor map extent of {}", map.operand), 1, MAX_MAP_EXTENT);
        let stride = |expr| {
            let what = || format!("tensor map stride of {}", map.operand);
            let stride = self.limited(expr, what, 1, MAX_MAP_STRIDE - 1)?;
            if stride.is_multiple_of(16) {
                return Ok(stride);
            }
            Err(ResolveError::Stride {
                artifact: self.manifest.name.clone(),
                operand: map.operand.clone(),
                stride,
            })
        };
        Ok(ResolvedParameter::TensorMap(ResolvedTensorMap {
            operand: self.operand(&map.operand),
            map,
            dimensions: map.dimensions.iter().map(extent).collect::<Result<_, _>>()?,
            strides: map.strides.iter().map(stride).collect::<Result<_, _>>()?,
        }))
    }

    fn operand(&self, name: &str) -> &'a Operand {
        // Parsing a manifest refuses parameters that name no operand.
        self.manifest.operand(name).expect("a parsed manifest declares the operands it passes")
    }

    fn value(&self, expr: &super::Expr) -> Result<u64, ResolveError> {
        let artifact = || self.manifest.name.clone();
        expr.eval(self.dimensions).map_err(|source| ResolveError::Expression { artifact: artifact(), source })
    }

    fn limited(
        &self,
        expr: &super::Expr,
        what: impl Fn() -> String,
        min: u64,
        max: u64,
    ) -> Result<u64, ResolveError> {
        let value = self.value(expr)?;
        if (min..=max).contains(&value) {
            return Ok(value);
        }
        Err(ResolveError::Limit { artifact: self.manifest.name.clone(), what: what(), value, min, max })
    }
}

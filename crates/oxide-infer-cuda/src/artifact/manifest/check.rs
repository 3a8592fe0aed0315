//! What a manifest's fields must satisfy together.

use super::{Domain, Element, Launch, Manifest, Operand, Parameter, Swizzle, TensorMap};
use crate::artifact::expr::Expr;
use std::collections::BTreeSet;
use thiserror::Error;

/// The largest cubin admitted, in bytes; real ones are under 1 MiB.
pub const MAX_CUBIN_SIZE: usize = 64 << 20;
const MAX_THREADS: u64 = 1024;
const MAX_CLUSTER: u64 = 16;
/// Shared memory that a block may have on the largest device, static and dynamic.
const MAX_SHARED_MEMORY: u32 = 227 << 10;
const MAX_BOX: u32 = 256;
const MAX_RANK: usize = 5;

/// How a manifest contradicts itself or the machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum CheckError {
    #[error("{what} {name:?} must be lowercase letters, digits and `_`, starting with a letter")]
    Name { what: &'static str, name: String },
    #[error(
        "{what} {name:?} must be parts joined by `.`, each lowercase letters, digits and `_`, starting with a letter"
    )]
    DottedName { what: &'static str, name: String },
    #[error("artifact {0:?} must be parts joined by `.`, each one or more lowercase letters, digits and `_`")]
    ArtifactName(String),
    #[error("symbol {0:?} must be one or more letters, digits and `_`")]
    SymbolName(String),
    #[error("cubin file {file:?} must be {expected:?}")]
    CubinFile { file: String, expected: String },
    #[error("cubin of {size} bytes, must be 1 to {MAX_CUBIN_SIZE}")]
    CubinSize { size: usize },
    #[error("contract version must be at least 1")]
    ContractVersion,
    #[error("domain of {what} is empty: min {min}, max {max}, multiple of {multiple_of}")]
    EmptyDomain { what: String, min: u64, max: u64, multiple_of: u64 },
    #[error("{place}: expression {expr:?} names {name}, which is no dimension")]
    UnknownDimension { place: String, expr: String, name: String },
    #[error("operand {0} comes twice")]
    RepeatedOperand(String),
    #[error(
        "operand {operand}: alignment {alignment} is not a power of two of at least the element's {size} bytes"
    )]
    Alignment { operand: String, alignment: u64, size: u32 },
    #[error("operand {operand} may share the region of {other}, which is no other operand")]
    SameAs { operand: String, other: String },
    #[error("{place} names operand {operand}, which is not declared")]
    UnknownOperand { place: String, operand: String },
    #[error("{place} passes operand {operand} as {found}, it is declared {declared}")]
    OperandElement { place: String, operand: String, declared: Element, found: Element },
    #[error("operand {0} is passed to no kernel")]
    UnusedOperand(String),
    #[error("{place} names attribute {attribute}, which is not declared as {element}")]
    UnknownAttribute { place: String, attribute: String, element: Element },
    #[error("{place}: {element} cannot hold the number that is passed there")]
    ScalarElement { place: String, element: Element },
    #[error("there is no launch")]
    NoLaunch,
    #[error("kernel {0} is launched twice; each launch must have a kernel of its own")]
    RepeatedSymbol(String),
    #[error("{symbol}: block {block:?} must have 1 to {MAX_THREADS} threads")]
    Block { symbol: String, block: [u32; 3] },
    #[error("{symbol}: cluster {cluster:?} must have 1 to {MAX_CLUSTER} blocks")]
    Cluster { symbol: String, cluster: [u32; 3] },
    #[error("{symbol}: {bytes} bytes of dynamic shared memory, at most {MAX_SHARED_MEMORY}")]
    SharedMemory { symbol: String, bytes: u32 },
    #[error("{place}: tensor map of rank {rank}, must be 1 to {MAX_RANK}")]
    Rank { place: String, rank: usize },
    #[error("{place}: tensor map of rank {rank} has {count} {what}, must have {expected}")]
    RankMismatch { place: String, what: &'static str, rank: usize, count: usize, expected: usize },
    #[error("{place}: tensor map box {box_:?} must be 1 to {MAX_BOX} along each dimension")]
    Box { place: String, box_: Vec<u32> },
    #[error(
        "{place}: a box row of {bytes} bytes is not a multiple of 16, or wider than its swizzle of {swizzle}"
    )]
    BoxRow { place: String, bytes: u32, swizzle: u32 },
    #[error("{place}: tensor map element strides {strides:?} must be 1 to 8")]
    ElementStrides { place: String, strides: Vec<u32> },
}

/// Check everything that the field types do not.
pub(super) fn check(manifest: &Manifest) -> Result<(), CheckError> {
    check_names(manifest)?;
    check_cubin(manifest)?;
    if manifest.contract_version == 0 {
        return Err(CheckError::ContractVersion);
    }
    manifest.dimensions.iter().try_for_each(|(name, domain)| check_domain(name, domain))?;
    for condition in &manifest.conditions {
        check_domain(condition.value.as_str(), &condition.domain)?;
        check_expr(manifest, "condition", &condition.value)?;
    }
    check_operands(manifest)?;
    if manifest.launches.is_empty() {
        return Err(CheckError::NoLaunch);
    }
    let mut seen = BTreeSet::new();
    for launch in &manifest.launches {
        if !seen.insert(&launch.symbol) {
            return Err(CheckError::RepeatedSymbol(launch.symbol.clone()));
        }
        check_launch(manifest, launch)?;
    }
    Ok(())
}

fn check_domain(what: &str, domain: &Domain) -> Result<(), CheckError> {
    let &Domain { min, max, multiple_of } = domain;
    let first = min.checked_next_multiple_of(multiple_of);
    if multiple_of == 0 || min > max || first.is_none_or(|first| first > max) {
        return Err(CheckError::EmptyDomain { what: what.to_owned(), min, max, multiple_of });
    }
    Ok(())
}

fn check_names(manifest: &Manifest) -> Result<(), CheckError> {
    // An artifact's name may have parts that start with a digit, never an empty or `..` one: it names a file.
    if !manifest.name.split('.').all(is_word) {
        return Err(CheckError::ArtifactName(manifest.name.clone()));
    }
    for (what, name) in [("contract", &manifest.contract), ("kernel", &manifest.source.kernel)] {
        if !name.split('.').all(is_name) {
            return Err(CheckError::DottedName { what, name: name.clone() });
        }
    }
    check_name("algorithm", &manifest.algorithm)?;
    for (what, names) in [
        ("property", manifest.properties.keys().collect::<Vec<_>>()),
        ("dimension", manifest.dimensions.keys().collect()),
        ("attribute", manifest.attributes.keys().collect()),
        ("constant", manifest.constants.keys().collect()),
        ("operand", manifest.operands.iter().map(|operand| &operand.name).collect()),
    ] {
        names.into_iter().try_for_each(|name| check_name(what, name))?;
    }
    Ok(())
}

fn check_name(what: &'static str, name: &str) -> Result<(), CheckError> {
    if is_name(name) { Ok(()) } else { Err(CheckError::Name { what, name: name.to_owned() }) }
}

fn is_name(text: &str) -> bool {
    is_word(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn check_cubin(manifest: &Manifest) -> Result<(), CheckError> {
    let expected = format!("{}.cubin.zst", manifest.name);
    if manifest.cubin.file != expected {
        return Err(CheckError::CubinFile { file: manifest.cubin.file.clone(), expected });
    }
    if !(1..=MAX_CUBIN_SIZE).contains(&manifest.cubin.size) {
        return Err(CheckError::CubinSize { size: manifest.cubin.size });
    }
    Ok(())
}

fn check_operands(manifest: &Manifest) -> Result<(), CheckError> {
    let mut seen = BTreeSet::new();
    for operand in &manifest.operands {
        if !seen.insert(&operand.name) {
            return Err(CheckError::RepeatedOperand(operand.name.clone()));
        }
        check_operand(manifest, operand)?;
    }
    Ok(())
}

fn check_operand(manifest: &Manifest, operand: &Operand) -> Result<(), CheckError> {
    let place = format!("operand {}", operand.name);
    operand.shape.iter().try_for_each(|extent| check_expr(manifest, &place, extent))?;
    let (alignment, size) = (operand.alignment, operand.element.size());
    if !alignment.is_power_of_two() || alignment < u64::from(size) {
        return Err(CheckError::Alignment { operand: operand.name.clone(), alignment, size });
    }
    if let Some(other) = &operand.same_as
        && (*other == operand.name || manifest.operand(other).is_none())
    {
        return Err(CheckError::SameAs { operand: operand.name.clone(), other: other.clone() });
    }
    let passed =
        manifest.launches.iter().flat_map(|launch| &launch.parameters).any(|parameter| match parameter {
            Parameter::Pointer { operand: name, .. } => *name == operand.name,
            Parameter::TensorMap(map) => map.operand == operand.name,
            Parameter::Scalar { .. } | Parameter::Attribute { .. } | Parameter::Settled { .. } => false,
        });
    if passed { Ok(()) } else { Err(CheckError::UnusedOperand(operand.name.clone())) }
}

fn check_launch(manifest: &Manifest, launch: &Launch) -> Result<(), CheckError> {
    let symbol = || launch.symbol.clone();
    let volume = |extents: [u32; 3]| extents.into_iter().map(u64::from).try_fold(1, u64::checked_mul);
    if launch.symbol.is_empty() || !launch.symbol.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(CheckError::SymbolName(symbol()));
    }
    launch.grid.iter().try_for_each(|extent| check_expr(manifest, &launch.symbol, extent))?;
    if !volume(launch.block).is_some_and(|threads| (1..=MAX_THREADS).contains(&threads)) {
        return Err(CheckError::Block { symbol: symbol(), block: launch.block });
    }
    if let Some(cluster) = launch.cluster
        && !volume(cluster).is_some_and(|blocks| (1..=MAX_CLUSTER).contains(&blocks))
    {
        return Err(CheckError::Cluster { symbol: symbol(), cluster });
    }
    if launch.dynamic_shared_memory > MAX_SHARED_MEMORY {
        return Err(CheckError::SharedMemory { symbol: symbol(), bytes: launch.dynamic_shared_memory });
    }
    launch.parameters.iter().enumerate().try_for_each(|(index, parameter)| {
        check_parameter(manifest, &format!("{} parameter {index}", launch.symbol), parameter)
    })
}

fn check_parameter(manifest: &Manifest, place: &str, parameter: &Parameter) -> Result<(), CheckError> {
    match parameter {
        Parameter::Pointer { operand, element } => check_operand_use(manifest, place, operand, *element),
        Parameter::Scalar { element: Element::I32 | Element::U32 | Element::I64 | Element::U64, value } => {
            check_expr(manifest, place, value)
        }
        Parameter::Settled { element: Element::I32 } => Ok(()),
        Parameter::Scalar { element, .. } | Parameter::Settled { element } => {
            Err(CheckError::ScalarElement { place: place.to_owned(), element: *element })
        }
        Parameter::Attribute { attribute, element }
            if manifest.attributes.get(attribute) != Some(element) =>
        {
            let (place, attribute) = (place.to_owned(), attribute.clone());
            Err(CheckError::UnknownAttribute { place, attribute, element: *element })
        }
        Parameter::Attribute { .. } => Ok(()),
        Parameter::TensorMap(map) => check_tensor_map(manifest, place, map),
    }
}

fn check_operand_use(manifest: &Manifest, place: &str, name: &str, found: Element) -> Result<(), CheckError> {
    let (place, name) = (place.to_owned(), name.to_owned());
    match manifest.operand(&name).map(|operand| operand.element) {
        None => Err(CheckError::UnknownOperand { place, operand: name }),
        Some(declared) if declared != found => {
            Err(CheckError::OperandElement { place, operand: name, declared, found })
        }
        Some(_) => Ok(()),
    }
}

fn check_tensor_map(manifest: &Manifest, place: &str, map: &TensorMap) -> Result<(), CheckError> {
    check_operand_use(manifest, place, &map.operand, map.element)?;
    let rank = map.dimensions.len();
    if !(1..=MAX_RANK).contains(&rank) {
        return Err(CheckError::Rank { place: place.to_owned(), rank });
    }
    for (what, count, expected) in [
        ("strides", map.strides.len(), rank - 1),
        ("box extents", map.box_.len(), rank),
        ("element strides", map.element_strides.len(), rank),
    ] {
        if count != expected {
            return Err(CheckError::RankMismatch { place: place.to_owned(), what, rank, count, expected });
        }
    }
    map.dimensions.iter().chain(&map.strides).try_for_each(|extent| check_expr(manifest, place, extent))?;
    if !map.box_.iter().all(|extent| (1..=MAX_BOX).contains(extent)) {
        return Err(CheckError::Box { place: place.to_owned(), box_: map.box_.clone() });
    }
    if !map.element_strides.iter().all(|stride| (1..=8).contains(stride)) {
        return Err(CheckError::ElementStrides {
            place: place.to_owned(),
            strides: map.element_strides.clone(),
        });
    }
    let (bytes, swizzle) = (map.box_[0] * map.element.size(), swizzle_bytes(map.swizzle));
    if !bytes.is_multiple_of(16) || swizzle.is_some_and(|swizzle| bytes > swizzle) {
        return Err(CheckError::BoxRow { place: place.to_owned(), bytes, swizzle: swizzle.unwrap_or(0) });
    }
    Ok(())
}

/// Bytes of the inner dimension that a swizzle spans.
fn swizzle_bytes(swizzle: Swizzle) -> Option<u32> {
    match swizzle {
        Swizzle::None => None,
        Swizzle::B32 => Some(32),
        Swizzle::B64 => Some(64),
        Swizzle::B128 => Some(128),
    }
}

fn check_expr(manifest: &Manifest, place: &str, expr: &Expr) -> Result<(), CheckError> {
    match expr.names().into_iter().find(|name| !manifest.dimensions.contains_key(*name)) {
        None => Ok(()),
        Some(name) => Err(CheckError::UnknownDimension {
            place: place.to_owned(),
            expr: expr.to_string(),
            name: name.to_owned(),
        }),
    }
}

//! Operands checked against a manifest, and laid out as kernel parameters.

use super::{BindError, EarlyLaunch, Operands, OperatorPlan};
use crate::artifact::manifest::{Element, Operand, Role};
use crate::artifact::{Manifest, ResolvedLaunch, ResolvedParameter, ResolvedTensorMap};
use crate::driver::{LaunchShape, Serialization, TensorMapRecipe};
use crate::runtime::kernel::{Access, Argument, BoundLaunch, Kernel};
use crate::runtime::memory::Span;
use oxide_infer::DType;

/// An `i32`, as it lies in memory.
const FALSE: [u8; 4] = 0i32.to_le_bytes();
const TRUE: [u8; 4] = 1i32.to_le_bytes();

/// Binds one plan to one set of operands.
pub(super) struct Binder<'a> {
    pub(super) plan: &'a OperatorPlan,
    pub(super) manifest: &'a Manifest,
    pub(super) operands: &'a Operands<'a>,
}

impl<'a> Binder<'a> {
    /// Names the first operand or attribute that does not fit the manifest.
    pub(super) fn check(&self) -> Result<(), BindError> {
        let regions = self.manifest.operands.iter().filter(|operand| operand.role != Role::Status);
        let expected = regions.map(|operand| {
            Ok(Expected {
                name: &operand.name,
                role: operand.role,
                element: operand.element,
                bytes: self.manifest.operand_bytes(operand, &self.plan.dimensions)?,
                alignment: operand.alignment,
                writes: operand.access.writes(),
                same_as: operand.same_as.as_deref(),
            })
        });
        let expected = expected.collect::<Result<Vec<_>, BindError>>()?;
        let attributes: Vec<_> = self.manifest.attributes.keys().map(String::as_str).collect();
        check_operands(&self.manifest.name, &expected, &attributes, self.operands)
    }

    /// One kernel of the operator, with its parameters. For operands that [`Binder::check`] has seen.
    pub(super) fn launch(
        &self,
        launch: &ResolvedLaunch<'_>,
        kernel: &Kernel,
    ) -> Result<BoundLaunch, BindError> {
        let arguments = launch.parameters.iter().map(|p| self.argument(p)).collect::<Result<Vec<_>, _>>()?;
        let shape = LaunchShape {
            grid: launch.grid,
            block: launch.launch.block,
            shared_bytes: launch.launch.dynamic_shared_memory,
            cluster: launch.launch.cluster,
            serialization: match self.plan.early_launch {
                EarlyLaunch::WhereKernelsWait | EarlyLaunch::KeysSettled
                    if launch.launch.programmatic_stream_serialization =>
                {
                    Serialization::Programmatic
                }
                EarlyLaunch::WhereKernelsWait | EarlyLaunch::KeysSettled | EarlyLaunch::Never => {
                    Serialization::Full
                }
            },
        };
        // SAFETY: kernel and parameters are of one verified manifest, whose parameter sizes match the machine code; every
        // region is as long, typed and aligned as the manifest says, which `check` has seen.
        unsafe { kernel.bind(shape, &arguments) }
            .map_err(|source| BindError::Kernel { operator: self.manifest.name.clone(), source })
    }

    pub(super) fn argument(&self, parameter: &'a ResolvedParameter<'a>) -> Result<Argument<'a>, BindError> {
        Ok(match parameter {
            ResolvedParameter::Pointer(operand) if operand.role == Role::Status => {
                Argument::Status(self.operands.status.ok_or_else(|| self.missing(&operand.name))?)
            }
            ResolvedParameter::Pointer(operand) => Argument::Region(self.span(operand)?, access(operand)),
            ResolvedParameter::Scalar(bytes) => Argument::Number(bytes),
            ResolvedParameter::Settled => Argument::Number(match self.plan.early_launch {
                EarlyLaunch::KeysSettled => &TRUE,
                EarlyLaunch::WhereKernelsWait | EarlyLaunch::Never => &FALSE,
            }),
            ResolvedParameter::Attribute(name, _) => {
                Argument::F32(*self.operands.attributes.get(name).ok_or_else(|| self.missing(name))?)
            }
            ResolvedParameter::TensorMap(map) => {
                Argument::TensorMap(self.span(map.operand)?, access(map.operand), recipe(map))
            }
        })
    }

    fn span(&self, operand: &Operand) -> Result<Span<'a>, BindError> {
        let span = self.operands.regions.get(operand.name.as_str());
        span.copied().ok_or_else(|| self.missing(&operand.name))
    }

    fn missing(&self, operand: &str) -> BindError {
        BindError::Missing { operator: self.manifest.name.clone(), operand: operand.to_owned() }
    }
}

/// What an operator asks of the region that it is given by one name.
pub(crate) struct Expected<'a> {
    pub(crate) name: &'a str,
    pub(crate) role: Role,
    pub(crate) element: Element,
    pub(crate) bytes: u64,
    pub(crate) alignment: u64,
    pub(crate) writes: bool,
    /// The operand whose region this one may also be, exactly.
    pub(crate) same_as: Option<&'a str>,
}

/// Names the first operand or attribute that is not what an operator expects.
pub(crate) fn check_operands(
    operator: &str,
    expected: &[Expected<'_>],
    attributes: &[&str],
    operands: &Operands<'_>,
) -> Result<(), BindError> {
    let known = |name: &&&str| expected.iter().any(|expected| expected.name == **name);
    let unknown = operands.regions.keys().find(|name| !known(name));
    let unknown = unknown.or_else(|| operands.attributes.keys().find(|name| !attributes.contains(name)));
    let operator = || operator.to_owned();
    if let Some(name) = unknown {
        return Err(BindError::Unexpected { operator: operator(), name: (*name).to_owned() });
    }
    let span = |expected: &Expected<'_>| {
        let missing = || BindError::Missing { operator: operator(), operand: expected.name.to_owned() };
        operands.regions.get(expected.name).copied().ok_or_else(missing)
    };
    for one in expected {
        one.check(operator, &span(one)?)?;
    }
    for written in expected.iter().filter(|expected| expected.writes) {
        let region = span(written)?;
        for other in expected.iter().filter(|other| other.name != written.name) {
            let another = span(other)?;
            let named = written.same_as == Some(other.name) || other.same_as == Some(written.name);
            if region.overlaps(&another) && !(named && region.ptr() == another.ptr()) {
                let (first, second) = (written.name.to_owned(), other.name.to_owned());
                return Err(BindError::Alias { operator: operator(), first, second });
            }
        }
    }
    Ok(())
}

impl Expected<'_> {
    fn check(&self, operator: impl Fn() -> String, span: &Span<'_>) -> Result<(), BindError> {
        let name = || self.name.to_owned();
        // A workspace's contents mean nothing to its caller: bytes do for any element.
        let any_type = self.role == Role::Workspace && span.dtype() == DType::U8;
        if !any_type && dtype(self.element) != Some(span.dtype()) {
            let (expected, found) = (self.element, span.dtype());
            return Err(BindError::DType { operator: operator(), operand: name(), expected, found });
        }
        if (span.bytes() as u64) < self.bytes {
            let (expected, found) = (self.bytes, span.bytes());
            return Err(BindError::Capacity { operator: operator(), operand: name(), expected, found });
        }
        let (address, alignment) = (span.ptr().0, self.alignment);
        if !address.is_multiple_of(alignment) {
            return Err(BindError::Alignment { operator: operator(), operand: name(), address, alignment });
        }
        Ok(())
    }
}

/// Aliasing is checked for the whole operator, with what the manifest admits, so a launch need not check it again.
fn access(operand: &Operand) -> Access {
    if operand.access.writes() { Access::Shared } else { Access::Read }
}

fn recipe<'a>(map: &'a ResolvedTensorMap<'a>) -> TensorMapRecipe<'a> {
    TensorMapRecipe {
        data_type: tensor_map_type(map.map.element),
        global_dim: &map.dimensions,
        global_strides: &map.strides,
        box_dim: &map.map.box_,
        element_strides: &map.map.element_strides,
        interleave: map.map.interleave as u32,
        swizzle: map.map.swizzle as u32,
        l2_promotion: map.map.l2_promotion as u32,
        oob_fill: map.map.fill as u32,
    }
}

/// `CUtensorMapDataType`, in the numbering of `cuda.h`; the other enumerations are declared in the driver's order.
pub(super) fn tensor_map_type(element: Element) -> u32 {
    match element {
        Element::U8 => 0,
        Element::U32 => 2,
        Element::I32 => 3,
        Element::U64 => 4,
        Element::I64 => 5,
        Element::F16 => 6,
        Element::F32 => 7,
        Element::Bf16 => 9,
    }
}

/// The contracts' element type, of those that have one.
pub(super) fn dtype(element: Element) -> Option<DType> {
    Some(match element {
        Element::F32 => DType::F32,
        Element::F16 => DType::F16,
        Element::Bf16 => DType::BF16,
        Element::I32 => DType::I32,
        Element::U32 => DType::U32,
        Element::U8 => DType::U8,
        Element::I64 | Element::U64 => return None,
    })
}

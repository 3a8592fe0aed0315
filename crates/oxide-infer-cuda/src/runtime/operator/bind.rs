//! Operands checked against a manifest, and laid out as kernel parameters.

use super::{BindError, EarlyLaunch, Operands, OperatorPlan};
use crate::artifact::manifest::{Element, Operand, Role};
use crate::artifact::{Manifest, ResolvedLaunch, ResolvedParameter, ResolvedTensorMap};
use crate::driver::{LaunchShape, Serialization, TensorMapRecipe};
use crate::runtime::kernel::{Access, Argument, BoundLaunch, Kernel};
use crate::runtime::memory::Span;
use oxide_infer::DType;

/// Binds one plan to one set of operands.
pub(super) struct Binder<'a> {
    pub(super) plan: &'a OperatorPlan,
    pub(super) manifest: &'a Manifest,
    pub(super) operands: &'a Operands<'a>,
}

impl<'a> Binder<'a> {
    /// Names the first operand or attribute that does not fit the manifest.
    pub(super) fn check(&self) -> Result<(), BindError> {
        let known = |name: &str| self.manifest.operand(name).is_some_and(|o| o.role != Role::Status);
        let unknown = self.operands.regions.keys().find(|name| !known(name)).or_else(|| {
            self.operands.attributes.keys().find(|name| !self.manifest.attributes.contains_key(**name))
        });
        if let Some(name) = unknown {
            return Err(BindError::Unexpected { artifact: self.artifact(), name: (*name).to_owned() });
        }
        let regions = self.manifest.operands.iter().filter(|operand| operand.role != Role::Status);
        regions.clone().try_for_each(|operand| self.check_operand(operand))?;
        regions.filter(|operand| operand.access.writes()).try_for_each(|operand| self.check_alias(operand))
    }

    fn check_operand(&self, operand: &Operand) -> Result<(), BindError> {
        let span = self.span(operand)?;
        let (artifact, name) = (|| self.artifact(), || operand.name.clone());
        // A workspace's contents mean nothing to its caller: bytes do for any element.
        let any_type = operand.role == Role::Workspace && span.dtype() == DType::U8;
        if !any_type && dtype(operand.element) != Some(span.dtype()) {
            let (expected, found) = (operand.element, span.dtype());
            return Err(BindError::DType { artifact: artifact(), operand: name(), expected, found });
        }
        let expected = self.manifest.operand_bytes(operand, &self.plan.dimensions)?;
        if (span.bytes() as u64) < expected {
            let found = span.bytes();
            return Err(BindError::Capacity { artifact: artifact(), operand: name(), expected, found });
        }
        let (address, alignment) = (span.ptr().0, operand.alignment);
        if !address.is_multiple_of(alignment) {
            return Err(BindError::Alignment { artifact: artifact(), operand: name(), address, alignment });
        }
        Ok(())
    }

    fn check_alias(&self, written: &Operand) -> Result<(), BindError> {
        let span = self.span(written)?;
        let others = self.manifest.operands.iter();
        for other in others.filter(|other| other.role != Role::Status && other.name != written.name) {
            let another = self.span(other)?;
            let admitted = (names(written, other) || names(other, written)) && span.ptr() == another.ptr();
            if span.overlaps(&another) && !admitted {
                let (first, second) = (written.name.clone(), other.name.clone());
                return Err(BindError::Alias { artifact: self.artifact(), first, second });
            }
        }
        Ok(())
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
                EarlyLaunch::WhereKernelsWait if launch.launch.programmatic_stream_serialization => {
                    Serialization::Programmatic
                }
                EarlyLaunch::WhereKernelsWait | EarlyLaunch::Never => Serialization::Full,
            },
        };
        // SAFETY: kernel and parameters are of one verified manifest, whose parameter sizes match the machine code; every
        // region is as long, typed and aligned as the manifest says, which `check` has seen.
        unsafe { kernel.bind(shape, &arguments) }
            .map_err(|source| BindError::Kernel { artifact: self.artifact(), source })
    }

    fn argument(&self, parameter: &'a ResolvedParameter<'a>) -> Result<Argument<'a>, BindError> {
        Ok(match parameter {
            ResolvedParameter::Pointer(operand) if operand.role == Role::Status => {
                Argument::Status(self.operands.status.ok_or_else(|| self.missing(&operand.name))?)
            }
            ResolvedParameter::Pointer(operand) => Argument::Region(self.span(operand)?, access(operand)),
            ResolvedParameter::Scalar(bytes) => Argument::Number(bytes),
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
        BindError::Missing { artifact: self.artifact(), operand: operand.to_owned() }
    }

    fn artifact(&self) -> String {
        self.manifest.name.clone()
    }
}

fn names(operand: &Operand, other: &Operand) -> bool {
    operand.same_as.as_ref() == Some(&other.name)
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

//! Checks that many contracts share.

use crate::{Contract, DType, DataError, Dims, OperandError, Presence, SpecError, View};

pub(crate) fn float_dtype(contract: Contract, field: &'static str, got: DType) -> Result<(), SpecError> {
    if got.is_float() {
        return Ok(());
    }
    Err(SpecError::DType { contract, field, expected: "f32, f16 or bf16", got })
}

pub(crate) fn at_least_one(contract: Contract, field: &'static str, got: usize) -> Result<(), SpecError> {
    if got >= 1 {
        return Ok(());
    }
    Err(SpecError::Size { contract, field, expected: "at least 1", got })
}

pub(crate) fn positive(contract: Contract, field: &'static str, got: f64) -> Result<(), SpecError> {
    if got.is_finite() && got > 0.0 {
        return Ok(());
    }
    Err(SpecError::Number { contract, field, expected: "a finite number over 0", got })
}

pub(crate) fn multiple(
    contract: Contract,
    (field, got): (&'static str, usize),
    (divisor_name, divisor): (&'static str, usize),
) -> Result<(), SpecError> {
    if got.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(SpecError::Multiple { contract, field, divisor_name, divisor, got })
}

pub(crate) fn shape<const R: usize>(
    contract: Contract,
    operand: &'static str,
    expected: [usize; R],
    got: [usize; R],
) -> Result<(), OperandError> {
    if expected == got {
        return Ok(());
    }
    Err(OperandError::Shape { contract, operand, expected: Dims::from(expected), got: Dims::from(got) })
}

/// Element type and shape of a floating-point operand.
pub(crate) fn float<const R: usize>(
    contract: Contract,
    operand: &'static str,
    expected: (DType, [usize; R]),
    got: (DType, [usize; R]),
) -> Result<(), OperandError> {
    if expected.0 != got.0 {
        return Err(OperandError::DType { contract, operand, expected: expected.0, got: got.0 });
    }
    shape(contract, operand, expected.1, got.1)
}

/// The operand, if the spec has it.
pub(crate) fn optional<T>(
    contract: Contract,
    operand: &'static str,
    expected: Presence,
    got: Option<T>,
) -> Result<Option<T>, OperandError> {
    match (expected, got.is_some()) {
        (Presence::Present, false) => Err(OperandError::Missing { contract, operand }),
        (Presence::Absent, true) => Err(OperandError::Unexpected { contract, operand }),
        _ => Ok(got),
    }
}

/// Row starts `[batch + 1]`: from 0 to `rows`, never falling.
pub(crate) fn starts(operand: &'static str, starts: View<'_, i32, 1>, rows: usize) -> Result<(), DataError> {
    let [entries] = starts.shape();
    let mut low = 0;
    for entry in 0..entries {
        let start = starts.at([entry]);
        let high = if entry == 0 { 0 } else { rows };
        if entry + 1 == entries {
            low = rows;
        }
        if usize::try_from(start).is_ok_and(|start| (low..=high).contains(&start)) {
            low = start as usize;
        } else {
            return Err(DataError::Start { operand, entry, start, low, high });
        }
    }
    Ok(())
}

/// Positions from 0 to below `limit`.
pub(crate) fn positions(positions: View<'_, i32, 1>, limit: usize) -> Result<(), DataError> {
    for token in 0..positions.shape()[0] {
        let position = positions.at([token]);
        if !usize::try_from(position).is_ok_and(|position| position < limit) {
            return Err(DataError::Position { token, position, limit });
        }
    }
    Ok(())
}

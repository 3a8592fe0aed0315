//! The suite that every provider of the contracts is held to.
//!
//! A provider implements [`Operators`], one method per contract, and gives itself to [`run`]. The suite makes operands
//! over a matrix of shapes, element types and strides, runs the provider and the reference on the same bits, and checks
//! every output element against a tolerance per element type, every byte around and between them against what was there
//! before, and every refusal against the contract's own. The [`Report`] names each case that failed.

mod buffer;
mod cases;
mod drawn;
mod operators;
mod report;
mod suite;

pub use drawn::{Drawn, compare_drawn};
pub use operators::{Operators, Reference};
pub use report::{Failure, Refused, Report};

use crate::sampling::RowError;
use crate::{Contract, OperandError};
use thiserror::Error;

/// Runs the whole suite.
pub fn run(provider: &mut dyn Operators) -> Report {
    run_contracts(provider, Contract::ALL)
}

/// Runs the cases of some contracts.
pub fn run_contracts(provider: &mut dyn Operators, contracts: &[Contract]) -> Report {
    run_cases(suite::Suite::new(provider, &mut Reference, Roundings::Once), contracts)
}

/// Runs the cases of one contract against another reference: for a provider that does more than the contract in the same
/// pass, and what it does beside is known to the reference.
///
/// Such a reference rounds to the element type once more on the way (as two operators, one after the other, would), and
/// results may differ by what such a rounding of numbers up to 1 makes.
pub fn run_against(
    provider: &mut dyn Operators,
    reference: &mut dyn Operators,
    contract: Contract,
) -> Report {
    run_cases(suite::Suite::new(provider, reference, Roundings::Twice), &[contract])
}

fn run_cases(mut suite: suite::Suite<'_>, contracts: &[Contract]) -> Report {
    for &(contract, cases) in cases::CASES {
        if contracts.contains(&contract) {
            cases(&mut suite);
        }
    }
    suite.report
}

/// How often a result is rounded to its element type on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Roundings {
    Once,
    Twice,
}

/// Why an operator was not run to its end.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Refusal {
    /// The provider does not cover the spec. The suite counts it and goes on.
    #[error("not admitted: {0}")]
    NotAdmitted(String),
    /// The operands do not fit the spec, or a value in them is wrong. [`OperandError::Strides`] counts as not admitted.
    #[error(transparent)]
    Operand(#[from] OperandError),
    /// A row cannot be sampled.
    #[error(transparent)]
    Sampling(#[from] RowError),
    /// Anything else: always a failed case.
    #[error("{0}")]
    Failed(String),
}

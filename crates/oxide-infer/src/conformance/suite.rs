use super::buffer::{Tolerance, Written};
use super::{Operators, Refusal, Report, Roundings};
use crate::{Contract, OperandError};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The provider under test, and what was found so far.
pub(super) struct Suite<'a> {
    provider: &'a mut dyn Operators,
    reference: &'a mut dyn Operators,
    roundings: Roundings,
    pub(super) report: Report,
}

/// What one run of a case gave.
pub(super) struct Run {
    pub(super) result: Result<(), Refusal>,
    pub(super) written: Vec<Written>,
}

impl<'a> Suite<'a> {
    pub(super) fn new(
        provider: &'a mut dyn Operators,
        reference: &'a mut dyn Operators,
        roundings: Roundings,
    ) -> Self {
        Self { provider, reference, roundings, report: Report::default() }
    }

    /// Runs a case by the provider and, if it admits it, by the reference, and compares results, or refusals.
    ///
    /// `run` makes fresh outputs at each call and reads the same inputs.
    pub(super) fn case(
        &mut self,
        contract: Contract,
        name: Name,
        tolerance: Tolerance,
        run: impl Fn(&mut dyn Operators) -> Run,
    ) {
        let got = self.guarded(&run);
        if let Ok(Run { result: Err(reason @ Refusal::NotAdmitted(_)), .. }) = got {
            return self.report.refuse(contract, name.text, reason);
        }
        let want = run(self.reference);
        let tolerance = match self.roundings {
            Roundings::Once => tolerance,
            Roundings::Twice => tolerance.with_intermediate(),
        };
        let found = got.and_then(|got| compare(&want, &got, tolerance));
        self.record(contract, name, want.result.is_err(), found);
    }

    /// What results are compared with.
    pub(super) fn reference(&mut self) -> &mut dyn Operators {
        self.reference
    }

    /// A run of the provider; a panic is a wrong result like any other.
    pub(super) fn guarded<T>(&mut self, run: impl FnOnce(&mut dyn Operators) -> T) -> Result<T, Verdict> {
        catch_unwind(AssertUnwindSafe(|| run(self.provider)))
            .map_err(|_| Verdict::Wrong("it panicked".into()))
    }

    /// Notes what was found, and whether the reference refused what it was to refuse.
    pub(super) fn record(
        &mut self,
        contract: Contract,
        name: Name,
        refused: bool,
        found: Result<(), Verdict>,
    ) {
        let Name { text, fault } = name;
        match found {
            _ if fault != refused => self.report.fail(contract, text, "the case is not what it says".into()),
            Ok(()) => self.report.pass(contract),
            Err(Verdict::NotAdmitted(reason)) => self.report.refuse(contract, text, reason),
            Err(Verdict::Wrong(what)) => self.report.fail(contract, text, what),
        }
    }
}

/// A case's name, and whether the contract refuses its operands.
pub(super) struct Name {
    text: String,
    fault: bool,
}

/// The name of a case: of its fault, if it has one.
pub(super) fn named(fault: &str, case: impl Into<String>) -> Name {
    match fault {
        "" => Name { text: case.into(), fault: false },
        fault => Name { text: format!("refuses {fault}"), fault: true },
    }
}

/// Why a case did not pass.
pub(super) enum Verdict {
    NotAdmitted(Refusal),
    Wrong(String),
}

impl Verdict {
    /// What a refusal of operands that the contract admits means.
    pub(super) fn of_refusal(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotAdmitted(_) | Refusal::Operand(OperandError::Strides { .. }) => {
                Self::NotAdmitted(refusal)
            }
            other => Self::Wrong(format!("it refused what the contract admits: {other}")),
        }
    }
}

fn compare(want: &Run, got: &Run, tolerance: Tolerance) -> Result<(), Verdict> {
    match (&want.result, &got.result) {
        (Ok(()), Err(refusal)) => Err(Verdict::of_refusal(refusal.clone())),
        (Err(refusal), Ok(())) => {
            Err(Verdict::Wrong(format!("it took what the contract refuses: {refusal}")))
        }
        (Ok(()), Ok(())) => {
            all(got.written.iter().zip(&want.written), |(got, want)| got.compare(want, tolerance))
        }
        (Err(want), Err(refusal)) if !same_kind(want, refusal) => {
            Err(Verdict::Wrong(format!("it should refuse with \"{want}\", got \"{refusal}\"")))
        }
        // A device finds bad values while it runs: it may have written elements by then, but nothing outside.
        (Err(Refusal::Operand(OperandError::Data { .. })), Err(_)) => {
            all(got.written.iter(), Written::check_guards)
        }
        (Err(_), Err(_)) => all(got.written.iter(), Written::check_untouched),
    }
}

fn all<T>(
    mut items: impl Iterator<Item = T>,
    check: impl Fn(T) -> Result<(), String>,
) -> Result<(), Verdict> {
    items.try_for_each(check).map_err(Verdict::Wrong)
}

/// Whether two refusals blame the same thing: the same operand for the same reason, or the same kind of value (which of
/// several bad values is found first is not fixed).
pub(super) fn same_kind(want: &Refusal, got: &Refusal) -> bool {
    match (want, got) {
        (Refusal::Operand(OperandError::Data { error: want, .. }), Refusal::Operand(got)) => {
            matches!(got, OperandError::Data { error: got, .. }
                if std::mem::discriminant(want) == std::mem::discriminant(got))
        }
        _ => want == got,
    }
}

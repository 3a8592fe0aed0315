use super::Refusal;
use crate::Contract;
use std::collections::BTreeMap;
use std::fmt;

/// What the suite found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    passed: BTreeMap<Contract, usize>,
    refused: Vec<Refused>,
    failures: Vec<Failure>,
    near: usize,
}

/// A case that the provider does not cover.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The contract.
    pub contract: Contract,
    /// The name of the case.
    pub case: String,
    /// What the provider said.
    pub reason: Refusal,
}

/// A case with a wrong result.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The contract.
    pub contract: Contract,
    /// The name of the case: spec and shapes.
    pub case: String,
    /// What was wrong: the operand, the place, the value expected and the one found.
    pub what: String,
}

impl Report {
    /// Cases of a contract that passed.
    pub fn passed(&self, contract: Contract) -> usize {
        self.passed.get(&contract).copied().unwrap_or(0)
    }

    /// Cases that the provider does not cover.
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// Cases with a wrong result.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Sampled tokens that are not the reference's, where its sums come so near to a threshold that rounding decides
    /// ([`super::Drawn::Near`]). Their cases have passed.
    pub fn near(&self) -> usize {
        self.near
    }

    /// Whether nothing failed, and each of `contracts` passed at least one case and refused none.
    pub fn covers(&self, contracts: &[Contract]) -> bool {
        let whole = |contract: &Contract| {
            self.passed(*contract) > 0 && self.refused.iter().all(|refused| refused.contract != *contract)
        };
        self.failures.is_empty() && contracts.iter().all(whole)
    }

    pub(super) fn pass(&mut self, contract: Contract) {
        *self.passed.entry(contract).or_default() += 1;
    }

    pub(super) fn add_near(&mut self, tokens: usize) {
        self.near += tokens;
    }

    pub(super) fn refuse(&mut self, contract: Contract, case: String, reason: Refusal) {
        self.refused.push(Refused { contract, case, reason });
    }

    pub(super) fn fail(&mut self, contract: Contract, case: String, what: String) {
        self.failures.push(Failure { contract, case, what });
    }
}

/// One line per contract, then each refusal, then each failure.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &contract in Contract::ALL {
            let refused = self.refused.iter().filter(|refused| refused.contract == contract).count();
            let failed = self.failures.iter().filter(|failure| failure.contract == contract).count();
            writeln!(
                f,
                "{contract}: {} passed, {refused} not admitted, {failed} failed",
                self.passed(contract)
            )?;
        }
        if self.near > 0 {
            writeln!(f, "{} tokens differ where rounding decides", self.near)?;
        }
        for Refused { contract, case, reason } in &self.refused {
            writeln!(f, "not admitted: {contract} [{case}]: {reason}")?;
        }
        for Failure { contract, case, what } in &self.failures {
            writeln!(f, "FAILED: {contract} [{case}]: {what}")?;
        }
        Ok(())
    }
}

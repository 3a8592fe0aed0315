use super::{LogitsRow, Sampled, SamplingError, sample};
use crate::{Contract, SpecError, check};
use thiserror::Error;

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Logits of a row. They are `f32` for every provider.
    pub vocab_size: usize,
}

/// A validated sampler for batches of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Config);

impl Spec {
    /// # Errors
    /// [`SpecError`] for an empty vocabulary.
    pub fn new(config: Config) -> Result<Self, SpecError> {
        check::at_least_one(Contract::SAMPLE, "vocab_size", config.vocab_size)?;
        Ok(Self(config))
    }
}

impl crate::Spec for Spec {
    type Config = Config;
    const CONTRACT: Contract = Contract::SAMPLE;

    fn config(&self) -> &Config {
        &self.0
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        vec![("logits", crate::DType::F32.name())]
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        vec![("vocab_size", self.0.vocab_size)]
    }
}

/// The row of a batch that could not be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("row {row}: {error}")]
pub struct RowError {
    /// Index of the row.
    pub row: usize,
    /// Why.
    pub error: SamplingError,
}

/// [`sample`] of each row: what a row gives does not depend on the others.
///
/// # Errors
/// [`RowError`] for the first row that cannot be sampled, or whose logits are not `[vocab_size]`.
pub fn reference(spec: &Spec, rows: &[LogitsRow<'_>]) -> Result<Vec<Sampled>, RowError> {
    let expected = spec.0.vocab_size;
    let one = |(row, logits): (usize, &LogitsRow<'_>)| {
        let got = logits.logits.len();
        if got != expected {
            return Err(RowError { row, error: SamplingError::RowSize { expected, got } });
        }
        sample(logits).map_err(|error| RowError { row, error })
    };
    rows.iter().enumerate().map(one).collect()
}

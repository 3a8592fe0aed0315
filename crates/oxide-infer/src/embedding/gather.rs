//! Looks rows of a table up: `output[t] = round(table[ids[t]])`.
//!
//! With token ids and the embedding table this begins a model; with row numbers and hidden states it picks the rows that
//! need logits.

use crate::{
    Contract, DType, DataError, FloatViewMut, OperandError, SpecError, View, Weight, WeightFormat, check,
};

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How the table is stored.
    pub table: WeightFormat,
    /// Element type of the output.
    pub output: DType,
    /// Elements of a row; a whole number of blocks when the table is in blocks.
    pub hidden_size: usize,
}

/// A validated lookup.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Config);

impl Spec {
    /// # Errors
    /// [`SpecError`] for an element type that is not a float, an empty row, or a row that is not whole blocks.
    pub fn new(config: Config) -> Result<Self, SpecError> {
        let contract = Contract::GATHER;
        check::float_dtype(contract, "output", config.output)?;
        check::at_least_one(contract, "hidden_size", config.hidden_size)?;
        config.table.check(contract, "table", ("hidden_size", config.hidden_size))?;
        Ok(Self(config))
    }
}

impl crate::Spec for Spec {
    type Config = Config;
    const CONTRACT: Contract = Contract::GATHER;

    fn config(&self) -> &Config {
        &self.0
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        vec![("table", self.0.table.name()), ("output", self.0.output.name())]
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        vec![("hidden_size", self.0.hidden_size)]
    }
}

/// The operands. `tokens` may be 0.
#[derive(Debug)]
pub struct Operands<'a> {
    /// Read: `[tokens]`.
    pub ids: View<'a, u32, 1>,
    /// Read: `[vocab_size, hidden_size]`.
    pub table: Weight<'a>,
    /// Written: `[tokens, hidden_size]`.
    pub output: FloatViewMut<'a, 2>,
}

impl Operands<'_> {
    /// Checks element types and shapes.
    ///
    /// # Errors
    /// [`OperandError`] naming the first operand that does not fit.
    pub fn check(&self, spec: &Spec) -> Result<(), OperandError> {
        let (contract, config) = (Contract::GATHER, &spec.0);
        let [vocab_size, _] = self.table.shape();
        self.table.check(contract, "table", (config.table, [vocab_size, config.hidden_size]))?;
        let [tokens] = self.ids.shape();
        check::float(contract, "output", (config.output, [tokens, config.hidden_size]), self.output.kind())
    }

    /// Checks that every id has a row.
    ///
    /// # Errors
    /// [`DataError::Token`].
    pub fn check_indices(&self) -> Result<(), DataError> {
        let [vocab_size, _] = self.table.shape();
        for row in 0..self.ids.shape()[0] {
            let token = self.ids.at([row]);
            if token as usize >= vocab_size {
                return Err(DataError::Token { row, token, vocab_size });
            }
        }
        Ok(())
    }
}

/// The rule above.
///
/// # Errors
/// As [`Operands::check`] and [`Operands::check_indices`]; nothing is written then.
pub fn reference(spec: &Spec, operands: Operands<'_>) -> Result<(), OperandError> {
    operands.check(spec)?;
    operands.check_indices().map_err(|error| OperandError::Data { contract: Contract::GATHER, error })?;
    let Operands { ids, table, mut output } = operands;
    let mut row = vec![0.0; spec.0.hidden_size];
    for token in 0..ids.shape()[0] {
        table.read_row(ids.at([token]) as usize, &mut row);
        row.iter().enumerate().for_each(|(i, &x)| output.set([token, i], x));
    }
    Ok(())
}

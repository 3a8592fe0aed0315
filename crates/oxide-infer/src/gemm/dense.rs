//! A linear layer over rows:
//!
//! ```text
//! output[m, n] = round(Σ_k input[m, k] · weight[n, k]  +  bias[n]  +  residual[m, n])
//! ```
//!
//! Bias and residual are there when the spec has them. Products are of the stored values, exactly widened: the input is
//! never quantized to suit quantized weights. The sum is rounded once, to the output's element type.

use crate::{
    Contract, DType, FloatView, FloatViewMut, OperandError, Presence, SpecError, Weight, WeightFormat, check,
};

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Element type of the input.
    pub input: DType,
    /// How the weight is stored.
    pub weight: WeightFormat,
    /// Element type of the output.
    pub output: DType,
    /// Output features.
    pub n: usize,
    /// Input features; a whole number of blocks when the weight is in blocks.
    pub k: usize,
    /// Element type of the bias; `None` adds none.
    pub bias: Option<DType>,
    /// Whether a residual of the output's element type is added.
    pub residual: Presence,
}

/// A validated linear layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Config);

impl Spec {
    /// # Errors
    /// [`SpecError`] for an element type that is not a float, a size of 0, or a `k` that is not whole blocks.
    pub fn new(config: Config) -> Result<Self, SpecError> {
        let contract = Contract::DENSE;
        check::float_dtype(contract, "input", config.input)?;
        check::float_dtype(contract, "output", config.output)?;
        check::float_dtype(contract, "bias", config.bias.unwrap_or(DType::F32))?;
        check::at_least_one(contract, "n", config.n)?;
        check::at_least_one(contract, "k", config.k)?;
        config.weight.check(contract, "weight", ("k", config.k))?;
        Ok(Self(config))
    }
}

impl crate::Spec for Spec {
    type Config = Config;
    const CONTRACT: Contract = Contract::DENSE;

    fn config(&self) -> &Config {
        &self.0
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        vec![
            ("input", self.0.input.name()),
            ("weight", self.0.weight.name()),
            ("output", self.0.output.name()),
            ("bias", self.0.bias.map_or("absent", DType::name)),
            ("residual", self.0.residual.name()),
        ]
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        vec![("n", self.0.n), ("k", self.0.k)]
    }
}

/// The operands. `m`, the number of rows, may be 0.
#[derive(Debug)]
pub struct Operands<'a> {
    /// Read: `[m, k]`.
    pub input: FloatView<'a, 2>,
    /// Read: `[n, k]`.
    pub weight: Weight<'a>,
    /// Read, when the spec has it: `[n]`.
    pub bias: Option<FloatView<'a, 1>>,
    /// Read, when the spec has it: `[m, n]`.
    pub residual: Option<FloatView<'a, 2>>,
    /// Written: `[m, n]`.
    pub output: FloatViewMut<'a, 2>,
}

impl Operands<'_> {
    /// Checks element types, shapes, and the presence of bias and residual.
    ///
    /// # Errors
    /// [`OperandError`] naming the first operand that does not fit.
    pub fn check(&self, spec: &Spec) -> Result<(), OperandError> {
        let (contract, config) = (Contract::DENSE, &spec.0);
        let [m, _] = self.input.shape();
        check::float(contract, "input", (config.input, [m, config.k]), self.input.kind())?;
        self.weight.check(contract, "weight", (config.weight, [config.n, config.k]))?;
        let has_bias = if config.bias.is_some() { Presence::Present } else { Presence::Absent };
        let bias = check::optional(contract, "bias", has_bias, self.bias.as_ref())?;
        if let Some((dtype, bias)) = config.bias.zip(bias) {
            check::float(contract, "bias", (dtype, [config.n]), bias.kind())?;
        }
        let rows = (config.output, [m, config.n]);
        if let Some(residual) =
            check::optional(contract, "residual", config.residual, self.residual.as_ref())?
        {
            check::float(contract, "residual", rows, residual.kind())?;
        }
        check::float(contract, "output", rows, self.output.kind())
    }
}

/// The formula above, summed in `f64` in order of `k`.
///
/// # Errors
/// As [`Operands::check`]; nothing is written then.
pub fn reference(spec: &Spec, operands: Operands<'_>) -> Result<(), OperandError> {
    operands.check(spec)?;
    let Operands { input, weight, bias, residual, mut output } = operands;
    let rows = super::widened(&input);
    let mut features = vec![0.0; spec.0.k];
    for col in 0..spec.0.n {
        weight.read_row(col, &mut features);
        for (row, input) in rows.chunks_exact(spec.0.k).enumerate() {
            let mut sum = super::dot(input, &features);
            sum += bias.map_or(0.0, |bias| f64::from(bias.at([col])));
            sum += residual.map_or(0.0, |residual| f64::from(residual.at([row, col])));
            output.set([row, col], sum as f32);
        }
    }
    Ok(())
}

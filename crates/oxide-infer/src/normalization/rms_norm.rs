//! Root-mean-square normalization, with or without a residual added first.
//!
//! For each row `x` of `hidden_size` elements (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019):
//!
//! ```text
//! s = x                                    without a residual
//! s = round(x + residual), residual ← s    with one; round is to the residual's element type
//! output[i] = s[i] / sqrt(mean(s²) + epsilon) · weight[i]
//! ```

use crate::{Contract, DType, FloatView, FloatViewMut, OperandError, Presence, SpecError, check};

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Element type of input and residual.
    pub dtype: DType,
    /// Element type of the weight.
    pub weight_dtype: DType,
    /// Element type of the output: a residual stream in `f32` is normalized for products in `bf16`.
    pub output_dtype: DType,
    /// Elements that are normalized together.
    pub hidden_size: usize,
    /// Added to the mean square.
    pub epsilon: f32,
    /// Whether a residual is added first, and updated.
    pub residual: Presence,
}

/// A validated RMS normalization.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Config);

impl Spec {
    /// # Errors
    /// [`SpecError`] for an element type that is not a float, an empty row, or an epsilon that is not over 0.
    pub fn new(config: Config) -> Result<Self, SpecError> {
        let contract = Contract::RMS_NORM;
        check::float_dtype(contract, "dtype", config.dtype)?;
        check::float_dtype(contract, "weight_dtype", config.weight_dtype)?;
        check::float_dtype(contract, "output_dtype", config.output_dtype)?;
        check::at_least_one(contract, "hidden_size", config.hidden_size)?;
        check::positive(contract, "epsilon", config.epsilon.into())?;
        Ok(Self(config))
    }
}

impl crate::Spec for Spec {
    type Config = Config;
    const CONTRACT: Contract = Contract::RMS_NORM;

    fn config(&self) -> &Config {
        &self.0
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        vec![
            ("dtype", self.0.dtype.name()),
            ("weight_dtype", self.0.weight_dtype.name()),
            ("output_dtype", self.0.output_dtype.name()),
            ("residual", self.0.residual.name()),
        ]
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        vec![("hidden_size", self.0.hidden_size)]
    }
}

/// The operands. `heads` is 1 for a layer's norm; for a norm of each head of q or k it is the number of heads, and
/// `hidden_size` is `head_dim`.
#[derive(Debug)]
pub struct Operands<'a> {
    /// Read: `[tokens, heads, hidden_size]`.
    pub input: FloatView<'a, 3>,
    /// Read: `[hidden_size]`.
    pub weight: FloatView<'a, 1>,
    /// Read and written, when the spec has it: `[tokens, heads, hidden_size]`.
    pub residual: Option<FloatViewMut<'a, 3>>,
    /// Written: `[tokens, heads, hidden_size]`.
    pub output: FloatViewMut<'a, 3>,
}

impl Operands<'_> {
    /// Checks element types, shapes, and the presence of the residual.
    ///
    /// # Errors
    /// [`OperandError`] naming the first operand that does not fit.
    pub fn check(&self, spec: &Spec) -> Result<(), OperandError> {
        let (contract, config) = (Contract::RMS_NORM, &spec.0);
        let [tokens, heads, _] = self.input.shape();
        let rows = (config.dtype, [tokens, heads, config.hidden_size]);
        check::float(contract, "input", rows, self.input.kind())?;
        let weight = (config.weight_dtype, [config.hidden_size]);
        check::float(contract, "weight", weight, self.weight.kind())?;
        if let Some(residual) =
            check::optional(contract, "residual", config.residual, self.residual.as_ref())?
        {
            check::float(contract, "residual", rows, residual.kind())?;
        }
        let output = (config.output_dtype, [tokens, heads, config.hidden_size]);
        check::float(contract, "output", output, self.output.kind())
    }
}

/// The formula above, with the sum of squares in `f64`.
///
/// # Errors
/// As [`Operands::check`]; nothing is written then.
pub fn reference(spec: &Spec, operands: Operands<'_>) -> Result<(), OperandError> {
    operands.check(spec)?;
    let Operands { input, weight, mut residual, mut output } = operands;
    let [tokens, heads, hidden_size] = input.shape();
    let mut row = vec![0.0f32; hidden_size];
    for (token, head) in (0..tokens).flat_map(|token| (0..heads).map(move |head| (token, head))) {
        for (i, s) in row.iter_mut().enumerate() {
            let at = [token, head, i];
            *s = input.at(at);
            if let Some(residual) = &mut residual {
                residual.set(at, *s + residual.at(at));
                *s = residual.at(at);
            }
        }
        let mean_square = row.iter().map(|&s| f64::from(s).powi(2)).sum::<f64>() / hidden_size as f64;
        let scale = 1.0 / (mean_square + f64::from(spec.0.epsilon)).sqrt();
        for (i, &s) in row.iter().enumerate() {
            let value = f64::from(s) * scale * f64::from(weight.at([i]));
            output.set([token, head, i], value as f32);
        }
    }
    Ok(())
}

//! A linear layer whose product is the gate and the up part of a SwiGLU (Shazeer, "GLU Variants Improve Transformer",
//! 2020), in one pass:
//!
//! ```text
//! gate[m, n] = Σ_k input[m, k] · weight[n, k]          the first n rows of the weight
//! up[m, n]   = Σ_k input[m, k] · weight[n_all + n, k]  the last n rows; n_all is the spec's n
//! output     = round(silu(gate) · up),   silu(x) = x / (1 + exp(−x))
//! ```
//!
//! [`super::dense`] followed by [`crate::activation::swiglu`], but gate and up are not rounded in between. It is the
//! contract `gemm.dense` with the property `activation=swiglu`, and adds neither bias nor residual.

use crate::{Contract, DType, FloatView, FloatViewMut, OperandError, SpecError, Weight, WeightFormat, check};

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Element type of the input.
    pub input: DType,
    /// How the weight is stored.
    pub weight: WeightFormat,
    /// Element type of the output.
    pub output: DType,
    /// Output features: half the rows of the weight.
    pub n: usize,
    /// Input features; a whole number of blocks when the weight is in blocks.
    pub k: usize,
}

/// A validated gated layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Config);

impl Spec {
    /// # Errors
    /// [`SpecError`] for an element type that is not a float, a size of 0, a `k` that is not whole blocks, or an `n` whose
    /// double is out of range.
    pub fn new(config: Config) -> Result<Self, SpecError> {
        let contract = Contract::DENSE;
        check::float_dtype(contract, "input", config.input)?;
        check::float_dtype(contract, "output", config.output)?;
        check::at_least_one(contract, "n", config.n)?;
        if config.n > usize::MAX / 2 {
            let expected = "at most half of what a size can be";
            return Err(SpecError::Size { contract, field: "n", expected, got: config.n });
        }
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
            ("activation", "swiglu"),
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
    /// Read: `[2 · n, k]`, the rows of the gate, then those of the up part.
    pub weight: Weight<'a>,
    /// Written: `[m, n]`.
    pub output: FloatViewMut<'a, 2>,
}

impl Operands<'_> {
    /// Checks element types and shapes.
    ///
    /// # Errors
    /// [`OperandError`] naming the first operand that does not fit.
    pub fn check(&self, spec: &Spec) -> Result<(), OperandError> {
        let (contract, config) = (Contract::DENSE, &spec.0);
        let [m, _] = self.input.shape();
        check::float(contract, "input", (config.input, [m, config.k]), self.input.kind())?;
        self.weight.check(contract, "weight", (config.weight, [2 * config.n, config.k]))?;
        check::float(contract, "output", (config.output, [m, config.n]), self.output.kind())
    }
}

/// The formula above, summed in `f64` in order of `k`.
///
/// # Errors
/// As [`Operands::check`]; nothing is written then.
pub fn reference(spec: &Spec, operands: Operands<'_>) -> Result<(), OperandError> {
    operands.check(spec)?;
    let Operands { input, weight, mut output } = operands;
    let n = spec.0.n;
    let rows = super::widened(&input);
    let (mut gates, mut ups) = (vec![0.0; spec.0.k], vec![0.0; spec.0.k]);
    for col in 0..n {
        weight.read_row(col, &mut gates);
        weight.read_row(n + col, &mut ups);
        for (row, input) in rows.chunks_exact(spec.0.k).enumerate() {
            let gate = super::dot(input, &gates);
            let silu = gate / (1.0 + (-gate).exp());
            output.set([row, col], (silu * super::dot(input, &ups)) as f32);
        }
    }
    Ok(())
}

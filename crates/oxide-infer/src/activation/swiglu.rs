//! The gate of a SwiGLU feed-forward layer (Shazeer, "GLU Variants Improve Transformer", 2020):
//!
//! ```text
//! output = silu(gate) · up,   silu(x) = x / (1 + exp(−x))
//! ```
//!
//! element by element, rounded once. A fused product `[rows, 2 · size]` holds gate and up as two views of one buffer.

use crate::{Contract, DType, FloatView, FloatViewMut, OperandError, SpecError, check};

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Element type of all operands.
    pub dtype: DType,
    /// Elements of a row.
    pub size: usize,
}

/// A validated SwiGLU.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec(Config);

impl Spec {
    /// # Errors
    /// [`SpecError`] for an element type that is not a float or an empty row.
    pub fn new(config: Config) -> Result<Self, SpecError> {
        check::float_dtype(Contract::SWIGLU, "dtype", config.dtype)?;
        check::at_least_one(Contract::SWIGLU, "size", config.size)?;
        Ok(Self(config))
    }
}

impl crate::Spec for Spec {
    type Config = Config;
    const CONTRACT: Contract = Contract::SWIGLU;

    fn config(&self) -> &Config {
        &self.0
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        vec![("dtype", self.0.dtype.name())]
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        vec![("size", self.0.size)]
    }
}

/// The operands. `rows` may be 0.
#[derive(Debug)]
pub struct Operands<'a> {
    /// Read: `[rows, size]`.
    pub gate: FloatView<'a, 2>,
    /// Read: `[rows, size]`.
    pub up: FloatView<'a, 2>,
    /// Written: `[rows, size]`.
    pub output: FloatViewMut<'a, 2>,
}

impl Operands<'_> {
    /// Checks element types and shapes.
    ///
    /// # Errors
    /// [`OperandError`] naming the first operand that does not fit.
    pub fn check(&self, spec: &Spec) -> Result<(), OperandError> {
        let contract = Contract::SWIGLU;
        let [rows, _] = self.gate.shape();
        let expected = (spec.0.dtype, [rows, spec.0.size]);
        check::float(contract, "gate", expected, self.gate.kind())?;
        check::float(contract, "up", expected, self.up.kind())?;
        check::float(contract, "output", expected, self.output.kind())
    }
}

/// The formula above, in `f64`.
///
/// # Errors
/// As [`Operands::check`]; nothing is written then.
pub fn reference(spec: &Spec, operands: Operands<'_>) -> Result<(), OperandError> {
    operands.check(spec)?;
    let Operands { gate, up, mut output } = operands;
    let [rows, size] = gate.shape();
    for at in (0..rows).flat_map(|row| (0..size).map(move |i| [row, i])) {
        let x = f64::from(gate.at(at));
        let silu = x / (1.0 + (-x).exp());
        output.set(at, (silu * f64::from(up.at(at))) as f32);
    }
    Ok(())
}

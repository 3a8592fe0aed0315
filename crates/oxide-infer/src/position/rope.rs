//! Rotary position embedding (Su et al., "RoFormer", 2021).
//!
//! The first `rotary_dim` elements of a head are `rotary_dim / 2` pairs `(a, b)`; pair `i` of a token at position `p` turns
//! by the angle `p · inv_freq[i]`, the rest of the head is copied:
//!
//! ```text
//! angle = f32(p) · inv_freq[i]                  rounded to f32, as models are trained
//! c, s  = attention_factor · cos(angle), attention_factor · sin(angle)
//! a' = a · c − b · s
//! b' = b · c + a · s
//! ```
//!
//! `inv_freq` and `attention_factor` come from the [`Scaling`] and are part of the [`Spec`], so that all providers turn by
//! the same angles.

mod scaling;

pub use scaling::Scaling;

use crate::{Contract, DType, DataError, FloatView, FloatViewMut, OperandError, SpecError, View, check};
use std::sync::Arc;

/// Which elements of a head make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// Elements `i` and `i + rotary_dim / 2` (GPT-NeoX; what Hugging Face checkpoints use).
    NeoX,
    /// Elements `2i` and `2i + 1` (the RoFormer paper, GPT-J; what llama.cpp's permuted Llama weights use).
    Interleaved,
}

impl Pairing {
    /// The name used in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NeoX => "neox",
            Self::Interleaved => "interleaved",
        }
    }
}

/// The fields of a [`Spec`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Element type of input and output.
    pub dtype: DType,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements of a head that turn: even, at most `head_dim`.
    pub rotary_dim: usize,
    /// Which elements make a pair.
    pub pairing: Pairing,
    /// The base of the frequencies (`rope_theta`), over 1.
    pub theta: f64,
    /// How the frequencies are changed for contexts longer than the first training.
    pub scaling: Scaling,
}

/// A validated rotary embedding, with its frequencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    config: Config,
    inv_freq: Arc<[f32]>,
    attention_factor: f32,
}

impl Spec {
    /// # Errors
    /// [`SpecError`] for an element type that is not a float, an odd or too large `rotary_dim`, or a theta or scaling
    /// factor outside its range.
    pub fn new(config: Config) -> Result<Self, SpecError> {
        Self::for_contract(Contract::ROPE, config)
    }

    pub(crate) fn for_contract(contract: Contract, config: Config) -> Result<Self, SpecError> {
        check::float_dtype(contract, "dtype", config.dtype)?;
        check::at_least_one(contract, "head_dim", config.head_dim)?;
        let rotary = config.rotary_dim;
        if rotary == 0 || !rotary.is_multiple_of(2) || rotary > config.head_dim {
            let expected = "even, at least 2 and at most head_dim";
            return Err(SpecError::Size { contract, field: "rotary_dim", expected, got: rotary });
        }
        if !(config.theta.is_finite() && config.theta > 1.0) {
            let (field, expected) = ("theta", "a finite number over 1");
            return Err(SpecError::Number { contract, field, expected, got: config.theta });
        }
        config.scaling.check(contract, rotary)?;
        let inv_freq = config.scaling.inv_freq(config.theta, rotary);
        let attention_factor = config.scaling.attention_factor();
        Ok(Self { config, inv_freq, attention_factor })
    }

    /// Radians per position of each pair, `[rotary_dim / 2]`: computed in `f64`, rounded once.
    pub fn inv_freq(&self) -> &[f32] {
        &self.inv_freq
    }

    /// What cosines and sines are multiplied by: 1 but for YaRN.
    pub fn attention_factor(&self) -> f32 {
        self.attention_factor
    }

    /// The two elements of pair `i`.
    pub fn pair(&self, i: usize) -> [usize; 2] {
        match self.config.pairing {
            Pairing::NeoX => [i, i + self.config.rotary_dim / 2],
            Pairing::Interleaved => [2 * i, 2 * i + 1],
        }
    }

    /// Cosine and sine of each pair's angle at a position, times the attention factor: what providers tabulate.
    pub fn rotations(&self, position: usize) -> impl Iterator<Item = [f64; 2]> {
        let factor = f64::from(self.attention_factor);
        self.inv_freq.iter().map(move |&inv_freq| {
            let angle = f64::from(position as f32 * inv_freq);
            [factor * angle.cos(), factor * angle.sin()]
        })
    }

    /// Turns one head in place. The position is not negative.
    pub(crate) fn rotate(&self, position: i32, head: &mut [f32]) {
        for (i, [c, s]) in self.rotations(position as usize).enumerate() {
            let [ia, ib] = self.pair(i);
            let (a, b) = (f64::from(head[ia]), f64::from(head[ib]));
            head[ia] = (a * c - b * s) as f32;
            head[ib] = (b * c + a * s) as f32;
        }
    }
}

impl crate::Spec for Spec {
    type Config = Config;
    const CONTRACT: Contract = Contract::ROPE;

    fn config(&self) -> &Config {
        &self.config
    }

    fn properties(&self) -> Vec<(&'static str, &'static str)> {
        vec![("dtype", self.config.dtype.name()), ("pairing", self.config.pairing.name())]
    }

    fn dimensions(&self) -> Vec<(&'static str, usize)> {
        vec![("head_dim", self.config.head_dim), ("rotary_dim", self.config.rotary_dim)]
    }
}

/// The operands.
#[derive(Debug)]
pub struct Operands<'a> {
    /// Read: `[tokens, num_heads, head_dim]`.
    pub input: FloatView<'a, 3>,
    /// Read: position of each token, `[tokens]`, at least 0.
    pub positions: View<'a, i32, 1>,
    /// Written: `[tokens, num_heads, head_dim]`.
    pub output: FloatViewMut<'a, 3>,
}

impl Operands<'_> {
    /// Checks element types and shapes.
    ///
    /// # Errors
    /// [`OperandError`] naming the first operand that does not fit.
    pub fn check(&self, spec: &Spec) -> Result<(), OperandError> {
        let contract = Contract::ROPE;
        let [tokens, num_heads, _] = self.input.shape();
        let heads = (spec.config.dtype, [tokens, num_heads, spec.config.head_dim]);
        check::float(contract, "input", heads, self.input.kind())?;
        check::shape(contract, "positions", [tokens], self.positions.shape())?;
        check::float(contract, "output", heads, self.output.kind())
    }

    /// Checks that no position is negative.
    ///
    /// # Errors
    /// [`DataError::Position`].
    pub fn check_indices(&self) -> Result<(), DataError> {
        check::positions(self.positions, i32::MAX as usize)
    }
}

/// The formula above, turns in `f64`, rounded once.
///
/// # Errors
/// As [`Operands::check`] and [`Operands::check_indices`]; nothing is written then.
pub fn reference(spec: &Spec, operands: Operands<'_>) -> Result<(), OperandError> {
    operands.check(spec)?;
    operands.check_indices().map_err(|error| OperandError::Data { contract: Contract::ROPE, error })?;
    let Operands { input, positions, mut output } = operands;
    let [tokens, num_heads, head_dim] = input.shape();
    let mut row = vec![0.0; head_dim];
    for (token, head) in (0..tokens).flat_map(|token| (0..num_heads).map(move |head| (token, head))) {
        row.iter_mut().enumerate().for_each(|(d, x)| *x = input.at([token, head, d]));
        spec.rotate(positions.at([token]), &mut row);
        row.iter().enumerate().for_each(|(d, &x)| output.set([token, head, d], x));
    }
    Ok(())
}

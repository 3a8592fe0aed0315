//! `position::rope`.

use crate::rows;
use crate::simd::{Isa, Kernel, LANES, Level};
use crate::{Operator, Team};
use oxide_infer::position::rope::{Operands, Pairing, Spec};
use oxide_infer::{Contract, OperandError, Spec as _};
use std::sync::OnceLock;

/// Positions in a chunk of a table.
const CHUNK: usize = 1024;

/// Chunks of a table; positions past the last one are computed when they come.
const CHUNKS: usize = 256;

/// The cosines and sines of a rotation, in chunks that are computed (in `f64`) when a position in them first comes.
#[derive(Debug)]
pub struct Angles {
    spec: Spec,
    chunks: Box<[OnceLock<Box<[f32]>>]>,
}

impl Angles {
    pub(crate) fn new(spec: &Spec) -> Self {
        Self { spec: spec.clone(), chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect() }
    }

    /// Cosines, then sines, of each pair of a position.
    fn at<'a>(&'a self, position: usize, buffer: &'a mut Vec<f32>) -> [&'a [f32]; 2] {
        let pairs = self.spec.inv_freq().len();
        let row = match self.chunks.get(position / CHUNK) {
            Some(chunk) => {
                let chunk = chunk.get_or_init(|| {
                    let first = position / CHUNK * CHUNK;
                    let mut rows = Vec::with_capacity(2 * pairs * CHUNK);
                    (first..first + CHUNK).for_each(|position| self.compute(position, &mut rows));
                    rows.into()
                });
                &chunk[position % CHUNK * 2 * pairs..][..2 * pairs]
            }
            None => {
                buffer.clear();
                self.compute(position, buffer);
                buffer
            }
        };
        let (cos, sin) = row.split_at(pairs);
        [cos, sin]
    }

    fn compute(&self, position: usize, out: &mut Vec<f32>) {
        let factor = f64::from(self.spec.attention_factor());
        let angle = |inv_freq: &f32| f64::from(position as f32 * inv_freq);
        out.extend(self.spec.inv_freq().iter().map(|inv_freq| (factor * angle(inv_freq).cos()) as f32));
        out.extend(self.spec.inv_freq().iter().map(|inv_freq| (factor * angle(inv_freq).sin()) as f32));
    }

    /// The rotation of a position, for heads of any kind.
    pub(crate) fn rotation<'a>(
        &'a self,
        level: Level,
        position: usize,
        buffer: &'a mut Vec<f32>,
    ) -> Rotation<'a> {
        let [cos, sin] = self.at(position, buffer);
        Rotation { level, pairing: self.spec.config().pairing, cos, sin }
    }
}

/// How the heads of one token turn.
#[derive(Clone, Copy)]
pub(crate) struct Rotation<'a> {
    level: Level,
    pairing: Pairing,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Rotation<'_> {
    /// Writes the turned head to `output`, which is as long.
    pub(crate) fn turn(self, input: &[f32], output: &mut [f32]) {
        self.level.run(Turn { rotation: self, input, output });
    }
}

struct Turn<'a> {
    rotation: Rotation<'a>,
    input: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Rotation { pairing, cos, sin, .. } = self.rotation;
        let pairs = cos.len();
        let (turned, rest) = self.output.split_at_mut(2 * pairs);
        rest.copy_from_slice(&self.input[2 * pairs..]);
        match pairing {
            Pairing::NeoX => {
                let (a, b) = self.input[..2 * pairs].split_at(pairs);
                let (turned_a, turned_b) = turned.split_at_mut(pairs);
                let whole = pairs - pairs % LANES;
                for at in (0..whole).step_by(LANES) {
                    vector::<I>([a, b, cos, sin], [turned_a, turned_b], at);
                }
                for i in whole..pairs {
                    [turned_a[i], turned_b[i]] = turn(a[i], b[i], cos[i], sin[i]);
                }
            }
            Pairing::Interleaved => {
                for (i, pair) in turned.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    *pair = turn(self.input[2 * i], self.input[2 * i + 1], cos[i], sin[i]);
                }
            }
        }
    }
}

/// One pair.
#[inline(always)]
fn turn(a: f32, b: f32, cos: f32, sin: f32) -> [f32; 2] {
    [a.mul_add(cos, 0.0 - b * sin), b.mul_add(cos, a * sin)]
}

/// Sixteen pairs, the same way.
#[inline(always)]
fn vector<I: Isa>(input: [&[f32]; 4], output: [&mut [f32]; 2], at: usize) {
    use crate::math::{load, store};
    let [a, b, cos, sin] =
        [load::<I>(input[0], at), load::<I>(input[1], at), load::<I>(input[2], at), load::<I>(input[3], at)];
    let [turned_a, turned_b] = output;
    store::<I>(I::fma(a, cos, I::sub(I::splat(0.0), I::mul(b, sin))), turned_a, at);
    store::<I>(I::fma(b, cos, I::mul(a, sin)), turned_b, at);
}

impl Operator for Spec {
    type Operands<'a> = Operands<'a>;
    type Prepared = Angles;
    type Output = ();
    type Error = OperandError;
    const ALGORITHM: &'static str = "angle_table";

    fn prepare(&self) -> Angles {
        Angles::new(self)
    }

    fn run(&self, angles: &Angles, team: &Team<'_>, mut operands: Operands<'_>) -> Result<(), OperandError> {
        operands.check(self)?;
        operands.check_indices().map_err(|error| OperandError::Data { contract: Contract::ROPE, error })?;
        let (level, len) = (team.level(), self.config().head_dim);
        let (input, positions) = (operands.input, operands.positions);
        rows::for_each(team, &mut operands.output, &|at, output| {
            let (mut buffer, mut widened) = (Vec::new(), Vec::new());
            let rotation = angles.rotation(level, positions.at([at[0]]) as usize, &mut buffer);
            rotation.turn(rows::read(&input, at, len, &mut widened), output);
        });
        Ok(())
    }
}

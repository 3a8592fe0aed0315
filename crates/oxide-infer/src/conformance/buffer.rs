//! Host buffers with guards around and between the elements of an operand.

use crate::sampling::philox4x32_10;
use crate::{DType, Dims, Float, FloatView, FloatViewMut, Layout, View};
use half::{bf16, f16};

/// Elements before and after a region that nothing may touch.
const GUARD: usize = 64;

/// A stream of repeatable numbers.
pub(super) struct Numbers {
    key: [u32; 2],
    counter: u32,
    /// Of the last counter, and how many of them are used.
    words: [u32; 4],
    used: usize,
}

impl Numbers {
    pub(super) fn new(seed: u32) -> Self {
        Self { key: [seed, 0], counter: 0, words: [0; 4], used: 4 }
    }

    fn word(&mut self) -> u32 {
        if self.used == self.words.len() {
            self.counter += 1;
            self.words = philox4x32_10([self.counter, 0, 0, 0], self.key);
            self.used = 0;
        }
        self.used += 1;
        self.words[self.used - 1]
    }

    /// In [−1, 1).
    pub(super) fn signed(&mut self) -> f32 {
        (self.word() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    /// In 0..bound.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.word() as usize % bound
    }
}

/// How the elements of a region lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spacing {
    /// No gaps.
    Dense,
    /// Rows in one piece, gaps between the runs of every axis.
    Gapped,
    /// Every other element along the last axis.
    Spread,
}

impl Spacing {
    pub(super) const ALL: [Self; 3] = [Self::Dense, Self::Gapped, Self::Spread];

    pub(super) fn layout<const R: usize>(self, shape: [usize; R]) -> Layout<R> {
        let (gap, last) = match self {
            Self::Dense => (0, 1),
            Self::Gapped => (8, 1),
            Self::Spread => (0, 2),
        };
        let mut strides = [last; R];
        for axis in (1..R).rev() {
            strides[axis - 1] = strides[axis] * shape[axis].max(1) + gap;
        }
        Layout::strided(shape, strides).expect("the suite's shapes are small")
    }
}

#[derive(Clone)]
enum Cells {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

macro_rules! each {
    ($on:expr, $cells:ident => $body:expr) => {
        match $on {
            Cells::F32($cells) => $body,
            Cells::F16($cells) => $body,
            Cells::BF16($cells) => $body,
        }
    };
}

impl Cells {
    fn poisoned(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F16 => Self::F16(vec![f16::NAN; len]),
            DType::BF16 => Self::BF16(vec![bf16::NAN; len]),
            _ => Self::F32(vec![f32::NAN; len]),
        }
    }

    fn set(&mut self, at: usize, value: f32) {
        each!(self, cells => cells[at] = Float::from_f32(value));
    }

    fn at(&self, at: usize) -> f32 {
        each!(self, cells => cells[at].to_f32())
    }

    fn bits(&self, at: usize) -> u32 {
        match self {
            Self::F32(cells) => cells[at].to_bits(),
            Self::F16(cells) => cells[at].to_bits().into(),
            Self::BF16(cells) => cells[at].to_bits().into(),
        }
    }

    fn len(&self) -> usize {
        each!(self, cells => cells.len())
    }
}

/// A floating-point operand with NaN in its guards and gaps: a read outside it shows in the result, a write in the bits.
#[derive(Clone)]
pub(super) struct Floats<const R: usize> {
    cells: Cells,
    before: Cells,
    layout: Layout<R>,
}

impl<const R: usize> Floats<R> {
    /// To be written: NaN everywhere.
    pub(super) fn poisoned(dtype: DType, layout: Layout<R>) -> Self {
        let cells = Cells::poisoned(dtype, layout.span() + 2 * GUARD);
        Self { before: cells.clone(), cells, layout }
    }

    /// To be read: an element for each index.
    pub(super) fn filled(
        dtype: DType,
        layout: Layout<R>,
        mut element: impl FnMut([usize; R]) -> f32,
    ) -> Self {
        let mut floats = Self::poisoned(dtype, layout);
        for index in indices(layout.shape()) {
            floats.cells.set(GUARD + layout.offset(index), element(index));
        }
        floats.before = floats.cells.clone();
        floats
    }

    /// To be read: numbers in [−scale, scale).
    pub(super) fn random(numbers: &mut Numbers, dtype: DType, layout: Layout<R>, scale: f32) -> Self {
        Self::filled(dtype, layout, |_| scale * numbers.signed())
    }

    pub(super) fn view(&self) -> FloatView<'_, R> {
        each!(&self.cells, cells => Float::erase(View::new(&cells[GUARD..], self.layout).expect("made to fit")))
    }

    pub(super) fn view_mut(&mut self) -> FloatViewMut<'_, R> {
        let layout = self.layout;
        each!(&mut self.cells, cells => {
            Float::erase_mut(crate::ViewMut::new(&mut cells[GUARD..], layout).expect("made to fit"))
        })
    }

    /// What there is to compare after a run.
    pub(super) fn written(self, operand: &'static str) -> Written {
        let places = indices(self.layout.shape()).map(|index| GUARD + self.layout.offset(index)).collect();
        let shape = self.layout.shape().into();
        Written { operand, before: self.before, after: self.cells, shape, places }
    }
}

/// An index operand with a number in its guards that no index may have.
#[derive(Clone)]
pub(super) struct Indices<const R: usize> {
    cells: Vec<i32>,
    layout: Layout<R>,
}

impl<const R: usize> Indices<R> {
    pub(super) fn new(layout: Layout<R>, mut element: impl FnMut([usize; R]) -> i32) -> Self {
        let mut cells = vec![i32::MIN; layout.span() + 2 * GUARD];
        for index in indices(layout.shape()) {
            cells[GUARD + layout.offset(index)] = element(index);
        }
        Self { cells, layout }
    }

    pub(super) fn view(&self) -> View<'_, i32, R> {
        View::new(&self.cells[GUARD..], self.layout).expect("made to fit")
    }
}

/// A list of numbers, one after another.
pub(super) fn list(values: &[i32]) -> Indices<1> {
    Indices::new(Spacing::Dense.layout([values.len()]), |[i]| values[i])
}

/// How far a result may be from the reference's: `|got − want| ≤ absolute + relative · |want|`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    absolute: f32,
    relative: f32,
}

impl Tolerance {
    /// For results computed in `f32` or wider and rounded once: 1e-5 for the computation, of numbers of about 1 (sums in any
    /// order included), and one unit in the last place for the rounding, which may fall on either side: at most 2⁻⁷ of
    /// a `bf16`, which has 8 significant bits, and 2⁻¹⁰ of an `f16`, which has 11.
    pub(super) fn of(dtype: DType) -> Self {
        let unit = match dtype {
            DType::F16 => 1.0 / 1024.0,
            DType::BF16 => 1.0 / 128.0,
            _ => 1e-5,
        };
        Self { absolute: 1e-5, relative: unit }
    }

    /// For results of numbers up to 1 that were rounded to the same type before: the last one of those may fall on either
    /// side, too, by a unit of numbers just under 1.
    pub(super) fn with_intermediate(self) -> Self {
        Self { absolute: self.absolute + self.relative / 2.0, ..self }
    }

    /// For results that are sums of larger numbers.
    pub(super) fn scaled(self, factor: f32) -> Self {
        Self { absolute: self.absolute * factor, ..self }
    }

    /// For results that are copies.
    pub(super) fn exact() -> Self {
        Self { absolute: 0.0, relative: 0.0 }
    }

    pub(super) fn admits(self, want: f32, got: f32) -> bool {
        want == got || (got - want).abs() <= self.absolute + self.relative * want.abs()
    }
}

/// A written operand: its bits before and after, and where its elements lie.
pub(super) struct Written {
    operand: &'static str,
    before: Cells,
    after: Cells,
    shape: Dims,
    /// Where each element lies, the last axis fastest.
    places: Vec<usize>,
}

impl Written {
    /// Compares every element with the reference's. One that the reference left as it was must have its old bits.
    pub(super) fn compare(&self, want: &Written, tolerance: Tolerance) -> Result<(), String> {
        self.check_guards()?;
        for (element, &at) in self.places.iter().enumerate() {
            let (wanted, got) = (want.after.at(at), self.after.at(at));
            let same = if want.after.bits(at) == want.before.bits(at) {
                self.after.bits(at) == self.before.bits(at)
            } else {
                tolerance.admits(wanted, got)
            };
            if !same {
                let (operand, shape) = (self.operand, self.shape);
                return Err(format!(
                    "element {element} of {operand} {shape} should be {wanted}, got {got} ({tolerance:?})"
                ));
            }
        }
        Ok(())
    }

    /// Checks that nothing outside the elements has changed.
    pub(super) fn check_guards(&self) -> Result<(), String> {
        let mut outside = vec![true; self.after.len()];
        self.places.iter().for_each(|&at| outside[at] = false);
        self.check_unchanged((0..outside.len()).filter(|&at| outside[at]))
    }

    /// Checks that nothing has changed at all.
    pub(super) fn check_untouched(&self) -> Result<(), String> {
        self.check_unchanged(0..self.after.len())
    }

    fn check_unchanged(&self, mut places: impl Iterator<Item = usize>) -> Result<(), String> {
        match places.find(|&at| self.after.bits(at) != self.before.bits(at)) {
            None => Ok(()),
            Some(at) => {
                let offset = at as isize - GUARD as isize;
                let (operand, got) = (self.operand, self.after.at(at));
                Err(format!(
                    "{operand} was written at element {offset} of its buffer, where nothing may be: {got}"
                ))
            }
        }
    }
}

/// Every index of a shape, the last axis fastest.
pub(super) fn indices<const R: usize>(shape: [usize; R]) -> impl Iterator<Item = [usize; R]> {
    let count: usize = shape.iter().product();
    let mut next = [0; R];
    (0..count).map(move |_| {
        let index = next;
        for axis in (0..R).rev() {
            next[axis] += 1;
            if next[axis] < shape[axis] {
                break;
            }
            next[axis] = 0;
        }
        index
    })
}

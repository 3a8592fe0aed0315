use super::DTYPES;
use crate::conformance::Operators;
use crate::conformance::buffer::{Floats, Numbers, Spacing, Tolerance};
use crate::conformance::suite::{Run, Suite, named};
use crate::normalization::rms_norm::{Config, Operands, Spec};
use crate::{Contract, DType, Presence, Spec as _};

const CONTRACT: Contract = Contract::RMS_NORM;

pub(super) fn run(suite: &mut Suite<'_>) {
    let shapes = [[0, 1, 64], [1, 1, 1], [1, 1, 7], [3, 1, 576], [33, 1, 257], [2, 9, 64], [5, 3, 128]];
    for (dtype, shape) in DTYPES.into_iter().flat_map(|dtype| shapes.map(|shape| (dtype, shape))) {
        for (residual, spacing) in [
            (Presence::Absent, Spacing::Dense),
            (Presence::Absent, Spacing::Gapped),
            (Presence::Present, Spacing::Dense),
            (Presence::Present, Spacing::Spread),
        ] {
            case(suite, dtype, dtype, shape, residual, spacing);
        }
    }
    case(suite, DType::BF16, DType::F32, [4, 1, 96], Presence::Present, Spacing::Dense);
    case(suite, DType::F32, DType::F16, [4, 1, 96], Presence::Absent, Spacing::Gapped);
    refusals(suite);
}

fn spec(dtype: DType, weight_dtype: DType, hidden_size: usize, residual: Presence) -> Spec {
    Spec::new(Config { dtype, weight_dtype, hidden_size, epsilon: 1e-5, residual }).expect("a valid spec")
}

fn case(
    suite: &mut Suite<'_>,
    dtype: DType,
    weight_dtype: DType,
    shape: [usize; 3],
    residual: Presence,
    spacing: Spacing,
) {
    let spec = spec(dtype, weight_dtype, shape[2], residual);
    let mut numbers = Numbers::new(1);
    let layout = spacing.layout(shape);
    // With no residual also rows so small that epsilon decides.
    let scale = if spacing == Spacing::Gapped { 0.005 } else { 3.0 };
    let input = Floats::random(&mut numbers, dtype, layout, scale);
    let weight = Floats::random(&mut numbers, weight_dtype, Spacing::Dense.layout([shape[2]]), 1.0);
    let given = Floats::random(&mut numbers, dtype, layout, 2.0);
    let name = format!("{} {shape:?} {spacing:?}", spec.describe());
    suite.case(CONTRACT, named("", name), Tolerance::of(dtype), |operators: &mut dyn Operators| {
        let (mut residual, mut output) = (given.clone(), Floats::poisoned(dtype, layout));
        let has_residual = spec.config().residual == Presence::Present;
        let operands = Operands {
            input: input.view(),
            weight: weight.view(),
            residual: has_residual.then(|| residual.view_mut()),
            output: output.view_mut(),
        };
        let result = operators.rms_norm(&spec, operands);
        Run { result, written: vec![output.written("output"), residual.written("residual")] }
    });
}

/// What is made for a spec of `f32` rows of 64.
#[derive(Clone, Copy)]
struct Made {
    input: (DType, [usize; 3]),
    weight: (DType, [usize; 1]),
    residual: Option<[usize; 3]>,
    output: (DType, [usize; 3]),
}

fn refusals(suite: &mut Suite<'_>) {
    let (f32, bf16) = (DType::F32, DType::BF16);
    let good =
        Made { input: (f32, [2, 1, 64]), weight: (f32, [64]), residual: None, output: (f32, [2, 1, 64]) };
    let (absent, present) = (Presence::Absent, Presence::Present);
    for (what, asked, made) in [
        ("input of another type", absent, Made { input: (bf16, [2, 1, 64]), ..good }),
        ("input of another size", absent, Made { input: (f32, [2, 1, 65]), ..good }),
        ("weight of another type", absent, Made { weight: (bf16, [64]), ..good }),
        ("short weight", absent, Made { weight: (f32, [63]), ..good }),
        ("output of another type", absent, Made { output: (bf16, [2, 1, 64]), ..good }),
        ("short output", absent, Made { output: (f32, [1, 1, 64]), ..good }),
        ("a residual nobody asked for", absent, Made { residual: Some([2, 1, 64]), ..good }),
        ("no residual", present, good),
        ("short residual", present, Made { residual: Some([1, 1, 64]), ..good }),
    ] {
        refusal(suite, what, asked, made);
    }
}

fn refusal(suite: &mut Suite<'_>, what: &str, asked: Presence, made: Made) {
    let spec = spec(DType::F32, DType::F32, 64, asked);
    let mut numbers = Numbers::new(2);
    let input = Floats::random(&mut numbers, made.input.0, Spacing::Dense.layout(made.input.1), 1.0);
    let weight = Floats::random(&mut numbers, made.weight.0, Spacing::Dense.layout(made.weight.1), 1.0);
    suite.case(CONTRACT, named(what, ""), Tolerance::exact(), |operators: &mut dyn Operators| {
        let mut output = Floats::poisoned(made.output.0, Spacing::Dense.layout(made.output.1));
        let mut residual =
            made.residual.map(|shape| Floats::poisoned(DType::F32, Spacing::Dense.layout(shape)));
        let operands = Operands {
            input: input.view(),
            weight: weight.view(),
            residual: residual.as_mut().map(Floats::view_mut),
            output: output.view_mut(),
        };
        let result = operators.rms_norm(&spec, operands);
        Run { result, written: vec![output.written("output")] }
    });
}

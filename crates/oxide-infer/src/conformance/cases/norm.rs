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
            case(suite, [dtype; 3], shape, residual, spacing);
        }
    }
    // Sizes of models and around them, and batches up to 256.
    let models = [
        [256, 1, 8],
        [5, 9, 64],
        [2, 1, 256],
        [7, 1, 576],
        [33, 2, 128],
        [3, 1, 1024],
        [3, 1, 1536],
        [1, 1, 2048],
        [3, 1, 2056],
        [2, 1, 4096],
        [1, 1, 8184],
        [2, 1, 8192],
    ];
    for (dtype, shape) in DTYPES.into_iter().flat_map(|dtype| models.map(|shape| (dtype, shape))) {
        for residual in [Presence::Absent, Presence::Present] {
            case(suite, [dtype; 3], shape, residual, Spacing::Dense);
        }
    }
    let (f32, f16, bf16) = (DType::F32, DType::F16, DType::BF16);
    case(suite, [bf16, f32, bf16], [4, 1, 96], Presence::Present, Spacing::Dense);
    case(suite, [f32, f16, f32], [4, 1, 96], Presence::Absent, Spacing::Gapped);
    // A residual stream in f32 that products in bf16 read.
    for shape in models {
        case(suite, [f32, bf16, bf16], shape, Presence::Absent, Spacing::Dense);
    }
    case(suite, [f32, bf16, bf16], [4, 1, 96], Presence::Present, Spacing::Dense);
    refusals(suite);
}

fn spec(dtypes: [DType; 3], hidden_size: usize, residual: Presence) -> Spec {
    let [dtype, weight_dtype, output_dtype] = dtypes;
    let config = Config { dtype, weight_dtype, output_dtype, hidden_size, epsilon: 1e-5, residual };
    Spec::new(config).expect("a valid spec")
}

/// Element types of input, weight and output.
fn case(suite: &mut Suite<'_>, dtypes: [DType; 3], shape: [usize; 3], residual: Presence, spacing: Spacing) {
    let [dtype, weight_dtype, output_dtype] = dtypes;
    let spec = spec(dtypes, shape[2], residual);
    let mut numbers = Numbers::new(1);
    let layout = spacing.layout(shape);
    // With no residual also rows so small that epsilon decides.
    let scale = if spacing == Spacing::Gapped { 0.005 } else { 3.0 };
    let input = Floats::random(&mut numbers, dtype, layout, scale);
    let weight = Floats::random(&mut numbers, weight_dtype, Spacing::Dense.layout([shape[2]]), 1.0);
    let given = Floats::random(&mut numbers, dtype, layout, 2.0);
    let name = format!("{} {shape:?} {spacing:?}", spec.describe());
    suite.case(CONTRACT, named("", name), Tolerance::of(output_dtype), |operators: &mut dyn Operators| {
        let (mut residual, mut output) = (given.clone(), Floats::poisoned(output_dtype, layout));
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

fn refusals(suite: &mut Suite<'_>) {
    let dense = |shape| Spacing::Dense.layout(shape);
    let (good, other) = (DType::F32, DType::BF16);
    // (what, input, weight, residual, output)
    let cases = [
        ("input of another type", (other, [2, 1, 64]), (good, [64]), None, (good, [2, 1, 64])),
        ("input of another size", (good, [2, 1, 65]), (good, [64]), None, (good, [2, 1, 64])),
        ("weight of another type", (good, [2, 1, 64]), (other, [64]), None, (good, [2, 1, 64])),
        ("short weight", (good, [2, 1, 64]), (good, [63]), None, (good, [2, 1, 64])),
        ("output of another type", (good, [2, 1, 64]), (good, [64]), None, (other, [2, 1, 64])),
        ("short output", (good, [2, 1, 64]), (good, [64]), None, (good, [1, 1, 64])),
        (
            "a residual nobody asked for",
            (good, [2, 1, 64]),
            (good, [64]),
            Some([2, 1, 64]),
            (good, [2, 1, 64]),
        ),
        ("no residual", (good, [2, 1, 64]), (good, [64]), None, (good, [2, 1, 64])),
        ("short residual", (good, [2, 1, 64]), (good, [64]), Some([1, 1, 64]), (good, [2, 1, 64])),
    ];
    for (what, input, weight, residual, output) in cases {
        let wants = if what.contains("nobody") || !what.contains("residual") {
            Presence::Absent
        } else {
            Presence::Present
        };
        let spec = spec([good; 3], 64, wants);
        let mut numbers = Numbers::new(2);
        let input = Floats::random(&mut numbers, input.0, dense(input.1), 1.0);
        let weight = Floats::random(&mut numbers, weight.0, Spacing::Dense.layout(weight.1), 1.0);
        suite.case(CONTRACT, named(what, ""), Tolerance::exact(), |operators: &mut dyn Operators| {
            let mut output = Floats::poisoned(output.0, dense(output.1));
            let mut residual = residual.map(|shape| Floats::poisoned(good, dense(shape)));
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
}

use super::DTYPES;
use super::blocks::Stored;
use crate::conformance::Operators;
use crate::conformance::buffer::{Floats, Numbers, Spacing, Tolerance};
use crate::conformance::suite::{Run, Suite, named};
use crate::gemm::dense::{Config, Operands, Spec};
use crate::quantization::BlockFormat;
use crate::{Contract, DType, Presence, Spec as _, WeightFormat};

const CONTRACT: Contract = Contract::DENSE;

/// The operands of a case; what the spec asks for is apart from it.
#[derive(Clone)]
struct Case {
    made: Config,
    m: usize,
    spacing: Spacing,
}

fn config(dtype: DType, [n, k]: [usize; 2]) -> Config {
    let (weight, residual) = (WeightFormat::Dense(dtype), Presence::Absent);
    Config { input: dtype, weight, output: dtype, n, k, bias: None, residual }
}

pub(super) fn run(suite: &mut Suite<'_>) {
    // (m, [n, k]): none, one, decode batches, prefill chunks; odd sizes and sizes that tile.
    let shapes = [
        (0, [8, 64]),
        (1, [1, 1]),
        (1, [7, 33]),
        (1, [64, 576]),
        (5, [3, 64]),
        (2, [65, 128]),
        (17, [32, 257]),
        (33, [24, 96]),
        (64, [64, 64]),
    ];
    for (dtype, (m, size)) in DTYPES.into_iter().flat_map(|dtype| shapes.map(|shape| (dtype, shape))) {
        for (bias, residual, spacing) in [
            (None, Presence::Absent, Spacing::Dense),
            (Some(dtype), Presence::Absent, Spacing::Gapped),
            (None, Presence::Present, Spacing::Spread),
            (Some(DType::F32), Presence::Present, Spacing::Dense),
        ] {
            let made = Config { bias, residual, ..config(dtype, size) };
            run_case(suite, &made.clone(), &Case { made, m, spacing }, "");
        }
    }
    for (input, weight, output) in [
        (DType::BF16, DType::BF16, DType::F32),
        (DType::F32, DType::BF16, DType::F32),
        (DType::F32, DType::F16, DType::F32),
    ] {
        let made = Config { input, weight: WeightFormat::Dense(weight), output, ..config(input, [48, 200]) };
        run_case(suite, &made.clone(), &Case { made, m: 3, spacing: Spacing::Dense }, "");
    }
    for (format, m) in BlockFormat::ALL.into_iter().flat_map(|format| [1, 6].map(|m| (format, m))) {
        for dtype in [DType::F32, DType::BF16] {
            let weight = WeightFormat::Blocks(format);
            let made = Config { weight, bias: Some(DType::F32), ..config(dtype, [9, 512]) };
            run_case(suite, &made.clone(), &Case { made, m, spacing: Spacing::Dense }, "");
        }
    }
    refusals(suite);
}

fn run_case(suite: &mut Suite<'_>, asked: &Config, case: &Case, fault: &str) {
    let spec = Spec::new(asked.clone()).expect("a valid spec");
    let Case { made, m, spacing } = case;
    let mut numbers = Numbers::new(12);
    let input = Floats::random(&mut numbers, made.input, spacing.layout([*m, made.k]), 1.0);
    let weight = Stored::random(&mut numbers, made.weight, [made.n, made.k], *spacing);
    let bias = made.bias.map(|dtype| Floats::random(&mut numbers, dtype, spacing.layout([made.n]), 1.0));
    let rows = spacing.layout([*m, made.n]);
    let residual = Floats::random(&mut numbers, made.output, rows, 1.0);
    let run = |operators: &mut dyn Operators| {
        let mut output = Floats::poisoned(made.output, rows);
        let operands = Operands {
            input: input.view(),
            weight: weight.view(),
            bias: bias.as_ref().map(Floats::view),
            residual: (made.residual == Presence::Present).then(|| residual.view()),
            output: output.view_mut(),
        };
        let result = operators.dense(&spec, operands);
        Run { result, written: vec![output.written("output")] }
    };
    // A sum of k products of about ±1, whose rounding errors grow with its root.
    let tolerance = Tolerance::of(made.output).scaled((made.k as f32).sqrt().max(1.0));
    suite.case(CONTRACT, named(fault, format!("{} m={m} {spacing:?}", spec.describe())), tolerance, run);
}

type Fault = (&'static str, fn(&mut Config));

fn refusals(suite: &mut Suite<'_>) {
    let faults: [Fault; 10] = [
        ("input of another type", |spec| spec.input = DType::F16),
        ("weight of another type", |spec| spec.weight = WeightFormat::Dense(DType::BF16)),
        ("dense weight for blocks", |spec| spec.weight = WeightFormat::Blocks(BlockFormat::Q4_0)),
        ("output of another type", |spec| spec.output = DType::F16),
        ("input of another size", |spec| spec.k = 32),
        ("weight with more rows", |spec| spec.n = 4),
        ("no bias", |spec| spec.bias = Some(DType::F32)),
        ("a residual nobody asked for", |spec| spec.residual = Presence::Absent),
        ("residual of another type", |spec| (spec.output, spec.bias) = (DType::BF16, None)),
        ("input with more features", |spec| spec.k = 65),
    ];
    for (what, fault) in faults {
        let made = Config { residual: Presence::Present, ..config(DType::F32, [5, 64]) };
        let mut asked = made.clone();
        fault(&mut asked);
        run_case(suite, &asked, &Case { made, m: 2, spacing: Spacing::Dense }, what);
    }
    let blocks = |format| Config { weight: WeightFormat::Blocks(format), ..config(DType::F32, [5, 64]) };
    let (asked, made) = (blocks(BlockFormat::Q4_1), blocks(BlockFormat::Q4_0));
    run_case(suite, &asked, &Case { made, m: 2, spacing: Spacing::Dense }, "blocks of another format");
    let (asked, made) = (
        Config { bias: None, ..config(DType::F32, [5, 64]) },
        Config { bias: Some(DType::F32), ..config(DType::F32, [5, 64]) },
    );
    run_case(suite, &asked, &Case { made, m: 2, spacing: Spacing::Dense }, "a bias nobody asked for");
}

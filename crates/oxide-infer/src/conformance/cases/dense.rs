use super::DTYPES;
use super::blocks::Stored;
use crate::conformance::Operators;
use crate::conformance::buffer::{Floats, Numbers, Spacing, Tolerance};
use crate::conformance::suite::{Run, Suite, named};
use crate::gemm::dense::{Config, Operands, Spec};
use crate::gemm::dense_swiglu;
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
    let bf16 = [
        (DType::BF16, None, Presence::Absent),
        (DType::BF16, Some(DType::BF16), Presence::Absent),
        (DType::F32, None, Presence::Present),
        (DType::F32, None, Presence::Absent),
    ];
    let f16 = [(DType::F16, None, Presence::Absent), (DType::F16, Some(DType::F16), Presence::Absent)];
    // Of f16, which is what bf16 is but for the type, a quarter.
    let of_f16 = models().into_iter().step_by(4).map(|model| (DType::F16, model, &f16[..]));
    let of_bf16 = models().into_iter().map(|model| (DType::BF16, model, &bf16[..]));
    for (dtype, (m, size), results) in of_bf16.chain(of_f16) {
        for &(output, bias, residual) in results {
            let made = Config { output, bias, residual, ..config(dtype, size) };
            run_case(suite, &made.clone(), &Case { made, m, spacing: Spacing::Dense }, "");
        }
    }
    // Tiles for several turns of blocks that stay, which multiply alone.
    let made = config(DType::BF16, [17_416, 264]);
    run_case(suite, &made.clone(), &Case { made, m: 9, spacing: Spacing::Dense }, "");
    for (format, m) in BlockFormat::ALL.into_iter().flat_map(|format| [1, 6].map(|m| (format, m))) {
        for dtype in [DType::F32, DType::BF16] {
            let weight = WeightFormat::Blocks(format);
            let made = Config { weight, bias: Some(DType::F32), ..config(dtype, [9, 512]) };
            run_case(suite, &made.clone(), &Case { made, m, spacing: Spacing::Dense }, "");
        }
    }
    refusals(suite);
    run_gated(suite);
}

/// `(m, [n, k])` as models have it, in multiples of 8: rows of one decode to a prefill chunk, on both sides of the tiles of
/// kernels; sizes that no tile divides, a few steps of `k` and very many, more tiles than a device has multiprocessors.
fn models() -> Vec<(usize, [usize; 2])> {
    let mut models =
        vec![(1, [24, 4104]), (33, [24, 2056]), (3, [8, 64]), (65, [8, 8]), (133, [17_416, 136])];
    for m in [1, 7, 8, 9, 16, 17, 32, 33, 64, 65, 129, 256] {
        let more = if m > 17 { [[8, 8], [72, 520]] } else { [[200, 1032], [1000, 136]] };
        models.extend([(m, [136, 264]), (m, more[0]), (m, more[1])]);
    }
    // Kernels of one row are made for a `k` in multiples of 32, by its size.
    models.extend([[200, 1056], [1000, 32], [72, 2400], [40, 4640], [40, 9728]].map(|size| (1, size)));
    // So are those of a few rows that scale what was normalized in part.
    models.extend([(7, [1000, 32]), (8, [200, 1056]), (17, [200, 1056]), (33, [72, 2400]), (65, [8, 4640])]);
    // Steps of k for several turns of a ring in each of eight ranges.
    models.push((17, [72, 6216]));
    models
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
    // A sum of k products of about ±1, which itself grows with the root of k, and its rounding errors with it.
    let tolerance = Tolerance::of(made.output).scaled((made.k as f32).sqrt().max(1.0));
    suite.case(CONTRACT, named(fault, format!("{} m={m} {spacing:?}", spec.describe())), tolerance, run);
}

/// The gated form.
fn run_gated(suite: &mut Suite<'_>) {
    let gated = |dtype, [n, k]: [usize; 2]| dense_swiglu::Config {
        input: dtype,
        weight: WeightFormat::Dense(dtype),
        output: dtype,
        n,
        k,
    };
    for (dtype, spacing) in DTYPES.into_iter().flat_map(|dtype| Spacing::ALL.map(|spacing| (dtype, spacing)))
    {
        for (m, size) in [(0, [8, 64]), (1, [1, 1]), (5, [7, 33]), (2, [64, 576])] {
            let made = gated(dtype, size);
            gated_case(suite, &made, &made, [m, size[0]], spacing, "");
        }
    }
    // And more tiles of 64 rows by 128 columns than a device has multiprocessors.
    for (m, size) in models().into_iter().chain([(133, [5768, 608])]) {
        let made = gated(DType::BF16, size);
        gated_case(suite, &made, &made, [m, size[0]], Spacing::Dense, "");
    }
    for format in BlockFormat::ALL {
        let made =
            dense_swiglu::Config { weight: WeightFormat::Blocks(format), ..gated(DType::F32, [9, 512]) };
        gated_case(suite, &made, &made, [3, 9], Spacing::Dense, "");
    }
    let made = gated(DType::F32, [8, 64]);
    for (what, asked, output) in [
        ("input of another type", dense_swiglu::Config { input: DType::F16, ..made.clone() }, [2, 8]),
        ("output of another type", dense_swiglu::Config { output: DType::F16, ..made.clone() }, [2, 8]),
        ("weight with half the rows", dense_swiglu::Config { n: 16, ..made.clone() }, [2, 16]),
        ("input of another size", dense_swiglu::Config { k: 32, ..made.clone() }, [2, 8]),
        ("output with both halves", made.clone(), [2, 16]),
        ("output with fewer rows", made.clone(), [1, 8]),
    ] {
        gated_case(suite, &asked, &made, output, Spacing::Dense, what);
    }
}

fn gated_case(
    suite: &mut Suite<'_>,
    asked: &dense_swiglu::Config,
    made: &dense_swiglu::Config,
    [m, n]: [usize; 2],
    spacing: Spacing,
    fault: &str,
) {
    let spec = dense_swiglu::Spec::new(asked.clone()).expect("a valid spec");
    let mut numbers = Numbers::new(15);
    // Gates from where silu is almost 0 to where it is almost the identity, whatever k.
    let scale = 6.0 / (made.k as f32).sqrt();
    let rows = if fault.is_empty() { m } else { 2 };
    let input = Floats::random(&mut numbers, made.input, spacing.layout([rows, made.k]), scale);
    let weight = Stored::random(&mut numbers, made.weight, [2 * made.n, made.k], spacing);
    let run = |operators: &mut dyn Operators| {
        let mut output = Floats::poisoned(made.output, spacing.layout([m, n]));
        let operands =
            dense_swiglu::Operands { input: input.view(), weight: weight.view(), output: output.view_mut() };
        let result = operators.dense_swiglu(&spec, operands);
        Run { result, written: vec![output.written("output")] }
    };
    // The product of two sums of numbers up to 8, each off by up to 4e-5.
    let tolerance = Tolerance::of(made.output).scaled(64.0);
    let name = format!("{} m={m} {spacing:?}", spec.describe());
    suite.case(CONTRACT, named(fault, name), tolerance, run);
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

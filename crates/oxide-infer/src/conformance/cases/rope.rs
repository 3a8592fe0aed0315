use super::DTYPES;
use crate::conformance::Operators;
use crate::conformance::buffer::{Floats, Indices, Numbers, Spacing, Tolerance, list};
use crate::conformance::suite::{Run, Suite, named};
use crate::position::rope::{Config, Operands, Pairing, Scaling, Spec};
use crate::{Contract, DType, Spec as _};

const CONTRACT: Contract = Contract::ROPE;

/// Every kind of scaling, with the numbers of a published model where there is one.
fn scalings() -> [Scaling; 4] {
    let original_max_position = 8192;
    [
        Scaling::None,
        Scaling::Linear { factor: 4.0 },
        Scaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position },
        Scaling::Yarn {
            factor: 4.0,
            original_max_position,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
        },
    ]
}

/// The configuration that the suite uses wherever a contract turns heads.
pub(super) fn config(dtype: DType, head_dim: usize, rotary_dim: usize) -> Config {
    Config { dtype, head_dim, rotary_dim, pairing: Pairing::NeoX, theta: 1e4, scaling: Scaling::None }
}

pub(super) fn run(suite: &mut Suite<'_>) {
    // ([tokens, num_heads, head_dim], rotary_dim)
    let shapes = [
        ([0, 2, 64], 64),
        ([1, 1, 2], 2),
        ([5, 9, 64], 64),
        ([3, 4, 128], 128),
        ([7, 3, 80], 32),
        ([2, 5, 6], 4),
    ];
    for (dtype, (shape, rotary_dim)) in
        DTYPES.into_iter().flat_map(|dtype| shapes.map(|shape| (dtype, shape)))
    {
        for pairing in [Pairing::NeoX, Pairing::Interleaved] {
            for spacing in Spacing::ALL {
                let config = Config { pairing, ..config(dtype, shape[2], rotary_dim) };
                case(suite, config, shape, spacing);
            }
        }
    }
    // As models have it: many heads, and as many tokens as several blocks of a kernel have.
    for shape in [[1, 32, 64], [130, 9, 64], [1, 12, 128], [65, 40, 128]] {
        case(suite, config(DType::BF16, shape[2], shape[2]), shape, Spacing::Dense);
    }
    for (dtype, scaling) in DTYPES.into_iter().flat_map(|dtype| scalings().map(|scaling| (dtype, scaling))) {
        case(suite, Config { scaling, ..config(dtype, 64, 64) }, [9, 2, 64], Spacing::Dense);
    }
    refusals(suite);
}

fn case(suite: &mut Suite<'_>, config: Config, shape: [usize; 3], spacing: Spacing) {
    let spec = Spec::new(config).expect("a valid spec");
    let dtype = spec.config().dtype;
    let mut numbers = Numbers::new(3);
    let layout = spacing.layout(shape);
    let input = Floats::random(&mut numbers, dtype, layout, 2.0);
    // The first token is at position 0, the others anywhere in a context of 8192.
    let positions =
        Indices::new(spacing.layout([shape[0]]), |[token]| token.min(1) as i32 * numbers.below(8192) as i32);
    let name = format!("{} {:?} {shape:?} {spacing:?}", spec.describe(), spec.config().scaling);
    suite.case(CONTRACT, named("", name), Tolerance::of(dtype), |operators: &mut dyn Operators| {
        let mut output = Floats::poisoned(dtype, layout);
        let operands =
            Operands { input: input.view(), positions: positions.view(), output: output.view_mut() };
        let result = operators.rope(&spec, operands);
        Run { result, written: vec![output.written("output")] }
    });
}

fn refusals(suite: &mut Suite<'_>) {
    let (good, other) = (DType::F32, DType::F16);
    let shape = [2, 3, 8];
    // (what, input, positions, output)
    let cases: [(_, _, &[i32], _); 6] = [
        ("input of another type", (other, shape), &[0, 1], (good, shape)),
        ("input of another head size", (good, [2, 3, 7]), &[0, 1], (good, shape)),
        ("too few positions", (good, shape), &[0], (good, shape)),
        ("a negative position", (good, shape), &[0, -1], (good, shape)),
        ("output of another type", (good, shape), &[0, 1], (other, shape)),
        ("output with fewer heads", (good, shape), &[0, 1], (good, [2, 2, 8])),
    ];
    let spec = Spec::new(config(good, 8, 8)).expect("a valid spec");
    for (what, input, positions, output) in cases {
        refusal(suite, &spec, what, input, positions, output);
    }
    for head_dim in [64, 128] {
        let spec = Spec::new(config(DType::BF16, head_dim, head_dim)).expect("a valid spec");
        let heads = (DType::BF16, [3, 5, head_dim]);
        refusal(suite, &spec, "a negative position", heads, &[7, 0, -1], heads);
    }
}

fn refusal(
    suite: &mut Suite<'_>,
    spec: &Spec,
    what: &str,
    input: (DType, [usize; 3]),
    positions: &[i32],
    output: (DType, [usize; 3]),
) {
    let input = Floats::random(&mut Numbers::new(4), input.0, Spacing::Dense.layout(input.1), 1.0);
    let positions = list(positions);
    suite.case(CONTRACT, named(what, ""), Tolerance::exact(), |operators: &mut dyn Operators| {
        let mut output = Floats::poisoned(output.0, Spacing::Dense.layout(output.1));
        let operands =
            Operands { input: input.view(), positions: positions.view(), output: output.view_mut() };
        let result = operators.rope(spec, operands);
        Run { result, written: vec![output.written("output")] }
    });
}

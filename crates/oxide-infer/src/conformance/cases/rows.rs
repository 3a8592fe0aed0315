//! The contracts that work element by element or row by row: SwiGLU and gather.

use super::DTYPES;
use super::blocks::Stored;
use crate::activation::swiglu;
use crate::conformance::Operators;
use crate::conformance::buffer::{Floats, Numbers, Spacing, Tolerance};
use crate::conformance::suite::{Run, Suite, named};
use crate::embedding::gather;
use crate::quantization::BlockFormat;
use crate::{Contract, DType, Spec as _, View, WeightFormat};

pub(super) fn run_swiglu(suite: &mut Suite<'_>) {
    let shapes = [[0, 64], [1, 1], [1, 1536], [3, 7], [17, 129], [64, 96], [5, 4104]];
    for (dtype, shape) in DTYPES.into_iter().flat_map(|dtype| shapes.map(|shape| (dtype, shape))) {
        for spacing in Spacing::ALL {
            swiglu_case(suite, swiglu::Config { dtype, size: shape[1] }, [(dtype, shape); 3], spacing, "");
        }
    }
    let (good, other) = ((DType::F32, [3, 8]), (DType::BF16, [3, 8]));
    let (short, narrow) = ((DType::F32, [2, 8]), (DType::F32, [3, 7]));
    for (what, made) in [
        ("gate of another type", [other, good, good]),
        ("up of another type", [good, other, good]),
        ("output of another type", [good, good, other]),
        ("gate of another size", [narrow, good, good]),
        ("up with fewer rows", [good, short, good]),
        ("output with fewer rows", [good, good, short]),
    ] {
        swiglu_case(suite, swiglu::Config { dtype: DType::F32, size: 8 }, made, Spacing::Dense, what);
    }
}

fn swiglu_case(
    suite: &mut Suite<'_>,
    config: swiglu::Config,
    [gate, up, out]: [(DType, [usize; 2]); 3],
    spacing: Spacing,
    fault: &str,
) {
    let spec = swiglu::Spec::new(config).expect("a valid spec");
    let mut numbers = Numbers::new(13);
    // Gates from where silu is 0 to where it is the identity.
    let gates = Floats::random(&mut numbers, gate.0, spacing.layout(gate.1), 120.0);
    let ups = Floats::random(&mut numbers, up.0, spacing.layout(up.1), 2.0);
    let run = |operators: &mut dyn Operators| {
        let mut output = Floats::poisoned(out.0, spacing.layout(out.1));
        let operands = swiglu::Operands { gate: gates.view(), up: ups.view(), output: output.view_mut() };
        let result = operators.swiglu(&spec, operands);
        Run { result, written: vec![output.written("output")] }
    };
    let name = format!("{} {:?} {spacing:?}", spec.describe(), gate.1);
    suite.case(Contract::SWIGLU, named(fault, name), Tolerance::of(out.0), run);
}

pub(super) fn run_gather(suite: &mut Suite<'_>) {
    let several: &[u32] = &[3, 3, 0, 10, 7, 1, 9, 10, 2];
    let cases: [(&[u32], Spacing); 5] = [
        (&[], Spacing::Dense),
        (&[10], Spacing::Dense),
        (several, Spacing::Dense),
        (several, Spacing::Gapped),
        (several, Spacing::Spread),
    ];
    let dense =
        DTYPES.into_iter().flat_map(|table| DTYPES.map(|output| (WeightFormat::Dense(table), output, 65)));
    let blocks = BlockFormat::ALL.into_iter().flat_map(|format| {
        [DType::F32, DType::BF16].map(|output| (WeightFormat::Blocks(format), output, 512))
    });
    for (table, output, hidden_size) in dense.chain(blocks) {
        for (ids, spacing) in cases {
            let config = gather::Config { table, output, hidden_size };
            let case = GatherCase { ids, table, output, shape: [ids.len(), hidden_size], spacing };
            gather_case(suite, config, case, "");
        }
    }
    // As models have it, rows of every size, batches up to 256: embeddings to a residual stream, rows of that, and rows of what
    // attention gives.
    let forms = [(DType::BF16, DType::F32), (DType::F32, DType::F32), (DType::BF16, DType::BF16)];
    for ((table, output), (tokens, hidden_size)) in forms.into_iter().flat_map(|form| {
        [(1, 8), (256, 64), (33, 576), (5, 1536), (17, 2056), (2, 8192)].map(|shape| (form, shape))
    }) {
        let ids: Vec<u32> = (0..tokens as u32).map(|token| (token * 7 + 3) % VOCABULARY as u32).collect();
        let table = WeightFormat::Dense(table);
        let shape = [tokens, hidden_size];
        let case = GatherCase { ids: &ids, table, output, shape, spacing: Spacing::Dense };
        gather_case(suite, gather::Config { table, output, hidden_size }, case, "");
    }
    for (table, output) in forms {
        gather_refusals(suite, table, output);
    }
}

fn gather_refusals(suite: &mut Suite<'_>, table: DType, output: DType) {
    let table = WeightFormat::Dense(table);
    let config = || gather::Config { table, output, hidden_size: 8 };
    let good = GatherCase { ids: &[1, 2, 10], table, output, shape: [3, 8], spacing: Spacing::Dense };
    for (what, case) in [
        ("an id past the vocabulary", GatherCase { ids: &[1, 11, 10], ..good }),
        ("an id that is no id", GatherCase { ids: &[1, 2, u32::MAX], ..good }),
        ("table of another type", GatherCase { table: WeightFormat::Dense(DType::F16), ..good }),
        ("output of another type", GatherCase { output: DType::F16, ..good }),
        ("output with fewer rows", GatherCase { shape: [2, 8], ..good }),
    ] {
        gather_case(suite, config(), case, what);
    }
    gather_case(suite, gather::Config { hidden_size: 9, ..config() }, good, "table of another size");
}

/// Rows of the tables.
const VOCABULARY: usize = 11;

/// The operands of a lookup.
#[derive(Clone, Copy)]
struct GatherCase<'a> {
    ids: &'a [u32],
    table: WeightFormat,
    output: DType,
    shape: [usize; 2],
    spacing: Spacing,
}

fn gather_case(suite: &mut Suite<'_>, config: gather::Config, case: GatherCase<'_>, fault: &str) {
    let spec = gather::Spec::new(config).expect("a valid spec");
    let GatherCase { ids, table: format, output: dtype, shape, spacing } = case;
    let table = Stored::random(&mut Numbers::new(14), format, [VOCABULARY, shape[1]], spacing);
    let run = |operators: &mut dyn Operators| {
        let mut output = Floats::poisoned(dtype, spacing.layout(shape));
        let ids = View::contiguous(ids, [ids.len()]).expect("made to fit");
        let operands = gather::Operands { ids, table: table.view(), output: output.view_mut() };
        let result = operators.gather(&spec, operands);
        Run { result, written: vec![output.written("output")] }
    };
    // Elements are copied or rounded once; blocks may be scaled with a fused multiply-add.
    let tolerance = match format {
        WeightFormat::Dense(_) => Tolerance::exact(),
        WeightFormat::Blocks(_) => Tolerance::of(dtype),
    };
    let name = format!("{} ids={ids:?} {spacing:?}", spec.describe());
    suite.case(Contract::GATHER, named(fault, name), tolerance, run);
}

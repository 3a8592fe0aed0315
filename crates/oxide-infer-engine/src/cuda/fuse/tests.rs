//! Which operators are fused, in which classes, of which models.

use super::*;
use crate::batch::PlanGoal;
use crate::cuda::classes::{Classes, DecodeClass, Reach};
use crate::cuda::lower::CudaModel;
use crate::cuda::plan::PlanSizes;
use crate::cuda::tests::{PUBLISHED, published};
use crate::model::{Architecture, DenseDecoder, ModelConfig};
use oxide_infer_cuda::artifact::{Registry, Target};

const ONE: StepClass = decode(1);

const fn decode(rows: usize) -> StepClass {
    StepClass::Decode(DecodeClass { rows, reach: Reach::Any })
}

fn sizes() -> PlanSizes {
    PlanSizes {
        goal: PlanGoal::Fastest,
        classes: Classes::new(256, 256, 4096),
        max_sequences: 256,
        max_model_len: 4096,
        pool_pages: 100,
        multiprocessors: 132,
    }
}

/// The operators of the first layer and of the last in a class, by name, and whether logits are made by one operator.
fn layers(config: &ModelConfig, class: StepClass) -> ([Vec<String>; 2], bool) {
    let model = CudaModel::new(&DenseDecoder::new(config));
    let sizes = sizes();
    let registry = Registry::embedded(Target::hopper()).unwrap();
    let requests = Requests::new(config, &model, &sizes, &registry).unwrap();
    let step = requests.step(class);
    let name = |operator: &CudaOperator| match operator {
        CudaOperator::Fused(fused) => format!("fused {}", fused.name()),
        other => other.name().to_owned(),
    };
    let [first, last] = &step.layers[..] else { panic!("the model has two layers") };
    // The embedding begins a norm where, and only where, the first product reads one.
    let begun = matches!(step.embedding, Embedding::Weighted { .. });
    assert_eq!(begun, matches!(first[0], CudaOperator::Fused(Fused::ScaledProjection { .. })));
    ([first, last].map(|layer| layer.iter().map(name).collect()), step.logits.is_some())
}

/// The operators of a layer that is as every other.
fn layer(config: &ModelConfig, class: StepClass) -> (Vec<String>, bool) {
    let ([first, last], logits) = layers(config, class);
    assert_eq!(first, last);
    (first, logits)
}

const LOWERED: [&str; 8] = [
    "normalization",
    "query, key and value projection",
    "rotary embedding and append",
    "attention",
    "attention output projection",
    "normalization",
    "gate and up projection",
    "down projection",
];
/// The first layer where norms are spread over products, and the last.
const CHAINED: [&[&str]; 2] = [
    &[
        "fused query, key and value projection",
        "attention",
        "fused attention output projection",
        "fused gate and up projection",
        "fused down projection",
    ],
    &[
        "fused query, key and value projection",
        "attention",
        "fused attention output projection",
        "fused gate and up projection",
        "down projection",
    ],
];

/// As `CHAINED`, but the head's norm is spread, too.
fn closed() -> [Vec<String>; 2] {
    let mut layers = CHAINED.map(|layer| layer.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    layers[1][4].insert_str(0, "fused ");
    layers
}

#[test]
fn norms_of_up_to_32_rows_are_spread_over_the_products_around_them() {
    for shape in [[1536, 8960, 12, 2, 128, 151_936], [896, 4864, 14, 2, 64, 151_936]] {
        let config = published(Architecture::Qwen2, shape);
        for rows in [2, 4, 8, 16, 24, 32] {
            let (layers, logits) = layers(&config, decode(rows));
            assert_eq!(layers, CHAINED, "{rows} rows of {shape:?}");
            assert!(!logits);
        }
    }
}

#[test]
fn of_48_and_64_rows_only_the_norm_before_the_next_layer_is_spread() {
    // Gate and up have a tile there that no artifact has that reads sums of squares.
    let config = published(Architecture::Qwen2, [1536, 8960, 12, 2, 128, 151_936]);
    let [mut first, mut last] = CHAINED.map(<[&str]>::to_vec);
    first.splice(2..4, ["attention output projection", "normalization", "gate and up projection"]);
    last.splice(2..4, ["attention output projection", "normalization", "gate and up projection"]);
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    let expected = ([first, last].map(owned), false);
    for rows in [48, 64] {
        assert_eq!(layers(&config, decode(rows)), expected, "{rows} rows");
    }
}

#[test]
fn heads_that_are_normalized_keep_the_norm_before_their_projection() {
    let config = published(Architecture::Qwen3, [1024, 3072, 16, 8, 128, 151_936]);
    let mut expected = LOWERED.map(str::to_owned).to_vec();
    expected.remove(5);
    expected[4].insert_str(0, "fused ");
    expected[5].insert_str(0, "fused ");
    assert_eq!(layer(&config, decode(8)), (expected.clone(), false));
    // At one row the last layer's last product has the head's norm.
    let ([first, last], logits) = layers(&config, ONE);
    assert_eq!((&first, logits), (&expected, true));
    expected[6].insert_str(0, "fused ");
    assert_eq!(last, expected);
}

#[test]
fn heads_of_more_rows_are_turned_and_appended_by_their_product_where_that_is_faster() {
    let mut projected = LOWERED.map(str::to_owned).to_vec();
    projected.splice(1..3, ["fused query, key and value projection".to_owned()]);
    let small = published(Architecture::Qwen2, [1536, 8960, 12, 2, 128, 151_936]);
    // Measured in layers; of the larger shape they take longer.
    let large = published(Architecture::Qwen2, [3584, 18_944, 28, 4, 128, 152_064]);
    for rows in [96, 128, 160, 192, 224, 256] {
        assert_eq!(layer(&small, decode(rows)), (projected.clone(), false), "{rows} rows");
        assert_eq!(layer(&large, decode(rows)).0, LOWERED, "{rows} rows");
    }
}

#[test]
fn layers_are_as_lowered_in_classes_of_prompts_and_where_many_rows_have_no_artifacts_for_more() {
    let config = published(Architecture::Qwen2, [1536, 8960, 12, 2, 128, 151_936]);
    let unbiased = published(Architecture::Llama, [4096, 14_336, 32, 8, 128, 128_256]);
    assert_eq!(layer(&unbiased, decode(128)).0, LOWERED);
    for class in [StepClass::Mixed { tokens: 1, sequences: 1 }, StepClass::Mixed { tokens: 64, sequences: 4 }]
    {
        let lowered = LOWERED.map(str::to_owned);
        // What follows the last attention is computed with the head.
        let expected = [lowered.to_vec(), lowered[..4].to_vec()];
        assert_eq!(layers(&config, class), (expected, false), "{class:?}");
    }
}

#[test]
fn all_norms_of_one_row_are_spread_over_the_products_of_published_shapes() {
    for (architecture, shape) in [
        (Architecture::Qwen2, [896, 4864, 14, 2, 64, 151_936]),
        (Architecture::Qwen2, [1536, 8960, 12, 2, 128, 151_936]),
        (Architecture::Qwen2, [3584, 18_944, 28, 4, 128, 152_064]),
        (Architecture::Llama, [576, 1536, 9, 3, 64, 49_152]),
        (Architecture::Llama, [2048, 8192, 32, 8, 64, 128_256]),
        (Architecture::Llama, [4096, 14_336, 32, 8, 128, 128_256]),
        (Architecture::Mistral, [4096, 14_336, 32, 8, 128, 32_768]),
    ] {
        assert_eq!(layers(&published(architecture, shape), ONE), (closed(), true), "{shape:?}");
    }
}

#[test]
fn products_of_one_row_are_by_kernels_of_their_own_at_published_shapes() {
    let registry = Registry::embedded(Target::hopper()).unwrap();
    for (name, architecture, shape) in PUBLISHED {
        let config = published(architecture, shape);
        let model = CudaModel::new(&DenseDecoder::new(&config));
        let sizes = sizes();
        let requests = Requests::new(&config, &model, &sizes, &registry).unwrap();
        let step = requests.step(ONE);
        let fused = step.layers.iter().flatten().filter_map(|operator| match operator {
            CudaOperator::Fused(fused) => Some(fused),
            _ => None,
        });
        for fused in fused {
            let chosen = registry.select(&requests.fused(fused, 1)).unwrap();
            let algorithm = &chosen.manifest().algorithm;
            assert!(algorithm.starts_with("w6_") || algorithm.starts_with("w7_"), "{name}: {algorithm}");
        }
    }
}

//! What a deterministic plan is made of.

use super::*;
use crate::batch::PlanGoal;
use crate::cuda::classes::Classes;
use crate::cuda::lower::{CudaModel, CudaOperator};
use crate::cuda::options::CudaOptions;
use crate::cuda::plan::{HeadOperator, PlanSizes};
use crate::cuda::tests::{PUBLISHED, published};
use crate::model::{Architecture, DenseDecoder, ModelConfig};
use oxide_infer_cuda::artifact::{Registry, Target};
use std::collections::BTreeSet;

const OPTIONS: CudaOptions = CudaOptions {
    max_model_len: None,
    max_batch_tokens: 8192,
    max_sequences: 256,
    kv_memory: None,
    decode_launch: crate::cuda::DecodeLaunch::Graph,
    artifacts: crate::cuda::ArtifactSource::Embedded,
    goal: PlanGoal::Deterministic,
};

fn sizes(config: &ModelConfig, options: &CudaOptions) -> PlanSizes {
    PlanSizes {
        goal: options.goal,
        classes: Classes::of(options, config.max_position_embeddings),
        max_sequences: options.max_sequences,
        max_model_len: config.max_position_embeddings,
        pool_pages: 1000,
        multiprocessors: 132,
    }
}

/// The artifacts that a plan has for each operator in each phase, and in how many orders they add up.
fn planned(config: &ModelConfig, options: &CudaOptions) -> BTreeMap<(Phase, String), Planned> {
    let registry = Registry::embedded(Target::hopper()).unwrap();
    let model = CudaModel::new(&DenseDecoder::new(config));
    let sizes = sizes(config, options);
    let requests = Requests::new(config, &model, &sizes, &registry).unwrap();
    let mut planned: BTreeMap<(Phase, String), Planned> = BTreeMap::new();
    let mut note = |phase, name: &str, request: Request| {
        let artifact = registry.select(&request).unwrap();
        let of = planned.entry((phase, name.to_owned())).or_default();
        of.orders.insert(Order::of(&artifact, &request));
        of.algorithms.push(artifact.manifest().algorithm.clone());
    };
    for class in sizes.classes.steps() {
        let step = requests.step(class);
        note(Phase::of(class), "embedding", requests.embed(&step.embedding, class));
        assert_eq!(step.logits, None);
        for operator in step.layers.iter().flatten() {
            // An operator that one of several became has an order of its own.
            let name = match operator {
                CudaOperator::Fused(fused) => format!("fused {}", fused.name()),
                other => other.name().to_owned(),
            };
            note(Phase::of(class), &name, requests.layer(operator, class).unwrap());
        }
    }
    for &rows in &sizes.classes.head {
        for operator in HeadOperator::ALL {
            note(Phase::Head, &format!("{operator:?}"), requests.head(operator, rows));
        }
        for operator in model.last_layer().1 {
            note(Phase::Prompt, operator.name(), requests.last(operator, rows).unwrap());
        }
    }
    planned
}

#[derive(Debug, Default)]
struct Planned {
    orders: BTreeSet<Order>,
    algorithms: Vec<String>,
}

#[test]
fn every_operator_of_every_family_has_one_order_in_all_classes_of_a_phase() {
    for (name, architecture, shape) in PUBLISHED {
        let config = published(architecture, shape);
        for max_sequences in [1, 8, 64, 256] {
            for ((phase, operator), planned) in planned(&config, &CudaOptions { max_sequences, ..OPTIONS }) {
                assert_eq!(planned.orders.len(), 1, "{name}, {phase:?}, {operator}: {planned:?}");
            }
        }
    }
}

#[test]
fn all_classes_of_generated_tokens_have_the_same_operators() {
    let registry = Registry::embedded(Target::hopper()).unwrap();
    let mut spread = 0;
    for (name, architecture, shape) in PUBLISHED {
        let config = published(architecture, shape);
        let model = CudaModel::new(&DenseDecoder::new(&config));
        for max_sequences in [1, 32, 256] {
            let sizes = sizes(&config, &CudaOptions { max_sequences, ..OPTIONS });
            let requests = Requests::new(&config, &model, &sizes, &registry).unwrap();
            let mut decodes =
                sizes.classes.decode.iter().map(|&class| requests.step(StepClass::Decode(class)));
            let first = decodes.next().unwrap();
            assert!(decodes.all(|step| step == first), "{name}, {max_sequences}");
            let fused = |operator: &&CudaOperator| matches!(operator, CudaOperator::Fused(_));
            spread += first.layers.iter().flatten().filter(fused).count();
        }
    }
    assert!(spread > 0);
}

#[test]
fn the_fastest_plan_has_several_orders_and_is_not_changed() {
    let config = published(Architecture::Qwen2, [1536, 8960, 12, 2, 128, 151_936]);
    let registry = Registry::embedded(Target::hopper()).unwrap();
    let model = CudaModel::new(&DenseDecoder::new(&config));
    let sizes = sizes(&config, &CudaOptions { goal: PlanGoal::Fastest, ..OPTIONS });
    let requests = Requests::new(&config, &model, &sizes, &registry).unwrap();
    let mut orders: BTreeMap<String, BTreeSet<Order>> = BTreeMap::new();
    for class in sizes.classes.steps() {
        for operator in requests.step(class).layers.iter().flatten() {
            let request = requests.layer(operator, class).unwrap();
            assert!(!request.to_string().contains("algorithm="), "{request}");
            let order = Order::of(&registry.select(&request).unwrap(), &request);
            orders.entry(operator.name().to_owned()).or_default().insert(order);
        }
    }
    assert!(orders["down projection"].len() > 2 && orders["attention"].len() > 2, "{orders:?}");
}

#[test]
fn orders_are_taken_by_the_costs_of_short_decodes_and_of_long_prompts() {
    let config = published(Architecture::Qwen2, [1536, 8960, 12, 2, 128, 151_936]);
    let planned = planned(&config, &OPTIONS);
    let of = |phase, name: &str| {
        let planned = &planned[&(phase, name.to_owned())];
        (planned.orders.first().unwrap().clone(), planned.algorithms.first().unwrap().as_str())
    };
    let ends = |order: &Order| match order {
        Order::Sums(reduction) => reduction.ends.len(),
        Order::Algorithm(_) => 0,
    };
    // Norms are spread, and one row has kernels of these orders.
    for (name, ranges, algorithm) in [
        ("fused query, key and value projection", 4, "w4_128_s7"),
        ("fused attention output projection", 4, "m8_64x128_s5_split4"),
        ("fused gate and up projection", 1, "w1_256_s4"),
        ("fused down projection", 8, "w8_128_s5"),
        ("down projection", 8, "m8_64x128_s5_split8"),
    ] {
        let (order, first) = of(Phase::Generated, name);
        assert_eq!((ends(&order), first), (ranges, algorithm), "{name}");
    }
    // Long prompts are added up in one piece; those of up to 16 tokens as well, by small tiles.
    let (order, first) = of(Phase::Prompt, "down projection");
    assert_eq!((ends(&order), first), (1, "m16_64x128_s5"));
    assert_eq!(of(Phase::Generated, "attention"), (Order::Algorithm("cluster_2".into()), "cluster_2"));
}

#[test]
fn few_sequences_share_their_pages_among_more_blocks() {
    let config = published(Architecture::Qwen2, [1536, 8960, 12, 2, 128, 151_936]);
    let at_most = |max_sequences| CudaOptions { max_sequences, ..OPTIONS };
    let attention = |max_sequences| {
        let planned = planned(&config, &at_most(max_sequences));
        planned[&(Phase::Generated, "attention".to_owned())].algorithms.clone()
    };
    // Classes of 1, 2 and 4 rows, two layers.
    assert_eq!(attention(4), ["cluster_8"; 6]);
    assert_eq!(attention(64).first().map(String::as_str), Some("cluster_4"));
    assert_eq!(attention(65).first().map(String::as_str), Some("cluster_2"));
}

/// Requests of one operator in two classes, and what rules predict.
fn chosen(by_size: &[&[(Option<u64>, &str, &str)]]) -> Vec<Vec<String>> {
    let by_size: Vec<BTreeMap<Order, Vec<Timed>>> = by_size
        .iter()
        .map(|artifacts| {
            let mut orders: BTreeMap<Order, Vec<Timed>> = BTreeMap::new();
            for (cost, order, name) in *artifacts {
                orders.entry(Order::Algorithm((*order).into())).or_default().push((*cost, (*name).into()));
            }
            orders
        })
        .collect();
    let orders: BTreeSet<_> = by_size.iter().flat_map(BTreeMap::keys).collect();
    let names = |order: &&Order| cheapest(&by_size, order).into_iter().map(|(_, name)| name).collect();
    orders.iter().map(names).collect()
}

#[test]
fn of_an_order_the_quickest_is_taken_and_what_has_no_time_only_where_nothing_else_is() {
    let small: &[_] = &[(Some(3), "a", "x"), (Some(2), "a", "y"), (None, "b", "y"), (None, "b", "z")];
    let large: &[_] = &[(Some(5), "a", "x"), (None, "a", "y"), (Some(9), "b", "z")];
    assert_eq!(chosen(&[small, large]), [["y", "x"], ["z", "z"]]);
}

#[test]
fn without_predictions_an_order_is_taken_that_every_size_has_even_if_none_is_selected_there() {
    let [a, b, c] = ["a", "b", "c"].map(|name| Order::Algorithm(name.into()));
    // The order of the smallest size is not had everywhere, that of the next is.
    assert_eq!(first_of(&[&b, &c], [a.clone(), c.clone(), b.clone()]), Some(&c));
    assert_eq!(first_of(&[&b], [a.clone(), c]), None);
    assert_eq!(first_of(&[&a, &b], []), None);
}

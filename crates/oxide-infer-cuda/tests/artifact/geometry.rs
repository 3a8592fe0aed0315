//! Launches of the embedded artifacts, against numbers worked by hand.

use oxide_infer::attention::{Attention, Mask, paged_decode, paged_prefill};
use oxide_infer::gemm::{dense, dense_swiglu};
use oxide_infer::kv_cache::{PageLayout, Paging, rope_append};
use oxide_infer::normalization::rms_norm;
use oxide_infer::position::rope::{self, Pairing, Scaling};
use oxide_infer::{Contract, DType, Presence, Spec, WeightFormat};
use oxide_infer_cuda::artifact::manifest::{Determinism, Role};
use oxide_infer_cuda::artifact::{
    Artifact, Dimensions, Registry, Request, ResolveError, ResolvedLaunch, ResolvedParameter, Target,
};
use proptest::prelude::*;
use std::sync::{Arc, LazyLock};

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::embedded(Target::hopper()).unwrap());

pub(crate) fn artifact(name: &str) -> &'static Arc<Artifact> {
    REGISTRY.artifact(name).unwrap_or_else(|| panic!("no artifact {name}"))
}

fn dimensions(values: &[(&str, u64)]) -> Dimensions {
    values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

pub(crate) fn resolve<'a>(artifact: &'a Artifact, values: &[(&str, u64)]) -> Vec<ResolvedLaunch<'a>> {
    artifact.manifest().resolve(&dimensions(values)).unwrap()
}

pub(crate) fn bytes(artifact: &Artifact, operand: &str, values: &[(&str, u64)]) -> u64 {
    let manifest = artifact.manifest();
    manifest.operand_bytes(manifest.operand(operand).unwrap(), &dimensions(values)).unwrap()
}

const DECODE: &[(&str, u64)] = &[
    ("batch", 5),
    ("num_q_heads", 12),
    ("num_kv_heads", 2),
    ("head_dim", 128),
    ("page_size", 64),
    ("num_pages", 40),
    ("max_pages", 8),
    ("splits", 4),
];

#[test]
fn a_norm_takes_one_block_a_row() {
    let norm = artifact("rms_norm.bf16.up_to_2k");
    let values = [("tokens", 7), ("heads", 3), ("hidden_size", 1536)];
    let launches = resolve(norm, &values);
    assert_eq!((launches.len(), launches[0].grid, launches[0].launch.block), (1, [21, 1, 1], [256, 1, 1]));
    assert_eq!(bytes(norm, "input", &values), 7 * 3 * 1536 * 2);
    let vectors = ResolvedParameter::Scalar(192u32.to_le_bytes().to_vec());
    assert!(launches[0].parameters.contains(&vectors), "{:?}", launches[0].parameters);
}

#[test]
fn a_matrix_product_takes_a_block_a_tile_up_to_one_a_multiprocessor_and_its_operands_are_mapped() {
    let product = artifact("dense.bf16.bf16.none.tile_128x256");
    let launches = resolve(product, &[("m", 300), ("n", 1544), ("k", 4096)]);
    assert_eq!((launches[0].grid, launches[0].launch.block), ([7 * 3, 1, 1], [384, 1, 1]));
    let maps = launches[0].parameters.iter().filter_map(|parameter| match parameter {
        ResolvedParameter::TensorMap(map) => Some((map.operand.name.as_str(), map)),
        _ => None,
    });
    let maps: std::collections::BTreeMap<_, _> = maps.collect();
    assert_eq!(
        (&maps["weight"].dimensions[..], &maps["weight"].strides[..]),
        (&[4096, 1544][..], &[8192][..])
    );
    assert_eq!(
        (&maps["input"].dimensions[..], &maps["input"].map.box_[..]),
        (&[4096, 300][..], &[64, 128][..])
    );
    assert_eq!(
        (&maps["output"].dimensions[..], &maps["output"].strides[..]),
        (&[1544, 300][..], &[3088][..])
    );
}

#[test]
fn a_gated_product_reads_gate_and_up_rows_of_one_weight() {
    let gated = artifact("dense.bf16.bf16.swiglu.tile_128x256");
    let values = [("m", 129), ("n", 8960), ("k", 1536)];
    // 70 tile columns of two rows: more than there are multiprocessors.
    assert_eq!(resolve(gated, &values)[0].grid, [132, 1, 1]);
    assert_eq!(bytes(gated, "weight", &values), 2 * 8960 * 1536 * 2);
    assert_eq!(bytes(gated, "output", &values), 129 * 8960 * 2);
}

#[test]
fn gates_of_many_rows_are_multiplied_with_their_up_projections_by_pairs_of_blocks() {
    let plan = |m, n, k| {
        let weight = WeightFormat::Dense(DType::BF16);
        let config = dense_swiglu::Config { input: DType::BF16, weight, output: DType::BF16, n, k };
        select(&dense_swiglu::Spec::new(config).unwrap(), &[("m", m)], &[]).manifest().algorithm.clone()
    };
    // Qwen2.5-1.5B and 7B. Of 0.5B k is too short.
    for m in [1024, 2048, 4096, 8192] {
        assert_eq!(plan(m, 8960, 1536), "joint_pair_128x256", "{m} rows");
        assert_eq!(plan(m, 18_944, 3584), "joint_pair_128x256", "{m} rows");
        assert_ne!(plan(m, 4864, 896), "joint_pair_128x256", "{m} rows");
    }
    let joint = artifact("dense.bf16.bf16.swiglu.joint_pair_128x256");
    let launch = &resolve(joint, &[("m", 129), ("n", 1032), ("k", 1536)])[0];
    // One pair of rows of nine tiles, two blocks each; a row has 128 results.
    assert_eq!((launch.grid, launch.launch.cluster), ([18, 1, 1], Some([2, 1, 1])));
    assert_eq!(resolve(joint, &[("m", 8192), ("n", 8960), ("k", 1536)])[0].grid, [132, 1, 1]);
}

#[test]
fn split_products_and_decodes_take_two_launches_and_workspace() {
    let decode = artifact("paged_decode.bf16.128.split.rows16");
    let launches = resolve(decode, DECODE);
    assert_eq!(launches.iter().map(|launch| launch.grid).collect::<Vec<_>>(), [[4, 2, 5], [12, 5, 1]]);
    assert_eq!(bytes(decode, "partial_output", DECODE), 5 * 12 * 4 * 128 * 4);
    assert_eq!(decode.manifest().operand("partial_lse").unwrap().role, Role::Workspace);
    assert_eq!(bytes(decode, "k_pages", DECODE), 40 * 2 * 64 * 128 * 2);
}

#[test]
fn products_of_long_k_and_few_tiles_cut_k_with_a_residual_and_without() {
    let plan = |output, residual, m, n, k| {
        let weight = WeightFormat::Dense(DType::BF16);
        let config = dense::Config { input: DType::BF16, weight, output, n, k, bias: None, residual };
        select(&dense::Spec::new(config).unwrap(), &[("m", m)], &[])
    };
    let plain = |m, n, k| plan(DType::BF16, Presence::Absent, m, n, k);
    let added = |m, n, k| plan(DType::F32, Presence::Present, m, n, k);
    // Down of Qwen2.5-1.5B: 12 columns of tiles for 132 multiprocessors. Of Llama-3.1-8B: 32.
    for (product, algorithm) in [
        (plain(64, 1536, 8960), "tile_64x128_split4"),
        (plain(128, 1536, 8960), "tile_64x128_split4"),
        (plain(256, 1536, 8960), "tile_128x128_split4"),
        (plain(128, 4096, 14_336), "tile_128x128_split4"),
        (plain(256, 4096, 14_336), "tile_128x128_split2"),
        // One launch: a cluster adds up what its blocks have.
        (added(128, 1536, 8960), "m128_64x64_s8_split4"),
        (added(72, 1536, 8960), "m128_64x64_s8_split4"),
        (added(128, 3584, 18_944), "cluster4_128x128"),
        // By pairs of blocks.
        (added(192, 3584, 18_944), "pair_128x224_split4"),
        (added(256, 3584, 18_944), "pair_128x224_split4"),
        // Enough tiles, or too short a k.
        (plain(256, 2048, 1536), "tile_64x128"),
        (plain(8192, 1536, 8960), "tile_128x256"),
    ] {
        assert_eq!(product.manifest().algorithm, algorithm);
    }
    let product = plain(128, 1536, 8960);
    let values = [("m", 128), ("n", 1536), ("k", 8960)];
    let grids: Vec<_> = resolve(&product, &values).iter().map(|launch| launch.grid).collect();
    // Two rows of 12 tiles in four shares; then 384 quads a row, 128 a block.
    assert_eq!(grids, [[2 * 12 * 4, 1, 1], [3, 128, 1]]);
    assert_eq!(bytes(&product, "partial", &values), 4 * 128 * 1536 * 4);
    let pairs = artifact("dense.bf16.f32.residual.pair_128x224_split4");
    let launches = resolve(pairs, &[("m", 192), ("n", 1544), ("k", 8960)]);
    // One pair of rows of 7 tiles in four shares. 386 quads a row are four blocks, 2,050 would be 17: of pairs 18.
    let grids: Vec<_> = launches.iter().map(|launch| (launch.grid, launch.launch.cluster)).collect();
    assert_eq!(grids, [([2 * 7 * 4, 1, 1], Some([2, 1, 1])), ([4, 192, 1], Some([2, 1, 1]))]);
    assert_eq!(resolve(pairs, &[("m", 192), ("n", 8200), ("k", 64)])[1].grid, [18, 192, 1]);
}

#[test]
fn a_page_of_one_head_is_one_box() {
    let decode = artifact("paged_decode.bf16.128.split.rows16");
    let launches = resolve(decode, DECODE);
    let map = launches[0].parameters.iter().find_map(|parameter| match parameter {
        ResolvedParameter::TensorMap(map) if map.operand.name == "k_pages" => Some(map),
        _ => None,
    });
    let map = map.unwrap();
    assert_eq!(map.dimensions, [128, 64, 2, 40]);
    assert_eq!(map.strides, [256, 64 * 256, 2 * 64 * 256]);
    assert_eq!(map.map.box_, [64, 64, 1, 1]);
}

#[test]
fn a_prefill_has_a_place_for_every_tile_of_packed_rows_and_one_more_a_sequence() {
    let prefill = artifact("paged_prefill.bf16.64.rows128");
    let values = [
        ("batch", 3),
        ("tokens", 500),
        ("num_q_heads", 14),
        ("num_kv_heads", 2),
        ("head_dim", 64),
        ("page_size", 64),
        ("num_pages", 40),
        ("max_pages", 8),
    ];
    // 500 tokens with 7 heads a group are 3,500 rows: 28 tiles of 128, and 3 sequences, of 2 heads each.
    assert_eq!(resolve(prefill, &values)[0].grid, [31 * 2, 1, 1]);
}

#[test]
fn a_packed_projection_holds_queries_keys_and_values() {
    let append = artifact("rope_append.bf16.128.present.threads_128_ahead2");
    let values = [
        ("tokens", 9),
        ("batch", 4),
        ("num_q_heads", 16),
        ("num_kv_heads", 8),
        ("head_dim", 128),
        ("rotary_dim", 128),
        ("page_size", 64),
        ("num_pages", 40),
        ("max_pages", 8),
        ("max_positions", 1000),
    ];
    assert_eq!(resolve(append, &values)[0].grid, [9, 1, 1]);
    assert_eq!(bytes(append, "qkv", &values), 9 * 32 * 128 * 2);
    assert_eq!(bytes(append, "query_start", &values), 5 * 4);
    assert_eq!(bytes(append, "rotations", &values), 1000 * 64 * 2 * 4);
}

#[test]
fn products_of_one_row_have_a_block_for_eight_rows_of_the_weight() {
    let gated = artifact("scaled_swiglu.bf16.w6_s1");
    let values = [("m", 1), ("n", 8960), ("k", 1536)];
    let launches = resolve(gated, &values);
    // Four of the gate and four of what it gates. Six warps multiply, one finishes.
    assert_eq!((launches.len(), launches[0].grid, launches[0].launch.block), (1, [2240, 1, 1], [224, 1, 1]));
    assert_eq!(bytes(gated, "squares", &values), 192 * 4);
    assert_eq!(bytes(gated, "weight", &values), 2 * 8960 * 1536 * 2);
    // Seven blocks, of one product or of several, and what the driver keeps of each fit a multiprocessor's 228 KiB.
    let shared = launches[0].launch.dynamic_shared_memory;
    assert!(7 * (shared + 1024) <= 228 * 1024, "{shared}");
    assert!(7 * 256 * launches[0].launch.resources.registers <= 65_536);
    let weighted = artifact("weighted.bf16.w7_s3");
    let values = [("m", 1), ("n", 1536), ("k", 8960)];
    assert_eq!(resolve(weighted, &values)[0].grid, [192, 1, 1]);
    // A warp for each of eight ranges of k. Two blocks fit a multiprocessor.
    let ranged = resolve(artifact("weighted.bf16.w8_128_s5"), &values);
    assert_eq!((ranged[0].grid, ranged[0].launch.block), ([192, 1, 1], [288, 1, 1]));
    assert!(2 * (ranged[0].launch.dynamic_shared_memory + 1024) <= 228 * 1024);
    let values = [("m", 1), ("n", 151_936), ("k", 1536)];
    assert_eq!(resolve(artifact("scaled.bf16.w7_s2"), &values)[0].grid, [18_992, 1, 1]);
}

#[test]
fn a_gated_product_of_many_weighted_rows_has_as_many_blocks_as_multiprocessors_at_most() {
    let gated = artifact("scaled_swiglu.bf16.tile_64x256");
    let grid = |m| resolve(gated, &[("m", m), ("n", 8960), ("k", 1536)])[0].grid;
    assert_eq!((grid(64), grid(65)), ([70, 1, 1], [132, 1, 1]));
    assert_eq!(bytes(gated, "squares", &[("m", 65), ("n", 8960), ("k", 1536)]), 65 * 192 * 4);
}

#[test]
fn a_projection_of_one_row_has_four_pairs_a_block() {
    let projected = artifact("scaled_projected.bf16.128.present.w7_s2");
    let values = [
        ("tokens", 1),
        ("batch", 1),
        ("hidden_size", 1536),
        ("num_q_heads", 12),
        ("num_kv_heads", 2),
        ("head_dim", 128),
        ("rotary_dim", 128),
        ("page_size", 64),
        ("num_pages", 40),
        ("max_pages", 8),
        ("max_positions", 1000),
    ];
    assert_eq!(resolve(projected, &values)[0].grid, [256, 1, 1]);
    assert_eq!(bytes(projected, "weight", &values), 2048 * 1536 * 2);
    assert_eq!(bytes(projected, "bias", &values), 2048 * 2);
    assert_eq!(bytes(projected, "q_out", &values), 12 * 128 * 2);
}

#[test]
fn pairs_of_blocks_have_tiles_below_each_other() {
    let pair = artifact("dense.bf16.f32.residual.pair_128x256");
    let launch = |m| resolve(pair, &[("m", m), ("n", 1544), ("k", 8960)]).remove(0);
    // 32 pairs of rows of tiles by 7 columns are more than the 66 pairs of blocks that stay; 2 by 7 are fewer.
    assert_eq!((launch(8192).grid, launch(257).grid), ([132, 1, 1], [28, 1, 1]));
    assert_eq!((launch(1).launch.block, launch(1).launch.cluster), ([384, 1, 1], Some([2, 1, 1])));
}

#[test]
fn a_product_of_a_few_rows_leaves_the_next_norm_half_done() {
    let weighted = artifact("weighted.bf16.m8_64x128_s5_split8");
    let values = [("m", 9), ("n", 1536), ("k", 8960)];
    let launches = resolve(weighted, &values);
    // 24 tiles, each of a cluster of 8; the ninth row is a tile of its own. A warpgroup multiplies, a warp copies.
    assert_eq!((launches.len(), launches[0].grid, launches[0].launch.block), (1, [192, 2, 1], [160, 1, 1]));
    assert_eq!(launches[0].launch.cluster, Some([8, 1, 1]));
    assert_eq!(bytes(weighted, "output", &values), 9 * 1536 * 4);
    assert_eq!(bytes(weighted, "weighted", &values), 9 * 1536 * 2);
    assert_eq!(bytes(weighted, "squares", &values), 9 * 192 * 4);
    let scaled = artifact("scaled_swiglu.bf16.m16_64x128_s3");
    let values = [("m", 9), ("n", 8960), ("k", 1536)];
    assert_eq!(resolve(scaled, &values)[0].grid, [280, 1, 1]);
    assert_eq!(bytes(scaled, "squares", &values), 9 * 192 * 4);
    assert_eq!(bytes(scaled, "weight", &values), 2 * 8960 * 1536 * 2);
}

#[test]
fn a_projection_of_a_few_rows_has_one_token_of_every_sequence() {
    let projected = artifact("scaled_projected.bf16.64.present.m8_64x128_s5_split4");
    let values = |batch| {
        [
            ("tokens", 9),
            ("batch", batch),
            ("hidden_size", 896),
            ("num_q_heads", 14),
            ("num_kv_heads", 2),
            ("head_dim", 64),
            ("rotary_dim", 64),
            ("page_size", 64),
            ("num_pages", 40),
            ("max_pages", 8),
            ("max_positions", 1000),
        ]
    };
    // A tile a head, each of a cluster of 4.
    assert_eq!(resolve(projected, &values(9))[0].grid, [72, 2, 1]);
    assert_eq!(bytes(projected, "squares", &values(9)), 9 * 112 * 4);
    assert_eq!(bytes(projected, "block_table", &values(9)), 9 * 8 * 4);
    assert_eq!(bytes(projected, "q_out", &values(9)), 9 * 14 * 64 * 2);
    for batch in [8, 10] {
        let error = projected.manifest().resolve(&dimensions(&values(batch))).unwrap_err();
        assert!(matches!(error, ResolveError::Domain { .. }), "{error}");
    }
}

#[test]
fn a_projection_of_many_rows_has_more_tokens_a_tile_and_no_squares() {
    let values = |batch| {
        [
            ("tokens", 200),
            ("batch", batch),
            ("hidden_size", 1536),
            ("num_q_heads", 12),
            ("num_kv_heads", 2),
            ("head_dim", 128),
            ("rotary_dim", 128),
            ("page_size", 64),
            ("num_pages", 2000),
            ("max_pages", 8),
            ("max_positions", 1000),
        ]
    };
    for (name, tiles) in [("m32_64x128_s6", 7), ("m64_64x128_s4", 4)] {
        let projected = artifact(&format!("projected.bf16.128.present.{name}"));
        // Two tiles a head.
        assert_eq!(resolve(projected, &values(200))[0].grid, [32, tiles, 1]);
        assert_eq!(bytes(projected, "input", &values(200)), 200 * 1536 * 2);
        assert_eq!(bytes(projected, "q_out", &values(200)), 200 * 12 * 128 * 2);
        assert!(projected.manifest().operands.iter().all(|operand| operand.name != "squares"));
        let error = projected.manifest().resolve(&dimensions(&values(199))).unwrap_err();
        assert!(matches!(error, ResolveError::Domain { .. }), "{error}");
    }
}

#[test]
fn a_product_whose_k_a_cluster_shares_has_a_block_for_each_range() {
    let product = artifact("dense_clustered.bf16.f32.residual.cluster4_128x128");
    let launches = resolve(product, &[("m", 200), ("n", 1544), ("k", 8960)]);
    // 13 by 2 tiles, of 4 blocks each; two warpgroups multiply, a warp copies.
    assert_eq!((launches.len(), launches[0].grid, launches[0].launch.block), (1, [52, 2, 1], [288, 1, 1]));
    assert_eq!(launches[0].launch.cluster, Some([4, 1, 1]));
}

#[test]
fn a_vocabulary_is_cut_into_chunks() {
    let argmax = artifact("argmax.chunk_4096");
    let values = [("rows", 3), ("vocab_size", 151_936), ("max_sequences", 8)];
    let grids: Vec<_> = resolve(argmax, &values).iter().map(|launch| launch.grid).collect();
    assert_eq!(grids, [[38, 3, 1], [3, 1, 1]]);
    assert_eq!(bytes(argmax, "best_logits", &values), 3 * 38 * 4);
}

#[test]
fn a_vocabulary_is_cut_into_tiles_of_all_rows_and_their_best_are_as_many_candidates() {
    for (rows, most) in [(1, 64), (64, 64), (65, 128), (160, 192), (193, 256), (256, 256)] {
        let head = artifact(&format!("candidates.bf16.192.rows{most}"));
        let values = [("rows", rows), ("vocab_size", 151_936), ("hidden_size", 1536)];
        let request = Request::new("sampling.candidates", 1).property("tile", 192).property("logits", "f32");
        let request = request.property("input", "bf16").property("weight", "bf16");
        let request = values.iter().fold(request, |request, (name, value)| request.dimension(name, *value));
        assert_eq!(REGISTRY.select(&request).unwrap().manifest().name, head.manifest().name);
        // 792 tiles, which a block for each multiprocessor takes in 6 turns.
        assert_eq!(resolve(head, &values)[0].grid, [132, 1, 1]);
        assert_eq!(bytes(head, "best_logits", &values), rows * 792 * 4);
        let pick = artifact("pick.threads_256");
        let values = [("rows", rows), ("candidates", 792), ("max_sequences", 300)];
        assert_eq!(resolve(pick, &values)[0].grid, [u32::try_from(rows).unwrap(), 1, 1]);
        assert_eq!(bytes(pick, "best_tokens", &values), bytes(pick, "best_logits", &values));
    }
}

#[test]
fn few_rows_are_sampled_by_clusters_and_many_by_a_block_each() {
    for (rows, name, blocks) in [(4, "sample.cluster_8", 8), (33, "sample.single", 1)] {
        let values = [
            ("rows", rows),
            ("vocab_size", 151_936),
            ("max_sequences", 8),
            ("mask_rows", 1),
            ("max_adjust", 1),
        ];
        let request = Request::new("sampling.sample", 1).property("logits", "f32").property("method", "full");
        let request = values.iter().fold(request, |request, (name, value)| request.dimension(name, *value));
        assert_eq!(REGISTRY.select(&request).unwrap().manifest().name, name);
        let chosen = artifact(name);
        assert_eq!(resolve(chosen, &values)[0].grid, [blocks, u32::try_from(rows).unwrap(), 1]);
        assert_eq!(bytes(chosen, "exchange", &values), rows * 2 * u64::from(blocks) * 1056 * 8);
        assert_eq!(bytes(chosen, "masks", &values), 4748 * 4);
    }
}

#[test]
fn a_gather_takes_one_block_a_row() {
    let values = [("tokens", 11), ("vocab_size", 49_152), ("hidden_size", 576)];
    let fed = artifact("gather.bf16.f32.present.threads_128");
    assert_eq!(bytes(fed, "slots", &[values.as_slice(), &[("max_sequences", 4)]].concat()), 11 * 4);
    let gather = artifact("gather.f32.threads_128");
    assert_eq!(resolve(gather, &values)[0].grid, [11, 1, 1]);
    assert_eq!(gather.manifest().operand("status").unwrap().role, Role::Status);
}

#[test]
fn a_streamed_product_has_as_many_blocks_as_stay_but_no_more_than_tiles() {
    let product = artifact("dense_streamed.bf16.m8_w6_s2");
    // 1,120 tiles of 16 rows, of which two blocks for each of 132 multiprocessors take 4 or 5 in turn.
    let launches = resolve(product, &[("m", 8), ("n", 17_920), ("k", 1536)]);
    assert_eq!((launches[0].grid, launches[0].launch.block), ([264, 1, 1], [7 * 32, 1, 1]));
    // 12 tiles and a part of one, and a second block for the ninth token.
    let few = resolve(product, &[("m", 9), ("n", 200), ("k", 1032)]);
    assert_eq!(few[0].grid, [13, 2, 1]);
}

#[test]
fn values_outside_domain_or_machine_are_refused() {
    let product = artifact("dense.bf16.bf16.none.tile_128x256").manifest();
    let error = product.resolve(&dimensions(&[("m", 1), ("n", 1541), ("k", 8)])).unwrap_err();
    let expected = "dense.bf16.bf16.none.tile_128x256: n must be 8..=1073741823 in steps of 8, got 1541";
    assert_eq!(error.to_string(), expected);
    let few = artifact("dense_small.bf16.bf16.none.m8_64x128_s6").manifest();
    let rows = few.resolve(&dimensions(&[("m", 65_536 * 8), ("n", 8), ("k", 8)])).unwrap_err();
    assert!(matches!(rows, ResolveError::Limit { value: 65_536, max: 65_535, .. }), "{rows}");
    // 2^20 tiles of 2^11 slices.
    let slices =
        product.resolve(&dimensions(&[("m", 128 << 10), ("n", 256 << 10), ("k", 64 << 11)])).unwrap_err();
    assert!(matches!(slices, ResolveError::Domain { .. }), "{slices}");
    let absent = product.resolve(&dimensions(&[("m", 1), ("n", 8)])).unwrap_err();
    assert!(matches!(absent, ResolveError::Domain { .. }));
}

/// Parts of `sampling.sample` that a device runs as operators of their own.
const PARTS: [(&str, u32); 3] =
    [("sampling.candidates", 1), ("sampling.log_probabilities", 1), ("sampling.record_history", 1)];

#[test]
fn every_artifact_is_of_a_contract_that_there_is() {
    for artifact in REGISTRY.artifacts() {
        let manifest = artifact.manifest();
        let contract = Contract::find(&manifest.contract, manifest.contract_version);
        assert!(
            contract.is_some() || PARTS.contains(&(manifest.contract.as_str(), manifest.contract_version)),
            "{}: {} v{}",
            manifest.name,
            manifest.contract,
            manifest.contract_version
        );
    }
}

/// What a planner asks for a spec, beyond the spec's own properties and dimensions, by contract.
#[test]
fn specs_of_a_model_select_one_artifact_at_every_batch_size() {
    for tokens in [1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 256, 257, 4096] {
        for (hidden_size, out) in [(576, 960), (1536, 2048), (3584, 18_944), (4096, 6144)] {
            for (dtype, residual) in [(DType::BF16, Presence::Present), (DType::F32, Presence::Absent)] {
                let norm = rms_norm::Spec::new(rms_norm::Config {
                    dtype,
                    weight_dtype: DType::BF16,
                    output_dtype: DType::BF16,
                    hidden_size,
                    epsilon: 1e-6,
                    residual,
                });
                select(&norm.unwrap(), &[("tokens", tokens), ("heads", 1)], &[]);
            }
            for (bias, residual, output) in [
                (None, Presence::Absent, DType::BF16),
                (None, Presence::Absent, DType::F32),
                (Some(DType::BF16), Presence::Absent, DType::BF16),
                (None, Presence::Present, DType::F32),
            ] {
                for (n, k) in [(out, hidden_size), (hidden_size, out)] {
                    let weight = WeightFormat::Dense(DType::BF16);
                    let config = dense::Config { input: DType::BF16, weight, output, n, k, bias, residual };
                    select(&dense::Spec::new(config).unwrap(), &[("m", tokens)], &[]);
                }
            }
            let gated =
                Request::new("gemm.dense", 1).property("activation", "swiglu").property("output", "bf16");
            let gated = gated.property("input", "bf16").property("weight", "bf16");
            let gated =
                gated.dimension("m", tokens).dimension("n", out as u64).dimension("k", hidden_size as u64);
            REGISTRY.select(&gated).unwrap();
        }
    }
}

/// Select the artifact for a spec with the dimensions that operands give and a provider's own properties.
pub(crate) fn select<S: Spec>(
    spec: &S,
    dimensions: &[(&str, u64)],
    properties: &[(&str, &str)],
) -> Arc<Artifact> {
    let request = Request::new(S::CONTRACT.name(), S::CONTRACT.version());
    let request = spec.properties().into_iter().fold(request, |r, (name, value)| r.property(name, value));
    let request = properties.iter().fold(request, |r, (name, value)| r.property(name, *value));
    let request =
        spec.dimensions().into_iter().fold(request, |r, (name, value)| r.dimension(name, value as u64));
    let request = dimensions.iter().fold(request, |r, (name, value)| r.dimension(name, *value));
    REGISTRY.select(&request).unwrap()
}

#[test]
fn specs_of_cache_and_attention_select_their_artifacts() {
    let paging = Paging { dtype: DType::BF16, layout: PageLayout::Hnd, page_size: 64 };
    for (num_q_heads, num_kv_heads, head_dim) in
        [(12, 2, 128), (28, 4, 128), (32, 8, 128), (14, 2, 64), (9, 3, 64)]
    {
        let rope = rope::Config {
            dtype: DType::BF16,
            head_dim,
            rotary_dim: head_dim,
            pairing: Pairing::NeoX,
            theta: 1e6,
            scaling: Scaling::None,
        };
        let append = rope_append::Config { rope, num_q_heads, num_kv_heads, paging };
        let sizes = [("batch", 3), ("num_pages", 100), ("max_pages", 20)];
        let of_append = [&sizes[..], &[("tokens", 9), ("max_positions", 4096)]].concat();
        let append = rope_append::Spec::new(append).unwrap();
        select(&append, &of_append, &[("qkv", "packed"), ("qk_norm", "absent")]);
        let attention = Attention {
            dtype: DType::BF16,
            num_q_heads,
            num_kv_heads,
            head_dim,
            scale: 0.1,
            window: None,
            soft_cap: None,
            lse: Presence::Absent,
        };
        let decode =
            paged_decode::Spec::new(paged_decode::Config { attention: attention.clone(), paging }).unwrap();
        assert!(select(&decode, &sizes, &[]).manifest().name.contains("whole.cluster"));
        let split = [&sizes[..], &[("splits", 8)]].concat();
        assert!(select(&decode, &split, &[]).manifest().name.contains("split"));
        let prefill = paged_prefill::Config { attention, paging, mask: Mask::Causal };
        let of_prefill = [&sizes[..], &[("tokens", 700)]].concat();
        select(&paged_prefill::Spec::new(prefill).unwrap(), &of_prefill, &[]);
    }
}

#[test]
fn blocks_of_a_cluster_share_a_sequence_until_there_is_one_for_every_multiprocessor() {
    // Sequences, key/value heads, pages of a sequence; the algorithm, and its blocks.
    for (batch, num_kv_heads, max_pages, algorithm, blocks) in [
        (1, 2, 512, "cluster_8", 8),
        (15, 2, 16, "cluster_8", 8),
        (16, 2, 16, "cluster_4", 4),
        (31, 2, 64, "cluster_4", 4),
        (32, 2, 64, "cluster_2_deep", 2),
        (34, 2, 64, "cluster_2", 2),
        (63, 2, 512, "cluster_2", 2),
        (64, 2, 512, "cluster_2", 2),
        (70, 2, 512, "rows16", 1),
        (256, 8, 2048, "rows16", 1),
        (4, 8, 64, "cluster_4", 4),
        (1, 2, 1, "rows16", 1),
    ] {
        for head_dim in [64, 128] {
            // Of 128 a block has a smaller ring, which fits beside a product's.
            let algorithm = if (algorithm, head_dim) == ("rows16", 128) { "rows16_32k" } else { algorithm };
            let values = [
                ("batch", batch),
                ("num_q_heads", num_kv_heads * 6),
                ("num_kv_heads", num_kv_heads),
                ("head_dim", head_dim),
                ("page_size", 64),
                ("num_pages", 9000),
                ("max_pages", max_pages),
            ];
            let request = [
                ("dtype", "bf16"),
                ("window", "none"),
                ("soft_cap", "none"),
                ("lse", "absent"),
                ("kv_dtype", "bf16"),
                ("page_layout", "hnd"),
            ];
            let request =
                request.iter().fold(Request::new("attention.paged_decode", 1), |request, (name, value)| {
                    request.property(name, *value)
                });
            let request =
                values.iter().fold(request, |request, (name, value)| request.dimension(name, *value));
            let chosen = REGISTRY.select(&request).unwrap();
            assert_eq!(chosen.manifest().algorithm, algorithm, "{request}");
            let launches = resolve(&chosen, &values);
            let [grid] = launches.iter().map(|launch| launch.grid).collect::<Vec<_>>()[..] else {
                panic!("{request}")
            };
            assert_eq!(grid, [blocks, num_kv_heads as u32, batch as u32]);
            let cluster = (blocks > 1).then_some([blocks, 1, 1]);
            assert_eq!(launches[0].launch.cluster, cluster);
        }
    }
}

#[test]
fn no_result_depends_on_the_rest_of_the_batch() {
    for artifact in REGISTRY.artifacts() {
        let manifest = artifact.manifest();
        assert_eq!(manifest.determinism, Determinism::BatchInvariant, "{}", manifest.name);
    }
}

proptest! {
    #[test]
    fn any_dimensions_resolve_or_are_refused(
        pick in any::<prop::sample::Index>(),
        values in proptest::collection::vec(prop_oneof![0u64..300, any::<u64>(), any::<u32>().prop_map(u64::from)], 12),
    ) {
        let artifacts: Vec<_> = REGISTRY.artifacts().collect();
        let manifest = artifacts[pick.index(artifacts.len())].manifest();
        let inside = |(name, value): (&String, &u64)| {
            let domain = manifest.dimensions[name];
            let clamped = (*value).clamp(domain.min, domain.max);
            (name.clone(), clamped / domain.multiple_of * domain.multiple_of)
        };
        let dimensions: Dimensions = manifest.dimensions.keys().zip(&values).map(inside).collect();
        match manifest.resolve(&dimensions) {
            Ok(launches) => prop_assert!(launches.iter().all(|launch| !launch.grid.contains(&0))),
            Err(error) => prop_assert!(error.to_string().starts_with(&manifest.name)),
        }
        for operand in &manifest.operands {
            let _ = manifest.operand_bytes(operand, &dimensions);
        }
    }
}

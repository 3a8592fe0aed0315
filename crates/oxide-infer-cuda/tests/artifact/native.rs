//! Launches of the kernels in Rust, with numbers worked by hand.

use oxide_infer_cuda::artifact::{Dimensions, Registry, Target};

/// Grid, threads of a block, and blocks of a cluster of each launch.
fn launches(name: &str, dimensions: &[(&str, u64)]) -> Vec<([u32; 3], u32, u32)> {
    let registry = Registry::embedded_native(Target::hopper()).unwrap();
    let dimensions: Dimensions = dimensions.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
    let artifact = registry.artifact(name).unwrap();
    let resolved = artifact.manifest().resolve(&dimensions).unwrap();
    let launch = |l: &oxide_infer_cuda::artifact::ResolvedLaunch<'_>| {
        (l.grid, l.launch.block[0], l.launch.cluster.map_or(1, |cluster| cluster[0]))
    };
    resolved.iter().map(launch).collect()
}

#[test]
fn a_block_normalizes_one_row_or_one_a_warp() {
    let rows = [("tokens", 5), ("heads", 3), ("hidden_size", 128)];
    assert_eq!(launches("native.rms_norm.bf16.block_2k", &rows), [([15, 1, 1], 256, 1)]);
    // 15 rows, 8 to a block.
    assert_eq!(launches("native.add_rms_norm.f32.warp_1k", &rows), [([2, 1, 1], 256, 1)]);
}

#[test]
fn blocks_of_a_product_share_its_rows() {
    let product = [("m", 1), ("n", 2050), ("k", 1536)];
    // 8 warps: one row each; two rows each; 2 warps a row; 8 warps a row.
    for (algorithm, blocks) in [("s1_r1_l6", 257), ("s1_r2_l6", 129), ("s2_r1_l8", 513), ("s8_r1_l7", 2050)] {
        let name = format!("native.gemv.bf16.bf16.bias.{algorithm}");
        assert_eq!(launches(&name, &product), [([blocks, 1, 1], 256, 1)]);
    }
}

#[test]
fn an_append_has_blocks_for_every_part_of_a_token() {
    let sizes = |head_dim, page_size| {
        let heads =
            [("num_q_heads", 12), ("num_kv_heads", 2), ("head_dim", head_dim), ("rotary_dim", head_dim)];
        let pages = [("page_size", page_size), ("num_pages", 9), ("max_pages", 3), ("max_positions", 192)];
        [&[("tokens", 7), ("batch", 2)][..], &heads, &pages].concat()
    };
    // 14 heads turned in 8 parts of 8 pairs, and 2 values copied in 16 parts: 144 items, 128 to a block.
    assert_eq!(
        launches("native.rope_append.bf16.128.hnd.threads_128", &sizes(128, 64)),
        [([7, 2, 1], 128, 1)]
    );
    // Half as many.
    assert_eq!(launches("native.rope_append.bf16.64.nhd.threads_128", &sizes(64, 16)), [([7, 1, 1], 128, 1)]);
}

#[test]
fn query_heads_of_one_key_value_head_are_shared_by_blocks_of_four() {
    let sizes = |num_q_heads, num_kv_heads| {
        [("kv_len", 4097), ("num_q_heads", num_q_heads), ("num_kv_heads", num_kv_heads), ("head_dim", 128)]
    };
    let name = "native.single_decode.bf16.128.lse_present.cluster_8";
    // 6 query heads to a key/value head are two blocks' work; 4 are one's.
    assert_eq!(launches(name, &sizes(12, 2)), [([8, 4, 1], 256, 8)]);
    assert_eq!(launches(name, &sizes(32, 8)), [([8, 8, 1], 256, 8)]);
    let shares = [&sizes(12, 2)[..], &[("splits", 33)]].concat();
    let name = "native.single_decode.bf16.128.lse_absent.split";
    assert_eq!(launches(name, &shares), [([33, 4, 1], 256, 1), ([12, 1, 1], 256, 1)]);
}

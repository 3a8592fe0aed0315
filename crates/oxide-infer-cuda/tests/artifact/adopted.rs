//! Artifacts that the engine's plans have no use for, and other engines have: what selects them, and how they are launched.

use crate::geometry::{artifact, bytes, resolve, select};
use oxide_infer::activation::swiglu;
use oxide_infer::attention::{Attention, Mask, paged_decode, paged_prefill, ragged_prefill, single_decode};
use oxide_infer::gemm::dense;
use oxide_infer::kv_cache::{PageLayout, Paging, paged_append, rope_append};
use oxide_infer::position::rope::{self, Pairing, Scaling};
use oxide_infer::{DType, Presence, WeightFormat};
use oxide_infer_cuda::artifact::{Artifact, ResolvedParameter};

#[test]
fn a_page_of_one_head_is_a_box_of_strided_rows_where_each_token_has_its_heads_together() {
    let decode = artifact("paged_decode.bf16.128.whole.nhd.16.cluster_4");
    let values = [
        ("batch", 5),
        ("num_q_heads", 32),
        ("num_kv_heads", 8),
        ("head_dim", 128),
        ("page_size", 16),
        ("num_pages", 40),
        ("max_pages", 8),
    ];
    let launches = resolve(decode, &values);
    assert_eq!(launches.iter().map(|launch| launch.grid).collect::<Vec<_>>(), [[4, 8, 5]]);
    let map = launches[0].parameters.iter().find_map(|parameter| match parameter {
        ResolvedParameter::TensorMap(map) if map.operand.name == "v_pages" => Some(map),
        _ => None,
    });
    let map = map.unwrap();
    // Elements, tokens, heads, pages; a token is 8 heads of 256 bytes after the one before it.
    assert_eq!(map.dimensions, [128, 16, 8, 40]);
    assert_eq!(map.strides, [8 * 256, 256, 16 * 8 * 256]);
    assert_eq!(map.map.box_, [64, 16, 1, 1]);
    assert_eq!(bytes(decode, "k_pages", &values), 40 * 16 * 8 * 128 * 2);
}

#[test]
fn keys_with_no_pages_are_boxes_of_a_tile() {
    let prefill = artifact("ragged_prefill.bf16.64.rows128");
    let values = [
        ("batch", 3),
        ("tokens", 500),
        ("kv_tokens", 900),
        ("num_q_heads", 14),
        ("num_kv_heads", 2),
        ("head_dim", 64),
    ];
    let launches = resolve(prefill, &values);
    assert_eq!(launches[0].grid, [31 * 2, 1, 1]);
    // 3,500 rows are 55 tiles of 64, and there are 3 sequences.
    assert_eq!(resolve(artifact("ragged_prefill.bf16.64.rows64"), &values)[0].grid, [58 * 2, 1, 1]);
    let map = launches[0].parameters.iter().find_map(|parameter| match parameter {
        ResolvedParameter::TensorMap(map) if map.operand.name == "k" => Some(map),
        _ => None,
    });
    let map = map.unwrap();
    assert_eq!((&map.dimensions[..], &map.strides[..]), (&[64, 900, 2][..], &[2 * 128, 128][..]));
    // Two boxes make a tile.
    assert_eq!(map.map.box_, [64, 64, 1]);
    assert_eq!(bytes(prefill, "kv_start", &values), 4 * 4);

    let decode = artifact("single_decode.bf16.128.split.rows16");
    let values =
        [("kv_len", 5000), ("num_q_heads", 32), ("num_kv_heads", 8), ("head_dim", 128), ("splits", 16)];
    let grids: Vec<_> = resolve(decode, &values).iter().map(|launch| launch.grid).collect();
    assert_eq!(grids, [[16, 8, 1], [32, 1, 1]]);
    assert_eq!(bytes(decode, "v", &values), 5000 * 8 * 128 * 2);
}

/// Of a spec alone, with what its operands add: nothing that only these kernels know but the table of rotations.
#[test]
fn specs_of_other_engines_select_their_artifacts() {
    let bf16 = DType::BF16;
    for (layout, page_size, head_dim) in [PageLayout::Hnd, PageLayout::Nhd]
        .into_iter()
        .flat_map(|layout| [16, 64].map(|size| (layout, size)))
        .flat_map(|(layout, size)| [64, 128].map(|dim| (layout, size, dim)))
    {
        let paging = Paging { dtype: bf16, layout, page_size };
        let (pages, engines) =
            (format!("{}.{page_size}", layout.name()), (layout, page_size) == (PageLayout::Hnd, 64));
        let attention = Attention {
            dtype: bf16,
            num_q_heads: 32,
            num_kv_heads: 8,
            head_dim,
            scale: 0.1,
            window: None,
            soft_cap: None,
            lse: Presence::Absent,
        };
        let sizes = [("batch", 3), ("num_pages", 100), ("max_pages", 20)];
        let named = |artifact: &Artifact, start: &str, end: &str| {
            let pages = if engines { String::new() } else { format!(".{pages}") };
            let name = &artifact.manifest().name;
            assert!(name.starts_with(&format!("{start}{pages}.")) && name.ends_with(end), "{name}");
        };
        let decode = paged_decode::Config { attention: attention.clone(), paging };
        let decode = paged_decode::Spec::new(decode).unwrap();
        named(&select(&decode, &sizes, &[]), &format!("paged_decode.bf16.{head_dim}.whole"), "");
        let split = [&sizes[..], &[("splits", 8)]].concat();
        named(&select(&decode, &split, &[]), &format!("paged_decode.bf16.{head_dim}.split"), "rows16");
        let prefill = paged_prefill::Config { attention: attention.clone(), paging, mask: Mask::Causal };
        let prefill = paged_prefill::Spec::new(prefill).unwrap();
        let of_prefill = [&sizes[..], &[("tokens", 700)]].concat();
        named(&select(&prefill, &of_prefill, &[]), &format!("paged_prefill.bf16.{head_dim}"), "");

        let new = paged_append::Config { dtype: bf16, num_kv_heads: 8, head_dim, paging };
        let of_new = [&sizes[..], &[("tokens", 9)]].concat();
        let append = select(&paged_append::Spec::new(new).unwrap(), &of_new, &[]);
        assert_eq!(append.manifest().name, format!("paged_append.bf16.{head_dim}.{pages}.threads_128"));
        let rope = rope_of(head_dim);
        let turned = rope_append::Config { rope, num_q_heads: 32, num_kv_heads: 8, paging };
        let of_turned = [&of_new[..], &[("max_positions", 4096)]].concat();
        let append = select(&rope_append::Spec::new(turned).unwrap(), &of_turned, &[]);
        let name = format!("rope_append.bf16.{head_dim}.absent.apart.{pages}.threads_128_ahead1");
        assert_eq!(append.manifest().name, name);
        assert_eq!(resolve(&append, &with_sizes(&of_turned, head_dim, page_size))[0].grid, [9, 1, 1]);
    }
}

fn rope_of(head_dim: usize) -> rope::Config {
    let (dtype, pairing, theta, scaling) = (DType::BF16, Pairing::NeoX, 1e6, Scaling::None);
    rope::Config { dtype, head_dim, rotary_dim: head_dim, pairing, theta, scaling }
}

fn with_sizes(values: &[(&'static str, u64)], head_dim: usize, page_size: usize) -> Vec<(&'static str, u64)> {
    let heads = [("num_q_heads", 32), ("num_kv_heads", 8), ("head_dim", head_dim as u64)];
    [values, &heads, &[("rotary_dim", head_dim as u64), ("page_size", page_size as u64)]].concat()
}

#[test]
fn specs_with_no_pages_select_their_artifacts() {
    for head_dim in [64, 128] {
        let attention = Attention {
            dtype: DType::BF16,
            num_q_heads: 12,
            num_kv_heads: 2,
            head_dim,
            scale: 0.1,
            window: None,
            soft_cap: None,
            lse: Presence::Absent,
        };
        let single = single_decode::Spec::new(attention.clone()).unwrap();
        let whole = select(&single, &[("kv_len", 777)], &[]);
        assert_eq!(whole.manifest().name, format!("single_decode.bf16.{head_dim}.whole.cluster_8"));
        let split = select(&single, &[("kv_len", 777), ("splits", 9)], &[]);
        assert_eq!(split.manifest().name, format!("single_decode.bf16.{head_dim}.split.rows16"));
        let ragged = ragged_prefill::Config { attention, mask: Mask::Causal };
        let ragged = ragged_prefill::Spec::new(ragged).unwrap();
        for (tokens, algorithm) in [(70, "rows64"), (4096, "rows128")] {
            let sizes = [("batch", 3), ("tokens", tokens), ("kv_tokens", tokens)];
            let prefill = select(&ragged, &sizes, &[]);
            assert_eq!(prefill.manifest().name, format!("ragged_prefill.bf16.{head_dim}.{algorithm}"));
        }
        let rope = rope::Spec::new(rope_of(head_dim)).unwrap();
        let rope = select(&rope, &[("tokens", 5), ("num_heads", 7), ("max_positions", 100)], &[]);
        assert_eq!(rope.manifest().name, format!("rope.bf16.{head_dim}.threads_128"));
    }
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        let spec = swiglu::Spec::new(swiglu::Config { dtype, size: 8968 }).unwrap();
        let gate = select(&spec, &[("rows", 3)], &[]);
        assert_eq!(gate.manifest().name, format!("swiglu.{}.threads_128", dtype.name()));
        // 16 bytes a load, 256 loads a block.
        let grid = resolve(&gate, &[("rows", 3), ("size", 8968)])[0].grid;
        assert_eq!(grid, [(8968 * dtype_bytes(dtype)).div_ceil(4096), 3, 1]);
    }
}

fn dtype_bytes(dtype: DType) -> u32 {
    if dtype == DType::F32 { 4 } else { 2 }
}

/// The choices of the rules that were made from times of these pages; those of the engine's pages are in `geometry.rs`.
#[test]
fn other_pages_are_shared_as_their_times_say() {
    for (layout, page_size) in [(PageLayout::Nhd, 16), (PageLayout::Hnd, 16), (PageLayout::Nhd, 64)] {
        // Sequences, key/value heads, keys of a sequence; the algorithm.
        for (batch, num_kv_heads, keys, algorithm) in [
            (1, 2, 1024, "cluster_8"),
            (1, 2, 4096, "shared"),
            (1, 8, 4096, "cluster_8"),
            (1, 8, 16_384, "shared"),
            (8, 2, 1024, "cluster_8"),
            (64, 2, 4096, "cluster_2"),
            (256, 2, 1024, "rows16"),
            (8, 8, 4096, "cluster_2"),
            (64, 8, 1024, "rows16"),
            (64, 8, 4096, "rows16"),
        ] {
            let attention = Attention {
                dtype: DType::BF16,
                num_q_heads: num_kv_heads * 4,
                num_kv_heads,
                head_dim: 128,
                scale: 0.1,
                window: None,
                soft_cap: None,
                lse: Presence::Absent,
            };
            let paging = Paging { dtype: DType::BF16, layout, page_size };
            let spec = paged_decode::Spec::new(paged_decode::Config { attention, paging }).unwrap();
            let pages = keys / page_size as u64;
            let sizes = [("batch", batch), ("num_pages", 9000), ("max_pages", pages)];
            let chosen = select(&spec, &sizes, &[]);
            assert_eq!(chosen.manifest().algorithm, algorithm, "{layout:?} {page_size} {batch} {keys}");
        }
    }
}

/// The numbers that the times of many were best with: three quarters of the multiprocessors have a block, and a sequence's
/// keys 2 to 32.
#[test]
fn keys_that_are_shared_with_no_number_asked_for_have_one_by_their_sequences_and_heads() {
    let decode = artifact("paged_decode.bf16.128.shared.nhd.16.shared");
    for (batch, num_kv_heads, shares) in [(1, 1, 32), (1, 2, 32), (1, 8, 12), (3, 8, 4), (64, 8, 2)] {
        let values = [
            ("batch", batch),
            ("num_q_heads", 4 * num_kv_heads),
            ("num_kv_heads", num_kv_heads),
            ("head_dim", 128),
            ("page_size", 16),
            ("num_pages", 40),
            ("max_pages", 8),
        ];
        let grids: Vec<_> = resolve(decode, &values).iter().map(|launch| launch.grid).collect();
        let (heads, sequences) = (num_kv_heads as u32, batch as u32);
        assert_eq!(grids, [[shares, heads, sequences], [4 * heads, sequences, 1]]);
        let bytes = bytes(decode, "partial_output", &values);
        assert_eq!(bytes, batch * 4 * num_kv_heads * u64::from(shares) * 128 * 4);
    }
}

#[test]
fn products_of_f16_select_by_their_rows() {
    for (bias, epilogue) in [(None, "none"), (Some(DType::F16), "bias")] {
        let spec = dense::Spec::new(dense::Config {
            input: DType::F16,
            weight: WeightFormat::Dense(DType::F16),
            output: DType::F16,
            n: 4096,
            k: 1024,
            bias,
            residual: Presence::Absent,
        });
        for (m, kernel) in [
            (1, "dense_small.f16.f16.{}.m8_64x128_s6"),
            (9, "dense_small.f16.f16.{}.m16_64x128_s5"),
            (32, "dense_small.f16.f16.{}.m32_64x128_s4"),
            (33, "dense.f16.f16.{}.tile_64x128"),
            (256, "dense.f16.f16.{}.tile_128x128"),
            (8192, "dense.f16.f16.{}.tile_128x256"),
        ] {
            let product = select(spec.as_ref().unwrap(), &[("m", m)], &[]);
            assert_eq!(product.manifest().name, kernel.replace("{}", epilogue));
        }
    }
}

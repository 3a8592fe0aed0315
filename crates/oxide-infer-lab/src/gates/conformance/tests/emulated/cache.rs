//! Heads that are turned, and new keys and values that go into their pages. In `f32`, as the kernels do it.

use super::{Memory, list, put};
use half::bf16;
use oxide_infer_cuda::artifact::status::DeviceStatus;
use oxide_infer_cuda::artifact::{Dimensions, Manifest};

/// `kv_cache.rope_append` in its forms, and `kv_cache.paged_append`, which has no queries and turns nothing.
pub(super) fn append(
    memory: &mut Memory,
    dimensions: &Dimensions,
    manifest: &Manifest,
) -> Option<DeviceStatus> {
    let size = |name: &str| dimensions.get(name).map_or(0, |&size| size as usize);
    let has = |property: &str, value: &str| {
        manifest.properties.get(property).is_some_and(|found| found.to_string() == value)
    };
    let (q_heads, kv_heads, dim) = (size("num_q_heads"), size("num_kv_heads"), size("head_dim"));
    let (page_size, normalizes, nhd) =
        (size("page_size"), has("qk_norm", "present"), has("page_layout", "nhd"));
    let rotations = memory.contains_key("rotations").then(|| list::<f32>(memory, "rotations"));
    let qkv =
        if memory.contains_key("qkv") { list::<bf16>(memory, "qkv") } else { joined(memory, dimensions) };
    let (positions, starts) = (list::<i32>(memory, "positions"), list::<i32>(memory, "query_start"));
    let table = list::<i32>(memory, "block_table");
    let mut q_out = vec![bf16::ZERO; size("tokens") * q_heads * dim];
    let mut pools = [list::<bf16>(memory, "k_pages"), list::<bf16>(memory, "v_pages")];
    let mut faults = bad_starts(&starts, size("tokens") as i32);
    for token in 0..size("tokens") {
        let sequence = starts[1..].iter().filter(|&&end| end <= token as i32).count();
        let position = positions[token];
        let turns = position >= 0 && (rotations.is_none() || position < size("max_positions") as i32);
        let room = (size("max_pages") * page_size) as i32;
        let fits = sequence < size("batch") && (0..room).contains(&position);
        let page =
            if fits { table[sequence * size("max_pages") + position as usize / page_size] } else { -1 };
        let there = (0..size("num_pages") as i32).contains(&page);
        if !fits {
            faults.push((4, DeviceStatus::LengthOutOfRange { sequence: token as u32 }));
        } else if !there {
            faults.push((3, DeviceStatus::PageOutOfRange { sequence: token as u32 }));
        }
        for head in 0..q_heads + 2 * kv_heads {
            let at = (token * (q_heads + 2 * kv_heads) + head) * dim;
            let mut row: Vec<f32> = qkv[at..at + dim].iter().map(|x| x.to_f32()).collect();
            let is_value = head >= q_heads + kv_heads;
            if normalizes && !is_value {
                let weight = list::<bf16>(memory, if head < q_heads { "q_weight" } else { "k_weight" });
                let mean = row.iter().map(|x| x * x).sum::<f32>() / dim as f32;
                let scale = 1.0 / (mean + 1e-6).sqrt();
                row.iter_mut().zip(weight).for_each(|(x, w)| *x = round(*x * scale * w.to_f32()));
            }
            if let Some(rotations) = rotations.as_ref().filter(|_| !is_value) {
                turn(&mut row, rotations, if turns { position as usize } else { 0 });
            }
            let row: Vec<bf16> = row.into_iter().map(bf16::from_f32).collect();
            if head < q_heads {
                q_out[(token * q_heads + head) * dim..][..dim].copy_from_slice(&row);
            } else if turns && there {
                let (kv_head, slot) = ((head - q_heads) % kv_heads, position as usize % page_size);
                let place = match nhd {
                    true => (page as usize * page_size + slot) * kv_heads + kv_head,
                    false => (page as usize * kv_heads + kv_head) * page_size + slot,
                };
                pools[usize::from(is_value)][place * dim..][..dim].copy_from_slice(&row);
            }
        }
    }
    if rotations.is_some() {
        put(memory, "q_out", &q_out);
    }
    put(memory, "k_pages", &pools[0]);
    put(memory, "v_pages", &pools[1]);
    faults.into_iter().rev().max_by_key(|(code, _)| *code).map(|(_, fault)| fault)
}

pub(super) fn rope(memory: &mut Memory, dimensions: &Dimensions) -> Option<DeviceStatus> {
    let size = |name: &str| dimensions[name] as usize;
    let (heads, dim) = (size("num_heads"), size("head_dim"));
    let (positions, rotations) = (list::<i32>(memory, "positions"), list::<f32>(memory, "rotations"));
    let (mut output, mut bad) = (list::<bf16>(memory, "input"), None);
    for (token, rows) in output.chunks_exact_mut(heads * dim).enumerate() {
        let position = positions[token];
        let turns = (0..size("max_positions") as i32).contains(&position);
        if !turns {
            bad = bad.or(Some(token as u32));
        }
        for head in rows.chunks_exact_mut(dim) {
            let mut row: Vec<f32> = head.iter().map(|x| x.to_f32()).collect();
            turn(&mut row, &rotations, if turns { position as usize } else { 0 });
            head.iter_mut().zip(row).for_each(|(to, x)| *to = bf16::from_f32(x));
        }
    }
    put(memory, "output", &output);
    bad.map(|token| DeviceStatus::PositionOutOfRange { token })
}

fn turn(row: &mut [f32], rotations: &[f32], angle: usize) {
    let half = row.len() / 2;
    for pair in 0..half {
        let [cosine, sine] = [0, 1].map(|part| rotations[(angle * half + pair) * 2 + part]);
        let (low, high) = (row[pair], row[half + pair]);
        row[pair] = low * cosine - high * sine;
        row[half + pair] = high * cosine + low * sine;
    }
}

/// Queries (if there are any), keys and values of each token, one after another.
fn joined(memory: &Memory, dimensions: &Dimensions) -> Vec<bf16> {
    let parts = ["q", "k", "v"].into_iter().filter(|part| memory.contains_key(*part));
    let parts: Vec<_> = parts.map(|part| list::<bf16>(memory, part)).collect();
    let tokens = dimensions["tokens"] as usize;
    let of = |token: usize| {
        parts.iter().flat_map(move |part| {
            let row = part.len() / tokens;
            part[token * row..][..row].to_vec()
        })
    };
    (0..tokens).flat_map(of).collect()
}

/// The first start if it is not 0, any that falls or is past the tokens, and the last if it is before them.
fn bad_starts(starts: &[i32], tokens: i32) -> Vec<(i32, DeviceStatus)> {
    let bad = |entry: &usize| match *entry {
        0 => starts[0] != 0,
        entry => {
            let last = entry + 1 == starts.len();
            starts[entry] < starts[entry - 1] || starts[entry] > tokens || last && starts[entry] < tokens
        }
    };
    let fault = |entry| (7, DeviceStatus::StartOutOfRange { entry: entry as u32 });
    (0..starts.len()).filter(bad).map(fault).collect()
}

pub(super) fn round(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

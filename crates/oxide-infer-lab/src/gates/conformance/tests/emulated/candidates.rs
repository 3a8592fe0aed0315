//! Greedy rows by the best of every tile of the vocabulary.

use super::{Memory, NO_SLOT, list, put};
use half::bf16;
use oxide_infer_cuda::artifact::{Dimensions, Manifest};

/// `sampling.candidates`.
pub(super) fn best_of_tiles(memory: &mut Memory, dimensions: &Dimensions, manifest: &Manifest) {
    tiles(memory, dimensions, manifest, |logit, best| logit > best);
}

/// The same, by tokens that are as good as one before them, too.
pub(super) fn last_of_tiles(memory: &mut Memory, dimensions: &Dimensions, manifest: &Manifest) {
    tiles(memory, dimensions, manifest, |logit, best| logit >= best);
}

fn tiles(memory: &mut Memory, dimensions: &Dimensions, manifest: &Manifest, is_better: fn(f32, f32) -> bool) {
    let columns: usize = manifest.properties["tile"].to_string().parse().unwrap();
    let hidden_size = dimensions["hidden_size"] as usize;
    let wide = |name: &str| list::<bf16>(memory, name).iter().map(|x| x.to_f64()).collect::<Vec<_>>();
    let (input, weight) = (wide("input"), wide("weight"));
    let (mut logits, mut tokens) = (Vec::new(), Vec::new());
    for row in input.chunks_exact(hidden_size) {
        for (tile, rows) in weight.chunks(columns * hidden_size).enumerate() {
            let mut best = (f32::NEG_INFINITY, (tile * columns) as u32);
            for (at, token) in rows.chunks_exact(hidden_size).enumerate() {
                let logit = row.iter().zip(token).map(|(x, w)| x * w).sum::<f64>() as f32;
                if is_better(logit, best.0) || logit.is_nan() {
                    best = (logit, (tile * columns + at) as u32);
                }
            }
            logits.push(best.0);
            tokens.push(best.1);
        }
    }
    put(memory, "best_logits", &logits);
    put(memory, "best_tokens", &tokens);
}

/// `sampling.sample` of candidates.
pub(super) fn pick(memory: &mut Memory, dimensions: &Dimensions) {
    let (rows, candidates) = (dimensions["rows"] as usize, dimensions["candidates"] as usize);
    let (logits, tokens) = (list::<f32>(memory, "best_logits"), list::<u32>(memory, "best_tokens"));
    let (ints, mut last_tokens) = (list::<u32>(memory, "row_ints"), list::<u32>(memory, "last_tokens"));
    let (mut chosen, mut status) = (vec![0_u32; rows], vec![0_i32; rows]);
    for row in 0..rows {
        let slot = ints[row * 8 + 5];
        if slot == NO_SLOT {
            continue;
        }
        let of_row = row * candidates..(row + 1) * candidates;
        let fails = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
        let sampled = logits[of_row.clone()].iter().zip(&tokens[of_row.clone()]);
        let sampled = sampled.filter(|(logit, _)| **logit > f32::NEG_INFINITY);
        let best = sampled.max_by(|(a, first), (b, second)| a.total_cmp(b).then(second.cmp(first)));
        match best {
            _ if logits[of_row].iter().any(fails) => status[row] = 6,
            Some((_, &token)) => chosen[row] = token,
            None => status[row] = 5,
        }
        last_tokens[slot as usize] = chosen[row];
    }
    put(memory, "tokens", &chosen);
    put(memory, "row_status", &status);
    put(memory, "last_tokens", &last_tokens);
}

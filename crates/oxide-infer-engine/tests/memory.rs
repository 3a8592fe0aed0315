//! What the process holds while it serves the demo model. Alone in this file, so that nothing else counts.

mod common;

use common::{Chunk, demo_model, load_with, options, step};
use oxide_infer::TokenId;
use oxide_infer_engine::cpu::{CpuOptions, KvMemory};

/// The peak of resident memory, mapped pages counted.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn peak_memory_is_at_most_one_and_a_half_times_the_file_and_the_kv() {
    let path = demo_model();
    let file = std::fs::metadata(&path).unwrap().len();
    let kv = 24 << 20;
    let mut executor = load_with(&path, &CpuOptions { kv_memory: KvMemory(kv), ..options() });
    let loaded = peak_bytes();
    assert!(loaded < file * 3 / 2, "{loaded} bytes after loading a file of {file}");

    // A full step, and all of the KV: 8 pages of 64 tokens.
    let prompt: Vec<_> = (0..512).map(|i| TokenId(i * 91 % 49152)).collect();
    for tokens in [0..256, 256..512] {
        let pages = [0, 1, 2, 3, 4, 5, 6, 7];
        step(
            &mut executor,
            &[Chunk { slot: 0, prompt: &prompt, tokens, pages: &pages, next: &prompt[..64] }],
            1,
        );
    }
    let peak = peak_bytes();
    assert!(peak > file, "the weights alone take about the size of the file");
    assert!(peak <= (file + kv) * 3 / 2, "{peak} bytes for a file of {file} and {kv} of KV");
}

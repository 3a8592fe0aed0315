use super::*;
use crate::model::Architecture;
use crate::testing::TinyModel;
use serde_json::json;

/// One page is 2 (K and V) · 2 layers · 64 tokens · 2 heads · 16 elements · 4 bytes = 32768 bytes.
const PAGE: u64 = 32768;

fn plan(options: CpuOptions) -> Result<ExecutorPlan, PlanError> {
    ExecutorPlan::new(TinyModel::new(Architecture::Llama, json!({})).config(), &options, 0)
}

#[test]
fn kv_memory_becomes_pages_and_bounds_the_length() {
    let options = CpuOptions { kv_memory: KvMemory(3 * PAGE + 1), ..CpuOptions::default() };
    let limits = plan(options).unwrap().limits;
    assert_eq!((limits.num_pages, limits.max_model_len, limits.page_size), (3, 192, 64));
    assert_eq!((limits.vocab_size, limits.max_sequences, limits.max_batch_tokens), (128, 64, 512));
    let roomy = plan(CpuOptions { kv_memory: KvMemory(100 * PAGE), ..options }).unwrap().limits;
    assert_eq!((roomy.num_pages, roomy.max_model_len), (100, 256), "the model was made for 256 positions");
    let own = plan(CpuOptions { max_model_len: Some(70), ..options }).unwrap().limits;
    assert_eq!(own.max_model_len, 70);
}

#[test]
fn what_does_not_fit_says_by_how_much() {
    let message = |options| plan(options).unwrap_err().to_string();
    let options = CpuOptions { kv_memory: KvMemory(3 * PAGE), ..CpuOptions::default() };
    assert_eq!(
        message(CpuOptions { max_model_len: Some(193), ..options }),
        "98304 bytes of KV memory hold 192 tokens; one sequence of 193 tokens needs 131072 bytes, 32768 more"
    );
    assert_eq!(
        message(CpuOptions { kv_memory: KvMemory(PAGE - 1), ..options }),
        "32767 bytes of KV memory hold 0 tokens; one sequence of 64 tokens needs 32768 bytes, 1 more"
    );
    assert_eq!(
        message(CpuOptions { max_model_len: Some(257), ..options }),
        "max_model_len is 257; the model was made for 256 positions"
    );
    assert_eq!(
        message(CpuOptions { max_batch_tokens: 63, ..options }),
        "max_batch_tokens is 63; it must be at least 64"
    );
    assert_eq!(
        message(CpuOptions { max_batch_tokens: usize::MAX, ..options }),
        "max_batch_tokens is 18446744073709551615; it must be at most 1048576"
    );
    assert_eq!(
        message(CpuOptions { threads: NonZeroUsize::new(1025), ..options }),
        "threads is 1025; it must be at most 1024"
    );
    let huge = message(CpuOptions { kv_memory: KvMemory(1 << 60), ..options });
    assert!(huge.starts_with("weights (0 bytes), KV (") && huge.ends_with(" are missing"), "{huge}");
}

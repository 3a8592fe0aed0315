//! Drives a CPU executor step by step, without an engine.

#![allow(dead_code, reason = "each test file uses its part")]

use oxide_infer::sampling::{LogProbs, SamplingParams};
use oxide_infer::{DType, PageId, TokenId};
use oxide_infer_engine::batch::{
    BatchRow, HiddenStates, PromptLogprobs, RowInput, SampleTarget, SlotId, SlotStart,
};
use oxide_infer_engine::cpu::{CpuExecutor, CpuOptions, KvMemory, PAGE_SIZE};
use oxide_infer_engine::request::ChoiceIndex;
use oxide_infer_engine::testing::TinyModel;
use oxide_infer_engine::{EngineBatch, Executor, ModelSource, StepOutput, load_cpu};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The demo model's file.
pub(crate) fn demo_model() -> PathBuf {
    let path = match std::env::var_os("OXIDE_INFER_TEST_MODEL") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/SmolLM2-135M-Instruct.Q4_1.gguf"),
    };
    assert!(path.is_file(), "{} is not there: `make model` fetches it", path.display());
    path
}

/// Small enough for tiny models; two threads, so that work is split.
pub(crate) fn options() -> CpuOptions {
    CpuOptions {
        threads: NonZeroUsize::new(2),
        max_model_len: None,
        max_batch_tokens: 256,
        max_sequences: 8,
        kv_memory: KvMemory(4 << 20),
    }
}

pub(crate) fn load(path: &Path) -> CpuExecutor {
    load_with(path, &options())
}

pub(crate) fn load_with(path: &Path, options: &CpuOptions) -> CpuExecutor {
    load_cpu(&ModelSource::open(path).unwrap(), options, &mut |_| ()).unwrap()
}

pub(crate) fn load_safetensors(model: &TinyModel, dtype: DType) -> CpuExecutor {
    let dir = tempfile::tempdir().unwrap();
    model.write_safetensors(dir.path(), dtype).unwrap();
    load(dir.path())
}

pub(crate) fn load_gguf(bytes: &[u8]) -> CpuExecutor {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    load(file.path())
}

/// A part of a prompt, to be computed in one row of a step.
#[derive(Clone, Debug)]
pub(crate) struct Chunk<'a> {
    pub(crate) slot: u32,
    pub(crate) prompt: &'a [TokenId],
    pub(crate) tokens: std::ops::Range<usize>,
    /// Of the whole sequence, as many as its length needs.
    pub(crate) pages: &'a [u32],
    /// Tokens that follow the chunk's tokens.
    pub(crate) next: &'a [TokenId],
}

/// One step of prompt chunks that asks for `top` log-probabilities of every row of logits.
pub(crate) fn step(executor: &mut CpuExecutor, chunks: &[Chunk<'_>], top: u32) -> Vec<Vec<LogProbs>> {
    let mut batch = EngineBatch::default();
    for chunk in chunks {
        if chunk.tokens.start == 0 {
            batch.slot_starts.push(slot_start(chunk.slot, chunk.prompt, SamplingParams::default()));
        }
        let (tokens, pages) = (batch.tokens.len(), batch.pages.len());
        batch.tokens.extend(&chunk.prompt[chunk.tokens.clone()]);
        batch.positions.extend(chunk.tokens.clone().map(|position| position as u32));
        batch
            .pages
            .extend(chunk.pages.iter().take(chunk.tokens.end.div_ceil(PAGE_SIZE)).map(|&page| PageId(page)));
        batch.rows.push(BatchRow {
            slot: SlotId(chunk.slot),
            tokens: tokens..batch.tokens.len(),
            pages: pages..batch.pages.len(),
            kv_len: chunk.tokens.end,
            input: RowInput::Host,
            samples: 0..0,
            prompt_logprobs: Some(PromptLogprobs { next_tokens: chunk.next.to_vec(), top }),
            hidden_states: HiddenStates::None,
        });
    }
    let mut output = StepOutput::default();
    executor.submit(&batch).unwrap();
    executor.collect(&mut output).unwrap();
    output.prompt_logprobs.into_iter().map(Result::unwrap).collect()
}

/// Log-probabilities of all `top` tokens at every position, computed in chunks that end at these positions.
pub(crate) fn prompt_logprobs(
    executor: &mut CpuExecutor,
    prompt: &[TokenId],
    chunk_ends: &[usize],
    pages: &[u32],
    top: u32,
) -> Vec<LogProbs> {
    let mut start = 0;
    let mut found = Vec::new();
    for &end in chunk_ends {
        // What follows the last token does not matter to the list of best tokens.
        let next: Vec<_> = (start + 1..=end).map(|i| prompt.get(i).copied().unwrap_or_default()).collect();
        let chunk = Chunk { slot: 0, prompt, tokens: start..end, pages, next: &next };
        found.extend(step(executor, &[chunk], top).remove(0));
        start = end;
    }
    found
}

/// The log-probabilities of all tokens in order of their ids.
pub(crate) fn by_id(logprobs: &LogProbs) -> Vec<f32> {
    let mut row = vec![f32::NAN; logprobs.top.len()];
    logprobs.top.iter().for_each(|top| row[top.token.index()] = top.logprob);
    row
}

pub(crate) fn slot_start(slot: u32, prompt: &[TokenId], sampling: SamplingParams) -> SlotStart {
    SlotStart {
        slot: SlotId(slot),
        choice: ChoiceIndex(0),
        sampling: Arc::new(sampling),
        prompt: Arc::from(prompt),
        output: Vec::new(),
    }
}

pub(crate) fn sample_target(slot: u32, position: usize) -> SampleTarget {
    SampleTarget {
        slot: SlotId(slot),
        position: position as u32,
        logprobs: None,
        mask: None,
        forbidden: Arc::from([]),
    }
}

//! The prompts and continuations that a reference made.

use anyhow::{Context as _, Result, ensure};
use oxide_infer::TokenId;
use oxide_infer_engine::ExecutorLimits;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Prompts that all differ, with continuations of one length.
#[derive(Debug)]
pub(super) struct Cases {
    cases: Vec<Case>,
    by_prompt: HashMap<Arc<[TokenId]>, usize>,
}

#[derive(Debug)]
pub(super) struct Case {
    pub(super) prompt: Arc<[TokenId]>,
    pub(super) continuation: Vec<TokenId>,
}

#[derive(Deserialize)]
struct File {
    cases: Vec<FileCase>,
}

#[derive(Deserialize)]
struct FileCase {
    id: String,
    prompt: Vec<u32>,
    continuation: Vec<u32>,
}

impl Cases {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a file of cases", path.display()))
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let File { cases: parsed } = serde_json::from_str(text)?;
        let new_tokens = parsed.first().context("there are no cases")?.continuation.len();
        ensure!(new_tokens > 0, "the continuations are empty");
        let mut cases = Self { cases: Vec::new(), by_prompt: HashMap::new() };
        for FileCase { id, prompt, continuation } in parsed {
            let found = continuation.len();
            ensure!(!prompt.is_empty(), "the prompt of {id:?} is empty");
            ensure!(
                found == new_tokens,
                "{id:?} goes on for {found} tokens, the first case for {new_tokens}"
            );
            let tokens = |ids: Vec<u32>| ids.into_iter().map(TokenId);
            let prompt: Arc<[TokenId]> = tokens(prompt).collect();
            let earlier = cases.by_prompt.insert(prompt.clone(), cases.cases.len());
            ensure!(earlier.is_none(), "the prompt of {id:?} is an earlier one's too");
            cases.cases.push(Case { prompt, continuation: tokens(continuation).collect() });
        }
        Ok(cases)
    }

    pub(super) fn len(&self) -> usize {
        self.cases.len()
    }

    pub(super) fn new_tokens(&self) -> usize {
        self.cases[0].continuation.len()
    }

    pub(super) fn get(&self, case: usize) -> &Case {
        &self.cases[case]
    }

    /// The case that has this prompt.
    pub(super) fn find(&self, prompt: &[TokenId]) -> Option<usize> {
        self.by_prompt.get(prompt).copied()
    }

    /// Whether an executor can compute them.
    pub(super) fn check(&self, limits: &ExecutorLimits) -> Result<()> {
        for Case { prompt, continuation } in &self.cases {
            let len = prompt.len() + continuation.len();
            ensure!(
                len <= limits.max_model_len,
                "a case has {len} tokens; the executor was planned for {}",
                limits.max_model_len
            );
            if let Some(token) = prompt.iter().chain(continuation).find(|t| t.index() >= limits.vocab_size) {
                anyhow::bail!("token {token} is not in the vocabulary of {}", limits.vocab_size);
            }
        }
        Ok(())
    }
}

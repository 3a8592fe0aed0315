//! Answers in the form of `/v1/completions`.

use super::choice::Delta;
use super::chunks::Format;
use super::logprobs::{TokenNamer, prompt_logprobs};
use super::{Generation, PromptRun};
use crate::protocol::params::TokenIds;
use crate::protocol::response::{CompletionChoice, CompletionLogprobs, PromptTokenLogprobs};
use crate::text::{DecodeFrom, SpecialInOutput, Tokenizer};
use oxide_infer::TokenId;
use std::sync::Arc;

/// The form of completions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletionFormat {
    /// Log-probabilities of this many best tokens, if asked for.
    pub(crate) logprobs: Option<u32>,
}

impl CompletionFormat {
    /// An answer or a piece of one, after the prompt if `echoed` has one.
    fn render(
        &self,
        generation: &Generation,
        run: &PromptRun,
        index: usize,
        delta: Delta,
        lead: Lead,
    ) -> CompletionChoice {
        let namer = TokenNamer::of(generation);
        let top = self.logprobs.unwrap_or(0) as usize;
        let prompt_text = run.prompt.echo.as_deref();
        let mut text = delta.text;
        let mut logprobs = self.logprobs.map(|_| CompletionLogprobs::default());
        if let (Some(prompt_text), Lead::Prompt) = (prompt_text, lead) {
            text.insert_str(0, prompt_text);
            if let Some(out) = &mut logprobs {
                echo_logprobs(out, &namer, run, prompt_text, top);
            }
        }
        if let Some(out) = &mut logprobs {
            let before = prompt_text.map_or(0, |prompt| prompt.chars().count());
            for token in &delta.tokens {
                namer.completion(out, token.id, before + token.text_offset, token.logprobs.as_ref(), top);
            }
        }
        let return_ids = generation.params().token_ids == TokenIds::Return;
        let (finish_reason, stop_reason) = delta.finish.map(|finish| (finish.word, finish.stop)).unzip();
        CompletionChoice {
            index,
            text,
            logprobs,
            finish_reason,
            stop_reason: stop_reason.flatten(),
            prompt_logprobs: (lead == Lead::Prompt).then(|| prompt_logprobs(generation, run)).flatten(),
            prompt_token_ids: (return_ids && lead == Lead::Prompt).then(|| run.prompt.tokens.clone()),
            token_ids: return_ids.then(|| delta.tokens.iter().map(|token| token.id).collect()),
        }
    }
}

/// What comes before a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lead {
    /// The prompt, in text or ids, as far as it was asked for.
    Prompt,
    /// Nothing.
    None,
}

impl Format for CompletionFormat {
    const WHOLE: &'static str = "text_completion";
    const CHUNK: &'static str = "text_completion";
    type Choice = CompletionChoice;
    type Chunk = CompletionChoice;

    fn choice(
        &self,
        generation: &Generation,
        run: &PromptRun,
        index: usize,
        delta: Delta,
    ) -> CompletionChoice {
        self.render(generation, run, index, delta, Lead::Prompt)
    }

    fn opening(&self, generation: &Generation, run: &PromptRun, index: usize) -> Option<CompletionChoice> {
        let shows_prompt = run.prompt.echo.is_some() || generation.params().token_ids == TokenIds::Return;
        shows_prompt.then(|| self.render(generation, run, index, Delta::default(), Lead::Prompt))
    }

    fn chunk(
        &self,
        generation: &Generation,
        run: &PromptRun,
        index: usize,
        delta: Delta,
    ) -> Option<CompletionChoice> {
        let wants_tokens = self.logprobs.is_some() || generation.params().token_ids == TokenIds::Return;
        let shows_tokens = wants_tokens && !delta.tokens.is_empty();
        if delta.text.is_empty() && delta.finish.is_none() && !shows_tokens {
            return None;
        }
        let mut piece = self.render(generation, run, index, delta, Lead::None);
        piece.logprobs = piece.logprobs.filter(|logprobs| !logprobs.tokens.is_empty());
        Some(piece)
    }

    fn prompt_token_ids(&self, _: &Generation) -> Option<Arc<[TokenId]>> {
        None
    }

    fn prompt_logprobs(&self, _: &Generation) -> Option<Vec<Option<PromptTokenLogprobs>>> {
        None
    }
}

/// Adds the prompt's tokens. The first has no log-probability, because nothing precedes it.
fn echo_logprobs(
    out: &mut CompletionLogprobs,
    namer: &TokenNamer<'_>,
    run: &PromptRun,
    prompt_text: &str,
    top: usize,
) {
    let tokens = &run.prompt.tokens;
    let offsets = prompt_offsets(namer.tokenizer, tokens, prompt_text);
    for ((&id, offset), logprobs) in tokens.iter().zip(offsets).zip(run.logprobs_by_token()) {
        namer.completion(out, id, offset, logprobs, top);
    }
}

/// Characters of `text` before each token's. What the tokenizer put before the text (a beginning-of-sequence token) is
/// not in it and stands at 0.
fn prompt_offsets(tokenizer: &Tokenizer, tokens: &[TokenId], text: &str) -> Vec<usize> {
    let mut detokenizer = tokenizer.detokenizer(SpecialInOutput::Keep, DecodeFrom::Start);
    let mut decoded = String::new();
    let mut offsets = Vec::with_capacity(tokens.len());
    let mut chars = 0;
    for &id in tokens {
        offsets.push(chars);
        let start = decoded.len();
        detokenizer.push_into(id, &mut decoded);
        chars += decoded[start..].chars().count();
    }
    if let Some(added) = decoded.strip_suffix(text) {
        let added = added.chars().count();
        offsets.iter_mut().for_each(|offset| *offset = offset.saturating_sub(added));
    }
    offsets
}

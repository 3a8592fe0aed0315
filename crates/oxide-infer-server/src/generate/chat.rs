//! Answers in the form of `/v1/chat/completions`.

use super::choice::Delta;
use super::logprobs::{TokenNamer, prompt_logprobs};
use super::stream::Format;
use super::{Generation, PromptRun};
use crate::protocol::params::TokenIds;
use crate::protocol::response::{
    ChatChoice, ChatChunkChoice, ChatDelta, ChatLogprobs, ChatMessage, FinishWord, PromptTokenLogprobs,
};
use oxide_infer::TokenId;
use std::sync::Arc;

const ROLE: &str = "assistant";

/// The form of chat answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChatFormat {
    /// Whether log-probabilities were asked for.
    pub(crate) logprobs: bool,
}

impl ChatFormat {
    fn extras(
        &self,
        generation: &Generation,
        delta: &mut Delta,
    ) -> (Option<ChatLogprobs>, Option<Vec<TokenId>>) {
        let tokens = std::mem::take(&mut delta.tokens);
        let ids = (generation.params().token_ids == TokenIds::Return)
            .then(|| tokens.iter().map(|token| token.id).collect());
        let logprobs = self.logprobs.then(|| TokenNamer::of(generation).chat(tokens));
        (logprobs, ids)
    }
}

impl Format for ChatFormat {
    const WHOLE: &'static str = "chat.completion";
    const CHUNK: &'static str = "chat.completion.chunk";
    type Choice = ChatChoice;
    type Chunk = ChatChunkChoice;

    fn choice(&self, generation: &Generation, _: &PromptRun, index: usize, mut delta: Delta) -> ChatChoice {
        let (logprobs, token_ids) = self.extras(generation, &mut delta);
        let (finish_reason, stop_reason) = match delta.finish {
            Some(finish) => (finish.word, finish.stop),
            None => (FinishWord::Stop, None),
        };
        ChatChoice {
            index,
            message: ChatMessage { role: ROLE, content: delta.text, refusal: None },
            logprobs,
            finish_reason,
            stop_reason,
            token_ids,
        }
    }

    fn opening(&self, _: &Generation, _: &PromptRun, index: usize) -> Option<ChatChunkChoice> {
        Some(ChatChunkChoice {
            index,
            delta: ChatDelta { role: Some(ROLE), content: Some(String::new()) },
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
        })
    }

    fn chunk(
        &self,
        generation: &Generation,
        _: &PromptRun,
        index: usize,
        mut delta: Delta,
    ) -> Option<ChatChunkChoice> {
        let (logprobs, token_ids) = self.extras(generation, &mut delta);
        let shows_tokens = logprobs.as_ref().is_some_and(|logprobs| !logprobs.content.is_empty())
            || token_ids.as_ref().is_some_and(|ids| !ids.is_empty());
        if delta.text.is_empty() && !shows_tokens && delta.finish.is_none() {
            return None;
        }
        let content = (!delta.text.is_empty() || shows_tokens).then_some(delta.text);
        let (finish_reason, stop_reason) = delta.finish.map(|finish| (finish.word, finish.stop)).unzip();
        Some(ChatChunkChoice {
            index,
            delta: ChatDelta { role: None, content },
            logprobs: logprobs.filter(|logprobs| !logprobs.content.is_empty()),
            finish_reason,
            stop_reason: stop_reason.flatten(),
            token_ids,
        })
    }

    fn prompt_token_ids(&self, generation: &Generation) -> Option<Arc<[TokenId]>> {
        let wanted = generation.params().token_ids == TokenIds::Return;
        generation.prompts().first().filter(|_| wanted).map(|run| run.prompt.tokens.clone())
    }

    fn prompt_logprobs(&self, generation: &Generation) -> Option<Vec<Option<PromptTokenLogprobs>>> {
        generation.prompts().first().and_then(|run| prompt_logprobs(generation, run))
    }
}

//! Answers in the form of `/v1/chat/completions`.

use super::choice::Delta;
use super::chunks::Format;
use super::logprobs::{TokenNamer, prompt_logprobs};
use super::output::CallDelta;
use super::{Generation, PromptRun};
use crate::protocol::params::TokenIds;
use crate::protocol::response::{
    CalledFunction, CalledFunctionDelta, ChatChoice, ChatChunkChoice, ChatDelta, ChatLogprobs, ChatMessage,
    FinishWord, PromptTokenLogprobs, ToolCall, ToolCallDelta,
};
use oxide_infer::TokenId;
use std::sync::Arc;

const ROLE: &str = "assistant";
const FUNCTION: &str = "function";

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
        let is_silent = delta.text.is_empty() && !(delta.calls.is_empty() && delta.reasoning.is_empty());
        let message = ChatMessage {
            role: ROLE,
            content: (!is_silent).then_some(delta.text),
            refusal: None,
            reasoning_content: some_text(delta.reasoning),
            tool_calls: delta.calls.into_iter().filter_map(whole_call).collect(),
        };
        ChatChoice { index, message, logprobs, finish_reason, stop_reason, token_ids }
    }

    fn opening(&self, _: &Generation, _: &PromptRun, index: usize) -> Option<ChatChunkChoice> {
        Some(ChatChunkChoice {
            index,
            delta: ChatDelta { role: Some(ROLE), content: Some(String::new()), ..ChatDelta::default() },
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
        let has_parts = !delta.reasoning.is_empty() || !delta.calls.is_empty();
        if delta.text.is_empty() && !has_parts && !shows_tokens && delta.finish.is_none() {
            return None;
        }
        let content = (!delta.text.is_empty() || (shows_tokens && !has_parts)).then_some(delta.text);
        let (finish_reason, stop_reason) = delta.finish.map(|finish| (finish.word, finish.stop)).unzip();
        Some(ChatChunkChoice {
            index,
            delta: ChatDelta {
                role: None,
                content,
                reasoning_content: some_text(delta.reasoning),
                tool_calls: delta.calls.into_iter().map(call_piece).collect(),
            },
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

fn some_text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// A call that one delta has from its beginning.
fn whole_call(call: CallDelta) -> Option<ToolCall> {
    let (id, name) = call.begin?;
    Some(ToolCall { id, kind: FUNCTION, function: CalledFunction { name, arguments: call.arguments } })
}

fn call_piece(call: CallDelta) -> ToolCallDelta {
    let (id, name) = call.begin.unzip();
    ToolCallDelta {
        index: call.index,
        kind: id.is_some().then_some(FUNCTION),
        id,
        function: CalledFunctionDelta { name, arguments: call.arguments },
    }
}

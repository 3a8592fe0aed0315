//! Answers in the form of Anthropic's `/v1/messages`.

use super::Generation;
use super::choice::Finish;
use super::parts::{Part, PartStep, Parts};
use super::stream::{EventWriter, Frame};
use crate::error::ApiError;
use crate::protocol::messages::response::{
    Block, BlockDelta, Message, MessageEnd, MessageError, MessageEvent, StopReason,
};
use crate::protocol::response::{FinishWord, StopReason as Stop};
use serde_json::{Map, json};
use std::sync::Arc;

/// What every message starts with.
#[derive(Clone, Debug)]
pub(crate) struct MessageHead {
    /// The message's id.
    pub(crate) id: Arc<str>,
    /// The model's name.
    pub(crate) model: Arc<str>,
}

impl MessageHead {
    /// The message of a generation that is complete.
    pub(crate) fn whole(self, generation: &mut Generation) -> Message {
        let mut delta = generation.take_delta(0, 0);
        let mut end = end_of(delta.finish.take());
        let content: Vec<Block> = Parts::of_whole(delta).into_iter().map(whole_block).collect();
        let has_calls = content.iter().any(|block| matches!(block, Block::ToolUse { .. }));
        if end.stop_reason == Some(StopReason::ToolUse) && !has_calls {
            end.stop_reason = Some(StopReason::EndTurn);
        }
        self.message(content, end, generation)
    }

    fn message(&self, content: Vec<Block>, end: MessageEnd, generation: &Generation) -> Message {
        Message {
            id: self.id.clone(),
            kind: "message",
            role: "assistant",
            model: self.model.clone(),
            content,
            stop_reason: end.stop_reason,
            stop_sequence: end.stop_sequence,
            usage: generation.usage().into(),
        }
    }
}

/// Writes a message as a stream of events.
#[derive(Debug)]
pub(crate) struct MessageWriter {
    head: MessageHead,
    parts: Parts,
    started: bool,
    /// Why the answer ended, which is known before the generation is done.
    finish: Option<Finish>,
}

impl MessageWriter {
    /// Before the first event.
    pub(crate) fn new(head: MessageHead) -> Self {
        Self { head, parts: Parts::default(), started: false, finish: None }
    }

    fn event(&self, step: PartStep) -> MessageEvent {
        match step {
            PartStep::Begin(index) => {
                MessageEvent::ContentBlockStart { index, content_block: empty_block(self.parts.get(index)) }
            }
            PartStep::More(index, text) => {
                let delta = match self.parts.get(index) {
                    Part::Text(_) => BlockDelta::Text { text },
                    Part::Reasoning(_) => BlockDelta::Thinking { thinking: text },
                    Part::Call { .. } => BlockDelta::InputJson { partial_json: text },
                };
                MessageEvent::ContentBlockDelta { index, delta }
            }
            PartStep::End(index) => MessageEvent::ContentBlockStop { index },
        }
    }
}

impl EventWriter for MessageWriter {
    const END: &'static [u8] = b"";

    fn news(&mut self, generation: &mut Generation, frame: &mut Frame) -> Result<(), ApiError> {
        if generation.prompts().iter().any(|run| run.cached_tokens.is_none()) {
            return Ok(());
        }
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.started, true) {
            let message = self.head.message(Vec::new(), end_of(None), generation);
            events.push(MessageEvent::MessageStart { message });
        }
        let mut delta = generation.take_delta(0, 0);
        self.finish = self.finish.take().or(delta.finish.take());
        let mut steps = self.parts.take(delta);
        if generation.is_done() {
            steps.extend(self.parts.end());
        }
        events.extend(steps.into_iter().map(|step| self.event(step)));
        if generation.is_done() {
            events.push(MessageEvent::MessageDelta {
                delta: end_of(self.finish.take()),
                usage: generation.usage().into(),
            });
            events.push(MessageEvent::MessageStop);
        }
        events.iter().try_for_each(|event| frame.event(Some(event.name()), event))
    }

    fn failure(&mut self, error: &ApiError, frame: &mut Frame) -> Result<(), ApiError> {
        frame.event(Some("error"), &MessageError::new(error, None))
    }
}

fn end_of(finish: Option<Finish>) -> MessageEnd {
    let Some(finish) = finish else { return MessageEnd { stop_reason: None, stop_sequence: None } };
    let (stop_reason, stop_sequence) = match (finish.word, finish.stop) {
        (FinishWord::Length, _) => (StopReason::MaxTokens, None),
        (FinishWord::ToolCalls, _) => (StopReason::ToolUse, None),
        (FinishWord::Stop, Some(Stop::Text(text))) => (StopReason::StopSequence, Some(text)),
        (FinishWord::Stop, _) => (StopReason::EndTurn, None),
    };
    MessageEnd { stop_reason: Some(stop_reason), stop_sequence }
}

fn empty_block(part: &Part) -> Block {
    match part {
        Part::Text(_) => Block::Text { text: String::new() },
        Part::Reasoning(_) => Block::Thinking { thinking: String::new(), signature: "" },
        Part::Call { id, name, .. } => {
            Block::ToolUse { id: id.clone(), name: name.clone(), input: Map::new() }
        }
    }
}

/// A call whose arguments are no object (it was cut off, or the model wrote no JSON) is shown as text: it cannot be made.
fn whole_block(part: Part) -> Block {
    match part {
        Part::Text(text) => Block::Text { text },
        Part::Reasoning(thinking) => Block::Thinking { thinking, signature: "" },
        Part::Call { id, name, arguments } => match serde_json::from_str(&arguments) {
            Ok(input) => Block::ToolUse { id, name, input },
            Err(_) => {
                Block::Text { text: format!("{{\"name\": {}, \"arguments\": {arguments}", json!(name)) }
            }
        },
    }
}

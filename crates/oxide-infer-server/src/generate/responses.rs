//! Answers in the form of OpenAI's `/v1/responses`.

use super::Generation;
use super::choice::Finish;
use super::parts::{Part, PartStep, Parts};
use super::stream::{EventWriter, Frame};
use crate::app::unix_time;
use crate::error::ApiError;
use crate::protocol::response::{FinishWord, Head};
use crate::protocol::responses::response::{
    Content, Echo, EventBody, Fixed, IncompleteDetails, Item, Place, ResponseEvent, ResponseObject,
    ResponseUsage, Status,
};

/// What every state of a response has.
#[derive(Clone, Debug)]
pub(crate) struct ResponseHead {
    /// Id, object, time and model.
    pub(crate) head: Head,
    /// What is repeated of the request.
    pub(crate) echo: Echo,
}

impl ResponseHead {
    /// The response of a generation that is complete.
    pub(crate) fn whole(&self, generation: &mut Generation) -> ResponseObject {
        let mut delta = generation.take_delta(0, 0);
        let status = status_of(delta.finish.take().as_ref());
        self.ended(&Parts::of_whole(delta), status, generation)
    }

    fn ended(&self, parts: &[Part], status: Status, generation: &Generation) -> ResponseObject {
        let last = parts.len().saturating_sub(1);
        let items = parts.iter().enumerate().map(|(index, part)| {
            // What was cut off is the last item.
            let status = if index == last { status } else { Status::Completed };
            self.item(index, part, status)
        });
        let usage = ResponseUsage::new(generation.usage(), generation.reasoning_tokens());
        ResponseObject {
            completed_at: (status == Status::Completed).then(unix_time),
            incomplete_details: (status == Status::Incomplete)
                .then_some(IncompleteDetails { reason: "max_output_tokens" }),
            output: items.collect(),
            usage: Some(usage),
            ..self.state(status)
        }
    }

    fn state(&self, status: Status) -> ResponseObject {
        ResponseObject {
            id: self.head.id.clone(),
            object: self.head.object,
            created_at: self.head.created,
            status,
            completed_at: None,
            error: None,
            incomplete_details: None,
            model: self.head.model.clone(),
            output: Vec::new(),
            echo: self.echo.clone(),
            fixed: Fixed::VALUES,
            usage: None,
        }
    }

    fn item_id(&self, index: usize, part: &Part) -> String {
        let kind = match part {
            Part::Text(_) => "msg",
            Part::Reasoning(_) => "rs",
            Part::Call { .. } => "fc",
        };
        let response = self.head.id.trim_start_matches("resp_");
        format!("{kind}_{response}_{index}")
    }

    fn item(&self, index: usize, part: &Part, status: Status) -> Item {
        let id = self.item_id(index, part);
        match part {
            Part::Text(_) => {
                Item::Message { id, status, role: "assistant", content: content(part).into_iter().collect() }
            }
            Part::Reasoning(_) => {
                Item::Reasoning { id, status, summary: [], content: content(part).into_iter().collect() }
            }
            Part::Call { id: call_id, name, arguments } => Item::FunctionCall {
                id,
                status,
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: arguments.clone(),
            },
        }
    }
}

/// Writes a response as a stream of events.
#[derive(Debug)]
pub(crate) struct ResponseWriter {
    head: ResponseHead,
    parts: Parts,
    /// Why the answer ended, which is known before the generation is done.
    finish: Option<Finish>,
    events: u64,
}

impl ResponseWriter {
    /// Before the first event.
    pub(crate) fn new(head: ResponseHead) -> Self {
        Self { head, parts: Parts::default(), finish: None, events: 0 }
    }

    fn write(&mut self, frame: &mut Frame, kind: &'static str, body: EventBody) -> Result<(), ApiError> {
        let event = ResponseEvent { kind, sequence_number: self.events, body };
        self.events += 1;
        frame.event(Some(kind), &event)
    }

    fn write_state(&mut self, frame: &mut Frame, response: ResponseObject) -> Result<(), ApiError> {
        let kind = match response.status {
            Status::InProgress if self.events == 0 => "response.created",
            Status::InProgress => "response.in_progress",
            Status::Completed => "response.completed",
            Status::Incomplete => "response.incomplete",
            Status::Failed => "response.failed",
        };
        self.write(frame, kind, EventBody::Response { response: Box::new(response) })
    }

    fn open(&mut self, frame: &mut Frame) -> Result<(), ApiError> {
        while self.events < 2 {
            let state = self.head.state(Status::InProgress);
            self.write_state(frame, state)?;
        }
        Ok(())
    }

    fn write_step(&mut self, frame: &mut Frame, step: PartStep, status: Status) -> Result<(), ApiError> {
        match step {
            PartStep::Begin(index) => self.begin(frame, index),
            PartStep::More(index, delta) => {
                let (kind, logprobs) = match self.parts.get(index) {
                    Part::Text(_) => ("response.output_text.delta", Some([])),
                    Part::Reasoning(_) => ("response.reasoning_text.delta", None),
                    Part::Call { .. } => ("response.function_call_arguments.delta", None),
                };
                let place = self.place(index);
                self.write(frame, kind, EventBody::Delta { place, delta, logprobs })
            }
            PartStep::End(index) => self.end(frame, index, status),
        }
    }

    fn begin(&mut self, frame: &mut Frame, index: usize) -> Result<(), ApiError> {
        let part = self.parts.get(index).emptied();
        let mut item = self.head.item(index, &part, Status::InProgress);
        if let Item::Message { content, .. } | Item::Reasoning { content, .. } = &mut item {
            content.clear();
        }
        self.write(frame, "response.output_item.added", EventBody::Item { output_index: index, item })?;
        match content(&part) {
            Some(part) => {
                let place = self.place(index);
                self.write(frame, "response.content_part.added", EventBody::Part { place, part })
            }
            None => Ok(()),
        }
    }

    fn end(&mut self, frame: &mut Frame, index: usize, status: Status) -> Result<(), ApiError> {
        let (place, part) = (self.place(index), self.parts.get(index).clone());
        let piece = content(&part);
        let item = self.head.item(index, &part, status);
        let (kind, body) = match part {
            Part::Text(text) => (
                "response.output_text.done",
                EventBody::Text { place: place.clone(), text, logprobs: Some([]) },
            ),
            Part::Reasoning(text) => (
                "response.reasoning_text.done",
                EventBody::Text { place: place.clone(), text, logprobs: None },
            ),
            Part::Call { name, arguments, .. } => (
                "response.function_call_arguments.done",
                EventBody::Arguments { place: place.clone(), name, arguments },
            ),
        };
        self.write(frame, kind, body)?;
        if let Some(part) = piece {
            self.write(frame, "response.content_part.done", EventBody::Part { place, part })?;
        }
        self.write(frame, "response.output_item.done", EventBody::Item { output_index: index, item })
    }

    fn place(&self, index: usize) -> Place {
        let part = self.parts.get(index);
        Place {
            item_id: self.head.item_id(index, part),
            output_index: index,
            content_index: (!matches!(part, Part::Call { .. })).then_some(0),
        }
    }
}

impl EventWriter for ResponseWriter {
    const END: &'static [u8] = b"";

    fn news(&mut self, generation: &mut Generation, frame: &mut Frame) -> Result<(), ApiError> {
        self.open(frame)?;
        let mut delta = generation.take_delta(0, 0);
        self.finish = self.finish.take().or(delta.finish.take());
        for step in self.parts.take(delta) {
            self.write_step(frame, step, Status::Completed)?;
        }
        if !generation.is_done() {
            return Ok(());
        }
        let status = status_of(self.finish.as_ref());
        if let Some(end) = self.parts.end() {
            self.write_step(frame, end, status)?;
        }
        let response = self.head.ended(self.parts.all(), status, generation);
        self.write_state(frame, response)
    }

    fn failure(&mut self, error: &ApiError, frame: &mut Frame) -> Result<(), ApiError> {
        self.open(frame)?;
        let failed = self.head.state(Status::Failed);
        self.write_state(frame, ResponseObject { error: Some(error.into()), ..failed })
    }
}

fn status_of(finish: Option<&Finish>) -> Status {
    match finish.map(|finish| finish.word) {
        Some(FinishWord::Length) => Status::Incomplete,
        _ => Status::Completed,
    }
}

/// The one piece of an item's content; calls have none.
fn content(part: &Part) -> Option<Content> {
    match part {
        Part::Text(text) => Some(Content::OutputText { text: text.clone(), annotations: [], logprobs: [] }),
        Part::Reasoning(text) => Some(Content::ReasoningText { text: text.clone() }),
        Part::Call { .. } => None,
    }
}

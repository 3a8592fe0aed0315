//! Messages as chat templates take them, for APIs that have them in other forms.

use super::fields::{Fields, read, shorten, wrong_type};
use super::tools::call;
use crate::error::ApiError;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// The messages of a conversation, which is read turn by turn.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    messages: Vec<Value>,
    /// The assistant's message that is still being put together.
    answer: Option<Answer>,
}

/// An assistant's message.
#[derive(Debug, Default)]
struct Answer {
    reasoning: String,
    text: Vec<Value>,
    calls: Vec<Value>,
}

impl Turns {
    /// A message of anyone but the assistant and tools.
    pub(crate) fn say(&mut self, role: &str, text: Vec<Value>) {
        self.end_answer();
        let last = self.messages.last_mut().filter(|last| last["role"] == role && role != "system");
        match last.map(|last| &mut last["content"]) {
            // Turns of one role are one turn.
            Some(Value::Array(before)) => before.extend(text),
            _ => self.messages.push(json!({"role": role, "content": text})),
        }
    }

    /// What a call returned.
    pub(crate) fn tool_result(&mut self, id: &str, text: Vec<Value>) {
        self.end_answer();
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
    }

    /// Reasoning of the assistant.
    pub(crate) fn reason(&mut self, text: &str) {
        let answer = self.answer_after(|answer| answer.text.is_empty() && answer.calls.is_empty());
        answer.reasoning.push_str(text);
    }

    /// Text of the assistant.
    pub(crate) fn answer(&mut self, text: Vec<Value>) {
        self.answer_after(|answer| answer.calls.is_empty()).text.extend(text);
    }

    /// A call by the assistant; `arguments` is a JSON text.
    pub(crate) fn call(&mut self, id: &str, name: &str, arguments: &str) {
        self.answer_after(|_| true).calls.push(call(id, name, arguments));
    }

    /// The messages, content that is one text being a string.
    pub(crate) fn finish(mut self) -> Vec<Value> {
        self.end_answer();
        for message in &mut self.messages {
            let text = match message["content"].as_array().map(Vec::as_slice) {
                Some([]) => Some(json!("")),
                Some([part]) => Some(part["text"].clone()),
                _ => None,
            };
            if let Some(text) = text {
                message["content"] = text;
            }
        }
        self.messages
    }

    /// The assistant's message that goes on, or a new one if it does not go on with what comes.
    fn answer_after(&mut self, goes_on: impl Fn(&Answer) -> bool) -> &mut Answer {
        if self.answer.as_ref().is_some_and(|answer| !goes_on(answer)) {
            self.end_answer();
        }
        self.answer.get_or_insert_default()
    }

    fn end_answer(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        message.insert("content".to_owned(), answer.text.into());
        if !answer.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), answer.reasoning.into());
        }
        if !answer.calls.is_empty() {
            message.insert("tool_calls".to_owned(), answer.calls.into());
        }
        self.messages.push(message.into());
    }
}

/// A part of a message as templates take it.
pub(crate) fn text_part(text: String) -> Value {
    json!({"type": "text", "text": text})
}

/// A field that has a string or an array of parts, which `read_part` turns into text; `None` if it is absent.
pub(crate) fn read_text(
    fields: &mut Fields<'_>,
    name: &str,
    read_part: fn(Fields<'_>, &str) -> Result<String, ApiError>,
) -> Result<Option<Vec<Value>>, ApiError> {
    let param = fields.param(name);
    let Some(raw) = fields.take(name) else { return Ok(None) };
    if let Some(text) = read::<String>(raw) {
        return Ok(Some(vec![text_part(text)]));
    }
    let parts = parts(raw, &param)?.into_iter();
    parts.map(|(kind, part)| read_part(part, &kind).map(text_part)).collect::<Result<_, _>>().map(Some)
}

/// An array of typed parts: the type of each, and its other fields.
pub(crate) fn parts<'a>(raw: &'a RawValue, param: &str) -> Result<Vec<(String, Fields<'a>)>, ApiError> {
    let parts: Option<Vec<&RawValue>> = read(raw);
    let parts = parts.ok_or_else(|| wrong_type(param, "a string or an array of parts", raw))?;
    let parts = parts.into_iter().enumerate();
    let typed = parts.map(|(index, raw)| {
        let mut fields = Fields::parse_at(raw, &format!("{param}[{index}]"))?;
        let kind = fields.string("type")?.ok_or_else(|| fields.missing("type", "a string"))?;
        Ok((kind, fields))
    });
    typed.collect()
}

/// The error of a part whose type is none of those that are `expected`.
pub(crate) fn wrong_part(fields: &Fields<'_>, expected: &str, kind: &str) -> ApiError {
    fields.unsupported("type", format!("only {expected} are, got '{}'", shorten(kind)))
}

/// A string that must be there.
pub(crate) fn required(fields: &mut Fields<'_>, name: &str) -> Result<String, ApiError> {
    fields.string(name)?.ok_or_else(|| fields.missing(name, "a string"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<Value> {
        vec![text_part(text.to_owned())]
    }

    #[test]
    fn one_answer_has_reasoning_then_text_then_calls() {
        let mut turns = Turns::default();
        turns.say("user", text("a"));
        turns.say("user", text("b"));
        turns.reason("hm");
        turns.answer(text("c"));
        turns.call("1", "f", "{\"x\": 1}");
        turns.call("2", "g", "");
        turns.answer(text("d"));
        turns.tool_result("1", Vec::new());
        let function = |name: &str, arguments: &str| json!({"name": name, "arguments": arguments});
        let calls = json!([
            {"id": "1", "type": "function", "function": function("f", "{\"x\": 1}")},
            {"id": "2", "type": "function", "function": function("g", "{}")},
        ]);
        assert_eq!(
            Value::from(turns.finish()),
            json!([
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": "c", "reasoning_content": "hm", "tool_calls": calls},
                {"role": "assistant", "content": "d"},
                {"role": "tool", "tool_call_id": "1", "content": ""},
            ])
        );
    }
}

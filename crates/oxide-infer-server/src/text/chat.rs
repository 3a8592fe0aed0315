//! A chat as a template gets it.

use serde_json::{Map, Value, json};

use super::tools::{self, ToolSupport};
use super::{ChatTemplate, ContentFormat, PromptError};

/// What is to follow the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NextTurn {
    /// The head of an answer, for the model to write (`add_generation_prompt`).
    #[default]
    Assistant,
    /// Nothing.
    None,
    /// The rest of the last message, which is left open (`continue_final_message`).
    ContinueLast,
}

/// The parts of a chat request that a template sees.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatInput {
    /// Objects with `role`, `content` and whatever else a message has.
    pub messages: Vec<Value>,
    /// Tools as JSON schemas.
    pub tools: Option<Vec<Value>>,
    /// Documents with `title` and `text`.
    pub documents: Option<Vec<Value>>,
    /// What is to follow the messages.
    pub next: NextTurn,
    /// More variables (`chat_template_kwargs`), such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

/// Ends the content of a message that is to be continued, so that its end can be found in the rendered text.
/// The space shows whether the template trims content.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl ChatInput {
    /// The variables of a rendering, with message content and tools in the form that the template takes.
    pub(super) fn to_variables(&self, template: &ChatTemplate) -> Result<Map<String, Value>, PromptError> {
        if self.messages.is_empty() {
            return Err(PromptError::NoMessages);
        }
        let mut messages = self.messages.clone();
        for (index, message) in messages.iter_mut().enumerate() {
            prepare(message).map_err(|reason| PromptError::Message { index, reason })?;
        }
        let described = template.tool_support() == ToolSupport::Described;
        if described {
            tools::describe(&mut messages, self.tools.as_deref());
        }
        messages.iter_mut().for_each(|message| shape_content(message, template.content_format()));
        if self.next == NextTurn::ContinueLast {
            last_text(&mut messages)?.push_str(CONTINUE_TAG);
        }
        let mut variables = self.variables.clone();
        variables.insert("messages".into(), messages.into());
        let tools = self.tools.clone().filter(|_| !described);
        variables.insert("tools".into(), tools.into());
        variables.insert("documents".into(), self.documents.clone().into());
        variables.insert("add_generation_prompt".into(), (self.next == NextTurn::Assistant).into());
        Ok(variables)
    }

    /// Cuts off what a template wrote behind a message that is to be continued.
    pub(super) fn cut(&self, mut rendered: String) -> Result<String, PromptError> {
        if self.next != NextTurn::ContinueLast {
            return Ok(rendered);
        }
        let end = rendered.rfind(CONTINUE_TAG.trim_end());
        let end = end.ok_or(PromptError::Continue("the chat template does not show its content"))?;
        let is_trimmed = !rendered[end..].starts_with(CONTINUE_TAG);
        rendered.truncate(end);
        if is_trimmed {
            rendered.truncate(rendered.trim_end().len());
        }
        Ok(rendered)
    }
}

fn prepare(message: &mut Value) -> Result<(), String> {
    let Value::Object(fields) = message else { return Err("a message must be an object".into()) };
    if !fields.get("role").is_some_and(Value::is_string) {
        return Err("role must be a string".into());
    }
    if let Some(content) = fields.get("content") {
        check_parts(content)?;
    }
    let calls = fields.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten();
    calls.for_each(parse_arguments);
    Ok(())
}

/// Puts a message's content into the form that the template takes.
fn shape_content(message: &mut Value, format: ContentFormat) {
    let Some(content) = message.get_mut("content") else { return };
    match (format, &*content) {
        (ContentFormat::Text, Value::Array(parts)) => *content = joined(parts).into(),
        (ContentFormat::Parts, Value::String(text)) => *content = json!([{"type": "text", "text": text}]),
        _ => {}
    }
}

fn check_parts(content: &Value) -> Result<(), String> {
    let parts = match content {
        Value::Null | Value::String(_) => return Ok(()),
        Value::Array(parts) => parts,
        _ => return Err("content must be a string or a list of text parts".into()),
    };
    for (index, part) in parts.iter().enumerate() {
        let is_text = part["type"] == "text" && part["text"].is_string();
        if !is_text {
            let kind = part["type"].as_str().unwrap_or("without a type");
            return Err(format!("content[{index}] is {kind:?}; only text parts can be rendered"));
        }
    }
    Ok(())
}

/// Text parts as one text, a line end between them, as vLLM and llama.cpp join them.
pub(super) fn joined(parts: &[Value]) -> String {
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

/// The API has the arguments of a tool call as a JSON text; templates expect the object.
fn parse_arguments(call: &mut Value) {
    let Some(arguments) = call.pointer_mut("/function/arguments") else { return };
    let parsed = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    if let Some(object @ Value::Object(_)) = parsed {
        *arguments = object;
    }
}

/// The text at the end of the last message.
fn last_text(messages: &mut [Value]) -> Result<&mut String, PromptError> {
    let message = messages.last_mut().ok_or(PromptError::NoMessages)?;
    let text = match &mut message["content"] {
        Value::String(text) => Some(text),
        Value::Array(parts) => match parts.last_mut().map(|part| &mut part["text"]) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    };
    text.ok_or(PromptError::Continue("it has no text"))
}

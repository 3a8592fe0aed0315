//! The request of `/v1/chat/completions`, and the messages that `/tokenize` takes, too. Other APIs' requests become the same.

use super::fields::{Fields, read, shorten, wrong_type};
use super::grammar::read_grammar;
use super::params::{Bounds, GenerationParams, MaxTokens, read_add_special_tokens};
use super::rules::Route;
use super::tools::{
    Strictness, Tool, ToolChoice, ToolUse, read_calls, read_chat_chosen, read_chat_tool, read_tools,
};
use crate::error::ApiError;
use crate::text::{AddSpecialTokens, ChatInput, NextTurn};
use oxide_infer_engine::request::EosPolicy;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// A chat request.
#[derive(Clone, Debug)]
pub(crate) struct ChatRequest {
    /// The model asked for.
    pub(crate) model: Option<String>,
    /// The conversation.
    pub(crate) chat: ChatPrompt,
    /// What may or must be called.
    pub(crate) tools: ToolUse,
    /// Report log-probabilities, and of this many best tokens.
    pub(crate) logprobs: Option<u32>,
    /// The rest.
    pub(crate) params: GenerationParams,
}

/// A conversation to be rendered and tokenized.
#[derive(Clone, Debug)]
pub(crate) struct ChatPrompt {
    /// What the template gets.
    pub(crate) input: ChatInput,
    /// Whether the tokenizer adds to what the template wrote.
    pub(crate) add_special_tokens: AddSpecialTokens,
    /// The tools that the template gets.
    pub(crate) tools: Vec<Tool>,
    /// The field that holds the messages.
    pub(crate) param: &'static str,
}

impl ChatRequest {
    /// Reads and checks a request's body.
    pub(crate) fn parse(body: &[u8], bounds: Bounds<'_>) -> Result<Self, ApiError> {
        let mut fields = Fields::parse_body(body, Route::Chat)?;
        let model = fields.string("model")?;
        let mut chat = ChatPrompt::read(&mut fields, bounds)?;
        let tools = ToolUse::read(&mut fields, std::mem::take(&mut chat.tools), read_chat_chosen)?;
        let grammar = read_grammar(&mut fields, bounds.limits)?;
        let mut params = GenerationParams::read(&mut fields, bounds, grammar)?;
        let max = read_max_tokens(&mut fields)?;
        params.limit(max, &fields)?;
        let logprobs = read_logprobs(&mut fields, bounds)?;
        Self { model, chat, tools, logprobs, params }.checked(fields)
    }

    /// The request, once its parts are checked against each other and nothing of the body is left.
    pub(crate) fn checked(mut self, fields: Fields<'_>) -> Result<Self, ApiError> {
        if self.tools.choice == ToolChoice::None {
            // A model that sees no tools calls none.
            self.chat.input.tools = None;
        }
        self.check_tools(&fields)?;
        fields.finish()?;
        Ok(self)
    }

    fn check_tools(&self, fields: &Fields<'_>) -> Result<(), ApiError> {
        let strict = self.tools.callable().any(|tool| tool.strictness == Strictness::Strict);
        if self.params.eos == EosPolicy::Ignore && (self.tools.is_forced() || strict) {
            let reason = "cannot be true where calls are forced or strict, whose form says where answers end";
            return Err(fields.invalid("ignore_eos", reason));
        }
        Ok(())
    }
}

impl ChatPrompt {
    /// Reads `messages`, `tools` and what says how they are rendered.
    pub(crate) fn read(fields: &mut Fields<'_>, bounds: Bounds<'_>) -> Result<Self, ApiError> {
        let messages = read_messages(fields, bounds)?;
        let tools = read_tools(fields, bounds.limits, read_chat_tool)?;
        let generation_prompt = fields.flag("add_generation_prompt")?;
        let continue_final = fields.flag("continue_final_message")?.unwrap_or(false);
        let next = match (continue_final, generation_prompt) {
            (true, Some(true)) => {
                return Err(fields.invalid(
                    "continue_final_message",
                    "cannot be true together with 'add_generation_prompt'",
                ));
            }
            (true, _) => NextTurn::ContinueLast,
            (false, Some(false)) => NextTurn::None,
            (false, _) => NextTurn::Assistant,
        };
        let variables = read_variables(fields)?;
        let add_special_tokens = read_add_special_tokens(fields, AddSpecialTokens::Omit)?;
        Ok(Self { add_special_tokens, ..Self::new("messages", messages, tools, next, variables) })
    }

    /// A conversation from the field `param`.
    pub(crate) fn new(
        param: &'static str,
        messages: Vec<Value>,
        tools: Vec<Tool>,
        next: NextTurn,
        variables: Map<String, Value>,
    ) -> Self {
        let definitions = || tools.iter().map(|tool| tool.definition.clone()).collect();
        let tools_shown = (!tools.is_empty()).then(definitions);
        Self {
            input: ChatInput { messages, tools: tools_shown, next, variables, ..ChatInput::default() },
            // Templates write the special tokens themselves.
            add_special_tokens: AddSpecialTokens::Omit,
            tools,
            param,
        }
    }
}

/// Reads `chat_template_kwargs`.
pub(crate) fn read_variables(fields: &mut Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    Ok(fields.typed("chat_template_kwargs", "an object")?.unwrap_or_default())
}

fn read_max_tokens(fields: &mut Fields<'_>) -> Result<Option<MaxTokens>, ApiError> {
    let old = fields.count("max_tokens", 1, u32::MAX)?;
    let new = fields.count("max_completion_tokens", 1, u32::MAX)?;
    match (new, old) {
        (Some(new), Some(old)) if new != old => Err(fields.invalid(
            "max_tokens",
            format!("must not differ from 'max_completion_tokens' = {new}, got {old}; send one of them"),
        )),
        (Some(tokens), _) => Ok(Some(MaxTokens { tokens, field: "max_completion_tokens" })),
        (None, Some(tokens)) => Ok(Some(MaxTokens { tokens, field: "max_tokens" })),
        (None, None) => Ok(None),
    }
}

fn read_logprobs(fields: &mut Fields<'_>, bounds: Bounds<'_>) -> Result<Option<u32>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0, bounds.limits.max_logprobs)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(fields.invalid("top_logprobs", "needs 'logprobs': true")),
    }
}

fn read_messages(fields: &mut Fields<'_>, bounds: Bounds<'_>) -> Result<Vec<Value>, ApiError> {
    let list = message_list(fields, "messages", bounds)?;
    let list = list.into_iter().enumerate();
    list.map(|(index, raw)| read_message(raw, &format!("messages[{index}]"))).collect()
}

/// Reads the field that holds a conversation's messages, unread each.
pub(crate) fn message_list<'a>(
    fields: &mut Fields<'a>,
    name: &str,
    bounds: Bounds<'_>,
) -> Result<Vec<&'a RawValue>, ApiError> {
    const EXPECTED: &str = "an array of messages";
    let list: Option<Vec<&RawValue>> = fields.typed(name, EXPECTED)?;
    let list = list.ok_or_else(|| fields.missing(name, EXPECTED))?;
    let max = bounds.limits.max_messages;
    match list.len() {
        0 => Err(fields.invalid(name, "must not be empty")),
        got if got > max => Err(fields.invalid(name, format!("must have at most {max} messages, got {got}"))),
        _ => Ok(list),
    }
}

fn read_message(raw: &RawValue, param: &str) -> Result<Value, ApiError> {
    let mut fields = Fields::parse_at(raw, param)?;
    let role = fields.string("role")?.ok_or_else(|| fields.missing("role", "a string"))?;
    check_role(&role, &fields)?;
    let content = read_content(&mut fields, &role)?;
    let mut message = Map::new();
    message.insert("role".to_owned(), role.as_str().into());
    message.insert("content".to_owned(), content);
    match role.as_str() {
        "assistant" => {
            if let Some(calls) = read_calls(&mut fields)? {
                message.insert("tool_calls".to_owned(), calls);
            }
        }
        "tool" => {
            let id = fields.string("tool_call_id")?;
            let id =
                id.ok_or_else(|| fields.missing("tool_call_id", "the id of the call that it answers"))?;
            message.insert("tool_call_id".to_owned(), id.into());
        }
        _ => {}
    }
    // What templates may show beside the content.
    for name in ["name", "reasoning_content", "reasoning"] {
        if let Some(text) = fields.string(name)? {
            message.insert(name.to_owned(), text.into());
        }
    }
    refuse_unsupported_parts(&mut fields)?;
    fields.finish()?;
    Ok(Value::Object(message))
}

fn check_role(role: &str, fields: &Fields<'_>) -> Result<(), ApiError> {
    match role {
        "system" | "developer" | "user" | "assistant" | "tool" => Ok(()),
        "function" => {
            let reason = "answers of tools have the role 'tool' and a 'tool_call_id'";
            Err(fields.unsupported("role", reason))
        }
        _ => {
            let reason = format!(
                "must be 'system', 'developer', 'user', 'assistant' or 'tool', got '{}'",
                shorten(role)
            );
            Err(fields.invalid("role", reason))
        }
    }
}

fn read_content(fields: &mut Fields<'_>, role: &str) -> Result<Value, ApiError> {
    const EXPECTED: &str = "a string or an array of text parts";
    let param = fields.param("content");
    let Some(raw) = fields.take("content") else {
        // An answer that this server or OpenAI's gave may be sent back with null for "nothing".
        return if role == "assistant" { Ok(json!("")) } else { Err(fields.missing("content", EXPECTED)) };
    };
    if let Some(text) = read::<String>(raw) {
        return Ok(text.into());
    }
    let parts: Vec<&RawValue> = read(raw).ok_or_else(|| wrong_type(&param, EXPECTED, raw))?;
    let parts = parts.into_iter().enumerate();
    parts.map(|(index, raw)| read_part(raw, &format!("{param}[{index}]"))).collect()
}

fn read_part(raw: &RawValue, param: &str) -> Result<Value, ApiError> {
    let mut fields = Fields::parse_at(raw, param)?;
    let kind = fields.string("type")?.ok_or_else(|| fields.missing("type", "'text'"))?;
    if kind != "text" {
        let reason = format!("only parts of type 'text' are, got '{}'", shorten(&kind));
        return Err(fields.unsupported("type", reason));
    }
    let text = fields.string("text")?.ok_or_else(|| fields.missing("text", "a string"))?;
    fields.finish()?;
    Ok(json!({"type": "text", "text": text}))
}

/// Parts of a message that change the prompt elsewhere. Clients that send an answer back send them empty.
fn refuse_unsupported_parts(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    ["tool_calls", "function_call", "tool_call_id", "audio", "refusal", "annotations"]
        .into_iter()
        .try_for_each(|name| fields.refuse(name, &["[]", "\"\""], "messages have only text"))
}

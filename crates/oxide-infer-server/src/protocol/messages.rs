//! The requests of Anthropic's `/v1/messages` and `/v1/messages/count_tokens`, which become chats.

pub(crate) mod response;

use super::chat::{ChatPrompt, ChatRequest, message_list, read_variables};
use super::fields::{Fields, read, shorten, wrong_type};
use super::grammar::read_schema_field;
use super::params::{Bounds, GenerationParams, MaxTokens};
use super::rules::Route;
use super::tools::{CallCount, Tool, ToolChoice, ToolUse, read_chosen_name, read_tools};
use super::turns::{Turns, parts, read_text, required, text_part, wrong_part};
use crate::config::Limits;
use crate::error::ApiError;
use crate::generate::CallEnding;
use crate::grammar::GrammarSpec;
use crate::text::NextTurn;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// What a template of a model that can reason takes for "reason" or "do not".
const ENABLE_THINKING: &str = "enable_thinking";

/// Reads and checks the body of `/v1/messages`.
pub(crate) fn parse(body: &[u8], bounds: Bounds<'_>) -> Result<ChatRequest, ApiError> {
    let mut fields = Fields::parse_body(body, Route::Messages)?;
    let Conversation { model, chat, tools, grammar } = Conversation::read(&mut fields, bounds)?;
    let mut params = GenerationParams::read(&mut fields, bounds, grammar)?;
    let max = fields.count("max_tokens", 1, u32::MAX)?;
    let tokens =
        max.ok_or_else(|| fields.missing("max_tokens", "the most tokens that the answer may have"))?;
    params.limit(Some(MaxTokens { tokens, field: "max_tokens" }), &fields)?;
    ChatRequest { model, chat, tools, logprobs: None, params }.checked(fields)
}

/// Reads and checks the body of `/v1/messages/count_tokens`.
pub(crate) fn parse_count(body: &[u8], bounds: Bounds<'_>) -> Result<(Option<String>, ChatPrompt), ApiError> {
    let mut fields = Fields::parse_body(body, Route::CountTokens)?;
    let Conversation { model, mut chat, tools, .. } = Conversation::read(&mut fields, bounds)?;
    if tools.choice == ToolChoice::None {
        chat.input.tools = None;
    }
    fields.finish()?;
    Ok((model, chat))
}

/// What both requests have.
struct Conversation {
    model: Option<String>,
    chat: ChatPrompt,
    tools: ToolUse,
    grammar: Option<GrammarSpec>,
}

impl Conversation {
    fn read(fields: &mut Fields<'_>, bounds: Bounds<'_>) -> Result<Self, ApiError> {
        let model = fields.string("model")?;
        let mut turns = Turns::default();
        if let Some(text) = read_text(fields, "system", read_text_block)? {
            turns.say("system", text);
        }
        let next = read_messages(fields, bounds, &mut turns)?;
        let tools = read_tools(fields, bounds.limits, read_tool)?;
        let mut variables = read_variables(fields)?;
        read_thinking(fields, &mut variables)?;
        let chat = ChatPrompt::new("messages", turns.finish(), tools.clone(), next, variables);
        let tools = read_choice(fields, tools)?;
        Ok(Self { model, chat, tools, grammar: read_output_config(fields, bounds.limits)? })
    }
}

fn read_messages(
    fields: &mut Fields<'_>,
    bounds: Bounds<'_>,
    turns: &mut Turns,
) -> Result<NextTurn, ApiError> {
    let list = message_list(fields, "messages", bounds)?;
    let mut next = NextTurn::Assistant;
    let last = list.len() - 1;
    for (index, raw) in list.into_iter().enumerate() {
        let mut message = Fields::parse_at(raw, &format!("messages[{index}]"))?;
        let role = required(&mut message, "role")?;
        let content = message.param("content");
        let raw =
            message.take("content").ok_or_else(|| message.missing("content", "a string or an array"))?;
        match role.as_str() {
            "user" => read_user(raw, &content, turns)?,
            "assistant" => {
                let calls = read_assistant(raw, &content, turns)?;
                if index == last && calls == Calls::Some {
                    let reason = "must be followed by a 'tool_result' for each 'tool_use'";
                    return Err(message.invalid("content", reason));
                }
                // An answer that has been begun is gone on with.
                next = if index == last { NextTurn::ContinueLast } else { next };
            }
            "system" => return Err(message.unsupported("role", "use the field 'system'")),
            _ => {
                let reason = format!("must be 'user' or 'assistant', got '{}'", shorten(&role));
                return Err(message.invalid("role", reason));
            }
        }
        message.finish()?;
    }
    Ok(next)
}

fn read_user(raw: &RawValue, param: &str, turns: &mut Turns) -> Result<(), ApiError> {
    if let Some(text) = read::<String>(raw) {
        turns.say("user", vec![text_part(text)]);
        return Ok(());
    }
    for (kind, mut block) in parts(raw, param)? {
        if kind != "tool_result" {
            turns.say("user", vec![text_part(read_text_block(block, &kind)?)]);
            continue;
        }
        let id = required(&mut block, "tool_use_id")?;
        let text = read_text(&mut block, "content", read_text_block)?;
        // Templates have no place for it; what went wrong is in the content.
        block.flag("is_error")?;
        block.take("cache_control");
        block.finish()?;
        turns.tool_result(&id, text.unwrap_or_default());
    }
    Ok(())
}

/// Whether a message has calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Calls {
    None,
    Some,
}

fn read_assistant(raw: &RawValue, param: &str, turns: &mut Turns) -> Result<Calls, ApiError> {
    if let Some(text) = read::<String>(raw) {
        turns.answer(vec![text_part(text)]);
        return Ok(Calls::None);
    }
    let mut calls = Calls::None;
    for (kind, mut block) in parts(raw, param)? {
        match kind.as_str() {
            "thinking" => {
                turns.reason(&required(&mut block, "thinking")?);
                // Nobody else could have written it where there is no signature to check.
                block.string("signature")?;
                block.finish()?;
            }
            "tool_use" => {
                let id = required(&mut block, "id")?;
                let name = required(&mut block, "name")?;
                let input = read_input(&mut block)?;
                block.take("cache_control");
                block.refuse("caller", &["{\"type\":\"direct\"}"], "calls come from the model")?;
                block.finish()?;
                turns.call(&id, &name, &input);
                calls = Calls::Some;
            }
            _ => turns.answer(vec![text_part(read_text_block(block, &kind)?)]),
        }
    }
    Ok(calls)
}

/// The arguments of a call as a JSON text.
fn read_input(block: &mut Fields<'_>) -> Result<String, ApiError> {
    const EXPECTED: &str = "an object, the call's arguments";
    let raw = block.take("input").ok_or_else(|| block.missing("input", EXPECTED))?;
    let is_object = read::<Map<String, Value>>(raw).is_some();
    is_object.then(|| raw.get().to_owned()).ok_or_else(|| wrong_type(&block.param("input"), EXPECTED, raw))
}

fn read_text_block(mut block: Fields<'_>, kind: &str) -> Result<String, ApiError> {
    if kind != "text" {
        return Err(wrong_part(&block, "blocks of text, and of tools where they belong,", kind));
    }
    let text = required(&mut block, "text")?;
    // The prefix cache needs no hint.
    block.take("cache_control");
    block.refuse("citations", &["[]"], "messages have only text")?;
    block.finish()?;
    Ok(text)
}

fn read_tool(raw: &RawValue, param: &str, limits: &Limits) -> Result<Tool, ApiError> {
    let mut tool = Fields::parse_at(raw, param)?;
    let kind = tool.string("type")?.unwrap_or_else(|| "custom".to_owned());
    if kind != "custom" {
        let reason =
            format!("only tools of type 'custom', which the client runs, are, got '{}'", shorten(&kind));
        return Err(tool.unsupported("type", reason));
    }
    if !tool.has("input_schema") {
        return Err(tool.missing("input_schema", "a JSON schema of an object"));
    }
    tool.take("cache_control");
    // Arguments always come as they are made.
    tool.flag("eager_input_streaming")?;
    tool.refuse("defer_loading", &["false"], "all tools are shown to the model")?;
    tool.refuse("allowed_callers", &["[\"direct\"]"], "calls come from the model")?;
    tool.refuse("input_examples", &["[]"], "put examples into 'description'")?;
    Tool::read(tool, "input_schema", limits)
}

fn read_choice(fields: &mut Fields<'_>, tools: Vec<Tool>) -> Result<ToolUse, ApiError> {
    const EXPECTED: &str = "'auto', 'any', 'tool' or 'none'";
    let param = fields.param("tool_choice");
    let use_of = |tools: Vec<Tool>, choice: ToolChoice, parallel: bool| ToolUse {
        calls: CallCount::of(&choice, parallel),
        tools,
        choice,
        ending: CallEnding::ToolCalls,
    };
    let Some(raw) = fields.take("tool_choice") else {
        let choice = if tools.is_empty() { ToolChoice::None } else { ToolChoice::Auto };
        return Ok(use_of(tools, choice, true));
    };
    let mut chosen = Fields::parse_at(raw, &param)?;
    let kind = chosen.string("type")?.ok_or_else(|| chosen.missing("type", EXPECTED))?;
    let parallel = !chosen.flag("disable_parallel_tool_use")?.unwrap_or(false);
    let choice = match kind.as_str() {
        "tool" => {
            return Ok(use_of(tools.clone(), ToolChoice::Named(read_chosen_name(chosen, &tools)?), parallel));
        }
        "none" => ToolChoice::None,
        // Asks for nothing where there is nothing to call.
        "auto" if tools.is_empty() => ToolChoice::None,
        "auto" => ToolChoice::Auto,
        "any" if tools.is_empty() => {
            return Err(ApiError::InvalidValue { param, reason: "needs 'tools'".to_owned() });
        }
        "any" => ToolChoice::Required,
        _ => return Err(chosen.invalid("type", format!("must be {EXPECTED}, got '{}'", shorten(&kind)))),
    };
    chosen.finish()?;
    Ok(use_of(tools, choice, parallel))
}

/// Turns thinking on or off where the template can.
fn read_thinking(fields: &mut Fields<'_>, variables: &mut Map<String, Value>) -> Result<(), ApiError> {
    const EXPECTED: &str = "'enabled', 'adaptive' or 'disabled'";
    let param = fields.param("thinking");
    let Some(raw) = fields.take("thinking") else { return Ok(()) };
    let mut thinking = Fields::parse_at(raw, &param)?;
    let kind = thinking.string("type")?.ok_or_else(|| thinking.missing("type", EXPECTED))?;
    let enable = match kind.as_str() {
        "enabled" | "adaptive" => true,
        "disabled" => false,
        _ => return Err(thinking.invalid("type", format!("must be {EXPECTED}, got '{}'", shorten(&kind)))),
    };
    thinking.refuse(
        "budget_tokens",
        &[],
        "reasoning ends where the model ends it; 'max_tokens' counts it, too",
    )?;
    thinking.refuse("display", &["\"summarized\""], "reasoning is shown as the model writes it")?;
    thinking.finish()?;
    if variables.contains_key(ENABLE_THINKING) {
        let reason = format!("cannot be given together with '{ENABLE_THINKING}' in 'chat_template_kwargs'");
        return Err(ApiError::InvalidValue { param, reason });
    }
    variables.insert(ENABLE_THINKING.to_owned(), enable.into());
    Ok(())
}

fn read_output_config(fields: &mut Fields<'_>, limits: &Limits) -> Result<Option<GrammarSpec>, ApiError> {
    let param = fields.param("output_config");
    let Some(raw) = fields.take("output_config") else { return Ok(None) };
    let mut config = Fields::parse_at(raw, &param)?;
    config.refuse("effort", &[], "answers end where the model ends them")?;
    let param = config.param("format");
    let format = config.take("format");
    config.finish()?;
    let Some(raw) = format else { return Ok(None) };
    let mut format = Fields::parse_at(raw, &param)?;
    let kind = format.string("type")?.ok_or_else(|| format.missing("type", "'json_schema'"))?;
    if kind != "json_schema" {
        return Err(format.invalid("type", format!("must be 'json_schema', got '{}'", shorten(&kind))));
    }
    let spec = read_schema_field(&mut format, limits)?;
    format.finish()?;
    Ok(Some(spec))
}

//! The request of OpenAI's `/v1/responses`, which becomes a chat. Nothing is stored between requests.

pub(crate) mod response;

use super::chat::{ChatPrompt, ChatRequest, message_list, read_variables};
use super::fields::{Fields, read, shorten, wrong_type};
use super::grammar::{read_format, read_named_schema};
use super::params::{Bounds, GenerationParams, MaxTokens};
use super::rules::Route;
use super::tools::{Strictness, Tool, ToolChoice, ToolUse, check_tool_type, read_chosen_name, read_tools};
use super::turns::{Turns, parts, read_text, required, text_part, wrong_part};
use crate::config::Limits;
use crate::error::ApiError;
use crate::grammar::GrammarSpec;
use crate::text::NextTurn;
use response::Echo;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Reads and checks the body of `/v1/responses`: the chat, and what the response repeats of the request.
pub(crate) fn parse(body: &[u8], bounds: Bounds<'_>) -> Result<(ChatRequest, Echo), ApiError> {
    let mut fields = Fields::parse_body(body, Route::Responses)?;
    let model = fields.string("model")?;
    let mut turns = Turns::default();
    let instructions = fields.string("instructions")?;
    if let Some(text) = &instructions {
        turns.say("system", vec![text_part(text.clone())]);
    }
    read_input(&mut fields, bounds, &mut turns)?;
    let tools = read_tools(&mut fields, bounds.limits, read_tool)?;
    let variables = read_variables(&mut fields)?;
    let chat = ChatPrompt::new("input", turns.finish(), tools.clone(), NextTurn::Assistant, variables);
    let parallel_tool_calls = fields.peek("parallel_tool_calls").and_then(read).unwrap_or(true);
    let tools = ToolUse::read(&mut fields, tools, read_chosen_name)?;
    let (grammar, text) = read_text_config(&mut fields, bounds.limits)?;
    read_reasoning(&mut fields)?;
    let metadata = read_metadata(&mut fields)?;
    let mut params = GenerationParams::read(&mut fields, bounds, grammar)?;
    let max = fields.count("max_output_tokens", 1, u32::MAX)?;
    params.limit(max.map(|tokens| MaxTokens { tokens, field: "max_output_tokens" }), &fields)?;
    let echo = Echo {
        instructions,
        metadata,
        text,
        max_output_tokens: max,
        temperature: params.sampling.temperature,
        top_p: params.sampling.top_p,
        parallel_tool_calls,
        tool_choice: choice_shown(&tools),
        tools: tools.tools.iter().map(tool_shown).collect(),
    };
    let request = ChatRequest { model, chat, tools, logprobs: None, params }.checked(fields)?;
    Ok((request, echo))
}

fn read_input(fields: &mut Fields<'_>, bounds: Bounds<'_>, turns: &mut Turns) -> Result<(), ApiError> {
    const EXPECTED: &str = "a string or an array of items";
    let raw = fields.peek("input").ok_or_else(|| fields.missing("input", EXPECTED))?;
    if let Some(text) = read::<String>(raw) {
        fields.take("input");
        turns.say("user", vec![text_part(text)]);
        return Ok(());
    }
    let items = message_list(fields, "input", bounds)?;
    for (index, raw) in items.into_iter().enumerate() {
        let mut item = Fields::parse_at(raw, &format!("input[{index}]"))?;
        let kind = item.string("type")?.unwrap_or_else(|| "message".to_owned());
        // Ids are for servers that store items.
        item.string("id")?;
        item.string("status")?;
        match kind.as_str() {
            "message" => read_message(&mut item, turns)?,
            "function_call" => {
                let id = required(&mut item, "call_id")?;
                let name = required(&mut item, "name")?;
                turns.call(&id, &name, &required(&mut item, "arguments")?);
            }
            "function_call_output" => {
                let id = required(&mut item, "call_id")?;
                let text = read_text(&mut item, "output", read_text_part)?;
                let text = text.ok_or_else(|| item.missing("output", "a string or an array of parts"))?;
                turns.tool_result(&id, text);
            }
            "reasoning" => read_reasoning_item(&mut item, turns)?,
            _ => {
                let expected =
                    "items of type 'message', 'function_call', 'function_call_output' and 'reasoning'";
                return Err(wrong_part(&item, expected, &kind));
            }
        }
        item.finish()?;
    }
    Ok(())
}

fn read_message(item: &mut Fields<'_>, turns: &mut Turns) -> Result<(), ApiError> {
    let role = required(item, "role")?;
    // A hint for models that know it.
    item.string("phase")?;
    let text = read_text(item, "content", read_text_part)?;
    let text = text.ok_or_else(|| item.missing("content", "a string or an array of parts"))?;
    match role.as_str() {
        "assistant" => turns.answer(text),
        "user" | "system" | "developer" => turns.say(&role, text),
        _ => {
            let reason =
                format!("must be 'user', 'assistant', 'system' or 'developer', got '{}'", shorten(&role));
            return Err(item.invalid("role", reason));
        }
    }
    Ok(())
}

fn read_text_part(mut part: Fields<'_>, kind: &str) -> Result<String, ApiError> {
    if kind != "input_text" && kind != "output_text" {
        return Err(wrong_part(&part, "parts of type 'input_text' and 'output_text'", kind));
    }
    let text = required(&mut part, "text")?;
    part.refuse("annotations", &["[]"], "messages have only text")?;
    part.take("logprobs");
    part.finish()?;
    Ok(text)
}

/// Takes the reasoning itself, or the summary of it where there is nothing else.
fn read_reasoning_item(item: &mut Fields<'_>, turns: &mut Turns) -> Result<(), ApiError> {
    item.refuse("encrypted_content", &["\"\""], "send the reasoning as 'content'")?;
    let mut list = |name: &str, expected: &str| -> Result<Vec<String>, ApiError> {
        let param = item.param(name);
        let Some(raw) = item.take(name) else { return Ok(Vec::new()) };
        let texts = parts(raw, &param)?.into_iter().map(|(kind, mut part)| {
            if kind != expected {
                return Err(wrong_part(&part, &format!("parts of type '{expected}'"), &kind));
            }
            let text = required(&mut part, "text")?;
            part.finish()?;
            Ok(text)
        });
        texts.collect()
    };
    let summary = list("summary", "summary_text")?;
    let content = list("content", "reasoning_text")?;
    let text = if content.is_empty() { summary } else { content };
    turns.reason(&text.join("\n"));
    Ok(())
}

fn read_tool(raw: &RawValue, param: &str, limits: &Limits) -> Result<Tool, ApiError> {
    let mut tool = Fields::parse_at(raw, param)?;
    check_tool_type(&mut tool)?;
    tool.refuse("defer_loading", &["false"], "all tools are shown to the model")?;
    tool.refuse("allowed_callers", &["[\"direct\"]"], "calls come from the model")?;
    Tool::read(tool, "parameters", limits)
}

fn read_text_config(
    fields: &mut Fields<'_>,
    limits: &Limits,
) -> Result<(Option<GrammarSpec>, Value), ApiError> {
    let param = fields.param("text");
    let Some(raw) = fields.take("text") else { return Ok((None, json!({"format": {"type": "text"}}))) };
    let mut text = Fields::parse_at(raw, &param)?;
    let shown = text.peek("format").and_then(read::<Value>).unwrap_or_else(|| json!({"type": "text"}));
    let grammar = read_format(&mut text, "format", limits, read_named_schema)?;
    text.refuse("verbosity", &["\"medium\""], "say in 'instructions' how long answers should be")?;
    text.finish()?;
    Ok((grammar, json!({"format": shown})))
}

fn read_reasoning(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let param = fields.param("reasoning");
    let Some(raw) = fields.take("reasoning") else { return Ok(()) };
    let mut reasoning = Fields::parse_at(raw, &param)?;
    let instead = "pass what the model's template understands in 'chat_template_kwargs'";
    reasoning.refuse("effort", &[], instead)?;
    for name in ["summary", "generate_summary"] {
        reasoning.refuse(name, &["\"auto\""], "reasoning is shown as the model writes it")?;
    }
    reasoning.finish()
}

fn read_metadata(fields: &mut Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    const EXPECTED: &str = "an object of strings";
    let param = fields.param("metadata");
    let Some(raw) = fields.take("metadata") else { return Ok(Map::new()) };
    let metadata = read::<Map<String, Value>>(raw).filter(|map| map.values().all(Value::is_string));
    metadata.ok_or_else(|| wrong_type(&param, EXPECTED, raw))
}

fn choice_shown(tools: &ToolUse) -> Value {
    match &tools.choice {
        ToolChoice::None if tools.tools.is_empty() => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Auto => json!("auto"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Named(name) => json!({"type": "function", "name": name}),
    }
}

fn tool_shown(tool: &Tool) -> Value {
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.definition["function"]["description"],
        "parameters": tool.parameters,
        "strict": tool.strictness == Strictness::Strict,
    })
}

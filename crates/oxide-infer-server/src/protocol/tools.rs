//! `tools`, `tool_choice`, `parallel_tool_calls`, and the calls in messages.

use super::fields::{Fields, read, shorten, wrong_type};
use super::grammar::check_schema_text;
use crate::config::Limits;
use crate::error::ApiError;
use crate::generate::CallEnding;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// The type of all tools and calls.
const FUNCTION: &str = "function";
/// Characters of a function's name.
const MAX_NAME: usize = 128;

/// The tools of a request, and what is to be done with them.
#[derive(Clone, Debug)]
pub(crate) struct ToolUse {
    /// The tools; none if there are no tools to be called.
    pub(crate) tools: Vec<Tool>,
    /// Whether they are to be called.
    pub(crate) choice: ToolChoice,
    /// How many calls an answer may have.
    pub(crate) calls: CallCount,
    /// How an answer with calls ends.
    pub(crate) ending: CallEnding,
}

/// A function that the model may call.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    /// Its name.
    pub(crate) name: String,
    /// A JSON schema of an object, its arguments.
    pub(crate) parameters: Map<String, Value>,
    /// The field that holds the schema.
    pub(crate) param: String,
    /// Whether its arguments are held to the schema in any case.
    pub(crate) strictness: Strictness,
    /// What templates see.
    pub(crate) definition: Value,
}

/// Whether a function's arguments are held to its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// Always (`strict`).
    Strict,
    /// Where a call is forced, as far as the schema can be kept.
    Lenient,
}

/// Whether functions are to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// No.
    None,
    /// As the model likes.
    Auto,
    /// At least one.
    Required,
    /// The one of this name, once.
    Named(String),
}

/// How many calls an answer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallCount {
    /// One.
    One,
    /// Any number.
    Many,
}

impl CallCount {
    /// A function that is named is called once, and others as often as is allowed.
    pub(crate) fn of(choice: &ToolChoice, parallel: bool) -> Self {
        if parallel && !matches!(choice, ToolChoice::Named(_)) { Self::Many } else { Self::One }
    }
}

impl ToolUse {
    /// Reads `tool_choice` and `parallel_tool_calls` in OpenAI's form for `tools`, which [`read_tools`] has read.
    /// `read_chosen` reads a choice that is an object.
    pub(crate) fn read(
        fields: &mut Fields<'_>,
        tools: Vec<Tool>,
        read_chosen: fn(Fields<'_>, &[Tool]) -> Result<String, ApiError>,
    ) -> Result<Self, ApiError> {
        let choice = read_choice(fields, &tools, read_chosen)?;
        let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        let ending = match choice {
            ToolChoice::Named(_) => CallEnding::Stop,
            _ => CallEnding::ToolCalls,
        };
        Ok(Self { calls: CallCount::of(&choice, parallel), tools, choice, ending })
    }

    /// Whether an answer must call a function.
    pub(crate) fn is_forced(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    /// The functions that may be called.
    pub(crate) fn callable(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter().filter(|tool| match &self.choice {
            ToolChoice::None => false,
            ToolChoice::Auto | ToolChoice::Required => true,
            ToolChoice::Named(name) => tool.name == *name,
        })
    }
}

/// Reads `tools`, each of them with `read_tool`, which gets its place and name.
pub(crate) fn read_tools(
    fields: &mut Fields<'_>,
    limits: &Limits,
    read_tool: fn(&RawValue, &str, &Limits) -> Result<Tool, ApiError>,
) -> Result<Vec<Tool>, ApiError> {
    let list: Vec<&RawValue> = fields.typed("tools", "an array of tools")?.unwrap_or_default();
    let max = limits.max_tools;
    if list.len() > max {
        return Err(fields.invalid("tools", format!("must have at most {max} tools, got {}", list.len())));
    }
    let mut tools: Vec<Tool> = Vec::with_capacity(list.len());
    for (index, raw) in list.into_iter().enumerate() {
        let tool = read_tool(raw, &fields.param(&format!("tools[{index}]")), limits)?;
        if tools.iter().any(|other| other.name == tool.name) {
            let reason = format!("is the name of two tools: '{}'", tool.name);
            return Err(ApiError::InvalidValue { param: tool.name_param(), reason });
        }
        tools.push(tool);
    }
    Ok(tools)
}

/// Reads a tool in the form of a chat: `{"type": "function", "function": {…}}`.
pub(crate) fn read_chat_tool(raw: &RawValue, param: &str, limits: &Limits) -> Result<Tool, ApiError> {
    let mut fields = Fields::parse_at(raw, param)?;
    check_tool_type(&mut fields)?;
    Tool::read(read_function(fields)?, "parameters", limits)
}

/// Reads the type of a tool in OpenAI's form.
pub(crate) fn check_tool_type(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let kind = fields.string("type")?.ok_or_else(|| fields.missing("type", "'function'"))?;
    match kind == FUNCTION {
        true => Ok(()),
        false => {
            let reason = format!("only tools of type 'function' are, got '{}'", shorten(&kind));
            Err(fields.unsupported("type", reason))
        }
    }
}

impl Tool {
    /// The field that holds the name, beside the schema.
    fn name_param(&self) -> String {
        let object = self.param.rsplit_once('.').map_or("", |(object, _)| object);
        format!("{object}.name")
    }

    /// Reads a function whose arguments' schema is in the field `schema`, the last fields of their object.
    pub(crate) fn read(mut function: Fields<'_>, schema: &str, limits: &Limits) -> Result<Self, ApiError> {
        let name = read_name(&mut function)?;
        check_name(&name).map_err(|reason| function.invalid("name", reason))?;
        let description = function.string("description")?;
        let param = function.param(schema);
        let parameters = read_parameters(&mut function, schema, limits)?;
        let strict = function.flag("strict")?.unwrap_or(false);
        function.finish()?;
        let mut shown = Map::new();
        shown.insert("name".to_owned(), name.as_str().into());
        if let Some(description) = description {
            shown.insert("description".to_owned(), description.into());
        }
        shown.insert("parameters".to_owned(), parameters.clone().into());
        Ok(Self {
            name,
            parameters,
            param,
            strictness: if strict { Strictness::Strict } else { Strictness::Lenient },
            definition: json!({"type": "function", "function": shown}),
        })
    }
}

fn read_parameters(
    function: &mut Fields<'_>,
    name: &str,
    limits: &Limits,
) -> Result<Map<String, Value>, ApiError> {
    const EXPECTED: &str = "a JSON schema of an object";
    let param = function.param(name);
    let Some(raw) = function.take(name) else {
        let none = [("type".to_owned(), json!("object")), ("properties".to_owned(), json!({}))];
        return Ok(none.into_iter().collect());
    };
    check_schema_text(raw.get(), &param, limits)?;
    let parameters: Map<String, Value> = read(raw).ok_or_else(|| wrong_type(&param, EXPECTED, raw))?;
    match parameters.get("type") {
        None => Ok(parameters),
        Some(kind) if kind == "object" => Ok(parameters),
        Some(kind) => {
            let reason = format!("must be 'object', got {}", shorten(&kind.to_string()));
            Err(ApiError::InvalidValue { param: format!("{param}.type"), reason })
        }
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    match !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_allowed) {
        true => Ok(()),
        false => Err(format!(
            "must have 1 to {MAX_NAME} of the characters a-z, A-Z, 0-9, _, -, ., : and /, got '{}'",
            shorten(name)
        )),
    }
}

fn read_choice(
    fields: &mut Fields<'_>,
    tools: &[Tool],
    read_chosen: fn(Fields<'_>, &[Tool]) -> Result<String, ApiError>,
) -> Result<ToolChoice, ApiError> {
    const EXPECTED: &str = "'none', 'auto', 'required' or an object that names a function";
    let param = fields.param("tool_choice");
    let Some(raw) = fields.take("tool_choice") else {
        return Ok(if tools.is_empty() { ToolChoice::None } else { ToolChoice::Auto });
    };
    let choice = match read::<String>(raw) {
        Some(word) => match word.as_str() {
            "none" => ToolChoice::None,
            // Asks for nothing where there is nothing to call.
            "auto" if tools.is_empty() => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => {
                let reason = format!("must be {EXPECTED}, got '{}'", shorten(&word));
                return Err(ApiError::InvalidValue { param, reason });
            }
        },
        None if raw.get().starts_with('{') => {
            let mut chosen = Fields::parse_at(raw, &param)?;
            let kind = chosen.string("type")?.unwrap_or_else(|| FUNCTION.to_owned());
            if kind != FUNCTION {
                let reason = format!("only 'function' is, got '{}'", shorten(&kind));
                return Err(chosen.unsupported("type", reason));
            }
            ToolChoice::Named(read_chosen(chosen, tools)?)
        }
        None => return Err(wrong_type(&param, EXPECTED, raw)),
    };
    if tools.is_empty() && choice != ToolChoice::None {
        return Err(ApiError::InvalidValue { param, reason: "needs 'tools'".to_owned() });
    }
    Ok(choice)
}

/// Reads the function that a chat's choice names.
pub(crate) fn read_chat_chosen(fields: Fields<'_>, tools: &[Tool]) -> Result<String, ApiError> {
    read_chosen_name(read_function(fields)?, tools)
}

/// Reads the `name` of one of `tools`, the last field of its object.
pub(crate) fn read_chosen_name(mut fields: Fields<'_>, tools: &[Tool]) -> Result<String, ApiError> {
    let name = read_name(&mut fields)?;
    if !tools.iter().any(|tool| tool.name == name) {
        let reason = format!("must be the name of one of 'tools', got '{}'", shorten(&name));
        return Err(fields.invalid("name", reason));
    }
    fields.finish()?;
    Ok(name)
}

/// The fields of `function`, the last one of an object to be read.
fn read_function(mut fields: Fields<'_>) -> Result<Fields<'_>, ApiError> {
    let param = fields.param("function");
    let raw = fields.take("function").ok_or_else(|| fields.missing("function", "an object with a 'name'"))?;
    fields.finish()?;
    Fields::parse_at(raw, &param)
}

fn read_name(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    fields.string("name")?.ok_or_else(|| fields.missing("name", "a string"))
}

/// Reads the calls of an assistant's message, in the form that templates take.
pub(crate) fn read_calls(fields: &mut Fields<'_>) -> Result<Option<Value>, ApiError> {
    let calls: Option<Vec<&RawValue>> = fields.typed("tool_calls", "an array of tool calls")?;
    let Some(calls) = calls.filter(|calls| !calls.is_empty()) else { return Ok(None) };
    let param = fields.param("tool_calls");
    let calls = calls.into_iter().enumerate();
    calls.map(|(index, raw)| read_call(raw, &format!("{param}[{index}]"))).collect::<Result<_, _>>().map(Some)
}

fn read_call(raw: &RawValue, param: &str) -> Result<Value, ApiError> {
    let mut fields = Fields::parse_at(raw, param)?;
    let id = fields.string("id")?.ok_or_else(|| fields.missing("id", "a string"))?;
    let kind = fields.string("type")?.unwrap_or_else(|| "function".to_owned());
    if kind != "function" {
        let reason = format!("only calls of type 'function' are, got '{}'", shorten(&kind));
        return Err(fields.unsupported("type", reason));
    }
    // Clients that put a stream together may send it back.
    fields.count("index", 0, u32::MAX)?;
    let mut function = read_function(fields)?;
    let name = read_name(&mut function)?;
    let arguments = function.string("arguments")?;
    function.finish()?;
    Ok(call(&id, &name, arguments.as_deref().unwrap_or_default()))
}

/// A call as templates take it; `arguments` is a JSON text.
pub(crate) fn call(id: &str, name: &str, arguments: &str) -> Value {
    let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

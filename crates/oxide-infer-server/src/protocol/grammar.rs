//! `response_format` and `structured_outputs`: what answers are held to.

use super::fields::{Fields, read, shorten};
use crate::config::Limits;
use crate::error::ApiError;
use crate::grammar::{GrammarSource, GrammarSpec};
use serde_json::{Value, json};

/// Nesting of brackets in a schema's text for each schema that may lie in another: a schema takes up to two (`properties`
/// and its own), and data in it (`const`, `enum`) some more.
const BRACKETS_BEYOND_SCHEMAS: usize = 16;

/// Reads what the answers are held to, if anything.
pub(crate) fn read_grammar(
    fields: &mut Fields<'_>,
    limits: &Limits,
) -> Result<Option<GrammarSpec>, ApiError> {
    let format = read_response_format(fields, limits)?;
    let structured = read_structured_outputs(fields, limits)?;
    match (format, structured) {
        (Some(_), Some(_)) => {
            Err(fields.invalid("structured_outputs", "cannot be given together with 'response_format'"))
        }
        (format, structured) => Ok(format.or(structured)),
    }
}

fn read_response_format(fields: &mut Fields<'_>, limits: &Limits) -> Result<Option<GrammarSpec>, ApiError> {
    read_format(fields, "response_format", limits, |format, limits| {
        let inner = format.param("json_schema");
        let raw = format.take("json_schema");
        let raw = raw.ok_or_else(|| format.missing("json_schema", "an object with a 'schema'"))?;
        let mut named = Fields::parse_at(raw, &inner)?;
        let spec = read_named_schema(&mut named, limits)?;
        named.finish()?;
        Ok(spec)
    })
}

/// Reads a field that has a format in OpenAI's form. `read_named` reads what belongs to `json_schema`.
pub(crate) fn read_format(
    fields: &mut Fields<'_>,
    name: &str,
    limits: &Limits,
    read_named: fn(&mut Fields<'_>, &Limits) -> Result<GrammarSpec, ApiError>,
) -> Result<Option<GrammarSpec>, ApiError> {
    const EXPECTED: &str = "'text', 'json_object' or 'json_schema'";
    let param = fields.param(name);
    let Some(raw) = fields.take(name) else { return Ok(None) };
    let mut format = Fields::parse_at(raw, &param)?;
    let kind = format.string("type")?.ok_or_else(|| format.missing("type", EXPECTED))?;
    let spec = match kind.as_str() {
        "text" => None,
        "json_object" => Some(GrammarSpec { param, source: any_object() }),
        "json_schema" => Some(read_named(&mut format, limits)?),
        "structural_tag" => return Err(format.unsupported("type", format!("send {EXPECTED}"))),
        _ => return Err(format.invalid("type", format!("must be {EXPECTED}, got '{}'", shorten(&kind)))),
    };
    format.finish()?;
    Ok(spec)
}

/// Reads a schema with its name.
pub(crate) fn read_named_schema(named: &mut Fields<'_>, limits: &Limits) -> Result<GrammarSpec, ApiError> {
    // Names and descriptions are for other servers' prompts, and every schema is kept strictly.
    named.string("name")?;
    named.string("description")?;
    named.flag("strict")?;
    read_schema_field(named, limits)
}

/// Reads the field `schema`.
pub(crate) fn read_schema_field(fields: &mut Fields<'_>, limits: &Limits) -> Result<GrammarSpec, ApiError> {
    let param = fields.param("schema");
    let schema = fields.take("schema").ok_or_else(|| fields.missing("schema", "a JSON schema"))?;
    let source = read_schema(schema.get(), &param, limits)?;
    Ok(GrammarSpec { param, source })
}

fn read_structured_outputs(
    fields: &mut Fields<'_>,
    limits: &Limits,
) -> Result<Option<GrammarSpec>, ApiError> {
    const KINDS: [&str; 5] = ["json", "regex", "choice", "grammar", "json_object"];
    let outer = fields.param("structured_outputs");
    let Some(raw) = fields.take("structured_outputs") else { return Ok(None) };
    let mut inner = Fields::parse_at(raw, &outer)?;
    let given: Vec<&str> = KINDS.into_iter().filter(|kind| inner.has(kind)).collect();
    let &[kind] = given.as_slice() else {
        let reason = format!("must have exactly one of {}, got {}", KINDS.join(", "), given.len());
        return Err(ApiError::InvalidValue { param: outer, reason });
    };
    let param = inner.param(kind);
    let source = match kind {
        "json" => {
            let raw = inner.take(kind).ok_or_else(|| inner.missing(kind, "a JSON schema"))?;
            match read::<String>(raw) {
                Some(text) => read_schema(&text, &param, limits)?,
                None => read_schema(raw.get(), &param, limits)?,
            }
        }
        "choice" => GrammarSource::Choice(read_choice(&mut inner, limits)?),
        "json_object" => match inner.flag(kind)? {
            Some(true) => any_object(),
            _ => return Err(inner.invalid(kind, "must be true or be left out")),
        },
        _ => {
            let text = inner.string(kind)?.unwrap_or_default();
            check_size(text.len(), &param, limits)?;
            if text.trim().is_empty() {
                return Err(inner.invalid(kind, "must not be empty"));
            }
            if kind == "regex" { GrammarSource::Regex(text) } else { GrammarSource::Grammar(text) }
        }
    };
    refuse_unsupported(&mut inner)?;
    inner.finish()?;
    Ok(Some(GrammarSpec { param, source }))
}

/// Options of other servers that change what is allowed; false asks for nothing.
fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let names = [
        "structural_tag",
        "whitespace_pattern",
        "disable_any_whitespace",
        "disable_additional_properties",
        "disable_fallback",
    ];
    names.into_iter().try_for_each(|name| fields.refuse(name, &["false"], "leave it out"))
}

fn read_choice(fields: &mut Fields<'_>, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let choice: Vec<String> = fields.typed("choice", "an array of strings")?.unwrap_or_default();
    check_size(choice.iter().map(String::len).sum(), &fields.param("choice"), limits)?;
    if choice.is_empty() || choice.iter().any(String::is_empty) {
        return Err(fields.invalid("choice", "must have at least one string, and none that is empty"));
    }
    Ok(choice)
}

/// Checks the size of a JSON schema's text, and how deep its brackets lie in each other.
pub(crate) fn check_schema_text(text: &str, param: &str, limits: &Limits) -> Result<(), ApiError> {
    check_size(text.len(), param, limits)?;
    let max_nesting = 2 * limits.max_schema_depth + BRACKETS_BEYOND_SCHEMAS;
    if nesting(text) > max_nesting {
        let reason = format!("is nested deeper than {max_nesting} brackets");
        return Err(ApiError::InvalidValue { param: param.to_owned(), reason });
    }
    Ok(())
}

fn read_schema(text: &str, param: &str, limits: &Limits) -> Result<GrammarSource, ApiError> {
    check_schema_text(text, param, limits)?;
    let invalid = |reason: String| ApiError::InvalidValue { param: param.to_owned(), reason };
    let schema: Value =
        serde_json::from_str(text).map_err(|error| invalid(format!("is not JSON: {error}")))?;
    match schema {
        Value::Object(_) => Ok(GrammarSource::Schema(schema)),
        _ => {
            let expected = "a JSON schema, which is an object".to_owned();
            Err(ApiError::InvalidType { param: param.to_owned(), expected, got: shorten(text) })
        }
    }
}

fn check_size(bytes: usize, param: &str, limits: &Limits) -> Result<(), ApiError> {
    let max = limits.max_grammar_bytes;
    if bytes <= max {
        return Ok(());
    }
    let reason = format!("must have at most {max} bytes, got {bytes}");
    Err(ApiError::InvalidValue { param: param.to_owned(), reason })
}

fn any_object() -> GrammarSource {
    GrammarSource::Schema(json!({"type": "object"}))
}

/// How deep the brackets of a JSON text lie in each other.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_counted_outside_of_strings() {
        for (text, depth) in [("1", 0), ("{}", 1), (r#"{"a[":[[1],{"\"{[":2}]}"#, 3), ("[[],[[]]]", 3)] {
            assert_eq!(nesting(text), depth, "{text}");
        }
    }
}

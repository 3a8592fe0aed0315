//! The functions and filters that `transformers` adds to Jinja.

use std::fmt::Write as _;

use minijinja::{
    Environment, Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};
use thiserror::Error;

use super::{json, python};

/// What a template raised: the source of the rendering error, to tell it from a failure of the template.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

pub(super) fn register(env: &mut Environment<'_>) {
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.add_filter("tojson", tojson);
    env.add_filter("string", python::to_str);
    env.add_test("iterable", |value: &Value| !is_single(value.kind()));
    env.add_test("sequence", |value: &Value| !is_single(value.kind()));
    env.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Bool | ValueKind::Number));
    // These take any value in Jinja, and print it first.
    env.add_filter("upper", |value: &Value| Ok(python::to_str(value)?.to_uppercase()));
    env.add_filter("lower", |value: &Value| Ok(python::to_str(value)?.to_lowercase()));
    env.add_filter("trim", trim);
}

fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    let text = python::to_str(value)?;
    Ok(match chars {
        None => text.trim(),
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
    }
    .to_owned())
}

/// What Jinja neither calls iterable nor a sequence. Strings, dictionaries and undefined values are both.
fn is_single(kind: ValueKind) -> bool {
    matches!(
        kind,
        ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain | ValueKind::Invalid
    )
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The local time, formatted as by Python's `strftime`.
fn strftime_now(format: &str) -> Result<String, Error> {
    let mut out = String::new();
    write!(out, "{}", chrono::Local::now().format(format)).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know the format {format:?}"))
    })?;
    Ok(out)
}

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let ensure_ascii = ensure_ascii.or(options.get("ensure_ascii")?).unwrap_or(false);
    let indent = match indent.or(options.get("indent")?).filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Some(width)) if width <= 64 => Some(" ".repeat(width)),
            _ => {
                let message = format!("tojson takes an indent of 0 to 64 or a string, not {indent}");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        },
    };
    let separators: Option<(String, String)> = match options.get::<Option<Vec<String>>>("separators")? {
        None => None,
        Some(pair) => {
            let pair: [String; 2] = pair.try_into().map_err(|_| {
                Error::new(ErrorKind::InvalidOperation, "tojson takes separators as a pair of strings")
            })?;
            Some(pair.into())
        }
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let item = if indent.is_some() { "," } else { ", " };
    let (item, key) = separators.unwrap_or((item.into(), ": ".into()));
    json::Style { ensure_ascii, indent, item, key, sort_keys }.dump(value)
}

//! How Python prints values: what `{{ value }}` writes for lists, dictionaries and numbers.

use minijinja::{Error, ErrorKind, Output, State, Value, value::ValueKind};

/// Nesting of a printed value; a bound on the stack, since a template can nest a value in itself in a loop.
const MAX_DEPTH: usize = 256;

/// The formatter of `{{ … }}`.
pub(super) fn format(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => Ok(out.write_str(&to_str(value)?)?),
        ValueKind::Number if !value.is_integer() => Ok(out.write_str(&to_str(value)?)?),
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// `str(value)`.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Number => {
            let mut out = String::new();
            write_repr(value, 0, &mut out)?;
            Ok(out)
        }
        _ => Ok(value.to_string()),
    }
}

pub(super) fn check_depth(depth: usize) -> Result<(), Error> {
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    let message = format!("a value is nested more than {MAX_DEPTH} deep");
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// `repr(value)` of a float.
pub(super) fn float(x: f64) -> String {
    if !x.is_finite() {
        return x.to_string().to_lowercase();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{x:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn write_repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    check_depth(depth)?;
    match value.kind() {
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(x) => out.push_str(&float(x)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Seq => {
            out.push('[');
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&item, depth + 1, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&key, depth + 1, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn quote(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => out.extend(['\\', c]),
            _ if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn floats_print_as_in_python() {
        // Python 3: [repr(x) for x in (1.0, 0.1, 1e-4, 1e-5, 1e15, 1e16, 1.5e300, -0.0, float("inf"))]
        let printed = [1.0, 0.1, 1e-4, 1e-5, 1e15, 1e16, 1.5e300, -0.0, f64::INFINITY].map(float);
        let expected =
            ["1.0", "0.1", "0.0001", "1e-05", "1000000000000000.0", "1e+16", "1.5e+300", "-0.0", "inf"];
        assert_eq!(printed, expected);
    }

    #[test]
    fn containers_print_as_in_python() {
        // Python 3: str({"a": [1, 2.0, None, True], "it's": "x\n\"", "q": "it's"})
        let value = json!({"a": [1, 2.0, null, true], "it's": "x\n\"", "q": "it's"});
        let printed = to_str(&Value::from_serialize(&value)).unwrap();
        assert_eq!(printed, r#"{'a': [1, 2.0, None, True], "it's": 'x\n"', 'q': "it's"}"#);
    }
}

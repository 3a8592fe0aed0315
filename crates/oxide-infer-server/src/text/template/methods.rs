//! Python methods that published templates call and `minijinja-contrib` does not have, or has with other results.

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, ValueKind, from_args},
};
use minijinja_contrib::pycompat::unknown_method_callback;

pub(super) fn call(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match value.as_str() {
        Some(text) => string_method(text, method, args)?,
        None if value.kind() == ValueKind::Seq && method == "index" => Some(index(value, args)?),
        None => None,
    };
    match own {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, method, args),
    }
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            check_separator(separator)?;
            let from_left = method == "partition";
            let cut = if from_left { text.split_once(separator) } else { text.rsplit_once(separator) };
            match cut {
                Some((before, after)) => strings([before, separator, after]),
                None if from_left => strings([text, "", ""]),
                None => strings(["", "", text]),
            }
        }
        "split" | "rsplit" => {
            let (separator, max, options): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(options.get("sep")?);
            let max = max.or(options.get("maxsplit")?).and_then(|max| usize::try_from(max).ok());
            options.assert_all_used()?;
            separator.map_or(Ok(()), check_separator)?;
            let max = max.unwrap_or(usize::MAX - 1);
            strings(if method == "split" {
                split(text, separator, max)
            } else {
                rsplit(text, separator, max)
            })
        }
        "islower" | "isupper" => {
            let () = from_args(args)?;
            let is_right = if method == "islower" { char::is_lowercase } else { char::is_uppercase };
            let mut cased = text.chars().filter(|c| c.is_lowercase() || c.is_uppercase()).peekable();
            (cased.peek().is_some() && cased.all(is_right)).into()
        }
        "isspace" | "isdigit" | "isnumeric" | "isalnum" | "isalpha" if text.is_empty() => false.into(),
        _ => return Ok(None),
    }))
}

fn strings<'a>(parts: impl IntoIterator<Item = &'a str>) -> Value {
    parts.into_iter().map(Value::from).collect()
}

fn check_separator(separator: &str) -> Result<(), Error> {
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    Ok(())
}

/// `text.split(separator, max)`.
fn split<'a>(text: &'a str, separator: Option<&str>, max: usize) -> Vec<&'a str> {
    if let Some(separator) = separator {
        return text.splitn(max + 1, separator).collect();
    }
    let mut parts = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() && parts.len() < max {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    parts.extend(Some(rest).filter(|rest| !rest.is_empty()));
    parts
}

/// `text.rsplit(separator, max)`.
fn rsplit<'a>(text: &'a str, separator: Option<&str>, max: usize) -> Vec<&'a str> {
    let mut parts: Vec<&str> = Vec::new();
    if let Some(separator) = separator {
        parts.extend(text.rsplitn(max + 1, separator));
    } else {
        let mut rest = text.trim_end();
        while !rest.is_empty() && parts.len() < max {
            let start = rest.trim_end_matches(|c: char| !c.is_whitespace()).len();
            parts.push(&rest[start..]);
            rest = rest[..start].trim_end();
        }
        parts.extend(Some(rest).filter(|rest| !rest.is_empty()));
    }
    parts.reverse();
    parts
}

/// `list.index(item)`.
fn index(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (item,): (&Value,) = from_args(args)?;
    let position = list.try_iter()?.position(|candidate| candidate == *item);
    position
        .map(Value::from)
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("{item} is not in the list")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_split_as_in_python() {
        let all = usize::MAX - 1;
        // Python 3: " a b  c ".split(), .split(None, 1), .rsplit(None, 1), "a,b,c".split(",", 1), .rsplit(",", 1)
        assert_eq!(split(" a b  c ", None, all), ["a", "b", "c"]);
        assert_eq!(split(" a b  c ", None, 1), ["a", "b  c "]);
        assert_eq!(rsplit(" a b  c ", None, 1), [" a b", "c"]);
        assert_eq!(split("a,b,c", Some(","), 1), ["a", "b,c"]);
        assert_eq!(rsplit("a,b,c", Some(","), 1), ["a,b", "c"]);
        assert_eq!(split("", None, all), [] as [&str; 0]);
        assert_eq!(split("", Some(","), all), [""]);
    }
}

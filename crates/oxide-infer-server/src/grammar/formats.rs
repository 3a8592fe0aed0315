//! Formats that the compiler knows too loosely (29 February of every year, leap seconds at any time), as patterns.

use super::schema::subschemas_mut;
use serde_json::{Value, json};

/// RFC 3339's `full-date` from the year 1 on, in the Gregorian calendar.
const DATE: &str = "(?:(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-\
    (?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))\
    |(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)";

/// RFC 3339's `full-time` without leap seconds, which are valid at few times only.
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// Puts patterns in the place of these formats.
pub(super) fn tighten(schema: &mut Value) {
    if let Value::Object(keywords) = schema
        && let Some(pattern) = keywords.get("format").and_then(Value::as_str).and_then(pattern)
    {
        keywords.remove("format");
        match keywords.contains_key("pattern") {
            false => drop(keywords.insert("pattern".to_owned(), pattern.into())),
            true => {
                let all = keywords.entry("allOf").or_insert_with(|| json!([]));
                all.as_array_mut().into_iter().for_each(|all| all.push(json!({"pattern": pattern})));
            }
        }
    }
    subschemas_mut(schema).into_iter().for_each(|(_, inner)| tighten(inner));
}

fn pattern(format: &str) -> Option<String> {
    match format {
        "date" => Some(format!("^{DATE}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{DATE}T{TIME}$")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_joins_the_pattern_that_is_there() {
        let mut schema = json!({"items": {"format": "time", "pattern": "^1"}, "const": {"format": "date"}});
        tighten(&mut schema);
        assert_eq!(schema["items"]["pattern"], "^1");
        assert_eq!(schema["items"]["allOf"][0]["pattern"], pattern("time").unwrap());
        assert_eq!(schema["const"], json!({"format": "date"}));
    }
}

//! JSON schemas: what of them can be kept is checked here, so that errors name the place.

use super::{formats, numbers, references};
use serde_json::{Map, Value, json};

/// Keywords that restrict a value and that grammars cannot express.
const UNSUPPORTED: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "uniqueItems",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    // The compiler's own options, which are the server's to set.
    "x-guidance",
];

/// Values of `format` that are kept.
pub(super) const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Regular expressions of `patternProperties` in one schema. Each is compared with each other.
const MAX_PATTERNS: usize = 64;

/// Subschemas that are tried when the place of an error is looked for.
const MAX_TRIED: usize = 64;

/// White space between two tokens of JSON: a space, or a line's end and an indentation. Without a bound a model can write
/// blanks until `max_tokens`.
const WHITE_SPACE: &str = r"\x20|\n\x20{0,16}";

/// The schema as it is compiled.
///
/// # Errors
/// It is nested too deeply, or has a keyword, a number or a reference that cannot be kept.
pub(super) fn prepare(schema: &Value, max_depth: usize) -> Result<Value, String> {
    let mut places = 0;
    walk(schema, "#", 0, &mut |place, depth, schema| {
        if depth > max_depth {
            return Err(format!("is nested deeper than {max_depth} schemas at {}", shorten(place)));
        }
        let Value::Object(keywords) = schema else {
            return match schema {
                Value::Bool(_) => Ok(()),
                _ => Err(format!("must have an object or a boolean as schema at {}", shorten(place))),
            };
        };
        places += keywords.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
        if places > MAX_PATTERNS {
            return Err(format!("must have at most {MAX_PATTERNS} 'patternProperties' in all"));
        }
        check_keywords(keywords).map_err(|reason| format!("{reason} at {}", shorten(place)))
    })?;
    let mut prepared = schema.clone();
    references::resolve(&mut prepared)?;
    numbers::check_cycles(&prepared)?;
    numbers::check(&prepared)?;
    strip_neutral(&mut prepared);
    formats::tighten(&mut prepared);
    if let Value::Object(keywords) = &mut prepared {
        keywords.insert("x-guidance".to_owned(), json!({"whitespace_pattern": WHITE_SPACE}));
    }
    Ok(prepared)
}

/// The deepest subschema that alone fails with `reason`.
pub(super) fn locate(root: &Value, reason: &str, fails: impl Fn(Value) -> Option<String>) -> Option<String> {
    let mut candidates = Vec::new();
    let collected = walk(root, "#", 0, &mut |place, depth, schema| {
        candidates.push((depth, place.to_owned(), schema.clone()));
        if candidates.len() > MAX_TRIED { Err(()) } else { Ok(()) }
    });
    if collected.is_err() {
        return None;
    }
    candidates.sort_by_key(|(depth, ..)| std::cmp::Reverse(*depth));
    let found = candidates.into_iter().find(|(_, _, schema)| {
        let mut alone = schema.clone();
        strip_neutral(&mut alone);
        if let Value::Object(keywords) = &mut alone {
            for definitions in ["$defs", "definitions"] {
                if let Some(shared) = root.get(definitions) {
                    keywords.insert(definitions.to_owned(), shared.clone());
                }
            }
        }
        fails(alone).is_some_and(|error| error == reason)
    });
    found.map(|(_, place, _)| shorten(&place))
}

fn check_keywords(keywords: &Map<String, Value>) -> Result<(), String> {
    let unsupported = keywords
        .iter()
        .find(|(name, value)| UNSUPPORTED.contains(&name.as_str()) && !is_neutral(name, value));
    if let Some((name, _)) = unsupported {
        return Err(format!("has the keyword '{name}', which is not supported,"));
    }
    match keywords.get("format").and_then(Value::as_str) {
        Some(format) if !FORMATS.contains(&format) => Err(format!(
            "has the format '{}', which is none of the supported {},",
            shorten(format),
            FORMATS.join(", ")
        )),
        _ => Ok(()),
    }
}

/// Whether an unsupported keyword asks for nothing.
fn is_neutral(name: &str, value: &Value) -> bool {
    name == "uniqueItems" && *value == Value::Bool(false)
}

/// Removes keywords that ask for nothing, which the compiler refuses whatever they say.
fn strip_neutral(schema: &mut Value) {
    if let Value::Object(keywords) = schema {
        keywords.retain(|name, value| !is_neutral(name, value));
    }
    subschemas_mut(schema).into_iter().for_each(|(_, inner)| strip_neutral(inner));
}

/// Visits a schema and all schemas inside it with their places (JSON pointers) and depths.
fn walk<'a, E>(
    schema: &'a Value,
    place: &str,
    depth: usize,
    visit: &mut impl FnMut(&str, usize, &'a Value) -> Result<(), E>,
) -> Result<(), E> {
    visit(place, depth, schema)?;
    for (path, inner) in subschemas(schema) {
        walk(inner, &path.below(place), depth + 1, visit)?;
    }
    Ok(())
}

/// Where a schema lies in another: a keyword, and a key or an index in its value if it has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    keyword: String,
    inner: Option<String>,
}

impl Path {
    /// The place, as a JSON pointer, of what lies here in the schema at `place`.
    pub(super) fn below(&self, place: &str) -> String {
        match &self.inner {
            Some(inner) => format!("{place}/{}/{}", self.keyword, escape(inner)),
            None => format!("{place}/{}", self.keyword),
        }
    }

    /// The parts of the pointer.
    pub(super) fn parts(self) -> impl Iterator<Item = String> {
        std::iter::once(self.keyword).chain(self.inner)
    }
}

/// What the value of a keyword has of schemas.
enum Holds {
    /// One under each key.
    Keys,
    /// One at each index.
    Indexes,
    /// It is one.
    Itself,
}

fn holds(keyword: &str, value: &Value) -> Option<Holds> {
    match (keyword, value) {
        ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(_)) => Some(Holds::Keys),
        ("items" | "prefixItems" | "anyOf" | "oneOf" | "allOf", Value::Array(_)) => Some(Holds::Indexes),
        ("items" | "additionalItems" | "additionalProperties", _) => Some(Holds::Itself),
        _ => None,
    }
}

/// The schemas directly inside a schema.
pub(super) fn subschemas(schema: &Value) -> Vec<(Path, &Value)> {
    let mut found = Vec::new();
    for (keyword, value) in schema.as_object().into_iter().flatten() {
        let path = |inner: Option<String>| Path { keyword: keyword.clone(), inner };
        match holds(keyword, value) {
            None => {}
            Some(Holds::Itself) => found.push((path(None), value)),
            Some(Holds::Keys) => {
                let fields = value.as_object().into_iter().flatten();
                found.extend(fields.map(|(key, inner)| (path(Some(key.clone())), inner)));
            }
            Some(Holds::Indexes) => {
                let items = value.as_array().into_iter().flatten().enumerate();
                found.extend(items.map(|(index, inner)| (path(Some(index.to_string())), inner)));
            }
        }
    }
    found
}

/// As [`subschemas`], to be changed.
pub(super) fn subschemas_mut(schema: &mut Value) -> Vec<(Path, &mut Value)> {
    let mut found = Vec::new();
    for (keyword, value) in schema.as_object_mut().into_iter().flatten() {
        let path = |inner: Option<String>| Path { keyword: keyword.clone(), inner };
        match holds(keyword, value) {
            None => {}
            Some(Holds::Itself) => found.push((path(None), value)),
            Some(Holds::Keys) => {
                let fields = value.as_object_mut().into_iter().flatten();
                found.extend(fields.map(|(key, inner)| (path(Some(key.clone())), inner)));
            }
            Some(Holds::Indexes) => {
                let items = value.as_array_mut().into_iter().flatten().enumerate();
                found.extend(items.map(|(index, inner)| (path(Some(index.to_string())), inner)));
            }
        }
    }
    found
}

/// A key as a part of a JSON pointer (RFC 6901).
fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// A place or word, short enough for a message: a long one without its middle, because a place is known by its end.
pub(super) fn shorten(text: &str) -> String {
    const SHOWN: usize = 200;
    let count = text.chars().count();
    if count <= SHOWN {
        return text.to_owned();
    }
    let begin: String = text.chars().take(SHOWN / 2).collect();
    let end: String = text.chars().skip(count - SHOWN / 2).collect();
    format!("{begin}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(schema: Value) -> String {
        prepare(&schema, 8).unwrap_err()
    }

    #[test]
    fn a_keyword_that_is_not_supported_is_named_with_its_place() {
        for keyword in UNSUPPORTED {
            let message = error(json!({"$defs": {"a/b": {"anyOf": [true, {*keyword: {}}]}}}));
            assert!(message.contains(&format!("'{keyword}'")), "{message}");
            assert!(message.ends_with("at #/$defs/a~1b/anyOf/1"), "{message}");
        }
    }

    #[test]
    fn a_property_may_have_any_name() {
        let schema = json!({"properties": {"not": {"type": "string"}, "if": true, "uniqueItems": {}}});
        assert!(prepare(&schema, 8).is_ok());
    }

    #[test]
    fn data_is_not_read_as_a_schema() {
        let schema = json!({"enum": [{"not": 1}], "default": {"if": 1}, "const": {"uniqueItems": false}});
        let prepared = prepare(&schema, 8).unwrap();
        assert_eq!(prepared["const"], json!({"uniqueItems": false}));
    }

    #[test]
    fn unique_items_false_asks_for_nothing() {
        let prepared = prepare(&json!({"items": {"type": "array", "uniqueItems": false}}), 8).unwrap();
        assert_eq!(prepared["items"], json!({"type": "array"}));
        assert!(error(json!({"items": {"uniqueItems": true}})).ends_with("at #/items"));
    }

    #[test]
    fn an_unknown_format_is_named() {
        let message = error(json!({"properties": {"a": {"type": "string", "format": "iri"}}}));
        assert!(message.contains("'iri'") && message.ends_with("at #/properties/a"), "{message}");
    }

    #[test]
    fn references_stay_within_the_schema() {
        for reference in [json!("#"), json!("#/$defs/a")] {
            assert!(prepare(&json!({"items": {"$ref": reference}, "$defs": {"a": {}}}), 8).is_ok());
        }
        for reference in
            [json!("http://host/a"), json!("a.json#/b"), json!("#anchor"), json!("#/a~1b"), json!(1)]
        {
            assert!(error(json!({"items": {"$ref": reference}})).ends_with("at #/items"));
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth| (0..depth).fold(json!({}), |inner, _| json!({"items": inner}));
        assert!(prepare(&nested(8), 8).is_ok());
        let message = error(nested(9));
        assert!(message.contains("nested deeper than 8") && message.ends_with("/items"), "{message}");
    }

    #[test]
    fn the_number_of_patterns_is_bounded() {
        let patterns = |count: usize| {
            let patterns: Map<String, Value> = (0..count).map(|n| (format!("^{n}$"), json!({}))).collect();
            json!({"patternProperties": patterns})
        };
        assert!(prepare(&patterns(MAX_PATTERNS), 8).is_ok());
        assert!(error(patterns(MAX_PATTERNS + 1)).contains("at most 64"));
    }

    #[test]
    fn what_is_no_schema_is_refused_with_its_place() {
        assert!(error(json!({"properties": {"a": 1}})).ends_with("at #/properties/a"));
    }

    #[test]
    fn a_long_place_keeps_its_end() {
        let short = shorten(&format!("#/{}/end", "a".repeat(300)));
        assert_eq!(short, format!("#/{}…{}/end", "a".repeat(98), "a".repeat(96)));
    }

    #[test]
    fn the_deepest_schema_that_fails_alone_is_found() {
        let root = json!({"properties": {"good": {}, "bad": {"items": {"type": "wrong"}}}});
        let fails = |part: Value| part.to_string().contains("wrong").then(|| "no".to_owned());
        assert_eq!(locate(&root, "no", fails).as_deref(), Some("#/properties/bad/items"));
        assert_eq!(locate(&root, "another reason", fails), None);
        let wrong = json!({"type": "wrong"});
        assert_eq!(locate(&wrong, "no", |_| Some("no".to_owned())).as_deref(), Some("#"));
    }
}

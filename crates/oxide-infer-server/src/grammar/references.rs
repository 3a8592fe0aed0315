//! References in JSON schemas, written so that the compiler follows them: as pointers into the schema that need no decoding.
//!
//! `#name` (an `$anchor`), pointers with escapes, and references by the root's own `$id` become such pointers. What they
//! point at is copied into `$defs` where its own place cannot be written without escapes.

use super::schema::{shorten, subschemas, subschemas_mut};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Where copies are kept; no schema has this name by chance.
const COPIES: &str = "oxide-infer-copy-";

/// Rewrites every reference.
///
/// # Errors
/// A reference leads out of the schema or to nothing, an anchor has two places, or a schema inside has an `$id`, which would
/// change what references mean.
pub(super) fn resolve(schema: &mut Value) -> Result<(), String> {
    let mut targets = Targets::find(schema)?;
    rewrite(schema, "#", &mut targets)?;
    if let (Value::Object(keywords), false) = (&mut *schema, targets.copies.is_empty()) {
        let definitions = keywords.entry("$defs").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(definitions) = definitions {
            definitions.extend(targets.copies);
        }
    }
    Ok(())
}

/// What references may mean.
struct Targets {
    /// `$id` of the root, without its fragment.
    id: Option<String>,
    /// Pointers of schemas with an `$anchor`.
    anchors: HashMap<String, Vec<String>>,
    /// The schema as it came, to look targets up.
    root: Value,
    /// Names of the copies by the pointers of the originals.
    copied: HashMap<Vec<String>, String>,
    copies: Vec<(String, Value)>,
}

impl Targets {
    fn find(root: &Value) -> Result<Self, String> {
        let id =
            root.get("$id").and_then(Value::as_str).map(|id| id.split('#').next().unwrap_or(id).to_owned());
        let mut anchors = HashMap::new();
        find_anchors(root, "#", &mut Vec::new(), &mut anchors)?;
        let (copied, copies) = (HashMap::new(), Vec::new());
        Ok(Self { id, anchors, root: root.clone(), copied, copies })
    }

    /// The pointer that `reference` means.
    fn pointer(&self, reference: &str) -> Result<Vec<String>, String> {
        let refuse = |why: &str| format!("has the reference '{}', which {why},", shorten(reference));
        let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        if !base.is_empty() && self.id.as_deref() != Some(base) {
            return Err(refuse("leads out of the schema"));
        }
        let fragment = percent_decoded(fragment).ok_or_else(|| refuse("has an escape that is none"))?;
        let pointer = match fragment.strip_prefix('/') {
            None if fragment.is_empty() => Vec::new(),
            None => {
                let anchor = self.anchors.get(&fragment);
                anchor.cloned().ok_or_else(|| refuse("names no '$anchor' of the schema"))?
            }
            Some(path) => path.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect(),
        };
        match self.target(&pointer) {
            Some(Value::Object(_) | Value::Bool(_)) => Ok(pointer),
            _ => Err(refuse("leads to no schema")),
        }
    }

    fn target(&self, pointer: &[String]) -> Option<&Value> {
        pointer.iter().try_fold(&self.root, |value, part| match value {
            Value::Object(fields) => fields.get(part),
            Value::Array(items) => items.get(part.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// The reference to a pointer that the compiler follows.
    fn reference(&mut self, pointer: Vec<String>) -> Result<String, String> {
        let is_plain = |part: &String| !part.is_empty() && !part.contains(['~', '/', '%', '#', '"', '\\']);
        if pointer.iter().all(is_plain) {
            return Ok(match pointer.is_empty() {
                true => "#".to_owned(),
                false => format!("#/{}", pointer.join("/")),
            });
        }
        if let Some(name) = self.copied.get(&pointer) {
            return Ok(format!("#/$defs/{name}"));
        }
        let name = format!("{COPIES}{}", self.copies.len());
        let mut copy = self.target(&pointer).cloned().unwrap_or(Value::Bool(true));
        self.copied.insert(pointer, name.clone());
        self.copies.push((name.clone(), Value::Null));
        let index = self.copies.len() - 1;
        let place = format!("#/$defs/{name}");
        rewrite(&mut copy, &place, self)?;
        self.copies[index].1 = copy;
        Ok(place)
    }
}

fn find_anchors(
    schema: &Value,
    place: &str,
    pointer: &mut Vec<String>,
    anchors: &mut HashMap<String, Vec<String>>,
) -> Result<(), String> {
    if !pointer.is_empty() && schema.get("$id").is_some() {
        return Err(format!("has the keyword '$id', which is not supported inside, at {}", shorten(place)));
    }
    if let Some(anchor) = schema.get("$anchor").and_then(Value::as_str)
        && anchors.insert(anchor.to_owned(), pointer.clone()).is_some()
    {
        return Err(format!("has the '$anchor' '{}' a second time at {}", shorten(anchor), shorten(place)));
    }
    for (path, inner) in subschemas(schema) {
        let (place, depth) = (path.below(place), pointer.len());
        pointer.extend(path.parts());
        find_anchors(inner, &place, pointer, anchors)?;
        pointer.truncate(depth);
    }
    Ok(())
}

fn rewrite(schema: &mut Value, place: &str, targets: &mut Targets) -> Result<(), String> {
    if let Some(reference) = schema.get_mut("$ref") {
        let pointer = match reference.as_str() {
            Some(text) => targets.pointer(text),
            None => Err("has a reference that is no string,".to_owned()),
        };
        let pointer = pointer.map_err(|reason| format!("{reason} at {}", shorten(place)))?;
        *reference = targets.reference(pointer)?.into();
    }
    for (path, inner) in subschemas_mut(schema) {
        rewrite(inner, &path.below(place), targets)?;
    }
    Ok(())
}

/// Decodes `%41`; `None` if that is not how it is written, or no UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resolved(mut schema: Value) -> Value {
        resolve(&mut schema).unwrap();
        schema
    }

    fn error(mut schema: Value) -> String {
        resolve(&mut schema).unwrap_err()
    }

    #[test]
    fn plain_pointers_stay() {
        let schema = json!({"$defs": {"a": {"$ref": "#"}}, "items": {"$ref": "#/$defs/a"}});
        assert_eq!(resolved(schema.clone()), schema);
    }

    #[test]
    fn anchors_and_the_roots_own_id_become_pointers() {
        let schema = json!({
            "$id": "http://host/it.json",
            "$defs": {"a": {"$anchor": "here"}},
            "anyOf": [{"$ref": "#here"}, {"$ref": "http://host/it.json#/$defs/a"}, {"$ref": "http://host/it.json"}],
        });
        let references = json!([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}, {"$ref": "#"}]);
        assert_eq!(resolved(schema)["anyOf"], references);
    }

    #[test]
    fn what_stands_at_a_place_with_escapes_is_copied() {
        let schema = json!({
            "$defs": {"a/b%": {"type": "array", "items": {"$ref": "#/$defs/a~1b%25"}}},
            "items": {"$ref": "#/$defs/a~1b%25"},
        });
        let resolved = resolved(schema);
        let copy = json!("#/$defs/oxide-infer-copy-0");
        assert_eq!(resolved["items"]["$ref"], copy);
        assert_eq!(
            resolved["$defs"]["oxide-infer-copy-0"],
            json!({"type": "array", "items": {"$ref": copy}})
        );
    }

    #[test]
    fn names_and_data_are_not_references() {
        let schema = json!({
            "properties": {"$ref": {"type": "string"}, "$anchor": true},
            "const": {"$ref": "http://host/a"},
            "enum": [{"$anchor": "a"}, {"$anchor": "a"}],
        });
        assert_eq!(resolved(schema.clone()), schema);
    }

    #[test]
    fn what_leads_nowhere_is_named() {
        for reference in ["http://host/a", "a.json#/b", "#nothing", "#/$defs/a", "#/%zz"] {
            let message = error(json!({"items": {"$ref": reference}}));
            assert!(message.contains(reference), "{message}");
        }
        assert!(error(json!({"items": {"$ref": 1}})).contains("reference"));
        let message = error(json!({"properties": {"a": {"$id": "http://host/a"}}}));
        assert!(message.contains("'$id'") && message.ends_with("at #/properties/a"), "{message}");
        assert!(error(json!({"anyOf": [{"$anchor": "a"}, {"$anchor": "a"}]})).contains("at #/anyOf/1"));
    }
}

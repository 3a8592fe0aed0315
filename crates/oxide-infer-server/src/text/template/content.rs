//! Which form of message content a template takes.

use serde_json::{Map, Value, json};

use super::ChatTemplate;

/// The form of message content that a template takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// A string: lists of text parts are joined for it.
    Text,
    /// A list of parts: strings are wrapped for it.
    Parts,
    /// Both; content is handed on as it came.
    Either,
}

/// Words that no template contains.
const PROBE: &str = "qzx probe 7391";

/// Finds out by rendering one message in each form. A template that takes a form shows the text in its output, and
/// does not show a list as a list.
pub(super) fn detect(template: &ChatTemplate) -> ContentFormat {
    let shows = |content: &Value| {
        let user = json!({"role": "user", "content": content});
        let system = json!({"role": "system", "content": content});
        [json!([user]), json!([system, user])].into_iter().any(|messages| {
            let mut request = Map::new();
            request.insert("messages".into(), messages);
            request.insert("tools".into(), Value::Null);
            request.insert("documents".into(), Value::Null);
            request.insert("add_generation_prompt".into(), true.into());
            let rendered = template.render(&request).unwrap_or_default();
            rendered.contains(PROBE) && !rendered.contains("'type'") && !rendered.contains("\"type\"")
        })
    };
    match (shows(&json!(PROBE)), shows(&json!([{"type": "text", "text": PROBE}]))) {
        (true, true) => ContentFormat::Either,
        (false, true) => ContentFormat::Parts,
        (_, false) => ContentFormat::Text,
    }
}

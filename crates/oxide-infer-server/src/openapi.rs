//! The OpenAPI document, made from the routes, the fields that they know, and the schemas of what they answer.

use crate::app::App;
use crate::auth::is_guarded;
use crate::operations::{Answer, Handler, Operation, operations};
use crate::page;
use crate::protocol::rules::{self, FIELDS, Handling, Route};
use serde_json::{Map, Value, json};

/// The schema of each accepted field; `NAME of ROUTE` where routes differ. What a schema refuses, the server refuses.
const FIELD_SCHEMAS: &str = include_str!("openapi/fields.json");

/// The schemas of what routes answer, with the names that operations give them.
const ANSWERS: &[(&str, &str)] = &[
    ("chat.completion", include_str!("../schemas/chat.completion.json")),
    ("chat.completion.chunk", include_str!("../schemas/chat.completion.chunk.json")),
    ("detokenize", include_str!("../schemas/detokenize.json")),
    ("embeddings", include_str!("../schemas/embeddings.json")),
    ("error", include_str!("../schemas/error.json")),
    ("health", include_str!("../schemas/health.json")),
    ("message", include_str!("../schemas/message.json")),
    ("message.chunk", include_str!("../schemas/message.chunk.json")),
    ("message.count", include_str!("../schemas/message.count.json")),
    ("message.error", include_str!("../schemas/message.error.json")),
    ("model", include_str!("../schemas/model.json")),
    ("model.info", include_str!("../schemas/model.info.json")),
    ("models", include_str!("../schemas/models.json")),
    ("page.stats", include_str!("../schemas/page.stats.json")),
    ("ready", include_str!("../schemas/ready.json")),
    ("response", include_str!("../schemas/response.json")),
    ("response.chunk", include_str!("../schemas/response.chunk.json")),
    ("server.info", include_str!("../schemas/server.info.json")),
    ("server.load", include_str!("../schemas/server.load.json")),
    ("text_completion", include_str!("../schemas/text_completion.json")),
    ("text_completion.chunk", include_str!("../schemas/text_completion.chunk.json")),
    ("tokenize", include_str!("../schemas/tokenize.json")),
    ("version", include_str!("../schemas/version.json")),
];

/// The document of this server.
///
/// # Errors
/// One of the schemas that are built in is no JSON, which a test rules out.
pub(crate) fn document(app: &App) -> Result<Value, serde_json::Error> {
    let mut fields: Map<String, Value> = serde_json::from_str(FIELD_SCHEMAS)?;
    fields.insert("model".to_owned(), json!({"enum": app.config().served_model_names}));
    let mut schemas = Map::new();
    for (name, text) in ANSWERS {
        // References into a schema itself lead elsewhere once it is a part of the document.
        let text = text.replace("#/$defs/", &format!("#/components/schemas/{name}/$defs/"));
        let mut schema: Map<String, Value> = serde_json::from_str(&text)?;
        schema.remove("$schema");
        schemas.insert((*name).to_owned(), schema.into());
    }
    let paths: Map<String, Value> = operations(app.config().page)
        .map(|operation| {
            let method = match operation.handler {
                Handler::Get(_) => "get",
                Handler::Post(..) => "post",
            };
            let path = operation.path.replace("{*", "{");
            (path, json!({method: describe(operation, &fields, app)}))
        })
        .collect();
    Ok(json!({
        "openapi": "3.1.0",
        "info": {"title": "Oxide Infer", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }))
}

fn describe(operation: &Operation, fields: &Map<String, Value>, app: &App) -> Value {
    let error = if operation.path.starts_with("/v1/messages") { "message.error" } else { "error" };
    let mut described = json!({
        "operationId": operation_id(operation),
        "summary": operation.summary,
        "responses": responses(operation.answer, error),
    });
    if let Handler::Post(_, routes) = operation.handler {
        let bodies: Vec<Value> = routes.iter().map(|route| body(*route, fields)).collect();
        let schema = match bodies.as_slice() {
            [one] => one.clone(),
            several => json!({"anyOf": several}),
        };
        described["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    if operation.path.contains("{*id}") {
        let names = &app.config().served_model_names;
        described["parameters"] = json!([path_parameter("id", names)]);
    }
    if operation.path.contains("{file}") {
        described["parameters"] = json!([path_parameter("file", &page::file_names())]);
    }
    if is_guarded(operation.path) && !app.config().api_keys.is_empty() {
        described["security"] = json!([{"bearer": []}, {"x-api-key": []}]);
    }
    described
}

fn path_parameter(name: &str, values: &impl serde::Serialize) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"enum": values}})
}

/// The path's words: `v1_chat_completions`.
fn operation_id(operation: &Operation) -> String {
    if operation.path == "/" {
        return "page".to_owned();
    }
    let words = operation.path.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
}

fn responses(answer: Answer, error: &str) -> Value {
    let schema = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let json_of = |name: &str| json!({"application/json": {"schema": schema(name)}});
    let failure = json!({"description": "What is wrong", "content": json_of(error)});
    let content = match answer {
        Answer::Json(name) => json_of(name),
        Answer::Status(name) => {
            let response = json!({"description": "The status", "content": json_of(name)});
            return json!({"200": response, "503": response, "default": failure});
        }
        Answer::JsonOrEvents { whole, event } => {
            let mut content = json_of(whole);
            // OpenAPI 3.1 has no word for the schema of one event's data.
            content["text/event-stream"] =
                json!({"schema": {"type": "string"}, "x-event-schema": schema(event)});
            content
        }
        Answer::Metrics => {
            let text = json!({"schema": {"type": "string"}});
            json!({"text/plain": text, "application/openmetrics-text": text})
        }
        Answer::Document => json!({"application/json": {"schema": {"type": "object"}}}),
        Answer::PageFile(types) => {
            types.iter().map(|kind| ((*kind).to_owned(), json!({"schema": {"type": "string"}}))).collect()
        }
    };
    json!({"200": {"description": "The answer", "content": content}, "default": failure})
}

/// The schema of a route's body: null counts as absent everywhere.
fn body(route: Route, fields: &Map<String, Value>) -> Value {
    let required = required(route);
    let known = FIELDS.iter().filter(|rule| rule.routes.contains(&route));
    let properties: Map<String, Value> = known
        .map(|rule| {
            let schema = match rule.handling {
                Handling::Accepted if required.contains(&rule.name) => accepted(rule.name, route, fields),
                Handling::Accepted => {
                    json!({"anyOf": [accepted(rule.name, route, fields), {"type": "null"}]})
                }
                Handling::Ignored => json!({}),
                Handling::Unsupported { neutral, .. } => {
                    let values = neutral.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
                    json!({"enum": values.chain([Value::Null]).collect::<Vec<_>>()})
                }
            };
            (rule.name.to_owned(), schema)
        })
        .collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": {"type": "null"},
    })
}

fn accepted(name: &str, route: Route, fields: &Map<String, Value>) -> Value {
    let own = fields.get(&format!("{name} of {}", rules::name(schemas_of(route))));
    own.or_else(|| fields.get(name)).cloned().unwrap_or(Value::Bool(true))
}

/// The route whose schemas a route shares.
fn schemas_of(route: Route) -> Route {
    match route {
        Route::CountTokens => Route::Messages,
        route => route,
    }
}

fn required(route: Route) -> &'static [&'static str] {
    match route {
        Route::Chat | Route::TokenizeChat | Route::CountTokens => &["messages"],
        Route::Completion | Route::TokenizePrompt => &["prompt"],
        Route::Detokenize => &["tokens"],
        Route::Messages => &["messages", "max_tokens"],
        Route::Responses | Route::Embeddings => &["input"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Page;

    #[test]
    fn every_accepted_field_has_a_schema_and_every_schema_a_field() {
        let fields: Map<String, Value> = serde_json::from_str(FIELD_SCHEMAS).unwrap();
        let mut used = std::collections::BTreeSet::new();
        for rule in FIELDS.iter().filter(|rule| rule.handling == Handling::Accepted) {
            for route in rule.routes {
                let own = format!("{} of {}", rule.name, rules::name(schemas_of(*route)));
                let key = if fields.contains_key(&own) { own } else { rule.name.to_owned() };
                assert!(fields.contains_key(&key), "{key}");
                used.insert(key);
            }
        }
        let all: std::collections::BTreeSet<String> = fields.keys().cloned().collect();
        assert_eq!(used, all);
    }

    #[test]
    fn every_answer_has_a_schema() {
        let known = |name: &str| ANSWERS.iter().any(|(known, _)| *known == name);
        for operation in operations(Page::Served) {
            match operation.answer {
                Answer::Json(name) | Answer::Status(name) => assert!(known(name), "{name}"),
                Answer::JsonOrEvents { whole, event } => assert!(known(whole) && known(event), "{whole}"),
                Answer::Metrics | Answer::Document | Answer::PageFile(_) => {}
            }
        }
    }
}

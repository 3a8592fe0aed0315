//! The page to talk to the model: `GET /`, its files, and the numbers that it draws.
//!
//! All files are part of the binary. The page asks no other host for anything, which its content security policy holds
//! it to, and uses the API as any client does.

use crate::app::App;
use crate::error::ApiError;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) const HTML: &str = "text/html";
const CSS: &str = "text/css";
const JAVASCRIPT: &str = "text/javascript";
const SVG: &str = "image/svg+xml";

/// The media types of [`FILES`].
pub(crate) const FILE_TYPES: &[&str] = &[CSS, JAVASCRIPT, SVG];

const INDEX: File = File { name: "index.html", kind: HTML, text: include_str!("page/index.html") };

/// What `index.html` refers to.
const FILES: &[File] = &[
    File { name: "style.css", kind: CSS, text: include_str!("page/style.css") },
    File { name: "icon.svg", kind: SVG, text: include_str!("page/icon.svg") },
    File { name: "main.js", kind: JAVASCRIPT, text: include_str!("page/main.js") },
    File { name: "api.js", kind: JAVASCRIPT, text: include_str!("page/api.js") },
    File { name: "chat.js", kind: JAVASCRIPT, text: include_str!("page/chat.js") },
    File { name: "markdown.js", kind: JAVASCRIPT, text: include_str!("page/markdown.js") },
    File { name: "panel.js", kind: JAVASCRIPT, text: include_str!("page/panel.js") },
    File { name: "settings.js", kind: JAVASCRIPT, text: include_str!("page/settings.js") },
];

/// Only this server's own files and routes; no inline script or style, no frame, no form that leaves the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
#[derive(Clone, Copy, Debug)]
struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

impl IntoResponse for File {
    fn into_response(self) -> Response {
        let headers: [(HeaderName, String); 5] = [
            (header::CONTENT_TYPE, format!("{}; charset=utf-8", self.kind)),
            (header::CONTENT_SECURITY_POLICY, POLICY.to_owned()),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
            (header::REFERRER_POLICY, "no-referrer".to_owned()),
            // Another version of the server has other files under the same names.
            (header::CACHE_CONTROL, "no-cache".to_owned()),
        ];
        (headers, self.text).into_response()
    }
}

/// The names of [`FILES`].
pub(crate) fn file_names() -> Vec<&'static str> {
    FILES.iter().map(|file| file.name).collect()
}

/// `GET /`.
pub(crate) async fn index() -> Response {
    INDEX.into_response()
}

/// `GET /page/files/{file}`.
pub(crate) async fn file(
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let found = name.ok().and_then(|Path(name)| FILES.iter().find(|file| file.name == name));
    found.map(|file| file.into_response()).ok_or_else(|| ApiError::no_route(&request))
}

/// `GET /page/stats`: what `/metrics` says, as far as the page draws it. Counters only grow; the page takes differences
/// between two answers.
pub(crate) async fn stats(State(app): State<Arc<App>>) -> Json<Value> {
    let now = app.engine().metrics().snapshot();
    let operators = app.engine().operators();
    let (first_tokens, seconds) = app.metrics().requests.first_tokens();
    let defaults = app.config().sampling_defaults;
    Json(json!({
        "model": app.model_name(),
        "version": env!("CARGO_PKG_VERSION"),
        "device": app.config().device,
        "max_model_len": app.engine().limits().max_model_len,
        "api_key_needed": !app.config().api_keys.is_empty(),
        "sampling_defaults": {
            "temperature": defaults.temperature,
            "top_p": defaults.top_p,
            "top_k": defaults.top_k,
            "min_p": defaults.min_p,
            "repetition_penalty": defaults.repetition_penalty,
        },
        "uptime_seconds": app.uptime().as_secs_f64(),
        "requests_running": now.running,
        "requests_waiting": now.waiting,
        "kv_usage": now.kv_usage(),
        "prompt_tokens": now.prompt_tokens,
        "generation_tokens": now.generation_tokens,
        "prefix_cache_queries": now.prefix_cache_queries,
        "prefix_cache_hits": now.prefix_cache_hits,
        "first_tokens": first_tokens,
        "first_token_seconds": seconds,
        "plan_artifacts": operators.snapshot().count(),
        "operator_executions": operators.snapshot().map(|(_, count)| count).sum::<u64>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_used_and_everything_that_is_used_is_a_file() {
        let all: Vec<&File> = std::iter::once(&INDEX).chain(FILES).collect();
        for file in FILES {
            let used = all.iter().any(|other| other.text.contains(&format!("/{}\"", file.name)));
            assert!(used, "{}", file.name);
            assert!(FILE_TYPES.contains(&file.kind), "{}", file.name);
        }
        for file in &all {
            for quoted in
                file.text.split('"').filter(|text| text.starts_with("page/files/") || text.starts_with("./"))
            {
                let name = quoted.rsplit('/').next().unwrap();
                assert!(FILES.iter().any(|file| file.name == name), "{quoted} in {}", file.name);
            }
        }
    }

    #[test]
    fn no_file_makes_html_of_text() {
        for file in FILES {
            for way in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"]
            {
                assert!(!file.text.contains(way), "{way} in {}", file.name);
            }
        }
    }
}

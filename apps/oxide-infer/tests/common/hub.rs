//! A small Hugging Face Hub: one repository, with a request log.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode};
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the hub answers.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mood {
    Open,
    /// Needs `Authorization: Bearer secret`.
    Private,
    /// Knows the account and does not let it in.
    Gated,
    /// Names one size and sends other bytes for large files.
    Damaging,
}

pub(crate) struct Hub {
    pub(crate) address: SocketAddr,
    state: Arc<HubState>,
}

struct HubState {
    repo: &'static str,
    files: Vec<(&'static str, Vec<u8>)>,
    mood: Mood,
    log: Mutex<Vec<String>>,
}

impl Hub {
    pub(crate) fn start(repo: &'static str, files: Vec<(&'static str, Vec<u8>)>, mood: Mood) -> Self {
        let state = Arc::new(HubState { repo, files, mood, log: Mutex::default() });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&state));
        Self { address: super::serve(router), state }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The files that were downloaded since the last call.
    pub(crate) fn downloads(&self) -> Vec<String> {
        let mut log = std::mem::take(&mut *self.state.log.lock().unwrap());
        log.retain(|line| line.starts_with("GET") && line.contains("/resolve/"));
        let mut names: Vec<_> = log.iter().map(|line| line.rsplit('/').next().unwrap().to_owned()).collect();
        names.sort();
        names
    }
}

async fn answer(State(hub): State<Arc<HubState>>, request: Request) -> Response<Body> {
    let path = request.uri().path().to_owned();
    hub.log.lock().unwrap().push(format!("{} {path}", request.method()));
    let authorized = request.headers().get("authorization").is_some_and(|value| value == "Bearer secret");
    match hub.mood {
        Mood::Private if !authorized => return refuse(StatusCode::UNAUTHORIZED, "RepoNotFound"),
        Mood::Gated => return refuse(StatusCode::FORBIDDEN, "GatedRepo"),
        _ => {}
    }
    let api = format!("/api/models/{}/", hub.repo);
    let resolve = format!("/{}/resolve/{COMMIT}/", hub.repo);
    if let Some(rest) = path.strip_prefix(&api) {
        return match rest.split_once('/') {
            Some(("revision", "main" | "v1" | COMMIT)) => info(&hub),
            Some(("tree", COMMIT)) => tree(&hub),
            _ => refuse(StatusCode::NOT_FOUND, "RevisionNotFound"),
        };
    }
    let file =
        path.strip_prefix(&resolve).and_then(|name| hub.files.iter().find(|(known, _)| *known == name));
    match file {
        Some((_, bytes)) => content(&hub, bytes, request.method()),
        None => refuse(StatusCode::NOT_FOUND, "RepoNotFound"),
    }
}

fn refuse(status: StatusCode, code: &str) -> Response<Body> {
    Response::builder()
        .status(status)
        .header("x-error-code", code)
        .body(Body::from("{\"error\": \"no\"}"))
        .unwrap()
}

fn info(hub: &HubState) -> Response<Body> {
    let siblings: Vec<_> = hub.files.iter().map(|(name, _)| serde_json::json!({"rfilename": name})).collect();
    let body = serde_json::json!({"id": hub.repo, "sha": COMMIT, "siblings": siblings});
    json(&body)
}

fn tree(hub: &HubState) -> Response<Body> {
    let files = hub.files.iter().map(|(name, bytes)| {
        serde_json::json!({"type": "file", "oid": "0".repeat(40), "size": bytes.len(), "path": name})
    });
    json(&files.collect())
}

fn json(body: &serde_json::Value) -> Response<Body> {
    Response::builder().header("content-type", "application/json").body(Body::from(body.to_string())).unwrap()
}

/// Large files (over 1,000 bytes here) have their SHA-256 as the tag, as on the hub.
fn content(hub: &HubState, bytes: &[u8], method: &Method) -> Response<Body> {
    let sum: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let large = bytes.len() > 1000;
    let tag = if large { &sum } else { &sum[..40] };
    let mut sent = bytes.to_vec();
    if hub.mood == Mood::Damaging && large {
        sent[500] ^= 1;
    }
    let response = Response::builder()
        .header("etag", format!("\"{tag}\""))
        .header("x-repo-commit", COMMIT)
        .header("content-length", sent.len());
    let body = if method == Method::HEAD { Body::empty() } else { Body::from(sent) };
    response.body(body).unwrap()
}

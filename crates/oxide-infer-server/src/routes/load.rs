//! `/get_load`, `/get_server_info` and `/get_model_info`: what routers in front of several servers ask for.
//!
//! The paths and the names of fields are SGLang's, which vLLM's router took over.

use crate::app::App;
use crate::routes::status;
use axum::Json;
use axum::extract::State;
use oxide_infer_engine::{ExecutorLimits, MetricsSnapshot};
use serde::Serialize;
use std::sync::Arc;

/// What a server has to do now.
#[derive(Debug, Serialize)]
pub(crate) struct Load {
    /// Sequences that run or wait: the number by which vLLM's router compares servers.
    load: u64,
    num_running_reqs: u64,
    num_waiting_reqs: u64,
    /// Tokens for which sequences own KV memory, in whole pages.
    num_tokens: u64,
}

/// What a server is, and how much of it is free.
#[derive(Debug, Serialize)]
pub(crate) struct ServerInfo {
    status: &'static str,
    version: &'static str,
    model_id: Arc<str>,
    /// Replicas behind this address.
    dp_size: u32,
    /// Tokens in one sequence, prompt and answer.
    context_length: usize,
    /// Tokens that fit the KV memory.
    max_total_num_tokens: usize,
    /// Sequences that may run at once.
    max_running_requests: usize,
    /// Tokens in one step.
    max_prefill_tokens: usize,
    page_size: usize,
    num_pages: u64,
    /// Pages that no sequence owns; what the prefix cache keeps in them is given up when they are needed.
    num_free_pages: u64,
    #[serde(flatten)]
    load: Load,
}

/// What a server serves.
#[derive(Debug, Serialize)]
pub(crate) struct ModelInfo {
    /// The served name: where the model lies on the server is nobody's business who has no key.
    model_path: Arc<str>,
    served_model_name: Arc<str>,
    is_generation: bool,
    max_context_length: usize,
    vocab_size: usize,
}

/// `GET /get_load`.
pub(crate) async fn load(State(app): State<Arc<App>>) -> Json<Load> {
    Json(load_of(&app.engine().metrics().snapshot(), &app.engine().limits()))
}

/// `GET /get_server_info`.
pub(crate) async fn server_info(State(app): State<Arc<App>>) -> Json<ServerInfo> {
    let limits = app.engine().limits();
    let now = app.engine().metrics().snapshot();
    Json(ServerInfo {
        status: status::readiness(&app).1,
        version: env!("CARGO_PKG_VERSION"),
        model_id: app.model_name().clone(),
        dp_size: 1,
        context_length: limits.max_model_len,
        max_total_num_tokens: limits.num_pages * limits.page_size,
        max_running_requests: limits.max_sequences,
        max_prefill_tokens: limits.max_batch_tokens,
        page_size: limits.page_size,
        num_pages: limits.num_pages as u64,
        num_free_pages: (limits.num_pages as u64).saturating_sub(now.kv_pages_used),
        load: load_of(&now, &limits),
    })
}

/// `GET /get_model_info`.
pub(crate) async fn model_info(State(app): State<Arc<App>>) -> Json<ModelInfo> {
    let limits = app.engine().limits();
    Json(ModelInfo {
        model_path: app.model_name().clone(),
        served_model_name: app.model_name().clone(),
        is_generation: true,
        max_context_length: limits.max_model_len,
        vocab_size: limits.vocab_size,
    })
}

fn load_of(now: &MetricsSnapshot, limits: &ExecutorLimits) -> Load {
    Load {
        load: now.running + now.waiting,
        num_running_reqs: now.running,
        num_waiting_reqs: now.waiting,
        num_tokens: now.kv_pages_used * limits.page_size as u64,
    }
}

//! Every route: what answers it, and what the OpenAPI document says of it.

use crate::app::App;
use crate::config::Page;
use crate::page;
use crate::protocol::rules::Route;
use crate::routes::{embeddings, generation, load, models, status, tokenize};
use axum::routing::{MethodRouter, get, post};
use std::sync::Arc;

/// A route and its method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    /// The path, in the router's notation.
    pub(crate) path: &'static str,
    /// What it does.
    pub(crate) summary: &'static str,
    /// The method, and what answers it.
    pub(crate) handler: Handler,
    /// What it answers with, by the names of the schemas in `schemas/`.
    pub(crate) answer: Answer,
}

/// What answers a route.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handler {
    /// A request without a body.
    Get(fn() -> MethodRouter<Arc<App>>),
    /// A request whose body is one of these.
    Post(fn() -> MethodRouter<Arc<App>>, &'static [Route]),
}

/// What a route answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// JSON.
    Json(&'static str),
    /// JSON, also with 503.
    Status(&'static str),
    /// JSON, or events if the request says `stream`.
    JsonOrEvents { whole: &'static str, event: &'static str },
    /// Prometheus metrics.
    Metrics,
    /// The OpenAPI document.
    Document,
    /// A file of the page, of one of these media types.
    PageFile(&'static [&'static str]),
}

impl Operation {
    /// What the router has.
    pub(crate) fn method_router(&self) -> MethodRouter<Arc<App>> {
        match self.handler {
            Handler::Get(handler) | Handler::Post(handler, _) => handler(),
        }
    }
}

const fn op(path: &'static str, summary: &'static str, handler: Handler, answer: Answer) -> Operation {
    Operation { path, summary, handler, answer }
}

/// The routes of a server with or without a page.
pub(crate) fn operations(page: Page) -> impl Iterator<Item = &'static Operation> {
    let shown: &[Operation] = match page {
        Page::Served => PAGE_OPERATIONS,
        Page::Off => &[],
    };
    OPERATIONS.iter().chain(shown)
}

/// Every route but those of the page.
const OPERATIONS: &[Operation] = &[
    op(
        "/v1/models",
        "The model, once for each name",
        Handler::Get(|| get(models::list)),
        Answer::Json("models"),
    ),
    op("/v1/models/{*id}", "One name of the model", Handler::Get(|| get(models::one)), Answer::Json("model")),
    op(
        "/v1/chat/completions",
        "Answer a conversation",
        Handler::Post(|| post(generation::chat), &[Route::Chat]),
        Answer::JsonOrEvents { whole: "chat.completion", event: "chat.completion.chunk" },
    ),
    op(
        "/v1/completions",
        "Continue one or several texts",
        Handler::Post(|| post(generation::completion), &[Route::Completion]),
        Answer::JsonOrEvents { whole: "text_completion", event: "text_completion.chunk" },
    ),
    op(
        "/v1/responses",
        "Answer a conversation in the form of the Responses API",
        Handler::Post(|| post(generation::response), &[Route::Responses]),
        Answer::JsonOrEvents { whole: "response", event: "response.chunk" },
    ),
    op(
        "/v1/messages",
        "Answer a conversation in Anthropic's form",
        Handler::Post(|| post(generation::message), &[Route::Messages]),
        Answer::JsonOrEvents { whole: "message", event: "message.chunk" },
    ),
    op(
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation in Anthropic's form",
        Handler::Post(|| post(tokenize::count), &[Route::CountTokens]),
        Answer::Json("message.count"),
    ),
    op(
        "/v1/embeddings",
        "One vector for each of several texts",
        Handler::Post(|| post(embeddings::embed), &[Route::Embeddings]),
        Answer::Json("embeddings"),
    ),
    op(
        "/tokenize",
        "Text or messages to token ids",
        Handler::Post(|| post(tokenize::tokenize), &[Route::TokenizePrompt, Route::TokenizeChat]),
        Answer::Json("tokenize"),
    ),
    op(
        "/detokenize",
        "Token ids to text",
        Handler::Post(|| post(tokenize::detokenize), &[Route::Detokenize]),
        Answer::Json("detokenize"),
    ),
    op(
        "/health",
        "Whether to leave the process alive",
        Handler::Get(|| get(status::health)),
        Answer::Status("health"),
    ),
    op(
        "/ready",
        "Whether to send new requests here",
        Handler::Get(|| get(status::ready)),
        Answer::Status("ready"),
    ),
    op("/metrics", "Prometheus metrics", Handler::Get(|| get(status::metrics)), Answer::Metrics),
    op(
        "/get_load",
        "The requests that run and wait, for routers",
        Handler::Get(|| get(load::load)),
        Answer::Json("server.load"),
    ),
    op(
        "/get_server_info",
        "The server's limits and what is free of them, for routers",
        Handler::Get(|| get(load::server_info)),
        Answer::Json("server.info"),
    ),
    op(
        "/get_model_info",
        "The model's name and limits, for routers",
        Handler::Get(|| get(load::model_info)),
        Answer::Json("model.info"),
    ),
    op("/version", "The server's version", Handler::Get(|| get(status::version)), Answer::Json("version")),
    op("/openapi.json", "This document", Handler::Get(|| get(status::openapi)), Answer::Document),
];

/// The page to talk to the model, and what it needs.
const PAGE_OPERATIONS: &[Operation] = &[
    op(
        "/",
        "A page to talk to the model",
        Handler::Get(|| get(page::index)),
        Answer::PageFile(&[page::HTML]),
    ),
    op(
        "/page/files/{file}",
        "A file of the page",
        Handler::Get(|| get(page::file)),
        Answer::PageFile(page::FILE_TYPES),
    ),
    op(
        "/page/stats",
        "The numbers that the page draws",
        Handler::Get(|| get(page::stats)),
        Answer::Json("page.stats"),
    ),
];

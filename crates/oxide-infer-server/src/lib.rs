//! The HTTP server of Oxide Infer, compatible with OpenAI's clients and with Anthropic's.
//!
//! [`Server`] takes a [`ServerConfig`], a running engine and a [`text::TextModel`]; [`Server::run`] serves them on what
//! [`listen`] returned until it is told to stop. [`Server::router`] gives the same service without a network. A request passes `routes` (reading), `protocol`
//! (checking), [`text`] (template and tokenizer), `generate` (engine and back), and leaves as JSON or server-sent events.

mod app;
mod auth;
mod body;
mod config;
mod connection;
mod error;
mod generate;
mod grammar;
mod marks;
mod metrics;
mod observe;
mod openapi;
mod operations;
mod page;
mod protocol;
mod reasoning;
mod router;
mod routes;
mod server;
pub mod text;
mod tools;

pub use config::{ApiKey, Cors, Limits, Page, ReasoningStyle, SamplingDefaults, ServerConfig, ToolStyle};
pub use error::ApiError;
pub use server::{ServeError, Server, listen};

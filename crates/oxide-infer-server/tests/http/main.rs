//! The server's behaviour at its HTTP interface, over a scripted engine.

mod access;
mod chat;
mod completions;
mod embeddings;
mod errors;
mod fields;
mod harness;
mod logprobs;
mod messages;
mod metrics;
mod network;
mod openapi;
mod page;
mod reasoning;
mod responses;
mod status;
mod stops;
mod structured;
mod tokenization;
mod tools;

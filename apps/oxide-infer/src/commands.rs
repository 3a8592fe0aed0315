//! One module for each command.

pub(crate) mod artifacts;
pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod pull;
pub(crate) mod run;
pub(crate) mod serve;

/// An asynchronous runtime.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

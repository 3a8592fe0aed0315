//! The server's behaviour at its HTTP interface, over a scripted engine.

mod chat;
mod harness;

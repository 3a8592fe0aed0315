//! The wire protocol: requests are parsed here, responses are what serializes here.

pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod embedding;
pub(crate) mod fields;
pub(crate) mod grammar;
pub(crate) mod messages;
pub(crate) mod params;
pub(crate) mod response;
pub(crate) mod responses;
pub(crate) mod rules;
pub(crate) mod tokenize;
pub(crate) mod tools;
pub(crate) mod turns;

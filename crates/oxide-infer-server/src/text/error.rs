//! What can go wrong while loading a tokenizer or a template, and while preparing a prompt.

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

/// A tokenizer or chat template that cannot be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file was read and does not hold what it should.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A model directory without a tokenizer.
    #[error("no tokenizer.json in {}: a model directory needs one (a SentencePiece tokenizer.model alone is not read)", .0.display())]
    NoTokenizer(PathBuf),
    /// A tokenizer whose decoder cannot be run incrementally here.
    #[error(
        "decoder {0} is not supported; supported: ByteLevel, and Replace, Metaspace, ByteFallback, Fuse, Strip in sequence"
    )]
    UnsupportedDecoder(String),
    /// GGUF metadata that names an unknown kind of tokenizer.
    #[error("tokenizer.ggml.model {model:?} is not supported; supported: {}", supported.join(", "))]
    UnsupportedGgufModel {
        /// The value found.
        model: String,
        /// The values that would do.
        supported: Vec<&'static str>,
    },
    /// GGUF metadata that names an unknown pre-tokenizer.
    #[error("tokenizer.ggml.pre {name:?} is not supported; supported: {}", supported.join(", "))]
    UnsupportedPreTokenizer {
        /// The value found.
        name: String,
        /// The values that would do.
        supported: Vec<&'static str>,
    },
    /// A vocabulary that contradicts itself.
    #[error("vocabulary: {0}")]
    Vocabulary(String),
    /// A chat template that does not parse.
    #[error("chat template from {origin}: {source}")]
    Template {
        /// Where the template came from.
        origin: String,
        /// What is wrong with it.
        source: TemplateError,
    },
}

impl LoadError {
    pub(super) fn invalid(path: &Path, reason: impl ToString) -> Self {
        Self::Invalid { path: path.into(), reason: reason.to_string() }
    }
}

/// A prompt that cannot be made from a request.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The chat template refused the messages or failed on them.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The model has no chat template and none was given.
    #[error("the model has no chat template: give one with --chat-template, or use /v1/completions")]
    NoChatTemplate,
    /// A chat without messages.
    #[error("messages must not be empty")]
    NoMessages,
    /// A message is not what a chat template can take.
    #[error("messages[{index}]: {reason}")]
    Message {
        /// Which message.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The last message cannot be continued.
    #[error("the last message cannot be continued: {0}")]
    Continue(&'static str),
    /// Every private-use character occurs in the messages, so that none is left to mark their special-token text with.
    #[error("the messages use every private-use character, so their special tokens cannot be escaped")]
    NoMarkerLeft,
    /// The tokenizer failed on the text.
    #[error("cannot tokenize the prompt: {0}")]
    Encode(String),
}

/// A chat template that does not parse or does not render.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template is not valid Jinja.
    #[error("syntax error on line {line}: {message}")]
    Syntax {
        /// The line, counted from 1.
        line: usize,
        /// What the parser said.
        message: String,
    },
    /// The template called `raise_exception`.
    #[error("{0}")]
    Raised(String),
    /// The template failed on these messages.
    #[error("the chat template failed on line {line}: {message}")]
    Render {
        /// The line, counted from 1.
        line: usize,
        /// What the renderer said.
        message: String,
    },
    /// The template ran too long.
    #[error("the chat template took more than {0} steps")]
    OutOfFuel(u64),
    /// The template engine itself failed.
    #[error("the chat template asks for something that the template engine cannot do with these messages")]
    Engine,
    /// The template wrote too much.
    #[error("the chat template wrote more than {0} bytes")]
    OutputTooLarge(usize),
}

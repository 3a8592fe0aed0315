//! Text in and out: tokenizers, chat templates, incremental detokenization, stop strings.
//!
//! Nothing here knows of HTTP or of the engine's requests.

mod chat;
mod codec;
mod detokenizer;
mod error;
mod gguf;
mod hub;
mod model;
mod special;
mod stop;
mod template;
mod token_table;
mod tokenizer;

pub use chat::{ChatInput, NextTurn};
pub use detokenizer::{DecodeFrom, Detokenizer, SpecialInOutput};
pub use error::{LoadError, PromptError, TemplateError};
pub use gguf::GgufTokenizerData;
pub use model::{SpecialInContent, TextModel, TextOptions};
pub use special::Prompt;
pub use stop::{MAX_STOP_STRINGS, StopError, StopMatcher, StopStep, StopText};
pub use template::{ChatTemplate, ContentFormat};
pub use tokenizer::{AddSpecialTokens, NamedToken, NamedTokens, Tokenizer};

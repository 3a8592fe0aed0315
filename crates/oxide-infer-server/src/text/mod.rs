//! Text in and out: tokenizers, chat templates, incremental detokenization, stop strings.
//!
//! A [`TextModel`] turns chats and texts into token ids and, with a [`Detokenizer`] and a [`StopMatcher`] for each
//! answer, token ids into text. Nothing here knows of HTTP or of the engine's requests.
//!
//! ```no_run
//! use oxide_infer_server::text::{ChatInput, SpecialInOutput, StopMatcher, StopStep, StopText, TextModel, TextOptions};
//!
//! # fn sample() -> Option<oxide_infer::TokenId> { None }
//! let model = TextModel::load("model.gguf".as_ref(), &TextOptions::default())?;
//! let message = serde_json::json!({"role": "user", "content": "Hello!"});
//! let prompt = model.render_chat(&ChatInput { messages: vec![message], ..ChatInput::default() })?;
//! let ids = model.encode_prompt(&prompt)?;
//!
//! let mut detokenizer = model.detokenizer(SpecialInOutput::Skip);
//! let mut stop = StopMatcher::new(&["\n\n".to_owned()], StopText::Exclude)?;
//! while let Some(id) = sample().filter(|id| !model.eos_ids().contains(id)) {
//!     match stop.push(&detokenizer.push(id)) {
//!         StopStep::Emit(text) => print!("{text}"),
//!         StopStep::Stop { text, .. } => { print!("{text}"); break }
//!     }
//! }
//! // The end of an answer may still hold back an incomplete character, and the beginning of a stop string.
//! if let StopStep::Emit(text) = stop.push(&detokenizer.finish()) {
//!     print!("{text}{}", stop.finish());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
mod tools;

pub use chat::{ChatInput, NextTurn};
pub use detokenizer::{DecodeFrom, Detokenizer, SpecialInOutput};
pub use error::{LoadError, PromptError, TemplateError};
pub use gguf::GgufTokenizerData;
pub use model::{SpecialInContent, TextModel, TextOptions};
pub use special::Prompt;
pub use stop::{MAX_STOP_STRINGS, StopError, StopMatcher, StopStep, StopText};
pub use template::{ChatTemplate, ContentFormat};
pub use tokenizer::{AddSpecialTokens, NamedToken, NamedTokens, Tokenizer};
pub use tools::ToolSupport;

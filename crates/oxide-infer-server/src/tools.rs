//! Tool calls as models write them.
//!
//! A [`ToolNotation`] is a model family's way of writing calls. [`ToolParser`] finds calls written so in an answer's
//! text, whatever the pieces in which the text comes.

mod call;
mod json;
mod notation;
mod parser;

pub(crate) use notation::{HERMES_CLOSE, MISTRAL_ARGS, MISTRAL_ID, MistralForm, ToolNotation};
pub(crate) use parser::ToolParser;

/// What a parser finds in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text that belongs to no call.
    Text(String),
    /// A call begins.
    Begin {
        /// The id that the model gave it.
        id: Option<String>,
        /// The function's name.
        name: String,
    },
    /// More of the JSON text of the call's arguments.
    Arguments(String),
    /// The call is complete, or broke off.
    End,
}

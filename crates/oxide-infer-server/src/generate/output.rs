//! An answer's text in its parts: reasoning, content and tool calls.

use super::choice::Delta;
use crate::protocol::tools::CallCount;
use crate::reasoning::{Reasoning, ReasoningSplitter};
use crate::tools::{Piece, ToolNotation, ToolParser};
use oxide_infer::TokenId;
use std::sync::Arc;

/// What the text of a request's answers is made of.
#[derive(Clone, Debug)]
pub(crate) struct OutputPlan {
    /// Where reasoning begins.
    pub(crate) reasoning: Reasoning,
    /// The calls that may come, if any.
    pub(crate) calls: Option<CallPlan>,
    /// Special tokens that say where the parts are, and are shown to be read.
    pub(crate) shown: Arc<[TokenId]>,
}

/// The calls that may come.
#[derive(Clone, Debug)]
pub(crate) struct CallPlan {
    /// How they are written.
    pub(crate) notation: ToolNotation,
    /// The names of the functions.
    pub(crate) names: Arc<[String]>,
    /// How many there may be.
    pub(crate) count: CallCount,
    /// What text beside them is.
    pub(crate) text: TextBeside,
    /// How an answer with calls ends.
    pub(crate) ending: CallEnding,
}

/// What text beside calls is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextBeside {
    /// Content.
    Content,
    /// A part of the notation, because the answer is held to calls alone.
    Notation,
}

/// Which `finish_reason` a complete answer with calls has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnding {
    /// `tool_calls`.
    ToolCalls,
    /// `stop`, as OpenAI's API has it where the request named the function.
    Stop,
}

impl OutputPlan {
    /// All text is content.
    pub(crate) fn plain() -> Self {
        Self { reasoning: Reasoning::None, calls: None, shown: Arc::default() }
    }
}

/// What a call has gained since it was last looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// Its place among the answer's calls.
    pub(crate) index: usize,
    /// Its id and its function's name, in its first delta.
    pub(crate) begin: Option<(String, String)>,
    /// More of its arguments' JSON text.
    pub(crate) arguments: String,
}

/// Parts an answer's text as it comes.
#[derive(Debug)]
pub(super) struct OutputParser {
    reasoning: ReasoningSplitter,
    calls: Option<CallParser>,
}

#[derive(Debug)]
struct CallParser {
    plan: CallPlan,
    parser: ToolParser,
    /// White space that is content only if more content follows.
    blanks: String,
    begun: usize,
    complete: usize,
}

/// Whether more of an answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// It is.
    More,
    /// It has the one call that it may have.
    Nothing,
}

impl OutputParser {
    pub(super) fn new(plan: &OutputPlan) -> Self {
        let calls = plan.calls.clone().map(|plan| CallParser {
            parser: ToolParser::new(plan.notation, plan.names.clone()),
            plan,
            blanks: String::new(),
            begun: 0,
            complete: 0,
        });
        Self { reasoning: ReasoningSplitter::new(plan.reasoning), calls }
    }

    /// Takes more text; what is known of it goes to `delta`.
    pub(super) fn push(&mut self, text: &str, delta: &mut Delta) -> Wanted {
        match &mut self.calls {
            None => {
                self.reasoning.push(text, &mut delta.reasoning, &mut delta.text);
                Wanted::More
            }
            Some(calls) => {
                let mut rest = String::new();
                self.reasoning.push(text, &mut delta.reasoning, &mut rest);
                calls.push(&rest, delta)
            }
        }
    }

    /// No more text comes.
    pub(super) fn finish(&mut self, delta: &mut Delta) {
        let mut rest = String::new();
        self.reasoning.finish(&mut delta.reasoning, &mut rest);
        match &mut self.calls {
            None => delta.text.push_str(&rest),
            Some(calls) => calls.finish(&rest, delta),
        }
    }

    /// Whether the text that came last is reasoning.
    pub(super) fn is_reasoning(&self) -> bool {
        self.reasoning.is_inside()
    }

    /// Whether the answer has calls, all complete, and says so where it ends.
    pub(super) fn ends_with_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| {
            calls.plan.ending == CallEnding::ToolCalls && calls.begun > 0 && calls.begun == calls.complete
        })
    }
}

impl CallParser {
    fn push(&mut self, text: &str, delta: &mut Delta) -> Wanted {
        let mut pieces = Vec::new();
        self.parser.push(text, &mut pieces);
        self.take(pieces, delta)
    }

    fn finish(&mut self, rest: &str, delta: &mut Delta) {
        let mut pieces = Vec::new();
        self.parser.push(rest, &mut pieces);
        self.parser.finish(&mut pieces);
        self.take(pieces, delta);
        if self.begun == 0 && self.plan.text == TextBeside::Content {
            delta.text.push_str(&std::mem::take(&mut self.blanks));
        }
    }

    fn take(&mut self, pieces: Vec<Piece>, delta: &mut Delta) -> Wanted {
        for piece in pieces {
            if self.is_full() {
                return Wanted::Nothing;
            }
            match piece {
                Piece::Text(text) if self.plan.text == TextBeside::Content => self.text(&text, delta),
                Piece::Text(_) => {}
                Piece::Begin { id, name } => {
                    self.blanks.clear();
                    let id = id.unwrap_or_else(|| new_id(self.plan.notation));
                    let index = self.begun;
                    self.begun += 1;
                    delta.calls.push(CallDelta { index, begin: Some((id, name)), arguments: String::new() });
                }
                Piece::Arguments(text) => self.arguments(&text, delta),
                Piece::End => self.complete += 1,
            }
        }
        if self.is_full() { Wanted::Nothing } else { Wanted::More }
    }

    fn is_full(&self) -> bool {
        self.plan.count == CallCount::One && self.complete > 0
    }

    /// White space before a call belongs to no one.
    fn text(&mut self, text: &str, delta: &mut Delta) {
        let shown = text.trim_end();
        if !shown.is_empty() {
            delta.text.push_str(&std::mem::take(&mut self.blanks));
            delta.text.push_str(shown);
        }
        self.blanks.push_str(&text[shown.len()..]);
    }

    fn arguments(&self, text: &str, delta: &mut Delta) {
        let index = self.begun.saturating_sub(1);
        match delta.calls.last_mut().filter(|call| call.index == index) {
            Some(call) => call.arguments.push_str(text),
            None => delta.calls.push(CallDelta { index, begin: None, arguments: text.to_owned() }),
        }
    }
}

/// An id that no other call has.
fn new_id(notation: ToolNotation) -> String {
    let random = uuid::Uuid::new_v4().simple().to_string();
    match notation {
        // Mistral's templates take ids of nine letters and digits only.
        ToolNotation::Mistral(_) => random[..9].to_owned(),
        ToolNotation::Hermes | ToolNotation::Llama3 => format!("call_{}", &random[..24]),
    }
}

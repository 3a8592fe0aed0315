//! Finds the calls in an answer's text.

use super::Piece;
use super::call::{CallScanner, CallStep, Evidence};
use super::json::{Scan, ValueScanner};
use super::notation::{HERMES_CLOSE, MISTRAL_ARGS, MISTRAL_ID, ToolNotation};
use std::sync::Arc;

/// Takes an answer's text in pieces of any size and finds the calls in it. Each character is judged alone, so the pieces do
/// not matter. What looks like a call and turns out to be none is text, as it stands.
#[derive(Clone, Debug)]
pub(crate) struct ToolParser {
    notation: ToolNotation,
    names: Arc<[String]>,
    state: State,
    /// What has been read and may still turn out to be text.
    held: String,
    has_called: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing has come that is not white space.
    Start,
    /// Text, in which a marker is looked for.
    Text,
    /// Behind the marker.
    Opening,
    /// In `[…]` behind Mistral's marker, between calls.
    Array(Calls),
    /// In Mistral's `name[ARGS]{…}`, before the arguments.
    Header(Header),
    /// In its arguments.
    Arguments(ValueScanner),
    /// In a call's object.
    Object(CallScanner, Within),
    /// Behind a call, where the end marker or the next call is expected.
    Closing,
}

/// Whether an array has had a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    None,
    Some,
}

/// Where a call's object lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    Array,
    Nothing,
}

#[derive(Clone, Debug, Default)]
struct Header {
    name: String,
    /// Behind `[CALL_ID]`.
    id: Option<String>,
    /// `[ARGS]` or `[CALL_ID]`, as far as it has come.
    tag: String,
    has_args_tag: bool,
}

/// Where a character goes.
enum Turn {
    /// It has been dealt with.
    Taken,
    /// What is held is text, and so may be this character.
    NoCall,
    /// What is held belongs to the notation, and this character does not.
    Over,
}

impl ToolParser {
    /// Before an answer to a request with the functions `names`.
    pub(crate) fn new(notation: ToolNotation, names: Arc<[String]>) -> Self {
        Self { notation, names, state: State::Start, held: String::new(), has_called: false }
    }

    /// Takes more text; what is known of it goes to `out`.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        for c in text.chars() {
            self.feed(c, out);
        }
    }

    /// No more text comes: what is held back is text, but for the beginning of a call behind a marker, which is dropped.
    pub(crate) fn finish(&mut self, out: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        let is_text = match std::mem::replace(&mut self.state, State::Text) {
            State::Start | State::Text => true,
            // Without a marker only its form said that it would become a call.
            State::Object(..) => {
                let is_marked = self.has_called || held.starts_with(self.notation.marker());
                self.notation == ToolNotation::Llama3 && !is_marked
            }
            _ => false,
        };
        if is_text {
            push_text(&held, out);
        }
    }

    fn feed(&mut self, c: char, out: &mut Vec<Piece>) {
        let turn = match &mut self.state {
            State::Start => self.start(c),
            State::Text => self.text(c, out),
            State::Opening => self.opening(c),
            State::Array(calls) => {
                let calls = *calls;
                self.array(c, calls)
            }
            State::Header(_) => self.header(c, out),
            State::Arguments(_) => self.arguments(c, out),
            State::Object(..) => self.object(c, out),
            State::Closing => self.closing(c),
        };
        match turn {
            Turn::Taken => {}
            Turn::NoCall => {
                push_text(&std::mem::take(&mut self.held), out);
                self.state = State::Text;
                self.feed(c, out);
            }
            Turn::Over => {
                // White space or the beginning of an end marker that does not come: text, in which a marker may begin.
                let held = std::mem::take(&mut self.held);
                self.state = State::Text;
                self.push(&held, out);
                self.feed(c, out);
            }
        }
    }

    fn hold(&mut self, c: char) -> Turn {
        self.held.push(c);
        Turn::Taken
    }

    fn enter(&mut self, state: State) -> Turn {
        self.state = state;
        Turn::Taken
    }

    fn start(&mut self, c: char) -> Turn {
        match self.notation {
            _ if c.is_whitespace() => self.hold(c),
            ToolNotation::Llama3 if c == '{' => self.open_object(c, Within::Nothing),
            _ => Turn::Over,
        }
    }

    fn text(&mut self, c: char, out: &mut Vec<Piece>) -> Turn {
        let marker = self.notation.marker();
        self.held.push(c);
        while !marker.starts_with(&self.held) {
            let first = self.held.remove(0);
            push_text(first.encode_utf8(&mut [0; 4]), out);
        }
        if self.held == marker {
            self.state = State::Opening;
        }
        Turn::Taken
    }

    fn opening(&mut self, c: char) -> Turn {
        let is_mistral = matches!(self.notation, ToolNotation::Mistral(_));
        match c {
            _ if c.is_whitespace() => self.hold(c),
            '{' => self.open_object(c, Within::Nothing),
            '[' if is_mistral => {
                self.state = State::Array(Calls::None);
                self.hold(c)
            }
            _ if is_mistral && is_name(c) => {
                self.state = State::Header(Header { name: c.into(), ..Header::default() });
                self.hold(c)
            }
            _ => Turn::NoCall,
        }
    }

    fn array(&mut self, c: char, calls: Calls) -> Turn {
        match (c, calls) {
            ('{', _) => self.open_object(c, Within::Array),
            (']', Calls::Some) => {
                self.held.clear();
                self.enter(State::Text)
            }
            (',', Calls::Some) => Turn::Taken,
            _ if c.is_whitespace() => self.hold(c),
            (_, Calls::Some) => Turn::Over,
            (_, Calls::None) => Turn::NoCall,
        }
    }

    fn header(&mut self, c: char, out: &mut Vec<Piece>) -> Turn {
        let State::Header(header) = &mut self.state else { return Turn::NoCall };
        if c == '{' && header.tag.is_empty() {
            let Header { name, id, .. } = std::mem::take(header);
            let mut value = ValueScanner::default();
            value.push(c);
            self.held.clear();
            out.extend([Piece::Begin { id, name }, Piece::Arguments(c.into())]);
            return self.enter(State::Arguments(value));
        }
        match header.take(c) {
            true => self.hold(c),
            false => Turn::NoCall,
        }
    }

    fn arguments(&mut self, c: char, out: &mut Vec<Piece>) -> Turn {
        let State::Arguments(value) = &mut self.state else { return Turn::NoCall };
        match value.push(c) {
            Scan::Before | Scan::Inside => out.push(Piece::Arguments(c.into())),
            Scan::Last => {
                out.extend([Piece::Arguments(c.into()), Piece::End]);
                self.state = State::Text;
            }
            Scan::After | Scan::Broken => {
                out.push(Piece::End);
                return Turn::Over;
            }
        }
        Turn::Taken
    }

    fn open_object(&mut self, c: char, within: Within) -> Turn {
        let evidence = match self.notation {
            ToolNotation::Llama3 => Evidence::Names(self.names.clone()),
            _ => Evidence::Marker,
        };
        let mut scanner = CallScanner::new(evidence);
        // The opening bracket alone tells nothing.
        scanner.push(c, &mut Vec::new());
        self.state = State::Object(scanner, within);
        self.hold(c)
    }

    fn object(&mut self, c: char, out: &mut Vec<Piece>) -> Turn {
        let State::Object(scanner, within) = &mut self.state else { return Turn::NoCall };
        let step = scanner.push(c, out);
        let (within, has_begun) = (*within, scanner.has_begun());
        if has_begun {
            self.held.clear();
        }
        match step {
            CallStep::More if has_begun => Turn::Taken,
            CallStep::More => self.hold(c),
            CallStep::NotACall => Turn::NoCall,
            CallStep::Done | CallStep::Broken => {
                self.held.clear();
                self.has_called = true;
                self.state = match within {
                    Within::Array => State::Array(Calls::Some),
                    Within::Nothing => State::Closing,
                };
                if step == CallStep::Done {
                    return Turn::Taken;
                }
                out.push(Piece::End);
                self.feed(c, out);
                Turn::Taken
            }
        }
    }

    fn closing(&mut self, c: char) -> Turn {
        match self.notation {
            ToolNotation::Hermes => {
                let end = self.held.trim_start();
                if end.is_empty() && c.is_whitespace() {
                    return self.hold(c);
                }
                if HERMES_CLOSE[end.len()..].starts_with(c) {
                    let is_whole = end.len() + c.len_utf8() == HERMES_CLOSE.len();
                    self.held.push(c);
                    if is_whole {
                        self.held.clear();
                        self.state = State::Text;
                    }
                    return Turn::Taken;
                }
                Turn::Over
            }
            ToolNotation::Llama3 if c == ';' => Turn::Taken,
            ToolNotation::Llama3 if c == '{' => {
                self.held.clear();
                self.open_object(c, Within::Nothing)
            }
            _ if c.is_whitespace() => self.hold(c),
            _ => Turn::Over,
        }
    }
}

impl Header {
    /// Takes the next character before the arguments; false if no call is written so.
    fn take(&mut self, c: char) -> bool {
        if !self.tag.is_empty() || c == '[' {
            self.tag.push(c);
            match self.tag.as_str() {
                MISTRAL_ARGS => (self.has_args_tag, self.tag) = (true, String::new()),
                MISTRAL_ID if self.id.is_none() => (self.id, self.tag) = (Some(String::new()), String::new()),
                tag => {
                    return !self.has_args_tag
                        && (MISTRAL_ARGS.starts_with(tag) || MISTRAL_ID.starts_with(tag));
                }
            }
            return true;
        }
        if c.is_whitespace() {
            return true;
        }
        let part = self.id.as_mut().unwrap_or(&mut self.name);
        part.push(c);
        is_name(c) && !self.has_args_tag
    }
}

/// Whether a function's name may have `c`.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/')
}

/// Adds text, to the text before it if there is some.
fn push_text(text: &str, out: &mut Vec<Piece>) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Text(last)) => last.push_str(text),
        _ => out.push(Piece::Text(text.to_owned())),
    }
}

#[cfg(test)]
mod tests;

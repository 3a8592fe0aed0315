//! One call written as JSON: `{"name": "…", "arguments": {…}}`.

use super::Piece;
use super::json::{Scan, ValueScanner};
use std::sync::Arc;

/// What a character means for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallStep {
    /// The call goes on.
    More,
    /// It was the call's last character.
    Done,
    /// This is no call, and nothing was told of one.
    NotACall,
    /// The call has begun and breaks off before this character.
    Broken,
}

/// Reads a call character by character and tells its arguments as they come.
#[derive(Clone, Debug)]
pub(super) struct CallScanner {
    evidence: Evidence,
    place: Place,
    value: ValueScanner,
    /// The key, or the value that is kept as a whole, as far as it has come.
    raw: String,
    key: Key,
    name: Option<String>,
    /// Arguments that came before the name.
    arguments: Option<String>,
    begun: bool,
}

/// What says that an object is a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// A marker before it: it may have any name, and no arguments.
    Marker,
    /// Only its form: it must have arguments and one of these names.
    Names(Arc<[String]>),
}

impl Evidence {
    fn accepts(&self, name: &str) -> bool {
        match self {
            Self::Marker => !name.is_empty(),
            Self::Names(names) => names.iter().any(|known| known == name),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    BeforeObject,
    BeforeKey,
    InKey,
    BeforeColon,
    InValue,
    AfterValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Name,
    Arguments,
    /// One that says nothing to us.
    Other,
}

impl Key {
    /// Keys with their quotes. `type` and `id` are what some models copy from the prompt.
    const KNOWN: [(&str, Self); 5] = [
        ("\"name\"", Self::Name),
        ("\"arguments\"", Self::Arguments),
        ("\"parameters\"", Self::Arguments),
        ("\"type\"", Self::Other),
        ("\"id\"", Self::Other),
    ];
}

impl CallScanner {
    /// Before the object of a call.
    pub(super) fn new(evidence: Evidence) -> Self {
        Self {
            evidence,
            place: Place::BeforeObject,
            value: ValueScanner::default(),
            raw: String::new(),
            key: Key::Other,
            name: None,
            arguments: None,
            begun: false,
        }
    }

    /// Whether it has been told that there is a call.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Takes the next character; what is known of the call goes to `out`.
    pub(super) fn push(&mut self, c: char, out: &mut Vec<Piece>) -> CallStep {
        match self.place {
            _ if c.is_whitespace() && !matches!(self.place, Place::InKey | Place::InValue) => CallStep::More,
            Place::BeforeObject => self.expect(c, '{', Place::BeforeKey),
            Place::BeforeKey => match c {
                '"' => {
                    self.raw = "\"".to_owned();
                    self.place = Place::InKey;
                    CallStep::More
                }
                '}' => self.close(out),
                _ => self.fail(),
            },
            Place::InKey => self.in_key(c),
            Place::BeforeColon => {
                (self.value, self.raw) = (ValueScanner::default(), String::new());
                self.expect(c, ':', Place::InValue)
            }
            Place::InValue => self.in_value(c, out),
            Place::AfterValue => match c {
                '}' => self.close(out),
                _ => self.expect(c, ',', Place::BeforeKey),
            },
        }
    }

    fn expect(&mut self, c: char, expected: char, next: Place) -> CallStep {
        if c != expected {
            return self.fail();
        }
        self.place = next;
        CallStep::More
    }

    fn fail(&self) -> CallStep {
        if self.begun { CallStep::Broken } else { CallStep::NotACall }
    }

    fn in_key(&mut self, c: char) -> CallStep {
        self.raw.push(c);
        let known = Key::KNOWN.iter().find(|(key, _)| key.starts_with(&self.raw));
        match known {
            // Once the call has begun, whatever else the object has is skipped.
            None if self.begun && c != '"' => {}
            None if self.begun => (self.key, self.place) = (Key::Other, Place::BeforeColon),
            None => return CallStep::NotACall,
            Some((key, meaning)) if *key == self.raw => {
                self.place = Place::BeforeColon;
                self.key = if self.begun { Key::Other } else { *meaning };
            }
            Some(_) => {}
        }
        CallStep::More
    }

    fn in_value(&mut self, c: char, out: &mut Vec<Piece>) -> CallStep {
        let scan = self.value.push(c);
        match scan {
            Scan::Before => return CallStep::More,
            Scan::Broken => return self.fail(),
            Scan::After => {}
            Scan::Inside | Scan::Last if self.streams_from(c, out) => {
                out.push(Piece::Arguments(c.into()));
            }
            Scan::Inside | Scan::Last => self.raw.push(c),
        }
        if scan == Scan::Inside {
            return CallStep::More;
        }
        self.place = Place::AfterValue;
        if !self.take_value(out) {
            return CallStep::NotACall;
        }
        if scan == Scan::After { self.push(c, out) } else { CallStep::More }
    }

    /// Whether the value is told as it comes: arguments that are an object, once the name is known.
    fn streams_from(&mut self, c: char, out: &mut Vec<Piece>) -> bool {
        let Some(name) = self.name.as_ref().filter(|_| self.key == Key::Arguments) else { return false };
        if !self.begun && c == '{' && self.raw.is_empty() {
            self.begun = true;
            out.push(Piece::Begin { id: None, name: name.clone() });
        }
        self.begun
    }

    /// Takes in a value that has ended; false if no call has such a value.
    fn take_value(&mut self, out: &mut Vec<Piece>) -> bool {
        let raw = std::mem::take(&mut self.raw);
        match self.key {
            Key::Other => return true,
            // It was told as it came.
            Key::Arguments if self.begun => {
                self.key = Key::Other;
                return true;
            }
            Key::Name => {
                let name = serde_json::from_str(&raw).ok();
                self.name = name.filter(|name: &String| self.evidence.accepts(name));
            }
            Key::Arguments => self.arguments = object_text(raw),
        }
        match (self.key, &self.name, &self.arguments) {
            (_, Some(name), Some(arguments)) => {
                self.begun = true;
                out.push(Piece::Begin { id: None, name: name.clone() });
                out.push(Piece::Arguments(arguments.clone()));
                true
            }
            (Key::Name, name, _) => name.is_some(),
            (_, _, arguments) => arguments.is_some(),
        }
    }

    fn close(&mut self, out: &mut Vec<Piece>) -> CallStep {
        if !self.begun {
            let is_marked = self.evidence == Evidence::Marker;
            let Some(name) = self.name.take().filter(|_| is_marked) else { return CallStep::NotACall };
            out.push(Piece::Begin { id: None, name });
            out.push(Piece::Arguments("{}".to_owned()));
        }
        out.push(Piece::End);
        CallStep::Done
    }
}

/// The object that arguments are; some models write it as a string, or null for none.
fn object_text(raw: String) -> Option<String> {
    if raw.starts_with('{') {
        return Some(raw);
    }
    if raw == "null" {
        return Some("{}".to_owned());
    }
    let inner: String = serde_json::from_str(&raw).ok()?;
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&inner).ok().map(|_| inner)
}

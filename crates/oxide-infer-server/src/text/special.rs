//! Special-token text inside user content: finding it, and marking it so that it stays plain text.
//!
//! With `--escape-special-tokens`, text such as `<|im_end|>` in a message is to be tokenized as ordinary text while the
//! same text written by the chat template stays a special token. A template only yields one string, so the two have to
//! be told apart in it. Before rendering, a marker character is put behind the first character of every place in the
//! request where a special token begins, or could begin and continue in the text that follows it. The marker is a
//! private-use character that occurs nowhere in the request or the template, so that no content can contain or forge
//! one. A special token can then only be found in the rendered text where the template wrote it. The markers are
//! removed before anything is tokenized.

use std::{collections::HashSet, ops::RangeInclusive};

use aho_corasick::AhoCorasick;
use serde_json::Value;

use super::PromptError;

/// Searches for the texts of all special tokens at once.
#[derive(Debug)]
pub(super) struct SpecialTexts {
    texts: Vec<String>,
    search: Option<AhoCorasick>,
}

impl SpecialTexts {
    pub(super) fn new(mut texts: Vec<String>) -> Self {
        texts.sort_unstable();
        // A search that cannot be built would have to be larger than 2 GiB.
        let search = AhoCorasick::new(&texts).ok().filter(|_| !texts.is_empty());
        Self { texts, search }
    }

    /// Where to break `text` so that no special token in it, nor one that begins in it, is whole: byte offsets, ascending.
    pub(super) fn breaks(&self, text: &str) -> Vec<usize> {
        let Some(search) = &self.search else { return Vec::new() };
        let after_first_char = |start: usize| start + text[start..].chars().next().map_or(0, char::len_utf8);
        let mut breaks: Vec<usize> =
            search.find_overlapping_iter(text).map(|found| after_first_char(found.start())).collect();
        breaks.extend(self.unfinished(text).map(after_first_char));
        breaks.sort_unstable();
        breaks.dedup();
        breaks
    }

    /// Where a special token begins that the end of `text` cuts off.
    fn unfinished<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        let longest = self.texts.iter().map(String::len).max().unwrap_or(0);
        let tail = text.len().saturating_sub(longest);
        text.char_indices()
            .rev()
            .map(|(start, _)| start)
            .take_while(move |&start| start > tail || start == 0)
            .filter(move |&start| {
                let rest = &text[start..];
                let at = self.texts.partition_point(|special| special.as_str() < rest);
                self.texts.get(at).is_some_and(|special| special.starts_with(rest))
            })
    }
}

/// A character to mark with, and where.
pub(super) struct Marker<'a> {
    specials: &'a SpecialTexts,
    char: char,
}

impl<'a> Marker<'a> {
    /// A marker that occurs neither in the template nor in `values`; `None` when no string of `values` needs marks.
    pub(super) fn choose(
        specials: &'a SpecialTexts,
        template: &str,
        values: &[&Value],
    ) -> Result<Option<Self>, PromptError> {
        let mut needed = false;
        let mut taken: HashSet<char> = template.chars().filter(|&c| is_private_use(c)).collect();
        for value in values {
            visit(value, &mut |text| {
                needed |= !specials.breaks(text).is_empty();
                taken.extend(text.chars().filter(|&c| is_private_use(c)));
            });
        }
        if !needed {
            return Ok(None);
        }
        let mut free = PRIVATE_USE.into_iter().flatten().filter(|c| !taken.contains(c));
        free.next().map(|char| Some(Self { specials, char })).ok_or(PromptError::NoMarkerLeft)
    }

    /// Marks every string in `value`, object keys included.
    pub(super) fn mark(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.mark_text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.mark(item)),
            Value::Object(fields) => {
                for (mut key, mut field) in std::mem::take(fields) {
                    self.mark_text(&mut key);
                    self.mark(&mut field);
                    fields.insert(key, field);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn mark_text(&self, text: &mut String) {
        for at in self.specials.breaks(text).into_iter().rev() {
            text.insert(at, self.char);
        }
    }

    /// The rendered template as a prompt.
    pub(super) fn unmark(&self, rendered: String) -> Prompt {
        if !rendered.contains(self.char) {
            return Prompt::plain(rendered);
        }
        let text = rendered.replace(self.char, "");
        Prompt { text, marked: Some(MarkedText { text: rendered, marker: self.char }) }
    }
}

/// The text of a prompt, and which of its special-token text is user content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    text: String,
    marked: Option<MarkedText>,
}

impl Prompt {
    /// A prompt in which all special-token text stands for special tokens.
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), marked: None }
    }

    /// The text, as the model sees it.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn marked(&self) -> Option<&MarkedText> {
        self.marked.as_ref()
    }
}

/// A text with marks in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MarkedText {
    text: String,
    marker: char,
}

impl MarkedText {
    /// The text with its marks.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Maps byte offsets in the marked text to offsets in the text without marks.
    pub(super) fn offsets(&self) -> impl Fn(usize) -> usize {
        let marks: Vec<usize> = self.text.match_indices(self.marker).map(|(at, _)| at).collect();
        let width = self.marker.len_utf8();
        move |at| at - width * marks.partition_point(|&mark| mark < at)
    }
}

/// Planes 15 and 16 first: the other area is in use by icon fonts.
const PRIVATE_USE: [RangeInclusive<char>; 3] =
    ['\u{F0000}'..='\u{FFFFD}', '\u{100000}'..='\u{10FFFD}', '\u{E000}'..='\u{F8FF}'];

fn is_private_use(c: char) -> bool {
    PRIVATE_USE.iter().any(|range| range.contains(&c))
}

fn visit(value: &Value, look: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => look(text),
        Value::Array(items) => items.iter().for_each(|item| visit(item, look)),
        Value::Object(fields) => {
            for (key, field) in fields {
                look(key);
                visit(field, look);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn specials(texts: &[&str]) -> SpecialTexts {
        SpecialTexts::new(texts.iter().map(|text| text.to_string()).collect())
    }

    #[test]
    fn breaks_fall_behind_the_first_character_of_each_special_token() {
        let specials = specials(&["<|im_end|>", "<|im_start|>", "[INST]"]);
        assert_eq!(specials.breaks("a<|im_end|>[INST]b"), [2, 12]);
        assert_eq!(specials.breaks("nothing < here |>"), [] as [usize; 0]);
    }

    #[test]
    fn a_special_token_that_the_end_cuts_off_is_broken_too() {
        let specials = specials(&["<|im_end|>", "<|im_start|>"]);
        assert_eq!(specials.breaks("abc<|im_"), [4]);
        assert_eq!(specials.breaks("abc<"), [4]);
        assert_eq!(specials.breaks("<|im_"), [1]);
        assert_eq!(specials.breaks("abc<|im_x"), [] as [usize; 0]);
    }

    #[test]
    fn overlapping_special_tokens_are_each_broken() {
        assert_eq!(specials(&["aba", "bab"]).breaks("xababx"), [2, 3]);
    }

    #[test]
    fn the_marker_occurs_nowhere_in_the_request() {
        let specials = specials(&["<s>"]);
        let value = json!({"content": "<s>\u{F0000}\u{F0001}", "\u{F0003}": 1});
        let marker = Marker::choose(&specials, "template \u{F0002}", &[&value]).unwrap().unwrap();
        assert_eq!(marker.char, '\u{F0004}');
        let nothing = json!({"content": "plain \u{F0000}"});
        assert!(Marker::choose(&specials, "<s>", &[&nothing]).unwrap().is_none());
    }

    #[test]
    fn content_with_every_private_use_character_is_refused() {
        let all: String = PRIVATE_USE.into_iter().flatten().collect();
        let value = json!([all, "<s>"]);
        let error = Marker::choose(&specials(&["<s>"]), "", &[&value]).err().unwrap();
        assert!(matches!(error, PromptError::NoMarkerLeft));
    }

    #[test]
    fn marks_go_into_keys_and_nested_values_and_come_out_again() {
        let specials = specials(&["<s>"]);
        let mut value = json!({"<s>": [{"text": "a<s>"}, 1, null]});
        let marker = Marker::choose(&specials, "", &[&value]).unwrap().unwrap();
        marker.mark(&mut value);
        assert_eq!(value, json!({"<\u{F0000}s>": [{"text": "a<\u{F0000}s>"}, 1, null]}));
        let prompt = marker.unmark("<s>a<\u{F0000}s>".into());
        assert_eq!(prompt.text(), "<s>a<s>");
        let offset = prompt.marked().unwrap().offsets();
        assert_eq!([0, 4, 5, 9, 11].map(offset), [0, 4, 5, 5, 7]);
    }
}

//! Stop strings over a stream of text pieces.

use thiserror::Error;

/// The largest number of stop strings in one request, as in OpenAI's API.
pub const MAX_STOP_STRINGS: usize = 4;

/// Whether the text handed on at a match ends before or after the stop string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopText {
    /// The stop string is cut off (OpenAI).
    #[default]
    Exclude,
    /// The stop string is kept (`include_stop_str_in_output` of vLLM).
    Include,
}

/// Why a set of stop strings is not admitted.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum StopError {
    /// More than [`MAX_STOP_STRINGS`].
    #[error("at most {MAX_STOP_STRINGS} stop strings are allowed, {0} were given")]
    TooMany(usize),
    /// An empty stop string would match before the first token.
    #[error("stop strings must not be empty, number {0} is")]
    Empty(usize),
}

/// What a [`StopMatcher`] hands on after a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub enum StopStep {
    /// No stop string is complete. The text may be emitted; it may be empty while a stop string may still complete.
    Emit(String),
    /// A stop string is complete: the text is the last of the answer.
    Stop {
        /// The last text to emit.
        text: String,
        /// Which stop string matched: an index into the list given to [`StopMatcher::new`].
        index: usize,
    },
}

/// Finds stop strings across the borders of text pieces and never hands on text that may turn out to belong to one.
///
/// The stop string that completes first wins; of several that complete at the same character, the longest. So the answer
/// does not depend on how the text was cut into pieces. Each byte costs amortised constant time per stop string
/// (Knuth–Morris–Pratt), and what is held back is never longer than the longest stop string.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    stop_text: StopText,
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher for up to [`MAX_STOP_STRINGS`] non-empty strings; with none, text passes straight through.
    pub fn new(stops: &[String], stop_text: StopText) -> Result<Self, StopError> {
        if stops.len() > MAX_STOP_STRINGS {
            return Err(StopError::TooMany(stops.len()));
        }
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(StopError::Empty(index));
        }
        Ok(Self {
            patterns: stops.iter().map(|stop| Pattern::new(stop)).collect(),
            stop_text,
            held: String::new(),
            stopped: false,
        })
    }

    /// Whether there is nothing to find, so that text may go past the matcher.
    pub fn is_idle(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Takes the next piece of text and says what may be emitted. After a stop everything is swallowed.
    pub fn push(&mut self, piece: &str) -> StopStep {
        if self.stopped {
            return StopStep::Emit(String::new());
        }
        let start = self.held.len();
        self.held.push_str(piece);
        for (offset, byte) in piece.bytes().enumerate() {
            if let Some(index) = self.advance(byte) {
                return self.stop_at(start + offset + 1, index);
            }
        }
        let keep = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopStep::Emit(std::mem::replace(&mut self.held, rest))
    }

    /// The text still held back once no more text can come; empty after a stop.
    pub fn finish(&mut self) -> String {
        self.stopped = true;
        std::mem::take(&mut self.held)
    }

    /// Feeds one byte to every pattern; the longest that is complete, if any.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut complete = None;
        for (index, pattern) in self.patterns.iter_mut().enumerate() {
            let longest = complete.map_or(0, |(_, len)| len);
            if pattern.advance(byte) && pattern.bytes.len() > longest {
                complete = Some((index, pattern.bytes.len()));
            }
        }
        complete.map(|(index, _)| index)
    }

    fn stop_at(&mut self, end: usize, index: usize) -> StopStep {
        self.stopped = true;
        let mut text = std::mem::take(&mut self.held);
        text.truncate(match self.stop_text {
            StopText::Include => end,
            StopText::Exclude => end - self.patterns[index].bytes.len(),
        });
        StopStep::Stop { text, index }
    }
}

/// One stop string with its failure table (Knuth, Morris, Pratt 1977).
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `border[i]`: length of the longest proper prefix of `bytes[..=i]` that is also its suffix.
    border: Vec<usize>,
    /// How many bytes of the pattern the text seen so far ends with.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut border = vec![0; bytes.len()];
        let mut len = 0;
        for i in 1..bytes.len() {
            while len > 0 && bytes[i] != bytes[len] {
                len = border[len - 1];
            }
            if bytes[i] == bytes[len] {
                len += 1;
            }
            border[i] = len;
        }
        Self { bytes, border, matched: 0 }
    }

    /// Whether the pattern is complete with this byte. It is not advanced again after that.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matcher(stops: &[&str], stop_text: StopText) -> StopMatcher {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        StopMatcher::new(&stops, stop_text).unwrap()
    }

    /// Everything emitted, and the index of the stop string that ended the text.
    fn run(mut matcher: StopMatcher, pieces: &[&str]) -> (String, Option<usize>) {
        let mut out = String::new();
        for piece in pieces {
            match matcher.push(piece) {
                StopStep::Emit(text) => out.push_str(&text),
                StopStep::Stop { text, index } => {
                    out.push_str(&text);
                    return (out, Some(index));
                }
            }
        }
        out.push_str(&matcher.finish());
        (out, None)
    }

    #[test]
    fn a_stop_string_over_three_pieces_is_cut_off() {
        let got = run(matcher(&["<end>"], StopText::Exclude), &["one <", "en", "d> two"]);
        assert_eq!(got, ("one ".to_string(), Some(0)));
    }

    #[test]
    fn a_stop_string_is_kept_on_request_and_what_follows_is_not() {
        let got = run(matcher(&["<end>"], StopText::Include), &["one <", "en", "d> two"]);
        assert_eq!(got, ("one <end>".to_string(), Some(0)));
    }

    #[test]
    fn text_is_held_back_only_while_a_stop_string_may_complete() {
        let mut m = matcher(&["\n\nHuman:"], StopText::Exclude);
        assert_eq!(m.push("Hi\n"), StopStep::Emit("Hi".into()));
        assert_eq!(m.push("\n"), StopStep::Emit("".into()));
        assert_eq!(m.push("\n"), StopStep::Emit("\n".into()), "three newlines: the first is free");
        assert_eq!(m.push("Humans"), StopStep::Emit("\n\nHumans".into()));
        assert_eq!(m.push("\n\nHum"), StopStep::Emit("".into()));
        assert_eq!(m.finish(), "\n\nHum");
    }

    #[test]
    fn the_first_to_complete_wins_and_the_longest_of_those_complete_together() {
        assert_eq!(run(matcher(&["abcd", "bc"], StopText::Exclude), &["xabcd"]), ("xa".into(), Some(1)));
        assert_eq!(run(matcher(&["c", "abc"], StopText::Exclude), &["xabcd"]), ("x".into(), Some(1)));
    }

    #[test]
    fn a_partial_match_restarts_inside_itself() {
        assert_eq!(run(matcher(&["aab"], StopText::Exclude), &["aa", "aab"]), ("aa".into(), Some(0)));
        assert_eq!(run(matcher(&["abab!"], StopText::Exclude), &["aba", "bab!"]), ("ab".into(), Some(0)));
    }

    #[test]
    fn characters_that_share_their_first_bytes_are_not_mixed_up() {
        // 。 is E3 80 82 and 、 is E3 80 81.
        assert_eq!(run(matcher(&["。"], StopText::Exclude), &["好、", "好。好"]), ("好、好".into(), Some(0)));
    }

    #[test]
    fn too_many_and_empty_stop_strings_are_refused() {
        let five = vec!["x".to_string(); 5];
        assert_eq!(StopMatcher::new(&five, StopText::Exclude).unwrap_err(), StopError::TooMany(5));
        let empty = ["a".to_string(), String::new()];
        assert_eq!(StopMatcher::new(&empty, StopText::Exclude).unwrap_err(), StopError::Empty(1));
    }

    /// The answer by trying every end position: slow and plain.
    fn expected(stops: &[String], text: &str) -> (String, Option<usize>) {
        for (end, _) in text.char_indices().map(|(i, c)| (i + c.len_utf8(), c)) {
            let ending = stops.iter().enumerate().filter(|(_, s)| text[..end].ends_with(s.as_str()));
            // `max_by_key` takes the last of equals, the matcher the first: equal strings are one stop string.
            if let Some((index, stop)) = ending.rev().max_by_key(|(_, s)| s.len()) {
                return (text[..end - stop.len()].to_string(), Some(index));
            }
        }
        (text.to_string(), None)
    }

    proptest! {
        #[test]
        fn any_cut_of_the_text_gives_what_a_plain_search_gives(
            stops in prop::collection::vec("[abé。]{1,4}", 1..=4),
            pieces in prop::collection::vec("[abé。]{0,4}", 0..12),
        ) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let got = run(StopMatcher::new(&stops, StopText::Exclude).unwrap(), &pieces);
            prop_assert_eq!(&got, &expected(&stops, &pieces.concat()));
            for stop in &stops {
                prop_assert!(!got.0.contains(stop.as_str()));
            }
        }

        #[test]
        fn what_is_held_back_is_just_what_a_stop_string_could_still_need(
            stops in prop::collection::vec("[abé]{1,4}", 1..=4),
            pieces in prop::collection::vec("[abé]{0,4}", 0..12),
        ) {
            let mut matcher = StopMatcher::new(&stops, StopText::Exclude).unwrap();
            let (mut seen, mut emitted) = (String::new(), 0);
            for piece in &pieces {
                seen.push_str(piece);
                let StopStep::Emit(text) = matcher.push(piece) else { break };
                emitted += text.len();
                let could_begin = |from: &str| stops.iter().any(|stop| stop.starts_with(from));
                for (start, _) in seen.char_indices().filter(|&(start, _)| start < emitted) {
                    prop_assert!(!could_begin(&seen[start..]), "{:?} of {seen:?} was emitted", &seen[start..emitted]);
                }
                prop_assert!(could_begin(&seen[emitted..]), "{:?} was held back for nothing", &seen[emitted..]);
            }
        }
    }
}

//! Reasoning sections: what a model writes for itself before it answers.

/// The tags around a reasoning section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReasoningTags {
    /// Begins it.
    pub(crate) open: &'static str,
    /// Ends it.
    pub(crate) close: &'static str,
}

impl ReasoningTags {
    /// Qwen3, DeepSeek R1 and many others.
    pub(crate) const THINK: Self = Self { open: "<think>", close: "</think>" };
    /// Magistral.
    pub(crate) const MISTRAL: Self = Self { open: "[THINK]", close: "[/THINK]" };

    /// The tags that a chat template knows.
    pub(crate) fn of_template(source: &str) -> Option<Self> {
        [Self::THINK, Self::MISTRAL].into_iter().find(|tags| source.contains(tags.close))
    }
}

/// Where an answer's reasoning begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reasoning {
    /// There is none.
    None,
    /// Behind the opening tag, if the answer begins with it.
    Possible(ReasoningTags),
    /// At once: the prompt ends with the opening tag.
    Open(ReasoningTags),
}

impl Reasoning {
    /// What may follow a prompt that opens a new answer.
    pub(crate) fn after(prompt: &str, tags: ReasoningTags) -> Self {
        let prompt = prompt.trim_end();
        match () {
            () if prompt.ends_with(tags.open) => Self::Open(tags),
            // The template has written an empty section, because thinking is turned off.
            () if prompt.ends_with(tags.close) => Self::None,
            () => Self::Possible(tags),
        }
    }

    /// What may follow the beginning of an answer, which is to be continued.
    pub(crate) fn within(begun: &str, tags: ReasoningTags) -> Self {
        match (begun.rfind(tags.open), begun.rfind(tags.close)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => Self::Open(tags),
            _ => Self::None,
        }
    }
}

/// Parts an answer's text into reasoning and the rest. White space beside the tags belongs to neither.
#[derive(Clone, Debug)]
pub(crate) struct ReasoningSplitter {
    state: State,
    /// What may still be a tag, or white space before one.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space, or the beginning of the opening tag.
    Before(ReasoningTags),
    /// In the section, where nothing has been shown of it.
    Opened(ReasoningTags),
    Inside(ReasoningTags),
    /// Behind the section, before the rest.
    Closed,
    Outside,
}

impl ReasoningSplitter {
    /// At the beginning of an answer.
    pub(crate) fn new(reasoning: Reasoning) -> Self {
        let state = match reasoning {
            Reasoning::None => State::Outside,
            Reasoning::Possible(tags) => State::Before(tags),
            Reasoning::Open(tags) => State::Opened(tags),
        };
        Self { state, held: String::new() }
    }

    /// Takes more text, and adds what is known of it to the two parts.
    pub(crate) fn push(&mut self, text: &str, reasoning: &mut String, rest: &mut String) {
        for (at, c) in text.char_indices() {
            match self.state {
                State::Outside => return rest.push_str(&text[at..]),
                State::Closed if c.is_whitespace() => {}
                State::Closed => self.leave(c, rest),
                State::Before(tags) => self.before(c, tags, rest),
                State::Opened(tags) if c.is_whitespace() && self.held.is_empty() => {
                    self.state = State::Opened(tags);
                }
                State::Opened(tags) | State::Inside(tags) => self.inside(c, tags, reasoning),
            }
        }
    }

    /// Whether the section has been opened and not closed.
    pub(crate) fn is_inside(&self) -> bool {
        matches!(self.state, State::Opened(_) | State::Inside(_))
    }

    /// No more text comes: what is held back belongs where it stands.
    pub(crate) fn finish(&mut self, reasoning: &mut String, rest: &mut String) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Opened(_) | State::Inside(_) => reasoning.push_str(held.trim_end()),
            State::Before(_) => rest.push_str(&held),
            State::Closed | State::Outside => {}
        }
    }

    fn leave(&mut self, c: char, rest: &mut String) {
        self.state = State::Outside;
        rest.push_str(&std::mem::take(&mut self.held));
        rest.push(c);
    }

    fn before(&mut self, c: char, tags: ReasoningTags, rest: &mut String) {
        let tag = self.held.trim_start();
        if tag.is_empty() && c.is_whitespace() {
            return self.held.push(c);
        }
        if !tags.open[tag.len()..].starts_with(c) {
            return self.leave(c, rest);
        }
        self.held.push(c);
        if self.held.ends_with(tags.open) {
            self.held.clear();
            self.state = State::Opened(tags);
        }
    }

    fn inside(&mut self, c: char, tags: ReasoningTags, reasoning: &mut String) {
        self.held.push(c);
        if self.held.ends_with(tags.close) {
            // Only white space can stand before it.
            self.held.clear();
            self.state = State::Closed;
            return;
        }
        // What may be white space before the tag, and the tag's beginning, waits.
        let kept = (0..=self.held.len()).filter(|&at| self.held.is_char_boundary(at)).find(|&at| {
            let tag = self.held[at..].trim_start();
            tags.close.starts_with(tag)
        });
        let shown: String = self.held.drain(..kept.unwrap_or(self.held.len())).collect();
        if !shown.is_empty() {
            self.state = State::Inside(tags);
            reasoning.push_str(&shown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TAGS: ReasoningTags = ReasoningTags::THINK;

    fn split<'a>(reasoning: Reasoning, pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(reasoning);
        let (mut thought, mut rest) = (String::new(), String::new());
        for piece in pieces {
            splitter.push(piece, &mut thought, &mut rest);
        }
        splitter.finish(&mut thought, &mut rest);
        (thought, rest)
    }

    #[test]
    fn a_section_at_the_beginning_is_reasoning() {
        for (text, thought, rest) in [
            ("<think>\nhm <b>\n</think>\n\nSo: 2", "hm <b>", "So: 2"),
            (" \n<think>a</think>b", "a", "b"),
            ("<think>\n\n</think>\n\nb", "", "b"),
            ("b <think>a</think>", "", "b <think>a</think>"),
            (" <thin", "", " <thin"),
            ("<think>a </thin", "a </thin", ""),
            ("<think>a\n", "a", ""),
            ("<think>a</think></think>", "a", "</think>"),
        ] {
            assert_eq!(split(Reasoning::Possible(TAGS), [text]), (thought.into(), rest.into()), "{text}");
        }
        assert_eq!(split(Reasoning::Open(TAGS), ["a\nb</think> c"]), ("a\nb".into(), "c".into()));
        assert_eq!(split(Reasoning::None, ["<think>a</think>"]).1, "<think>a</think>");
    }

    #[test]
    fn the_prompt_says_whether_the_section_is_open() {
        assert_eq!(Reasoning::after("assistant\n<think>\n", TAGS), Reasoning::Open(TAGS));
        assert_eq!(Reasoning::after("assistant\n<think>\n\n</think>\n\n", TAGS), Reasoning::None);
        assert_eq!(Reasoning::after("<think>\nassistant\n", TAGS), Reasoning::Possible(TAGS));
        assert_eq!(Reasoning::within("<think>hm", TAGS), Reasoning::Open(TAGS));
        assert_eq!(Reasoning::within("<think>hm</think>So", TAGS), Reasoning::None);
    }

    proptest! {
        #[test]
        fn the_pieces_in_which_a_text_comes_do_not_matter(
            words in prop::collection::vec(prop::sample::select(vec!["<think>", "</think>", "<", "é", " ", "\n", "a", "</th"]), 0..10),
        ) {
            let text = words.concat();
            for reasoning in [Reasoning::Possible(TAGS), Reasoning::Open(TAGS)] {
                let whole = split(reasoning, [text.as_str()]);
                for (at, _) in text.char_indices() {
                    prop_assert_eq!(&split(reasoning, [&text[..at], &text[at..]]), &whole);
                }
                let chars: Vec<String> = text.chars().map(String::from).collect();
                prop_assert_eq!(&split(reasoning, chars.iter().map(String::as_str)), &whole);
            }
        }
    }
}

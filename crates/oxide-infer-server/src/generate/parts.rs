//! An answer as parts that come one after the other, for APIs that have it so.

use super::choice::Delta;
use super::output::CallDelta;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What the model wrote for itself.
    Reasoning(String),
    /// Content.
    Text(String),
    /// A call; the arguments are a JSON text.
    Call { id: String, name: String, arguments: String },
}

impl Part {
    /// The part as it is when it begins.
    pub(crate) fn emptied(&self) -> Self {
        let mut part = self.clone();
        part.text().clear();
        part
    }

    fn text(&mut self) -> &mut String {
        match self {
            Self::Reasoning(text) | Self::Text(text) | Self::Call { arguments: text, .. } => text,
        }
    }
}

/// What happens to an answer's parts. The number is the part's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PartStep {
    /// A part begins, and is empty.
    Begin(usize),
    /// It gains text.
    More(usize, String),
    /// It is complete.
    End(usize),
}

/// The parts of an answer, of which at most the last is open.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    parts: Vec<Part>,
    is_open: bool,
}

impl Parts {
    /// The parts of a whole answer: reasoning, text, calls.
    pub(crate) fn of_whole(delta: Delta) -> Vec<Part> {
        let mut parts = Self::default();
        parts.take(delta);
        parts.parts
    }

    /// The part of a number that a step had.
    pub(crate) fn get(&self, index: usize) -> &Part {
        &self.parts[index]
    }

    /// All parts.
    pub(crate) fn all(&self) -> &[Part] {
        &self.parts
    }

    /// Takes in what is new.
    pub(crate) fn take(&mut self, delta: Delta) -> Vec<PartStep> {
        let mut steps = Vec::new();
        let (begun, more): (Vec<_>, Vec<_>) = delta.calls.into_iter().partition(|call| call.begin.is_some());
        // What is left of the call that is open comes before what follows it.
        more.into_iter().for_each(|call| self.push(call.arguments, &mut steps));
        if !delta.reasoning.is_empty() {
            self.reopen(Part::Reasoning(String::new()), &mut steps);
            self.push(delta.reasoning, &mut steps);
        }
        if !delta.text.is_empty() {
            self.reopen(Part::Text(String::new()), &mut steps);
            self.push(delta.text, &mut steps);
        }
        for CallDelta { begin, arguments, .. } in begun {
            let (id, name) = begin.unwrap_or_default();
            self.begin(Part::Call { id, name, arguments: String::new() }, &mut steps);
            self.push(arguments, &mut steps);
        }
        steps
    }

    /// Ends the part that is open.
    pub(crate) fn end(&mut self) -> Option<PartStep> {
        let is_open = std::mem::replace(&mut self.is_open, false);
        is_open.then(|| PartStep::End(self.parts.len() - 1))
    }

    /// Goes on with a part of the same kind, or begins one.
    fn reopen(&mut self, part: Part, steps: &mut Vec<PartStep>) {
        let open = self.parts.last().filter(|_| self.is_open);
        if open.is_none_or(|open| std::mem::discriminant(open) != std::mem::discriminant(&part)) {
            self.begin(part, steps);
        }
    }

    fn begin(&mut self, part: Part, steps: &mut Vec<PartStep>) {
        steps.extend(self.end());
        steps.push(PartStep::Begin(self.parts.len()));
        self.parts.push(part);
        self.is_open = true;
    }

    fn push(&mut self, text: String, steps: &mut Vec<PartStep>) {
        let Some(part) = self.parts.last_mut().filter(|_| !text.is_empty()) else { return };
        part.text().push_str(&text);
        steps.push(PartStep::More(self.parts.len() - 1, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(index: usize, begin: Option<&str>, arguments: &str) -> CallDelta {
        let begin = begin.map(|name| (format!("id{index}"), name.to_owned()));
        CallDelta { index, begin, arguments: arguments.to_owned() }
    }

    #[test]
    fn parts_follow_each_other_and_never_overlap() {
        let mut parts = Parts::default();
        let text = |text: &str| Delta { text: text.to_owned(), ..Delta::default() };
        let mut steps = parts.take(Delta { reasoning: "r".into(), ..text("a") });
        steps.extend(parts.take(Delta { calls: vec![call(0, Some("f"), "{")], ..text("b") }));
        steps.extend(
            parts.take(Delta { calls: vec![call(0, None, "}"), call(1, Some("g"), "{}")], ..text("c") }),
        );
        steps.extend(parts.end());
        assert_eq!(parts.end(), None);
        use PartStep::{Begin, End, More};
        assert_eq!(
            steps,
            [
                Begin(0),
                More(0, "r".into()),
                End(0),
                Begin(1),
                More(1, "a".into()),
                More(1, "b".into()),
                End(1),
                Begin(2),
                More(2, "{".into()),
                More(2, "}".into()),
                End(2),
                Begin(3),
                More(3, "c".into()),
                End(3),
                Begin(4),
                More(4, "{}".into()),
                End(4),
            ]
        );
        let call = Part::Call { id: "id0".into(), name: "f".into(), arguments: "{}".into() };
        assert_eq!((parts.get(1), parts.get(2)), (&Part::Text("ab".into()), &call));
    }
}

//! What a request holds its answers to, before it is compiled.

use super::answer::{AnswerGrammar, Means, Refusal, TextGrammar};
use super::{lark, schema};
use llguidance::ParserFactory;
use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

/// What answers must look like, and the field that says so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GrammarSpec {
    /// The field.
    pub(crate) param: String,
    /// What they must look like.
    pub(crate) source: GrammarSource,
}

/// What answers must look like.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GrammarSource {
    /// JSON that this schema, an object, accepts.
    Schema(Value),
    /// Text that this regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of this grammar, in Lark's form or in the form with `::=`.
    Grammar(String),
    /// Reasoning, text and tool calls.
    Answer(AnswerGrammar),
}

impl GrammarSpec {
    /// A text that no other grammar has.
    pub(super) fn key(&self) -> String {
        // Errors name the field, so it is part of the grammar.
        match &self.source {
            GrammarSource::Schema(schema) => format!("{} schema {schema}", self.param),
            GrammarSource::Regex(regex) => format!("{} regex {regex}", self.param),
            GrammarSource::Choice(texts) => format!("{} choice {}", self.param, json!(texts)),
            GrammarSource::Grammar(grammar) => format!("{} grammar {grammar}", self.param),
            GrammarSource::Answer(answer) => format!("{} answer {answer:?}", self.param),
        }
    }
}

impl GrammarSource {
    /// The grammar to compile, or what is wrong with it.
    pub(super) fn to_grammar(&self, means: &Means<'_>) -> Result<TopLevelGrammar, Refusal> {
        Ok(match self {
            Self::Answer(answer) => answer.to_grammar(means)?,
            Self::Schema(schema) => {
                TopLevelGrammar::from_json_schema(schema::prepare(schema, means.limits.max_schema_depth)?)
            }
            Self::Regex(regex) => TopLevelGrammar::from_regex(lark::unanchored(regex)),
            Self::Choice(texts) => TopLevelGrammar::from_lark(lark::alternatives(texts)),
            Self::Grammar(grammar) => TopLevelGrammar::from_lark(lark::from_ebnf(grammar)?),
        })
    }

    /// Adds to the reason why it does not compile the place of it, where that can be found.
    pub(super) fn locate(&self, factory: &ParserFactory, reason: &str) -> String {
        let reason = &in_one_line(reason);
        let form = match self {
            Self::Answer(AnswerGrammar { text: TextGrammar::Form(form), .. }) => form,
            other => other,
        };
        let Self::Schema(root) = form else { return reason.to_owned() };
        let fails = |part: Value| {
            let grammar = TopLevelGrammar::from_json_schema(part);
            let error = factory.create_parser(grammar).err()?;
            Some(in_one_line(&error.to_string()))
        };
        match schema::locate(root, reason, fails) {
            Some(place) => format!("at {place}: {reason}"),
            None => reason.to_owned(),
        }
    }
}

/// What a message of several lines says: its first line, and the one that names the error below a regular expression.
fn in_one_line(message: &str) -> String {
    let mut lines = message.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    match lines.find_map(|line| line.strip_prefix("error: ")) {
        Some(error) if first.ends_with(':') => format!("{first} {error}"),
        _ => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_regular_expression_is_kept_in_one_line() {
        let message = "regex parse error:\n    (a\n    ^\nerror: unclosed group";
        assert_eq!(in_one_line(message), "regex parse error: unclosed group");
        assert_eq!(in_one_line("one line"), "one line");
        assert_eq!(in_one_line("two\nlines"), "two");
    }
}

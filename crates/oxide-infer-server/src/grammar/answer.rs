//! Answers of several parts as one grammar: reasoning first, then text, a form, or tool calls in the model's notation.

use super::{GrammarSource, lark, schema};
use crate::config::Limits;
use crate::protocol::tools::{CallCount, Strictness};
use crate::reasoning::{Reasoning, ReasoningTags};
use crate::text::Tokenizer;
use crate::tools::{HERMES_CLOSE, MISTRAL_ARGS, MISTRAL_ID, MistralForm, ToolNotation};
use llguidance::ParserFactory;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// What an answer of several parts must look like.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnswerGrammar {
    /// What comes first.
    pub(crate) reasoning: Reasoning,
    /// The calls that may come, if any.
    pub(crate) calls: Option<CallGrammar>,
    /// What else may come.
    pub(crate) text: TextGrammar,
}

/// What may come in the place of calls.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TextGrammar {
    /// Nothing.
    None,
    /// Any text, before and between calls, too.
    Free,
    /// This form.
    Form(Box<GrammarSource>),
}

/// Calls of functions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallGrammar {
    /// How they are written.
    pub(crate) notation: ToolNotation,
    /// How many there may be.
    pub(crate) count: CallCount,
    /// The functions.
    pub(crate) functions: Vec<FunctionGrammar>,
}

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FunctionGrammar {
    /// Its name.
    pub(crate) name: String,
    /// The schema of its arguments.
    pub(crate) parameters: Map<String, Value>,
    /// What becomes of a schema that cannot be kept.
    pub(crate) strictness: Strictness,
    /// The field of the schema.
    pub(crate) param: String,
}

/// What a grammar is compiled with.
pub(super) struct Means<'a> {
    pub(super) limits: &'a Limits,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) factory: &'a ParserFactory,
}

/// Why a grammar cannot be made, and the field where that lies, if it is not the grammar's own.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub(super) param: Option<String>,
    pub(super) reason: String,
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self { param: None, reason }
    }
}

impl AnswerGrammar {
    /// The grammar to compile.
    pub(super) fn to_grammar(&self, means: &Means<'_>) -> Result<TopLevelGrammar, Refusal> {
        let mut rules = Rules { means, lark: String::new(), parts: Vec::new() };
        let lead = rules.reasoning(self.reasoning);
        let body = match (&self.calls, &self.text) {
            (Some(calls), text) => rules.calls(calls, text)?,
            (None, TextGrammar::Form(form)) => rules.part("form", form.to_grammar(means)?),
            (None, TextGrammar::Free | TextGrammar::None) => "TEXT".to_owned(),
        };
        let lark = format!("start: {lead}{body}\nTEXT: /(?s:.*)/\nGAP: /[ \\n]{{1,4}}/\n{}", rules.lark);
        let mut grammars = vec![GrammarWithLexer::from_lark(lark)];
        grammars.extend(rules.parts);
        Ok(TopLevelGrammar { grammars, max_tokens: None })
    }
}

/// A grammar in Lark's form that is being written, and the grammars that it names.
struct Rules<'a> {
    means: &'a Means<'a>,
    lark: String,
    parts: Vec<GrammarWithLexer>,
}

impl Rules<'_> {
    fn rule(&mut self, name: &str, body: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.lark, "{name}: {body}");
    }

    /// Takes in a grammar under a name.
    fn part(&mut self, name: &str, mut grammar: TopLevelGrammar) -> String {
        for part in &mut grammar.grammars {
            part.name = Some(name.to_owned());
        }
        self.parts.append(&mut grammar.grammars);
        format!("@{name}")
    }

    /// The special token of this text.
    fn special(&self, text: &str) -> Option<String> {
        let tokenizer = self.means.tokenizer;
        let id = tokenizer.token_id(text).filter(|id| tokenizer.is_special(*id))?;
        Some(format!("<[{}]>", id.0))
    }

    /// A marker as a special token, or as text.
    fn marker(&self, text: &str) -> String {
        self.special(text).unwrap_or_else(|| lark::quoted(text))
    }

    /// Any text up to and with a marker.
    fn up_to(&mut self, name: &str, marker: &str) -> String {
        match self.special(marker) {
            Some(token) => self.rule(name, &format!("TEXT {token}")),
            None => self.rule(&format!("{name}[lazy]"), &format!("TEXT {}", lark::quoted(marker))),
        }
        name.to_owned()
    }

    fn reasoning(&mut self, reasoning: Reasoning) -> String {
        let thought = |rules: &mut Self, tags: ReasoningTags| rules.up_to("thought", tags.close);
        match reasoning {
            Reasoning::None => String::new(),
            Reasoning::Open(tags) => format!("{} GAP? ", thought(self, tags)),
            Reasoning::Possible(tags) => {
                let open = self.marker(tags.open);
                format!("({open} {} GAP?)? ", thought(self, tags))
            }
        }
    }

    /// Calls, and the text that may come in their place.
    fn calls(&mut self, calls: &CallGrammar, text: &TextGrammar) -> Result<String, Refusal> {
        let unit = self.unit(calls)?;
        let marker = match calls.notation {
            ToolNotation::Llama3 => String::new(),
            notation => self.marker(notation.marker()),
        };
        let is_repeated = calls.count == CallCount::Many
            && !matches!(calls.notation, ToolNotation::Mistral(MistralForm::Array));
        let separator = match calls.notation {
            ToolNotation::Hermes => "\"\\n\"",
            ToolNotation::Llama3 => "\"; \"",
            ToolNotation::Mistral(_) => "",
        };
        let all = match is_repeated {
            true => format!("{marker} {unit} ({separator} {marker} {unit})*"),
            false => format!("{marker} {unit}"),
        };
        Ok(match text {
            TextGrammar::None => all,
            TextGrammar::Form(form) => {
                let form = form.to_grammar(self.means)?;
                format!("({all} | {})", self.part("form", form))
            }
            TextGrammar::Free => self.among_text(calls.notation, &unit, &all, is_repeated),
        })
    }

    fn among_text(&mut self, notation: ToolNotation, unit: &str, all: &str, is_repeated: bool) -> String {
        if notation == ToolNotation::Llama3 {
            self.rule("ANSWER", "/\\s*[^{\\s](?s:.*)/");
            let tag = self.special(notation.marker()).map(|tag| format!("{tag}? ")).unwrap_or_default();
            return format!("({tag}{all} | ANSWER)");
        }
        let opening = self.up_to("opening", notation.marker());
        match is_repeated {
            true => format!("({opening} {unit})* TEXT"),
            false => format!("({opening} {unit} | TEXT)"),
        }
    }

    /// What follows a marker: one call, or all calls where they come in one array.
    fn unit(&mut self, calls: &CallGrammar) -> Result<String, Refusal> {
        let mut names = Vec::with_capacity(calls.functions.len());
        for (index, function) in calls.functions.iter().enumerate() {
            let arguments = function.arguments(self.means)?;
            let arguments =
                self.part(&format!("arguments_{index}"), TopLevelGrammar::from_json_schema(arguments));
            let call = self.call(calls.notation, &function.name, &arguments);
            names.push(format!("call_{index}"));
            self.rule(&format!("call_{index}"), &call);
        }
        self.rule("call", &names.join(" | "));
        Ok(match (calls.notation, calls.count) {
            (ToolNotation::Mistral(MistralForm::Array), CallCount::Many) => {
                "\"[\" call (\", \" call)* \"]\"".to_owned()
            }
            (ToolNotation::Mistral(MistralForm::Array), CallCount::One) => "\"[\" call \"]\"".to_owned(),
            _ => "call".to_owned(),
        })
    }

    fn call(&mut self, notation: ToolNotation, name: &str, arguments: &str) -> String {
        let object = |key: &str, lead: &str| {
            lark::quoted(&format!("{lead}{{\"name\": {}, \"{key}\": ", Value::from(name)))
        };
        match notation {
            ToolNotation::Hermes => {
                let (head, close) = (object("arguments", "\n"), self.marker(HERMES_CLOSE));
                format!("{head} {arguments} \"}}\\n\" {close}")
            }
            ToolNotation::Llama3 => format!("{} {arguments} \"}}\"", object("parameters", "")),
            ToolNotation::Mistral(MistralForm::Array) => {
                format!("{} {arguments} \"}}\"", object("arguments", ""))
            }
            ToolNotation::Mistral(form) => {
                let id = match form {
                    MistralForm::NamedWithId => format!("{} /[a-zA-Z0-9]{{9}}/ ", self.marker(MISTRAL_ID)),
                    MistralForm::Named | MistralForm::Array => String::new(),
                };
                format!("{} {id}{} {arguments}", lark::quoted(name), self.marker(MISTRAL_ARGS))
            }
        }
    }
}

impl FunctionGrammar {
    /// The schema that the arguments are held to.
    fn arguments(&self, means: &Means<'_>) -> Result<Value, Refusal> {
        let mut parameters = self.parameters.clone();
        // Arguments are an object, whatever a schema leaves open.
        if !parameters.contains_key("$ref") {
            parameters.entry("type").or_insert_with(|| json!("object"));
        }
        let kept =
            schema::prepare(&Value::Object(parameters), means.limits.max_schema_depth).and_then(|schema| {
                let compiled = means.factory.create_parser(TopLevelGrammar::from_json_schema(schema.clone()));
                let fault = compiled.err().map(|error| error.to_string());
                match fault {
                    None => Ok(schema),
                    Some(fault) => {
                        Err(format!("cannot be compiled: {}", fault.lines().next().unwrap_or(&fault)))
                    }
                }
            });
        match (kept, self.strictness) {
            (Ok(schema), _) => Ok(schema),
            (Err(_), Strictness::Lenient) => {
                schema::prepare(&json!({"type": "object"}), means.limits.max_schema_depth)
                    .map_err(Refusal::from)
            }
            (Err(reason), Strictness::Strict) => Err(Refusal { param: Some(self.param.clone()), reason }),
        }
    }
}

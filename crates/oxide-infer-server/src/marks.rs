//! How a server's model marks the parts of its answers.

use crate::config::{ReasoningStyle, ToolStyle};
use crate::reasoning::ReasoningTags;
use crate::text::{ChatTemplate, TextModel, ToolSupport};
use crate::tools::{MistralForm, ToolNotation};
use oxide_infer::TokenId;
use std::sync::Arc;

/// How a server's model marks the parts of its answers.
#[derive(Clone, Debug)]
pub(crate) struct AnswerMarks {
    /// How it writes calls; `None` if that is not known.
    pub(crate) notation: Option<ToolNotation>,
    /// How it marks reasoning, if it does.
    pub(crate) reasoning: Option<ReasoningTags>,
    /// The special tokens among the marks.
    pub(crate) shown: Arc<[TokenId]>,
}

impl AnswerMarks {
    /// What the operator said, and else what the chat template shows.
    pub(crate) fn new(text: &TextModel, tools: ToolStyle, reasoning: ReasoningStyle) -> Self {
        let template = text.tool_template();
        let source = template.map_or("", ChatTemplate::source);
        let notation = match tools {
            ToolStyle::Hermes => Some(ToolNotation::Hermes),
            ToolStyle::Llama3 => Some(ToolNotation::Llama3),
            ToolStyle::Mistral => Some(ToolNotation::Mistral(MistralForm::of_template(source))),
            ToolStyle::Auto => match template.map(ChatTemplate::tool_support) {
                // Described as Hermes has it.
                Some(ToolSupport::Described) => Some(ToolNotation::Hermes),
                Some(ToolSupport::Native) => ToolNotation::of_template(source),
                None => None,
            },
        };
        let reasoning = match reasoning {
            ReasoningStyle::Auto => ReasoningTags::of_template(source),
            ReasoningStyle::Think => Some(ReasoningTags::THINK),
            ReasoningStyle::Mistral => Some(ReasoningTags::MISTRAL),
            ReasoningStyle::Off => None,
        };
        let tags = reasoning.iter().flat_map(|tags| [tags.open, tags.close]);
        let marks = notation.iter().flat_map(|notation| notation.markers().iter().copied()).chain(tags);
        let tokenizer = text.tokenizer();
        let shown = marks.filter_map(|mark| tokenizer.token_id(mark).filter(|id| tokenizer.is_special(*id)));
        Self { notation, reasoning, shown: shown.collect() }
    }
}

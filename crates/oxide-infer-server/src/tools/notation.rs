//! The ways in which model families write calls.

/// A model family's way of writing tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolNotation {
    /// `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>`: Hermes, Qwen2.5, Qwen3 and many others.
    Hermes,
    /// The answer is `{"name": …, "parameters": {…}}`, perhaps after `<|python_tag|>`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` for each call.
    Mistral(MistralForm),
}

/// What follows `[TOOL_CALLS]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MistralForm {
    /// An array of all calls.
    Array,
    /// `name[ARGS]{…}`.
    Named,
    /// `name[CALL_ID]id[ARGS]{…}`.
    NamedWithId,
}

impl ToolNotation {
    /// The notation that a chat template shows its model; `None` if it shows one that is not known here, or none.
    pub(crate) fn of_template(source: &str) -> Option<Self> {
        let has = |text: &str| source.contains(text);
        // Others put XML between the same tags.
        let is_xml = has("<function=") || has("<arg_key>");
        match () {
            () if has(MISTRAL_CALLS) => Some(Self::Mistral(MistralForm::of_template(source))),
            () if has(HERMES_OPEN) => (!is_xml).then_some(Self::Hermes),
            () if has(PYTHON_TAG) || (has("<|start_header_id|>") && has("\"parameters\"")) => {
                Some(Self::Llama3)
            }
            () => None,
        }
    }

    /// What begins a call in the midst of text.
    pub(crate) fn marker(self) -> &'static str {
        match self {
            Self::Hermes => HERMES_OPEN,
            Self::Llama3 => PYTHON_TAG,
            Self::Mistral(_) => MISTRAL_CALLS,
        }
    }

    /// Every text that belongs to the notation and may be a special token, which is not shown otherwise.
    pub(crate) fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[HERMES_OPEN, HERMES_CLOSE],
            Self::Llama3 => &[PYTHON_TAG],
            Self::Mistral(_) => &[MISTRAL_CALLS, MISTRAL_ARGS, MISTRAL_ID],
        }
    }
}

impl MistralForm {
    /// The form that a chat template writes.
    pub(crate) fn of_template(source: &str) -> Self {
        match (source.contains(MISTRAL_ARGS), source.contains(MISTRAL_ID)) {
            (true, true) => Self::NamedWithId,
            (true, false) => Self::Named,
            (false, _) => Self::Array,
        }
    }
}

const HERMES_OPEN: &str = "<tool_call>";
pub(crate) const HERMES_CLOSE: &str = "</tool_call>";
const PYTHON_TAG: &str = "<|python_tag|>";
const MISTRAL_CALLS: &str = "[TOOL_CALLS]";
pub(crate) const MISTRAL_ARGS: &str = "[ARGS]";
pub(crate) const MISTRAL_ID: &str = "[CALL_ID]";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notation_is_what_the_template_shows() {
        for (source, expected) in [
            ("{{ '<tool_call>\\n' }}{{ '</tool_call>' }}", Some(ToolNotation::Hermes)),
            ("<tool_call>\n<function=name>", None),
            ("<tool_call>name\n<arg_key>k</arg_key>", None),
            ("<|start_header_id|> {\"name\": n, \"parameters\": p}", Some(ToolNotation::Llama3)),
            ("[TOOL_CALLS] [", Some(ToolNotation::Mistral(MistralForm::Array))),
            ("[TOOL_CALLS]name[ARGS]", Some(ToolNotation::Mistral(MistralForm::Named))),
            ("[TOOL_CALLS]name[CALL_ID]id[ARGS]", Some(ToolNotation::Mistral(MistralForm::NamedWithId))),
            ("<|im_start|>", None),
        ] {
            assert_eq!(ToolNotation::of_template(source), expected, "{source}");
        }
    }
}

//! What a chat's answers are made of, and what they are held to.

use crate::app::App;
use crate::error::ApiError;
use crate::generate::{CallPlan, OutputPlan, TextBeside};
use crate::grammar::{AnswerGrammar, CallGrammar, FunctionGrammar, GrammarSource, GrammarSpec, TextGrammar};
use crate::protocol::chat::ChatRequest;
use crate::protocol::tools::{Strictness, Tool, ToolChoice, ToolUse};
use crate::reasoning::Reasoning;
use crate::text::NextTurn;
use crate::tools::ToolNotation;

/// The plan for answers to `request`, whose chat was rendered to `prompt`.
pub(super) fn plan(app: &App, request: &ChatRequest, prompt: &str) -> Result<OutputPlan, ApiError> {
    let tools = &request.tools;
    let calls = match tools.choice {
        ToolChoice::None => None,
        _ => Some(CallPlan {
            notation: notation(app)?,
            names: tools.callable().map(|tool| tool.name.clone()).collect(),
            count: tools.calls,
            text: if tools.is_forced() { TextBeside::Notation } else { TextBeside::Content },
            ending: tools.ending,
        }),
    };
    Ok(OutputPlan {
        reasoning: reasoning(app, request, prompt),
        calls,
        shown: app.answer_marks().shown.clone(),
    })
}

/// What answers are held to: what `form` says, the calls that are forced or strict, and reasoning before them.
pub(super) fn grammar(form: Option<GrammarSpec>, tools: &ToolUse, plan: &OutputPlan) -> Option<GrammarSpec> {
    let is_strict = tools.callable().any(|tool| tool.strictness == Strictness::Strict);
    if form.is_none() && !tools.is_forced() && !is_strict {
        return None;
    }
    let calls = plan.calls.as_ref().map(|calls| CallGrammar {
        notation: calls.notation,
        count: calls.count,
        functions: tools.callable().map(function).collect(),
    });
    if calls.is_none() && plan.reasoning == Reasoning::None {
        return form;
    }
    let param = form.as_ref().map_or_else(|| "tools".to_owned(), |form| form.param.clone());
    let text = match form {
        _ if tools.is_forced() => TextGrammar::None,
        None => TextGrammar::Free,
        Some(form) => TextGrammar::Form(Box::new(form.source)),
    };
    let source = GrammarSource::Answer(AnswerGrammar { reasoning: plan.reasoning, calls, text });
    Some(GrammarSpec { param, source })
}

fn function(tool: &Tool) -> FunctionGrammar {
    FunctionGrammar {
        name: tool.name.clone(),
        parameters: tool.parameters.clone(),
        strictness: tool.strictness,
        param: tool.param.clone(),
    }
}

fn notation(app: &App) -> Result<ToolNotation, ApiError> {
    app.answer_marks().notation.ok_or_else(|| ApiError::UnsupportedField {
        param: "tools".to_owned(),
        reason: "how this model writes calls is not known from its chat template; start the server with --tool-parser"
            .to_owned(),
    })
}

fn reasoning(app: &App, request: &ChatRequest, prompt: &str) -> Reasoning {
    let input = &request.chat.input;
    match app.answer_marks().reasoning {
        None => Reasoning::None,
        Some(tags) if input.next == NextTurn::ContinueLast => {
            let last = input.messages.last().and_then(|message| message["content"].as_str());
            Reasoning::within(last.unwrap_or_default(), tags)
        }
        Some(tags) => Reasoning::after(prompt, tags),
    }
}

//! Every request field that is known, and what is done with it: the data behind `docs/api.md`.

/// A route that takes a JSON body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
    /// `/tokenize` with `prompt`.
    TokenizePrompt,
    /// `/tokenize` with `messages`.
    TokenizeChat,
    /// `/detokenize`.
    Detokenize,
    /// `/v1/messages`.
    Messages,
    /// `/v1/messages/count_tokens`.
    CountTokens,
    /// `/v1/responses`.
    Responses,
    /// `/v1/embeddings`.
    Embeddings,
}

/// What is done with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// It does what its documentation says.
    Accepted,
    /// It is allowed and has no effect on the answer, here or elsewhere.
    Ignored,
    /// It would change the answer and is refused, except with a value that asks for nothing.
    Unsupported {
        /// JSON values, beside null, that ask for nothing.
        neutral: &'static [&'static str],
        /// Why, or what to send instead.
        instead: &'static str,
    },
}

/// One field of one or more routes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldRule {
    /// Its name.
    pub(crate) name: &'static str,
    /// Where it is known.
    pub(crate) routes: &'static [Route],
    /// What is done with it.
    pub(crate) handling: Handling,
}

/// What is done with the field `name`; `None` if it is unknown.
pub(crate) fn handling(route: Route, name: &str) -> Option<Handling> {
    FIELDS.iter().find(|rule| rule.name == name && rule.routes.contains(&route)).map(|rule| rule.handling)
}

/// A route as the documentation calls it.
pub(crate) fn name(route: Route) -> &'static str {
    match route {
        Route::Chat => "chat",
        Route::Completion => "completion",
        Route::TokenizePrompt => "tokenize (prompt)",
        Route::TokenizeChat => "tokenize (messages)",
        Route::Detokenize => "detokenize",
        Route::Messages => "messages",
        Route::CountTokens => "count tokens",
        Route::Responses => "responses",
        Route::Embeddings => "embeddings",
    }
}

const CHAT: &[Route] = &[Route::Chat];
const COMPLETION: &[Route] = &[Route::Completion];
const GENERATION: &[Route] = &[Route::Chat, Route::Completion];
/// All that generate.
const SAMPLED: &[Route] = &[Route::Chat, Route::Completion, Route::Messages, Route::Responses];
const TEMPLATED: &[Route] = &[Route::Chat, Route::TokenizeChat];
const TOKENIZE: &[Route] = &[Route::TokenizePrompt, Route::TokenizeChat];
const PROMPTED: &[Route] = &[Route::Completion, Route::TokenizePrompt];
const MESSAGES: &[Route] = &[Route::Messages];
const ANTHROPIC: &[Route] = &[Route::Messages, Route::CountTokens];
const CONVERSATION: &[Route] = &[Route::Chat, Route::TokenizeChat, Route::Messages, Route::CountTokens];
const RESPONSES: &[Route] = &[Route::Responses];
const EMBEDDINGS: &[Route] = &[Route::Embeddings];
/// All that the engine computes.
const COMPUTED: &[Route] =
    &[Route::Chat, Route::Completion, Route::Messages, Route::Responses, Route::Embeddings];
/// OpenAI's of them.
const OPENAI_COMPUTED: &[Route] = &[Route::Chat, Route::Completion, Route::Responses, Route::Embeddings];
/// Those that vLLM's extensions are for.
const PROMPTS: &[Route] = &[Route::Chat, Route::Completion, Route::Embeddings];
/// All of OpenAI's that generate.
const OPENAI: &[Route] = &[Route::Chat, Route::Completion, Route::Responses];
/// All that generate or count and have a conversation.
const CALLING: &[Route] = &[Route::Chat, Route::Messages, Route::CountTokens, Route::Responses];
const TEMPLATE_VARIABLES: &[Route] =
    &[Route::Chat, Route::TokenizeChat, Route::Messages, Route::CountTokens, Route::Responses];
const ALL: &[Route] = &[
    Route::Chat,
    Route::Completion,
    Route::TokenizePrompt,
    Route::TokenizeChat,
    Route::Detokenize,
    Route::Messages,
    Route::CountTokens,
    Route::Responses,
    Route::Embeddings,
];

const fn accepted(name: &'static str, routes: &'static [Route]) -> FieldRule {
    FieldRule { name, routes, handling: Handling::Accepted }
}

const fn ignored(name: &'static str, routes: &'static [Route]) -> FieldRule {
    FieldRule { name, routes, handling: Handling::Ignored }
}

const fn unsupported(
    name: &'static str,
    routes: &'static [Route],
    neutral: &'static [&'static str],
    instead: &'static str,
) -> FieldRule {
    FieldRule { name, routes, handling: Handling::Unsupported { neutral, instead } }
}

const NO_GUIDES: &str = "use 'structured_outputs'";
const NO_MEDIA: &str = "only text goes in and out";
const NO_REASONING: &str = "pass what the model's template understands in 'chat_template_kwargs'";
const NO_BEAMS: &str = "answers are sampled, not searched for";
const NO_MASK: &str = "use 'logit_bias'";
const NO_TRANSFER: &str = "this server computes prompt and answer in one place";

const NO_STORE: &str = "answers are not stored; send the whole conversation in 'input'";
const NO_HOSTED: &str = "tools run on the client's side";

/// Every known field. A field that is in no row is refused by name.
pub(crate) const FIELDS: &[FieldRule] = &[
    accepted("model", ALL),
    accepted("messages", CONVERSATION),
    accepted("prompt", PROMPTED),
    accepted("tokens", &[Route::Detokenize]),
    accepted("tools", TEMPLATE_VARIABLES),
    accepted("tool_choice", CALLING),
    accepted("parallel_tool_calls", &[Route::Chat, Route::Responses]),
    accepted("max_tokens", &[Route::Chat, Route::Completion, Route::Messages]),
    accepted("max_completion_tokens", CHAT),
    accepted("min_tokens", SAMPLED),
    accepted("n", GENERATION),
    accepted("best_of", COMPLETION),
    accepted("seed", SAMPLED),
    accepted("stop", GENERATION),
    accepted("stop_token_ids", SAMPLED),
    accepted("response_format", GENERATION),
    accepted("structured_outputs", GENERATION),
    accepted("include_stop_str_in_output", GENERATION),
    accepted("ignore_eos", SAMPLED),
    accepted("temperature", SAMPLED),
    accepted("top_p", SAMPLED),
    accepted("top_k", SAMPLED),
    accepted("min_p", SAMPLED),
    accepted("presence_penalty", SAMPLED),
    accepted("frequency_penalty", SAMPLED),
    accepted("repetition_penalty", SAMPLED),
    accepted("logit_bias", SAMPLED),
    accepted("logprobs", GENERATION),
    accepted("top_logprobs", CHAT),
    accepted("prompt_logprobs", GENERATION),
    accepted("truncate_prompt_tokens", COMPUTED),
    accepted("echo", COMPLETION),
    accepted("stream", SAMPLED),
    accepted("stream_options", OPENAI),
    accepted("skip_special_tokens", SAMPLED),
    accepted(
        "add_special_tokens",
        &[Route::Chat, Route::Completion, Route::TokenizePrompt, Route::TokenizeChat, Route::Embeddings],
    ),
    accepted("add_generation_prompt", TEMPLATED),
    accepted("continue_final_message", TEMPLATED),
    accepted("chat_template_kwargs", TEMPLATE_VARIABLES),
    accepted("return_token_ids", GENERATION),
    accepted("return_tokens_as_token_ids", GENERATION),
    accepted("return_token_strs", TOKENIZE),
    accepted("system", ANTHROPIC),
    accepted("stop_sequences", MESSAGES),
    accepted("thinking", ANTHROPIC),
    accepted("output_config", ANTHROPIC),
    accepted("input", &[Route::Responses, Route::Embeddings]),
    accepted("instructions", RESPONSES),
    accepted("max_output_tokens", RESPONSES),
    accepted("text", RESPONSES),
    accepted("reasoning", RESPONSES),
    accepted("metadata", RESPONSES),
    accepted("encoding_format", EMBEDDINGS),
    accepted("dimensions", EMBEDDINGS),
    accepted("pooling", EMBEDDINGS),
    accepted("normalize", EMBEDDINGS),
    ignored("user", OPENAI_COMPUTED),
    ignored("metadata", &[Route::Chat, Route::Completion, Route::Messages]),
    ignored("store", OPENAI),
    ignored("service_tier", SAMPLED),
    ignored("safety_identifier", OPENAI),
    ignored("prompt_cache_key", OPENAI),
    ignored("prompt_cache_retention", OPENAI),
    ignored("prompt_cache_options", OPENAI),
    ignored("request_id", GENERATION),
    ignored("session_id", GENERATION),
    ignored("spaces_between_special_tokens", GENERATION),
    ignored("stream_interval", GENERATION),
    ignored("cache_control", ANTHROPIC),
    ignored("user_profile_id", ANTHROPIC),
    unsupported("functions", CHAT, &["[]"], "use 'tools'"),
    unsupported("function_call", CHAT, &["\"none\"", "\"auto\""], "use 'tool_choice'"),
    unsupported("guided_json", GENERATION, &[], NO_GUIDES),
    unsupported("guided_regex", GENERATION, &[], NO_GUIDES),
    unsupported("guided_choice", GENERATION, &[], NO_GUIDES),
    unsupported("guided_grammar", GENERATION, &[], NO_GUIDES),
    unsupported("guided_decoding_backend", GENERATION, &[], NO_GUIDES),
    unsupported("structural_tag", GENERATION, &[], NO_GUIDES),
    unsupported("audio", CHAT, &[], NO_MEDIA),
    unsupported("modalities", CHAT, &["[\"text\"]"], NO_MEDIA),
    unsupported("media_io_kwargs", CHAT, &[], NO_MEDIA),
    unsupported("mm_processor_kwargs", TEMPLATED, &[], NO_MEDIA),
    unsupported("prediction", CHAT, &[], "leave it out; the answer is the same"),
    unsupported("web_search_options", CHAT, &[], "the server does not search"),
    unsupported("moderation", &[Route::Chat, Route::Responses], &[], "the server does not moderate"),
    unsupported("reasoning_effort", CHAT, &[], NO_REASONING),
    unsupported("verbosity", CHAT, &[], NO_REASONING),
    unsupported("include_reasoning", CHAT, &["true"], NO_REASONING),
    unsupported("separate_reasoning", CHAT, &["true"], NO_REASONING),
    unsupported("stream_reasoning", CHAT, &["true"], NO_REASONING),
    unsupported("thinking_token_budget", GENERATION, &[], NO_REASONING),
    unsupported("documents", CHAT, &["[]"], NO_REASONING),
    unsupported("chat_template", TEMPLATED, &[], "start the server with --chat-template"),
    unsupported("return_prompt_text", CHAT, &["false"], "use 'return_token_ids' and /detokenize"),
    unsupported("suffix", COMPLETION, &["\"\""], "text is only written at the end"),
    unsupported("prompt_embeds", COMPLETION, &[], "send text or token ids in 'prompt'"),
    unsupported("logprob_token_ids", GENERATION, &[], "use 'logprobs'"),
    unsupported("echo", CHAT, &["false"], "use /v1/completions"),
    unsupported("no_stop_trim", GENERATION, &["false"], "use 'include_stop_str_in_output'"),
    unsupported("return_hidden_states", GENERATION, &["false"], "the server answers with text"),
    unsupported("allowed_token_ids", GENERATION, &[], NO_MASK),
    unsupported("bad_words", GENERATION, &["[]"], NO_MASK),
    unsupported("logits_processors", GENERATION, &["[]"], NO_MASK),
    unsupported("use_beam_search", GENERATION, &["false"], NO_BEAMS),
    unsupported("length_penalty", GENERATION, &["1", "1.0"], NO_BEAMS),
    unsupported("early_stopping", GENERATION, &["false"], NO_BEAMS),
    unsupported("truncation_side", PROMPTS, &["\"left\""], "only the beginning of a prompt is cut off"),
    unsupported("repetition_detection", GENERATION, &[], "use 'repetition_penalty'"),
    unsupported("watermarking", GENERATION, &["false"], "answers carry no watermark"),
    unsupported("priority", PROMPTS, &["0"], "requests are served in the order of their arrival"),
    unsupported("cache_salt", GENERATION, &[], "the prefix cache is shared by all clients"),
    unsupported("kv_transfer_params", GENERATION, &[], NO_TRANSFER),
    unsupported("ec_transfer_params", GENERATION, &[], NO_TRANSFER),
    unsupported("container", MESSAGES, &[], NO_HOSTED),
    unsupported("mcp_servers", MESSAGES, &["[]"], NO_HOSTED),
    unsupported("context_management", ANTHROPIC, &[], "send the messages that the model is to see"),
    unsupported(
        "diagnostics",
        MESSAGES,
        &[],
        "the response's 'usage' has the tokens that the prefix cache had",
    ),
    unsupported("inference_geo", MESSAGES, &[], "the answer is computed where the server stands"),
    unsupported("speed", ANTHROPIC, &["\"standard\""], "there is one"),
    unsupported("previous_response_id", RESPONSES, &[], NO_STORE),
    unsupported("conversation", RESPONSES, &[], NO_STORE),
    unsupported("prompt", RESPONSES, &[], NO_STORE),
    unsupported("background", RESPONSES, &["false"], NO_STORE),
    unsupported(
        "include",
        RESPONSES,
        &["[]", "[\"reasoning.encrypted_content\"]"],
        "reasoning comes as it is, and there is nothing else",
    ),
    unsupported("truncation", RESPONSES, &["\"disabled\""], "use 'truncate_prompt_tokens'"),
    unsupported("top_logprobs", RESPONSES, &["0"], "use /v1/chat/completions"),
    unsupported("max_tool_calls", RESPONSES, &[], NO_HOSTED),
    unsupported("context_management", RESPONSES, &["[]"], "send the items that the model is to see"),
    unsupported("vllm_xargs", GENERATION, &["{}"], "no extension takes them"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const DOCS: &str = include_str!("../../../../docs/api.md");

    fn documented(heading: &str) -> BTreeSet<(&'static str, &'static str)> {
        let section = DOCS.split("\n### ").find(|section| section.starts_with(heading)).unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        rows.flat_map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            cells[2].split(", ").map(move |route| (cells[1].trim_matches('`'), route))
        })
        .collect()
    }

    fn known(is_wanted: impl Fn(Handling) -> bool) -> BTreeSet<(&'static str, &'static str)> {
        let wanted = FIELDS.iter().filter(|rule| is_wanted(rule.handling));
        wanted.flat_map(|rule| rule.routes.iter().map(|route| (rule.name, name(*route)))).collect()
    }

    #[test]
    fn the_documentation_lists_exactly_the_known_fields() {
        assert_eq!(documented("Accepted"), known(|handling| handling == Handling::Accepted));
        assert_eq!(documented("Ignored"), known(|handling| handling == Handling::Ignored));
        let unsupported = known(|handling| matches!(handling, Handling::Unsupported { .. }));
        assert_eq!(documented("Not supported"), unsupported);
    }

    #[test]
    fn no_field_has_two_rules_for_a_route() {
        let all: Vec<(&str, &str)> = FIELDS
            .iter()
            .flat_map(|rule| rule.routes.iter().map(|route| (rule.name, name(*route))))
            .collect();
        assert_eq!(all.len(), all.iter().collect::<BTreeSet<_>>().len());
    }
}

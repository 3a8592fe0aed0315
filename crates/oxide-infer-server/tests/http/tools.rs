//! Tool calls: `tools`, `tool_choice`, `parallel_tool_calls`, and messages with calls and their answers.

use crate::harness::{Harness, LIMITS, Reply, chat_body, executor_with, merged, noise_after};
use oxide_infer_engine::ExecutorLimits;
use oxide_infer_engine::testing::scripted::ScriptedExecutor;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A model with room for the description of tools.
const ROOMY: ExecutorLimits = ExecutorLimits { max_model_len: 4096, ..LIMITS };

/// Shows tools and calls as Llama 3's templates do.
const LLAMA: &str = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}<|python_tag|>{\"name\": n, \"parameters\": p}\
    {% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}";
const PYTHON_TAG: &[&str] = &["<|python_tag|>"];
/// Shows tools and calls as Mistral's templates do; ids have nine characters.
const MISTRAL: &str = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}: \
    {% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{% if c.id|length != 9 %}\
    {{ raise_exception('nine characters') }}{% endif %}{{ c.function|tojson }}{{ c.id }}{% endfor %}]\
    {% else %}{{ m.content }}{{ m.tool_call_id }}{% endif %}{% endfor %}";
const MISTRAL_NAMED: &str = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}[TOOL_CALLS]name[ARGS]{}\
    {% for m in messages %}{{ m.content }}{% endfor %}";
const MISTRAL_MARKS: &[&str] = &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"];

fn function(name: &str, more: Value) -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "pattern": "^[A-Z][a-z]{1,3}$"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    let function =
        merged(json!({"name": name, "description": "Looks it up.", "parameters": parameters}), more);
    json!({"type": "function", "function": function})
}

/// Two tools and further fields.
fn tools(more: Value) -> Value {
    merged(json!({"tools": [function("weather", json!({})), function("24h_news", json!({}))]}), more)
}

fn answering(answer: &str) -> Harness {
    Harness::new(executor_with(answer, &[], ROOMY), |_| {})
}

fn noise(template: Option<(&str, &[&str])>) -> Harness {
    let executor = ScriptedExecutor::new(ROOMY);
    match template {
        Some((template, specials)) => Harness::templated(executor, template, specials),
        None => Harness::new(executor, |_| {}),
    }
}

fn message(reply: &Value) -> &Value {
    &reply["choices"][0]["message"]
}

/// Names and arguments of an answer's calls.
fn calls(message: &Value) -> Vec<(&str, Value)> {
    let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    calls
        .iter()
        .map(|call| {
            assert_eq!(call["type"], "function");
            let function = &call["function"];
            let arguments = function["arguments"].as_str().unwrap();
            let arguments = serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{e}: {arguments}"));
            (function["name"].as_str().unwrap(), arguments)
        })
        .collect()
}

/// The message and finish reason that a stream of one answer adds up to, by OpenAI's rules.
fn accumulated(reply: &Reply) -> (Value, Value) {
    let (mut content, mut reasoning, mut calls, mut finish) =
        (String::new(), String::new(), Vec::new(), Value::Null);
    for event in reply.events() {
        let Some(choice) = event["choices"].get(0).cloned() else { continue };
        content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        reasoning.push_str(choice["delta"]["reasoning_content"].as_str().unwrap_or_default());
        for piece in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(piece["id"].is_string() && piece["function"]["name"].is_string(), "{piece}");
                let function = json!({"name": piece["function"]["name"], "arguments": ""});
                calls.push(json!({"id": piece["id"], "type": piece["type"], "function": function}));
            } else {
                assert!(piece["id"].is_null() && piece["function"]["name"].is_null(), "{piece}");
            }
            let arguments = calls[index]["function"]["arguments"].as_str().unwrap().to_owned();
            let more = piece["function"]["arguments"].as_str().unwrap();
            calls[index]["function"]["arguments"] = (arguments + more).into();
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    (json!({"content": content, "reasoning": reasoning, "tool_calls": calls}), finish)
}

fn assert_valid(call: &(&str, Value)) {
    assert!(["weather", "24h_news"].contains(&call.0), "{call:?}");
    let city = call.1["city"].as_str().unwrap();
    assert!((2..=4).contains(&city.len()) && city.starts_with(|c: char| c.is_ascii_uppercase()), "{call:?}");
    assert!((1..=9).contains(&call.1["days"].as_u64().unwrap()), "{call:?}");
    assert_eq!(call.1.as_object().unwrap().len(), 2, "{call:?}");
}

const TWO_CALLS: &str = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 1}}\n\
    </tool_call>\n<tool_call>\n{\"name\": \"24h_news\", \"arguments\": {}}\n</tool_call>";

#[tokio::test]
async fn calls_are_found_and_numbered() {
    let reply = answering(TWO_CALLS).chat(tools(json!({}))).await.json();
    let message = message(&reply);
    assert_eq!(message["content"], "Let me see.");
    assert_eq!(calls(message), [("weather", json!({"city": "Rome", "days": 1})), ("24h_news", json!({}))]);
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
    let ids: BTreeSet<&str> =
        message["tool_calls"].as_array().unwrap().iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 2);
    assert!(ids.iter().all(|id| id.starts_with("call_") && id.len() == 29), "{ids:?}");
}

#[tokio::test]
async fn a_stream_adds_up_to_the_calls_of_the_whole_answer_and_leaks_no_marker() {
    for answer in [
        TWO_CALLS,
        "no <tool_call",
        "<tool_call> {\"no\": 1}",
        "a\n",
        "<tool_call>{\"name\": \"24h_news\"}</tool_call>",
    ] {
        let harness = answering(answer);
        let reply = harness.chat(tools(json!({}))).await.json();
        let whole = message(&reply);
        let streamed = harness.chat(tools(json!({"stream": true}))).await;
        let (message, finish) = accumulated(&streamed);
        assert_eq!(message["content"], whole["content"].as_str().unwrap_or_default(), "{answer}");
        let without_ids = |list: &Value| -> Vec<Value> {
            list.as_array().into_iter().flatten().map(|call| call["function"].clone()).collect()
        };
        assert_eq!(without_ids(&message["tool_calls"]), without_ids(&whole["tool_calls"]), "{answer}");
        assert_eq!(finish, reply["choices"][0]["finish_reason"], "{answer}");
    }
    let streamed = answering(TWO_CALLS).chat(tools(json!({"stream": true}))).await;
    assert!(!streamed.text().contains("tool_call>"), "{}", streamed.text());
}

#[tokio::test]
async fn content_is_null_beside_calls_alone() {
    let harness = answering("\n<tool_call>{\"name\": \"24h_news\"}</tool_call>\n");
    assert_eq!(message(&harness.chat(tools(json!({}))).await.json())["content"], Value::Null);
}

#[tokio::test]
async fn without_tools_or_with_none_to_be_called_everything_is_text() {
    let harness = answering(TWO_CALLS);
    for fields in
        [json!({}), tools(json!({"tool_choice": "none"})), json!({"tools": [], "tool_choice": "auto"})]
    {
        let reply = harness.chat(fields).await.json();
        assert_eq!(message(&reply)["content"], TWO_CALLS);
        assert!(message(&reply).get("tool_calls").is_none());
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn one_call_ends_the_answer_where_there_may_be_only_one() {
    let reply = answering(TWO_CALLS).chat(tools(json!({"parallel_tool_calls": false}))).await.json();
    assert_eq!(calls(message(&reply)).len(), 1);
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
    // The second call is not even made.
    assert!(reply["usage"]["completion_tokens"].as_u64().unwrap() < TWO_CALLS.len() as u64 - 40);
}

#[tokio::test]
async fn a_call_that_max_tokens_cuts_off_says_so() {
    let fields = tools(json!({"max_tokens": 70}));
    let reply = answering(TWO_CALLS).chat(fields).await.json();
    let call = &message(&reply)["tool_calls"][0]["function"];
    assert!(call["arguments"].as_str().unwrap().starts_with("{\"city\""), "{reply}");
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn forced_calls_are_valid_whatever_the_model_in_every_notation() {
    for (template, name) in [
        (None, "hermes"),
        (Some((LLAMA, PYTHON_TAG)), "llama"),
        (Some((MISTRAL, MISTRAL_MARKS)), "mistral"),
        (Some((MISTRAL, &[][..])), "mistral without special tokens"),
        (Some((MISTRAL_NAMED, MISTRAL_MARKS)), "mistral, named"),
    ] {
        let harness = noise(template);
        let mut names = BTreeSet::new();
        for seed in 0..12 {
            let fields = tools(json!({"tool_choice": "required", "seed": seed, "max_tokens": 400}));
            let whole = harness.chat(fields.clone()).await.json();
            let choice = &whole["choices"][0];
            let mut whole_message = message(&whole).clone();
            let made = whole_message["tool_calls"].as_array_mut().unwrap();
            let count = made.len();
            if choice["finish_reason"] == "length" {
                // Calls without end: the last may be cut off.
                made.pop();
            } else {
                assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {whole}");
            }
            let found = calls(&whole_message);
            assert!(!found.is_empty(), "{name}: {whole}");
            found.iter().for_each(assert_valid);
            assert_eq!(message(&whole)["content"], Value::Null, "{name}");
            names.extend(found.iter().map(|call| call.0.to_owned()));
            let (streamed, finish) =
                accumulated(&harness.chat(merged(fields, json!({"stream": true}))).await);
            assert_eq!(streamed["tool_calls"].as_array().unwrap().len(), count, "{name}");
            assert_eq!((&streamed["content"], &finish), (&json!(""), &choice["finish_reason"]), "{name}");
        }
        assert_eq!(names.len(), 2, "{name}: the model is free to choose, {names:?}");
    }
}

#[tokio::test]
async fn a_named_function_is_called_once() {
    let harness = noise(None);
    for seed in 0..4 {
        let choice = json!({"type": "function", "function": {"name": "24h_news"}});
        let reply = harness.chat(tools(json!({"tool_choice": choice, "seed": seed}))).await.json();
        let calls = calls(message(&reply));
        assert_eq!((calls.len(), calls[0].0), (1, "24h_news"));
        assert_valid(&calls[0]);
        assert_eq!(reply["choices"][0]["finish_reason"], "stop", "as OpenAI's API has it");
    }
}

#[tokio::test]
async fn strict_functions_hold_the_calls_that_the_model_makes_to_their_schemas() {
    // The model begins a call, and its arguments are noise that the grammar forms.
    for (template, lead) in [
        (None, "Well:\n<tool_call>"),
        (Some((LLAMA, PYTHON_TAG)), "<|python_tag|>"),
        (Some((MISTRAL, MISTRAL_MARKS)), "Well [TOOL_CALLS]"),
        (Some((MISTRAL_NAMED, MISTRAL_MARKS)), "[TOOL_CALLS]"),
    ] {
        let specials = template.map_or(&[][..], |(_, specials)| specials);
        let executor = noise_after(lead, specials, ROOMY);
        let harness = match template {
            Some((template, specials)) => Harness::templated(executor, template, specials),
            None => Harness::new(executor, |_| {}),
        };
        let strict =
            json!({"tools": [function("weather", json!({"strict": true}))], "parallel_tool_calls": false});
        for seed in 0..3 {
            let reply = harness.chat(merged(strict.clone(), json!({"seed": seed}))).await.json();
            let calls = calls(message(&reply));
            assert_eq!(calls.len(), 1, "{reply}");
            assert_valid(&calls[0]);
            assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
        }
    }
}

#[tokio::test]
async fn strict_functions_leave_answers_without_calls_as_they_are() {
    let strict = json!({"tools": [function("weather", json!({"strict": true}))]});
    for (template, specials) in
        [(MISTRAL, MISTRAL_MARKS), (LLAMA, PYTHON_TAG), (MISTRAL_NAMED, MISTRAL_MARKS)]
    {
        let harness =
            Harness::templated(executor_with("No need <tool.", specials, ROOMY), template, specials);
        assert_eq!(message(&harness.chat(strict.clone()).await.json())["content"], "No need <tool.");
    }
    let harness = answering("No need <tool.");
    assert_eq!(message(&harness.chat(strict).await.json())["content"], "No need <tool.");
}

#[tokio::test]
async fn a_schema_that_cannot_be_kept_is_refused_if_strict_and_else_any_object() {
    let harness = noise(None);
    let odd = json!({"parameters": {"type": "object", "properties": {"a": {"not": {}}}}});
    let request = |strict: bool| {
        let function = function("weather", merged(odd.clone(), json!({"strict": strict})));
        json!({"tools": [function], "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 600})
    };
    let refused = harness.chat(request(true)).await;
    let message_of_error = refused.error(400, "invalid_value", Some("tools[0].function.parameters"));
    assert!(message_of_error.contains("'not'"), "{message_of_error}");
    let reply = harness.chat(request(false)).await.json();
    let call = &message(&reply)["tool_calls"][0]["function"];
    assert!(call["arguments"].as_str().unwrap().starts_with('{'), "{reply}");
}

#[tokio::test]
async fn a_form_and_tools_go_together() {
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "it", "schema": {"enum": ["yes", "no"]}}});
    let harness = noise(None);
    let (mut texts, mut called) = (0, 0);
    for seed in 0..12 {
        let fields = tools(
            json!({"response_format": format, "seed": seed, "max_tokens": 400, "parallel_tool_calls": false}),
        );
        let reply = harness.chat(fields).await.json();
        match message(&reply)["content"].as_str() {
            Some(text) => {
                assert!(["\"yes\"", "\"no\""].contains(&text), "{text}");
                texts += 1;
            }
            None => {
                calls(message(&reply)).iter().for_each(assert_valid);
                called += 1;
            }
        }
    }
    assert!(texts > 0 && called > 0, "{texts} texts, {called} calls");
}

#[tokio::test]
async fn calls_and_answers_of_tools_come_back_into_the_prompt_with_their_ids() {
    let harness = Harness::templated(executor_with("ok", MISTRAL_MARKS, ROOMY), MISTRAL, MISTRAL_MARKS);
    let history = |id: &str| {
        json!({"messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": id, "type": "function", "index": 0, "function": {"name": "24h_news", "arguments": "{\"city\": \"Oslo\"}"}},
            ]},
            {"role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": "rain"}]},
        ]})
    };
    let body = merged(json!({"model": "tiny"}), history("abcDEF123"));
    let tokens = harness.post_json("/tokenize", &body).await.json();
    let text = harness.post_json("/detokenize", &json!({"tokens": tokens["tokens"]})).await.json();
    let expected = "user: Hiassistant: [TOOL_CALLS][{\"name\": \"24h_news\", \"arguments\": {\"city\": \"Oslo\"}}abcDEF123]tool: rainabcDEF123";
    assert_eq!(text["prompt"], expected);
    // An answer's own ids are such as the template takes.
    let noisy = noise(Some((MISTRAL, MISTRAL_MARKS)));
    let fields = tools(json!({"tool_choice": "required", "parallel_tool_calls": false}));
    let reply = noisy.chat(fields).await.json();
    let id = message(&reply)["tool_calls"][0]["id"].as_str().unwrap();
    harness.chat(history(id)).await.json();
    harness.chat(history("too long for it")).await.error(400, "invalid_value", Some("messages"));
}

#[tokio::test]
async fn a_template_that_knows_no_tools_gets_them_described() {
    let harness = answering("ok");
    let body = chat_body(tools(json!({"messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "24h_news", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]})));
    let tokens = harness.post_json("/tokenize", &body).await.json();
    let text = harness.post_json("/detokenize", &json!({"tokens": tokens["tokens"]})).await.json();
    let prompt = text["prompt"].as_str().unwrap();
    assert!(
        prompt.starts_with("<|im_start|>system\n") && prompt.contains("\"name\":\"weather\""),
        "{prompt}"
    );
    let call = "<|im_start|>assistant\n<tool_call>\n{\"name\": \"24h_news\", \"arguments\": {}}\n</tool_call><|im_end|>\n";
    let answer = "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n";
    assert!(prompt.contains(&format!("{call}{answer}")), "{prompt}");
}

#[tokio::test]
async fn a_model_whose_notation_is_not_known_takes_no_tools() {
    let template = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}";
    let harness = Harness::templated(executor_with("ok", &[], ROOMY), template, &[]);
    let message = harness.chat(tools(json!({}))).await.error(400, "unsupported_parameter", Some("tools"));
    assert!(message.contains("--tool-parser"), "{message}");
    harness.chat(json!({})).await.json();
}

#[tokio::test]
async fn what_is_wrong_with_tools_is_named() {
    let harness = answering("ok");
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let with = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    let call = |call: Value| json!({"messages": [{"role": "assistant", "tool_calls": [call]}]});
    for (fields, code, param) in [
        (json!({"tools": {}}), "invalid_type", "tools"),
        (json!({"tools": [1]}), "invalid_type", "tools[0]"),
        (json!({"tools": [{"function": {"name": "f"}}]}), "missing_required_parameter", "tools[0].type"),
        (json!({"tools": [{"type": "web_search"}]}), "unsupported_parameter", "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "missing_required_parameter", "tools[0].function"),
        (with(json!({})), "missing_required_parameter", "tools[0].function.name"),
        (with(json!({"name": "a b"})), "invalid_value", "tools[0].function.name"),
        (with(json!({"name": ""})), "invalid_value", "tools[0].function.name"),
        (with(json!({"name": "f", "parameters": []})), "invalid_type", "tools[0].function.parameters"),
        (
            with(json!({"name": "f", "parameters": {"type": "string"}})),
            "invalid_value",
            "tools[0].function.parameters.type",
        ),
        (with(json!({"name": "f", "strict": 1})), "invalid_type", "tools[0].function.strict"),
        (with(json!({"name": "f", "color": 1})), "unknown_parameter", "tools[0].function.color"),
        (
            json!({"tools": [function("f", json!({})), function("f", json!({}))]}),
            "invalid_value",
            "tools[1].function.name",
        ),
        (json!({"tool_choice": "required"}), "invalid_value", "tool_choice"),
        (json!({"tool_choice": named("f")}), "invalid_value", "tool_choice.function.name"),
        (tools(json!({"tool_choice": "always"})), "invalid_value", "tool_choice"),
        (tools(json!({"tool_choice": 1})), "invalid_type", "tool_choice"),
        (tools(json!({"tool_choice": named("other")})), "invalid_value", "tool_choice.function.name"),
        (
            tools(json!({"tool_choice": {"type": "allowed_tools"}})),
            "unsupported_parameter",
            "tool_choice.type",
        ),
        (tools(json!({"parallel_tool_calls": "no"})), "invalid_type", "parallel_tool_calls"),
        (tools(json!({"tool_choice": "required", "ignore_eos": true})), "invalid_value", "ignore_eos"),
        (
            call(json!({"function": {"name": "f"}})),
            "missing_required_parameter",
            "messages[0].tool_calls[0].id",
        ),
        (call(json!({"id": "1"})), "missing_required_parameter", "messages[0].tool_calls[0].function"),
        (
            call(json!({"id": "1", "function": {"name": "f", "arguments": {}}})),
            "invalid_type",
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            json!({"messages": [{"role": "tool", "content": "a"}]}),
            "missing_required_parameter",
            "messages[0].tool_call_id",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}),
            "unsupported_parameter",
            "messages[0].tool_calls",
        ),
    ] {
        harness.chat(fields).await.error(400, code, Some(param));
    }
}

#[tokio::test]
async fn several_answers_have_calls_of_their_own() {
    let harness = noise(None);
    let fields = tools(json!({"tool_choice": "required", "parallel_tool_calls": false, "n": 3, "seed": 1}));
    let reply = harness.chat(fields).await.json();
    let mut ids = BTreeSet::new();
    for index in 0..3 {
        let message = &reply["choices"][index]["message"];
        calls(message).iter().for_each(assert_valid);
        ids.insert(message["tool_calls"][0]["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(ids.len(), 3);
}

//! Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`.

use crate::harness::{
    Harness, LIMITS, MODEL, Reply, endless, executor, executor_with, merged, noise_after, tokens,
};
use axum::body::Body;
use axum::http::{Request, header};
use oxide_infer_engine::ExecutorLimits;
use oxide_infer_engine::testing::scripted::ScriptedExecutor;
use oxide_infer_server::ApiKey;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::time::Duration;

const ROOMY: ExecutorLimits = ExecutorLimits { max_model_len: 4096, ..LIMITS };
const ONE_CALL: &str =
    "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
const THINKING: &str = "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}|{{ m.content }}{% endfor %}\
    {% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}";

async fn send(harness: &Harness, fields: Value) -> Reply {
    let body = json!({"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}]});
    harness.post_json("/v1/messages", &merged(body, fields)).await
}

fn weather(more: Value) -> Value {
    let schema = json!({
        "type": "object",
        "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{1,3}$"}},
        "required": ["city"],
        "additionalProperties": false,
    });
    let tool = json!({"name": "weather", "description": "Looks it up.", "input_schema": schema});
    json!({"tools": [merged(tool, more)]})
}

fn answering(answer: &str) -> Harness {
    Harness::new(executor_with(answer, &[], ROOMY), |_| {})
}

/// What a stream adds up to, by Anthropic's rules; asserts that events come in the documented order.
fn accumulated(reply: &Reply) -> Value {
    let events = reply.named_events();
    let (first, rest) = events.split_first().unwrap();
    assert_eq!(first["type"], "message_start");
    let mut message = first["message"].clone();
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    let mut blocks: Vec<Value> = Vec::new();
    let mut input = None::<String>;
    let mut open = None;
    let (end, rest) = rest.split_last().unwrap();
    assert_eq!(*end, json!({"type": "message_stop"}));
    let (last, rest) = rest.split_last().unwrap();
    for event in rest {
        let index = event["index"].as_u64().map(|index| index as usize);
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open, index), (None, Some(blocks.len())), "{event}");
                blocks.push(event["content_block"].clone());
                (open, input) = (index, Some(String::new()));
            }
            "content_block_delta" => {
                assert_eq!(open, index, "{event}");
                let block = blocks.last_mut().unwrap();
                let delta = &event["delta"];
                match delta["type"].as_str().unwrap() {
                    "input_json_delta" => {
                        input.as_mut().unwrap().push_str(delta["partial_json"].as_str().unwrap())
                    }
                    kind => {
                        let field = kind.strip_suffix("_delta").unwrap();
                        assert_eq!(block["type"], field);
                        block[field] = (block[field].as_str().unwrap().to_owned()
                            + delta[field].as_str().unwrap())
                        .into();
                    }
                }
            }
            "content_block_stop" => {
                assert_eq!(open.take(), index, "{event}");
                let block = blocks.last_mut().unwrap();
                if block["type"] == "tool_use" {
                    let text = input.take().unwrap();
                    block["input"] = serde_json::from_str(&text).unwrap_or(text.into());
                }
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!((last["type"].as_str(), open), (Some("message_delta"), None));
    message["content"] = blocks.into();
    message["stop_reason"] = last["delta"]["stop_reason"].clone();
    message["stop_sequence"] = last["delta"]["stop_sequence"].clone();
    message["usage"] = last["usage"].clone();
    message
}

#[tokio::test]
async fn a_message_is_answered_in_anthropics_form() {
    let reply = send(&Harness::answering("Hello."), json!({})).await.json();
    assert!(reply["id"].as_str().unwrap().starts_with("msg_"));
    let prompt = tokens("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n").len();
    let expected = json!({
        "id": reply["id"], "type": "message", "role": "assistant", "model": MODEL,
        "content": [{"type": "text", "text": "Hello."}],
        "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {"input_tokens": prompt, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 7},
    });
    assert_eq!(reply, expected);
}

#[tokio::test]
async fn the_prompt_has_system_turns_and_tool_results_where_they_belong() {
    let template = "{# <tool_call> #}{% for m in messages %}[{{ m.role }}{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}|{{ m.reasoning_content }}|\
        {{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.id }} {{ c.function.name }} {{ c.function.arguments.city }}>{% endfor %}]{% endfor %}";
    let harness = Harness::templated(executor("x"), template, &[]);
    let text = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let body = json!({
        "max_tokens": 1,
        "system": [text("Be brief."), text("Be kind.")],
        "messages": [
            {"role": "user", "content": "One"},
            {"role": "user", "content": [text("Two")]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                text("Let me see."),
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "c2", "name": "weather", "input": {"city": "Oslo"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sun"},
                {"type": "tool_result", "tool_use_id": "c2", "content": [text("rain")], "is_error": false},
                text("So?"),
            ]},
        ],
        "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
    });
    let expected = "[system||Be brief.\nBe kind.][user||One\nTwo][assistant|hm|Let me see.<c1 weather Rome><c2 weather Oslo>]\
        [tool c1||sun][tool c2||rain][user||So?]";
    let reply = harness.post_json("/v1/messages", &body).await.json();
    assert_eq!(reply["usage"]["input_tokens"], tokens(expected).len());
    let chat = json!({"messages": [{"role": "user", "content": expected}]});
    let plain = Harness::templated(executor("x"), "{{ messages[0].content }}", &[]);
    let counted = plain.post_json("/v1/messages/count_tokens", &chat).await.json();
    assert_eq!(counted, json!({"input_tokens": tokens(expected).len()}));
    // The very tokens, not only their number: the scripted model is a function of them.
    let executor = || ScriptedExecutor::new(ROOMY);
    let body = merged(body, json!({"max_tokens": 20, "temperature": 0, "ignore_eos": true}));
    let answer = Harness::templated(executor(), template, &[]).post_json("/v1/messages", &body).await.json();
    let same = merged(chat, json!({"max_tokens": 20, "temperature": 0, "ignore_eos": true}));
    let plain = Harness::templated(executor(), "{{ messages[0].content }}", &[]);
    assert_eq!(answer["content"], plain.post_json("/v1/messages", &same).await.json()["content"]);
}

#[tokio::test]
async fn counting_counts_what_a_message_takes() {
    let harness = answering("x");
    let body = merged(
        json!({"system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]}),
        weather(json!({})),
    );
    let counted = harness.post_json("/v1/messages/count_tokens", &body).await.json();
    let usage = send(&harness, body).await.json()["usage"].clone();
    assert_eq!(counted["input_tokens"], usage["input_tokens"]);
}

#[tokio::test]
async fn an_answer_that_is_begun_is_gone_on_with() {
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer is"}]);
    let harness = Harness::answering(" 42.");
    let reply = send(&harness, json!({"messages": messages})).await.json();
    assert_eq!(reply["content"][0]["text"], " 42.");
    let prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nThe answer is";
    assert_eq!(reply["usage"]["input_tokens"], tokens(prompt).len());
}

#[tokio::test]
async fn why_an_answer_ended_is_told_in_anthropics_words() {
    let harness = answering("one two three");
    for (fields, reason, sequence) in [
        (json!({}), "end_turn", Value::Null),
        (json!({"max_tokens": 3}), "max_tokens", Value::Null),
        (json!({"stop_sequences": ["zzz", " two"]}), "stop_sequence", json!(" two")),
    ] {
        for stream in [false, true] {
            let reply = send(&harness, merged(fields.clone(), json!({"stream": stream}))).await;
            let message = if stream { accumulated(&reply) } else { reply.json() };
            assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(reason), &sequence));
        }
    }
}

#[tokio::test]
async fn calls_are_blocks_after_the_text() {
    let harness = answering(ONE_CALL);
    let reply = send(&harness, weather(json!({}))).await.json();
    let id = reply["content"][1]["id"].clone();
    assert_eq!(
        reply["content"],
        json!([
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": id, "name": "weather", "input": {"city": "Rome"}},
        ])
    );
    assert_eq!(reply["stop_reason"], "tool_use");
}

#[tokio::test]
async fn forced_calls_are_valid_whatever_the_model() {
    let harness = Harness::new(ScriptedExecutor::new(ROOMY), |_| {});
    for choice in [
        json!({"type": "any", "disable_parallel_tool_use": true}),
        json!({"type": "tool", "name": "weather"}),
    ] {
        let reply = send(&harness, merged(weather(json!({})), json!({"tool_choice": choice, "seed": 3})))
            .await
            .json();
        let [block] = reply["content"].as_array().unwrap().as_slice() else { panic!("{reply}") };
        let city = block["input"]["city"].as_str().unwrap();
        assert!((2..=4).contains(&city.len()) && city.is_ascii(), "{reply}");
        assert_eq!((&block["type"], &reply["stop_reason"]), (&json!("tool_use"), &json!("tool_use")));
    }
}

#[tokio::test]
async fn tools_that_are_not_to_be_called_are_not_shown() {
    let harness = answering(ONE_CALL);
    let reply =
        send(&harness, merged(weather(json!({})), json!({"tool_choice": {"type": "none"}}))).await.json();
    assert_eq!(reply["content"], json!([{"type": "text", "text": ONE_CALL}]));
    let plain = send(&harness, json!({})).await.json();
    let total = |reply: &Value| {
        reply["usage"]["input_tokens"].as_u64().unwrap()
            + reply["usage"]["cache_read_input_tokens"].as_u64().unwrap()
    };
    assert_eq!(total(&reply), total(&plain));
}

#[tokio::test]
async fn a_call_that_is_cut_off_is_text() {
    let harness = answering(ONE_CALL);
    let reply = send(&harness, merged(weather(json!({})), json!({"max_tokens": 65}))).await.json();
    assert_eq!(reply["stop_reason"], "max_tokens");
    let [_, cut] = reply["content"].as_array().unwrap().as_slice() else { panic!("{reply}") };
    assert!(cut["text"].as_str().unwrap().starts_with("{\"name\": \"weather\", \"arguments\": {"), "{reply}");
}

#[tokio::test]
async fn reasoning_is_a_block_and_can_be_turned_off() {
    let harness = Harness::templated(executor("<think>Two and two</think>Four."), THINKING, &[]);
    let reply = send(&harness, json!({"thinking": {"type": "adaptive"}})).await.json();
    let thinking = json!({"type": "thinking", "thinking": "Two and two", "signature": ""});
    assert_eq!(reply["content"], json!([thinking, {"type": "text", "text": "Four."}]));
    let off = send(&harness, json!({"thinking": {"type": "disabled"}})).await.json();
    assert_eq!(off["content"], json!([{"type": "text", "text": "<think>Two and two</think>Four."}]));
}

#[tokio::test]
async fn output_config_holds_the_answer_to_a_schema() {
    let harness = Harness::new(noise_after("", &[], ROOMY), |_| {});
    let format = json!({"type": "json_schema", "schema": {"enum": ["yes", "no"]}});
    for seed in 0..4 {
        let reply = send(&harness, json!({"output_config": {"format": format}, "seed": seed})).await.json();
        let text = reply["content"][0]["text"].as_str().unwrap();
        assert!(["\"yes\"", "\"no\""].contains(&text), "{reply}");
    }
}

#[tokio::test]
async fn with_keys_set_either_header_opens_and_the_refusal_is_anthropics() {
    let harness = Harness::new(executor("x"), |config| config.api_keys = vec![ApiKey::new("sk-one")]);
    let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]});
    let send = async |path: &str, header: Option<(&str, &str)>| {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        let request = header.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        harness.send(request.body(Body::from(body.to_string())).unwrap()).await
    };
    for header in [("x-api-key", "sk-one"), ("authorization", "Bearer sk-one")] {
        send("/v1/messages", Some(header)).await.json();
    }
    for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches"] {
        send(path, None).await.anthropic_error(401, "authentication_error");
        send(path, Some(("x-api-key", "sk-two"))).await.anthropic_error(401, "authentication_error");
    }
    // Elsewhere the key counts as well, and errors are OpenAI's.
    send("/v1/nothing", Some(("x-api-key", "sk-one"))).await.error(404, "unknown_url", None);
}

#[tokio::test]
async fn every_error_of_these_routes_has_anthropics_form() {
    let harness = Harness::new(executor("x"), |config| config.limits.max_body_bytes = 1000);
    send(&harness, json!({"model": "other"})).await.anthropic_error(404, "not_found_error");
    harness.get("/v1/messages").await.anthropic_error(405, "invalid_request_error");
    harness.post_json("/v1/messages/batches", &json!({})).await.anthropic_error(404, "not_found_error");
    harness.post("/v1/messages", "{").await.anthropic_error(400, "invalid_request_error");
    send(&harness, json!({"system": "x".repeat(2000)})).await.anthropic_error(413, "request_too_large");
    let long = send(&harness, json!({"max_tokens": 300})).await.anthropic_error(400, "invalid_request_error");
    assert!(long.contains("256 tokens"), "{long}");
    harness.server.begin_drain();
    let reply = send(&harness, json!({})).await;
    reply.anthropic_error(503, "overloaded_error");
    assert!(reply.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn a_failure_in_a_stream_is_an_error_event() {
    let executor = endless(Duration::from_millis(1)).failing_at(4, "broken");
    let reply = send(&Harness::new(executor, |_| {}), json!({"stream": true})).await;
    let events = reply.named_events();
    let last = events.last().unwrap();
    assert_eq!(
        (last["type"].as_str(), last["error"]["type"].as_str()),
        (Some("error"), Some("overloaded_error"))
    );
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let harness = answering("x");
    let block = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    let said = |block: Value| json!({"messages": [{"role": "assistant", "content": [block]}]});
    let call = json!({"type": "tool_use", "id": "1", "name": "f", "input": {}});
    for (fields, expected) in [
        (json!({"max_tokens": null}), "'max_tokens' is required"),
        (json!({"messages": []}), "'messages' must not be empty"),
        (
            json!({"messages": [{"role": "system", "content": "a"}]}),
            "'messages[0].role' is not supported yet: use the field 'system'",
        ),
        (
            json!({"messages": [{"role": "tool", "content": "a"}]}),
            "'messages[0].role' must be 'user' or 'assistant', got 'tool'",
        ),
        (json!({"messages": [{"role": "user"}]}), "'messages[0].content' is required"),
        (
            json!({"messages": [{"role": "user", "content": "a", "name": "b"}]}),
            "'messages[0].name' is not a field",
        ),
        (block(json!({"type": "image", "source": {}})), "'messages[0].content[0].type' is not supported yet"),
        (block(json!({"type": "text"})), "'messages[0].content[0].text' is required"),
        (
            block(json!({"type": "text", "text": "a", "citations": [1]})),
            "'messages[0].content[0].citations' is not supported",
        ),
        (block(json!({"type": "tool_result"})), "'messages[0].content[0].tool_use_id' is required"),
        (
            block(json!({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]})),
            "'messages[0].content[0].content[0].type' is not supported",
        ),
        (
            said(merged(call.clone(), json!({"input": "x"}))),
            "'messages[0].content[0].input' must be an object",
        ),
        (said(call), "'messages[0].content' must be followed by a 'tool_result'"),
        (json!({"system": 1}), "'system' must be a string or an array"),
        (json!({"tools": [{"name": "f"}]}), "'tools[0].input_schema' is required"),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            "'tools[0].type' is not supported yet",
        ),
        (weather(json!({"input_examples": [{}]})), "'tools[0].input_examples' is not supported"),
        (weather(json!({"strict": true, "input_schema": {"not": {}}})), "'tools[0].input_schema' "),
        (json!({"tool_choice": {"type": "any"}}), "'tool_choice' needs 'tools'"),
        (merged(weather(json!({})), json!({"tool_choice": "any"})), "'tool_choice' must be an object"),
        (
            merged(weather(json!({})), json!({"tool_choice": {"type": "tool", "name": "f"}})),
            "'tool_choice.name' must be",
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 9}}),
            "'thinking.budget_tokens' is not supported",
        ),
        (json!({"output_config": {"effort": "low"}}), "'output_config.effort' is not supported"),
        (
            json!({"output_config": {"format": {"type": "json_schema"}}}),
            "'output_config.format.schema' is required",
        ),
        (json!({"stop_sequences": "a b".repeat(400)}), "'stop_sequences' must have strings of at most"),
    ] {
        let message = send(&harness, fields).await.anthropic_error(400, "invalid_request_error");
        assert!(message.starts_with(expected), "{message}\nnot {expected}");
    }
}

/// Reasoning, text, complete calls, and how it ended.
fn essence(message: &Value) -> (String, String, Vec<(Value, Value)>, Value) {
    let blocks = message["content"].as_array().unwrap();
    let joined = |kind: &str| blocks.iter().filter_map(|block| block[kind].as_str()).collect();
    let calls = blocks.iter().filter(|block| block["input"].is_object());
    let calls = calls.map(|block| (block["name"].clone(), block["input"].clone())).collect();
    let usage = &message["usage"];
    // The second request finds some of the prompt in the prefix cache.
    let input = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    let input: u64 = input.iter().map(|name| usage[name].as_u64().unwrap()).sum();
    (
        joined("thinking"),
        joined("text"),
        calls,
        json!([message["stop_sequence"], input, usage["output_tokens"]]),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the model writes, a stream adds up to the whole answer.
    #[test]
    fn a_stream_adds_up_to_the_whole_message(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "a", " \n", "é", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_", "{\"name\": \"weather\"",
            ", \"arguments\": {\"city\": \"Rome\"}}", "{\"name\": \"weather\", \"arguments\": {}}",
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>",
        ]), 0..8),
        limit in 1_u32..160,
    ) {
        let answer = pieces.concat();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let harness = Harness::templated(executor_with(&answer, &[], ROOMY), THINKING, &[]);
            let fields = merged(weather(json!({})), json!({"max_tokens": limit}));
            let whole = send(&harness, fields.clone()).await.json();
            let streamed = accumulated(&send(&harness, merged(fields, json!({"stream": true}))).await);
            let (mut whole_parts, streamed_parts) = (essence(&whole), essence(&streamed));
            // A call that cannot be made is text in a whole answer.
            let broken = streamed["content"].as_array().unwrap().iter().find(|block| block["input"].is_string());
            if let Some(broken) = broken {
                let text = format!("{{\"name\": \"weather\", \"arguments\": {}", broken["input"].as_str().unwrap());
                // It is the last thing that was written; the same may stand before it as text.
                let at = whole_parts.1.rfind(&text).unwrap();
                whole_parts.1.replace_range(at..at + text.len(), "");
            } else {
                assert_eq!(whole["stop_reason"], streamed["stop_reason"]);
            }
            assert_eq!(whole_parts, streamed_parts);
        });
    }
}

//! OpenAI's Responses API: `/v1/responses`.

use crate::harness::{
    Harness, LIMITS, MODEL, Reply, endless, executor, executor_with, merged, noise_after, tokens,
};
use oxide_infer_engine::ExecutorLimits;
use oxide_infer_engine::testing::scripted::ScriptedExecutor;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::time::Duration;

const ROOMY: ExecutorLimits = ExecutorLimits { max_model_len: 4096, ..LIMITS };
const ONE_CALL: &str =
    "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
const THINKING: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{# </think> #}";

async fn send(harness: &Harness, fields: Value) -> Reply {
    harness.post_json("/v1/responses", &merged(json!({"model": MODEL, "input": "Hi"}), fields)).await
}

fn weather(more: Value) -> Value {
    let schema = json!({
        "type": "object",
        "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{1,3}$"}},
        "required": ["city"],
        "additionalProperties": false,
    });
    let tool =
        json!({"type": "function", "name": "weather", "description": "Looks it up.", "parameters": schema});
    json!({"tools": [merged(tool, more)]})
}

fn answering(answer: &str) -> Harness {
    Harness::new(executor_with(answer, &[], ROOMY), |_| {})
}

/// The last response of a stream; asserts that all events before it come in the documented order and add up to it.
fn accumulated(reply: &Reply) -> Value {
    let events = reply.named_events();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    for event in &events[..2] {
        assert_eq!(
            (&event["response"]["status"], &event["response"]["output"]),
            (&json!("in_progress"), &json!([]))
        );
    }
    let (last, rest) = events[2..].split_last().unwrap();
    let mut items: Vec<Value> = Vec::new();
    let mut rest = rest.iter();
    while let Some(added) = rest.next() {
        assert_eq!(
            (&added["type"], &added["output_index"]),
            (&json!("response.output_item.added"), &json!(items.len()))
        );
        items.push(accumulated_item(&added["item"], items.len(), &mut rest));
    }
    let response = last["response"].clone();
    let ending = format!("response.{}", response["status"].as_str().unwrap());
    assert_eq!(last["type"], ending);
    assert_eq!(response["output"], json!(items));
    response
}

/// Reads the events of one item, from behind the first to the last, and returns the item.
fn accumulated_item<'a>(added: &Value, index: usize, events: &mut impl Iterator<Item = &'a Value>) -> Value {
    let (text, field) = match added["type"].as_str().unwrap() {
        "message" => ("output_text", "text"),
        "reasoning" => ("reasoning_text", "text"),
        "function_call" => ("function_call_arguments", "arguments"),
        other => panic!("{other}"),
    };
    assert_eq!(added["status"], "in_progress");
    let is_call = text == "function_call_arguments";
    let mut next = |kind: &str| {
        let event = events.next().unwrap();
        assert_eq!(event["output_index"], index, "{event}");
        let id = if kind.contains("item") { &event["item"]["id"] } else { &event["item_id"] };
        assert_eq!(id, &added["id"], "{event}");
        event
    };
    if is_call {
        assert_eq!(added["arguments"], "");
    } else {
        assert_eq!(added["content"], json!([]));
        let part = next("part");
        assert_eq!(
            (&part["type"], &part["part"]["text"]),
            (&json!("response.content_part.added"), &json!(""))
        );
    }
    let mut whole = String::new();
    let done = loop {
        let event = next("text");
        if event["type"] != format!("response.{text}.delta") {
            break event;
        }
        whole.push_str(event["delta"].as_str().unwrap());
    };
    assert_eq!((&done["type"], &done[field]), (&json!(format!("response.{text}.done")), &json!(whole)));
    let part = (!is_call).then(|| next("part"));
    let item = next("item");
    assert_eq!(item["type"], "response.output_item.done");
    match part {
        Some(part) => {
            assert_eq!(part["type"], "response.content_part.done");
            assert_eq!(
                (&item["item"]["content"], &part["part"]["text"]),
                (&json!([part["part"]]), &json!(whole))
            );
        }
        None => assert_eq!(item["item"]["arguments"], whole),
    }
    item["item"].clone()
}

#[tokio::test]
async fn a_response_has_openais_form() {
    let reply =
        send(&Harness::answering("Hello."), json!({"metadata": {"a": "b"}, "temperature": 0.5})).await.json();
    let id = reply["id"].as_str().unwrap().strip_prefix("resp_").unwrap();
    let prompt = tokens("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n").len();
    let text = json!({"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []});
    let message = json!({
        "type": "message", "id": format!("msg_{id}_0"), "status": "completed", "role": "assistant", "content": [text],
    });
    let expected = json!({
        "id": reply["id"], "object": "response", "created_at": reply["created_at"], "status": "completed",
        "completed_at": reply["completed_at"], "error": null, "incomplete_details": null, "model": MODEL,
        "output": [message], "instructions": null, "max_output_tokens": null, "metadata": {"a": "b"},
        "parallel_tool_calls": true, "temperature": 0.5, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
        "tools": [], "top_p": 1.0, "background": false, "previous_response_id": null,
        "reasoning": {"effort": null, "summary": null}, "store": false, "top_logprobs": 0, "truncation": "disabled",
        "usage": {
            "input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + 7,
        },
    });
    assert_eq!(reply, expected);
    assert!(reply["created_at"].is_u64() && reply["completed_at"].is_u64());
}

#[tokio::test]
async fn the_prompt_has_instructions_and_items_where_they_belong() {
    let template = "{# <tool_call> #}{% for m in messages %}[{{ m.role }}{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}|{{ m.reasoning_content }}|\
        {{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.id }} {{ c.function.name }} {{ c.function.arguments.city }}>{% endfor %}]{% endfor %}";
    let text = |kind: &str, text: &str| json!({"type": kind, "text": text, "annotations": []});
    let call = |id: &str, city: &str| json!({"type": "function_call", "call_id": id, "name": "weather", "arguments": json!({"city": city}).to_string(), "id": "fc_1", "status": "completed"});
    let input = json!([
        {"role": "user", "content": "One"},
        {"type": "message", "role": "user", "content": [text("input_text", "Two")]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [text("output_text", "Let me see.")]},
        call("c1", "Rome"),
        call("c2", "Oslo"),
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [text("input_text", "rain")]},
        {"role": "user", "content": "So?"},
    ]);
    let expected = "[system||Be brief.][user||One\nTwo][assistant|hm|Let me see.<c1 weather Rome><c2 weather Oslo>]\
        [tool c1||sun][tool c2||rain][user||So?]";
    let fields = json!({"max_output_tokens": 20, "temperature": 0, "ignore_eos": true});
    let harness = Harness::templated(ScriptedExecutor::new(ROOMY), template, &[]);
    let body = json!({"instructions": "Be brief.", "input": input, "tools": [{"type": "function", "name": "weather"}]});
    let reply = send(&harness, merged(body, fields.clone())).await.json();
    assert_eq!(reply["usage"]["input_tokens"], tokens(expected).len());
    // The very tokens, not only their number: the scripted model is a function of them.
    let plain = Harness::templated(ScriptedExecutor::new(ROOMY), "{{ messages[0].content }}", &[]);
    let same = send(&plain, merged(json!({"input": expected}), fields)).await.json();
    assert_eq!(reply["output"][0]["content"], same["output"][0]["content"]);
}

#[tokio::test]
async fn a_response_is_input_again_as_it_came() {
    let harness =
        Harness::templated(executor_with(&format!("<think>hm</think>{ONE_CALL}"), &[], ROOMY), THINKING, &[]);
    let mut input = json!([{"role": "user", "content": "Hi"}]);
    let first = send(&harness, merged(weather(json!({})), json!({"input": input}))).await.json();
    let output = first["output"].as_array().unwrap();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    let items = input.as_array_mut().unwrap();
    items.extend(output.iter().cloned());
    items.push(json!({"type": "function_call_output", "call_id": output[2]["call_id"], "output": "sun"}));
    send(&harness, merged(weather(json!({})), json!({"input": input}))).await.json();
}

#[tokio::test]
async fn a_limit_makes_a_response_incomplete() {
    let harness = answering("one two three");
    for stream in [false, true] {
        let reply = send(&harness, json!({"max_output_tokens": 3, "stream": stream})).await;
        let response = if stream { accumulated(&reply) } else { reply.json() };
        assert_eq!(response["status"], "incomplete");
        assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
        assert_eq!(response["output"][0]["status"], "incomplete");
        assert_eq!((&response["max_output_tokens"], &response["completed_at"]), (&json!(3), &Value::Null));
    }
}

#[tokio::test]
async fn calls_are_items_and_the_request_is_repeated() {
    let reply = send(&answering(ONE_CALL), weather(json!({"strict": false}))).await.json();
    assert_eq!(reply["output"][0]["content"][0]["text"], "Let me see.");
    let call = &reply["output"][1];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")));
    assert_eq!(call["arguments"], "{\"city\": \"Rome\"}");
    assert!(
        call["call_id"].as_str().unwrap().starts_with("call_")
            && call["id"].as_str().unwrap().starts_with("fc_")
    );
    assert_eq!(reply["tools"], weather(json!({"strict": false}))["tools"]);
}

#[tokio::test]
async fn forced_calls_are_valid_whatever_the_model() {
    let harness = Harness::new(ScriptedExecutor::new(ROOMY), |_| {});
    for choice in [json!("required"), json!({"type": "function", "name": "weather"})] {
        let fields = json!({"tool_choice": choice, "parallel_tool_calls": false, "seed": 3});
        let reply = send(&harness, merged(weather(json!({})), fields)).await.json();
        assert_eq!((&reply["tool_choice"], &reply["parallel_tool_calls"]), (&choice, &json!(false)));
        let [call] = reply["output"].as_array().unwrap().as_slice() else { panic!("{reply}") };
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!((2..=4).contains(&arguments["city"].as_str().unwrap().len()), "{reply}");
    }
}

#[tokio::test]
async fn the_text_format_holds_the_answer_to_a_schema() {
    let harness = Harness::new(noise_after("", &[], ROOMY), |_| {});
    let format =
        json!({"type": "json_schema", "name": "it", "strict": true, "schema": {"enum": ["yes", "no"]}});
    for seed in 0..4 {
        let reply = send(&harness, json!({"text": {"format": format}, "seed": seed})).await.json();
        let text = reply["output"][0]["content"][0]["text"].as_str().unwrap();
        assert!(["\"yes\"", "\"no\""].contains(&text), "{reply}");
        assert_eq!(reply["text"], json!({"format": format}));
    }
    let reply = send(&harness, json!({"text": {"format": {"type": "json_object"}}, "max_output_tokens": 9}))
        .await
        .json();
    assert!(reply["output"][0]["content"][0]["text"].as_str().unwrap().starts_with('{'), "{reply}");
}

#[tokio::test]
async fn reasoning_is_an_item_and_its_tokens_are_counted() {
    let harness = Harness::templated(executor("<think>Two and two</think>Four."), THINKING, &[]);
    let reply = send(&harness, json!({})).await.json();
    assert_eq!(reply["output"][0]["content"], json!([{"type": "reasoning_text", "text": "Two and two"}]));
    assert_eq!(reply["output"][0]["summary"], json!([]));
    assert_eq!(reply["output"][1]["content"][0]["text"], "Four.");
    // One token a byte: the opening tag, the text, and the closing tag but for its last character, which closes it.
    let reasoning = "<think>Two and two</think".len();
    assert_eq!(reply["usage"]["output_tokens_details"]["reasoning_tokens"], reasoning);
}

#[tokio::test]
async fn a_failure_in_a_stream_is_a_failed_response() {
    let harness = Harness::new(endless(Duration::from_millis(1)).failing_at(4, "broken"), |_| {});
    let events = send(&harness, json!({"stream": true})).await.named_events();
    let last = events.last().unwrap();
    assert_eq!(
        (last["type"].as_str(), last["response"]["status"].as_str()),
        (Some("response.failed"), Some("failed"))
    );
    assert_eq!(last["response"]["error"]["code"], "engine_failed");
    assert_eq!(last["sequence_number"], events.len() - 1);
}

#[tokio::test]
async fn nothing_is_stored_and_what_would_need_it_is_refused() {
    let harness = answering("x");
    for (field, value) in [
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("background", json!(true)),
    ] {
        send(&harness, json!({field: value})).await.error(400, "unsupported_parameter", Some(field));
    }
    let kept = json!({"store": true, "background": false, "include": ["reasoning.encrypted_content"]});
    assert_eq!(send(&harness, kept).await.json()["store"], false);
    harness.get("/v1/responses/resp_1").await.error(404, "unknown_url", None);
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let harness = answering("x");
    let item = |item: Value| json!({"input": [item]});
    let message = |part: Value| item(json!({"role": "user", "content": [part]}));
    for (fields, code, param) in [
        (json!({"input": null}), "missing_required_parameter", "input"),
        (json!({"input": 1}), "invalid_type", "input"),
        (json!({"input": []}), "invalid_value", "input"),
        (item(json!({"role": "user"})), "missing_required_parameter", "input[0].content"),
        (item(json!({"role": "tool", "content": "a"})), "invalid_value", "input[0].role"),
        (item(json!({"type": "item_reference", "id": "a"})), "unsupported_parameter", "input[0].type"),
        (
            item(json!({"type": "function_call", "call_id": "a"})),
            "missing_required_parameter",
            "input[0].name",
        ),
        (
            item(json!({"type": "function_call_output", "call_id": "a"})),
            "missing_required_parameter",
            "input[0].output",
        ),
        (
            item(json!({"type": "reasoning", "encrypted_content": "x"})),
            "unsupported_parameter",
            "input[0].encrypted_content",
        ),
        (item(json!({"role": "user", "content": "a", "color": 1})), "unknown_parameter", "input[0].color"),
        (message(json!({"type": "input_image"})), "unsupported_parameter", "input[0].content[0].type"),
        (message(json!({"type": "input_text"})), "missing_required_parameter", "input[0].content[0].text"),
        (json!({"instructions": ["a"]}), "invalid_type", "instructions"),
        (json!({"tools": [{"type": "web_search"}]}), "unsupported_parameter", "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "missing_required_parameter", "tools[0].name"),
        (weather(json!({"strict": true, "parameters": {"not": {}}})), "invalid_value", "tools[0].parameters"),
        (weather(json!({"defer_loading": true})), "unsupported_parameter", "tools[0].defer_loading"),
        (json!({"tool_choice": "required"}), "invalid_value", "tool_choice"),
        (
            merged(weather(json!({})), json!({"tool_choice": {"type": "function", "name": "f"}})),
            "invalid_value",
            "tool_choice.name",
        ),
        (
            merged(weather(json!({})), json!({"tool_choice": {"type": "allowed_tools"}})),
            "unsupported_parameter",
            "tool_choice.type",
        ),
        (
            json!({"text": {"format": {"type": "json_schema"}}}),
            "missing_required_parameter",
            "text.format.schema",
        ),
        (json!({"text": {"verbosity": "low"}}), "unsupported_parameter", "text.verbosity"),
        (json!({"reasoning": {"effort": "low"}}), "unsupported_parameter", "reasoning.effort"),
        (json!({"truncation": "auto"}), "unsupported_parameter", "truncation"),
        (json!({"metadata": {"a": 1}}), "invalid_type", "metadata"),
        (json!({"max_output_tokens": 5000}), "context_length_exceeded", "max_output_tokens"),
        (json!({"input": "x".repeat(5000)}), "context_length_exceeded", "input"),
        (json!({"n": 2}), "unknown_parameter", "n"),
        (json!({"messages": []}), "unknown_parameter", "messages"),
    ] {
        send(&harness, fields).await.error(400, code, Some(param));
    }
}

/// A response without ids and times.
fn essence(mut response: Value) -> Value {
    for item in response["output"].as_array_mut().unwrap() {
        item["id"] = Value::Null;
        item["call_id"] = Value::Null;
    }
    response["usage"]["input_tokens_details"] = Value::Null;
    json!([response["status"], response["output"], response["usage"], response["tools"]])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the model writes, the events come in order, add up to the last response, and that is the whole answer.
    #[test]
    fn a_stream_adds_up_to_the_whole_response(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "a", " \n", "é", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_",
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>",
        ]), 0..8),
        limit in 1_u32..160,
    ) {
        let answer = pieces.concat();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let harness = Harness::templated(executor_with(&answer, &[], ROOMY), THINKING, &[]);
            let fields = merged(weather(json!({})), json!({"max_output_tokens": limit}));
            let whole = essence(send(&harness, fields.clone()).await.json());
            let streamed = essence(accumulated(&send(&harness, merged(fields, json!({"stream": true}))).await));
            // In a stream text may follow a call, and is then an item of its own.
            let kinds: Vec<&Value> = streamed[1].as_array().unwrap().iter().map(|item| &item["type"]).collect();
            let is_split = kinds.windows(2).any(|pair| pair[0] == "function_call" && pair[1] == "message");
            if is_split {
                assert_eq!((&streamed[0], &streamed[2]), (&whole[0], &whole[2]));
            } else {
                assert_eq!(streamed, whole);
            }
        });
    }
}

//! Answers held to a format: `response_format` and `structured_outputs`.

use crate::harness::{Harness, IM_END, LIMITS, Reply, chat_body, executor, tokens};
use axum::body::Body;
use axum::http::{Request, header};
use oxide_infer_engine::ExecutorLimits;
use oxide_infer_engine::testing::scripted::ScriptedExecutor;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// A model with room for answers that noise makes long.
const ROOMY: ExecutorLimits = ExecutorLimits { max_model_len: 512, ..LIMITS };

/// A server whose model writes noise: what it says depends on the seed and on what a mask allows, on nothing else.
fn noise() -> Harness {
    Harness::new(ScriptedExecutor::new(ROOMY), |_| {})
}

/// A schema whose answers are short, whatever the model.
fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z]{1,4}$"},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
            "role": {"enum": ["user", "admin"]},
        },
        "required": ["name", "age", "role"],
        "additionalProperties": false,
    })
}

fn json_schema(schema: Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}})
}

fn with(fields: Value, more: Value) -> Value {
    crate::harness::merged(fields, more)
}

#[track_caller]
fn assert_person(text: &str) {
    let person: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let keys: BTreeSet<&str> = person.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["name", "age", "role"]), "{text}");
    let name = person["name"].as_str().unwrap();
    assert!((1..=4).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase()), "{text}");
    assert!(person["age"].as_u64().unwrap() <= 99, "{text}");
    assert!(["user", "admin"].contains(&person["role"].as_str().unwrap()), "{text}");
}

fn content(reply: &Value, index: usize) -> &str {
    reply["choices"][index]["message"]["content"].as_str().unwrap()
}

fn completion(reply: &Value) -> (&str, &str) {
    let choice = &reply["choices"][0];
    (choice["text"].as_str().unwrap(), choice["finish_reason"].as_str().unwrap())
}

#[tokio::test]
async fn answers_are_what_the_schema_says_for_every_seed_and_choice() {
    let harness = noise();
    let mut texts = BTreeSet::new();
    for seed in 0..8 {
        let reply = harness.chat(with(json_schema(person()), json!({"seed": seed, "n": 3}))).await.json();
        for index in 0..3 {
            assert_person(content(&reply, index));
            assert_eq!(reply["choices"][index]["finish_reason"], "stop");
            texts.insert(content(&reply, index).to_owned());
        }
    }
    assert!(texts.len() > 12, "the model is free within the schema: {texts:?}");
}

#[tokio::test]
async fn the_same_seed_gives_the_same_answer_whole_or_streamed_with_a_warm_prefix_or_without() {
    let harness = noise();
    let fields = with(json_schema(person()), json!({"seed": 5}));
    let first = harness.chat(fields.clone()).await.json();
    let again = harness.chat(fields.clone()).await.json();
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0));
    assert_eq!(content(&first, 0), content(&again, 0));
    let events = harness.chat(with(fields, json!({"stream": true}))).await.events();
    let pieces = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), content(&first, 0));
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn every_form_is_kept_in_completions() {
    let harness = noise();
    let check = |form: &str, text: &str| match form {
        "json" | "text" => assert_person(text),
        "regex" => assert!(text.len() == 4 && text.starts_with("a-") && text[2..].parse::<u8>().is_ok()),
        "choice" => assert!(["yes", "no \"thanks\"", "né"].contains(&text), "{text}"),
        _ => assert!(["x+1", "x+2", "y+1", "y+2"].contains(&text), "{text}"),
    };
    for (form, outputs) in [
        ("json", json!({"json": person()})),
        ("text", json!({"json": person().to_string()})),
        ("regex", json!({"regex": "^a-[0-9]{2}$"})),
        ("choice", json!({"choice": ["yes", "no \"thanks\"", "né"]})),
        ("grammar", json!({"grammar": "start: NAME \"+\" /[12]/\nNAME: \"x\" | \"y\""})),
    ] {
        for seed in 0..4 {
            let fields = json!({"structured_outputs": outputs, "seed": seed, "max_tokens": 400});
            let reply = harness.complete("a", fields).await.json();
            let (text, finish) = completion(&reply);
            assert_eq!(finish, "stop", "{form}: {text}");
            check(form, text);
        }
    }
}

#[tokio::test]
async fn any_json_object_is_one() {
    // The model wants to write this, and nothing forbids it.
    let harness = Harness::answering("{\"a\": [1, {\"b\": null}]}");
    for fields in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"structured_outputs": {"json_object": true}}),
    ] {
        let reply = harness.chat(fields).await.json();
        assert_eq!(content(&reply, 0), "{\"a\": [1, {\"b\": null}]}");
    }
    // It wants to write this, and may not.
    let harness = Harness::answering("hello");
    let reply =
        harness.chat(json!({"response_format": {"type": "json_object"}, "max_tokens": 9})).await.json();
    assert!(content(&reply, 0).starts_with('{'));
}

#[tokio::test]
async fn an_answer_ends_with_an_end_token_when_nothing_else_may_follow() {
    let harness = Harness::answering("yes, and more");
    let fields = json!({"structured_outputs": {"choice": ["yes"]}, "return_token_ids": true});
    let reply = harness.complete("a", fields).await.json();
    assert_eq!(completion(&reply), ("yes", "stop"));
    assert_eq!(reply["choices"][0]["token_ids"], json!(tokens("yes<|im_end|>")));
}

#[tokio::test]
async fn an_answer_may_end_where_the_grammar_lets_it() {
    let harness = Harness::answering("ab");
    let fields = json!({"structured_outputs": {"regex": "[ab]*"}});
    assert_eq!(completion(&harness.complete("a", fields).await.json()), ("ab", "stop"));
}

#[tokio::test]
async fn max_tokens_cuts_an_answer_off_with_the_reason_length() {
    let harness = noise();
    for max_tokens in [1, 5, 20] {
        let reply = harness.chat(with(json_schema(person()), json!({"max_tokens": max_tokens}))).await.json();
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
        assert_eq!(reply["usage"]["completion_tokens"], max_tokens);
    }
}

#[tokio::test]
async fn min_tokens_lengthens_an_answer_where_the_grammar_allows_it_and_gives_way_where_it_does_not() {
    let harness = Harness::answering("");
    let ask = |regex: &'static str| json!({"structured_outputs": {"regex": regex}, "min_tokens": 5});
    let reply = harness.complete("a", ask("a*")).await.json();
    assert_eq!(completion(&reply), ("aaaaa", "stop"));
    let reply = harness.complete("a", ask("a{0,3}")).await.json();
    assert_eq!(completion(&reply), ("aaa", "stop"));
}

#[tokio::test]
async fn a_logit_bias_cannot_break_the_grammar() {
    let harness = noise();
    let bias = json!({"logit_bias": {"120": 100, (IM_END.to_string()): 100}});
    let reply = harness.chat(with(json_schema(person()), bias)).await.json();
    assert_person(content(&reply, 0));
}

#[tokio::test]
async fn a_stop_string_ends_an_answer_before_its_grammar_does() {
    let harness = Harness::answering("{\"name\": \"ab\"");
    let fields = with(json_schema(person()), json!({"stop": "name", "n": 2}));
    let reply = harness.chat(fields).await.json();
    for index in 0..2 {
        assert_eq!(content(&reply, index), "{\"");
        assert_eq!(reply["choices"][index]["stop_reason"], "name");
    }
}

#[tokio::test]
async fn a_stop_token_ends_an_answer_where_the_grammar_allows_the_token() {
    let harness = Harness::answering("aaba");
    let fields = json!({"structured_outputs": {"regex": "[ab]+"}, "stop_token_ids": [u32::from(b'b')]});
    let reply = harness.complete("a", fields).await.json();
    assert_eq!((completion(&reply).0, &reply["choices"][0]["stop_reason"]), ("aa", &json!(98)));
    let fields = json!({"structured_outputs": {"regex": "a{6}"}, "stop_token_ids": [u32::from(b'b')]});
    assert_eq!(completion(&harness.complete("a", fields).await.json()), ("aaaaaa", "stop"));
}

#[tokio::test]
async fn ignore_eos_contradicts_a_grammar() {
    let harness = noise();
    let reply = harness.chat(with(json_schema(person()), json!({"ignore_eos": true}))).await;
    reply.error(400, "invalid_value", Some("ignore_eos"));
}

#[tokio::test]
async fn an_answer_without_a_format_is_free() {
    let harness = Harness::answering("anything");
    let reply = harness.chat(json!({"response_format": {"type": "text"}})).await.json();
    assert_eq!(content(&reply, 0), "anything");
}

#[tokio::test]
async fn guided_and_free_answers_share_an_engine_that_runs_a_step_ahead() {
    let limits = ExecutorLimits { steps_in_flight: 2, ..ROOMY };
    let harness = Arc::new(Harness::new(ScriptedExecutor::new(limits), |_| {}));
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..12 {
        let harness = harness.clone();
        tasks.spawn(async move {
            if seed % 3 == 0 {
                let free = json!({"seed": seed, "max_tokens": 20, "ignore_eos": true});
                let reply = harness.chat(free).await.json();
                assert_eq!(reply["usage"]["completion_tokens"], 20);
            } else {
                let reply = harness.chat(with(json_schema(person()), json!({"seed": seed}))).await.json();
                assert_person(content(&reply, 0));
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_guided_answer() {
    let executor = ScriptedExecutor::new(LIMITS).step_time(Duration::from_millis(2));
    let harness = Harness::new(executor, |_| {});
    let fields = json!({"structured_outputs": {"regex": "a*b"}, "stream": true, "min_tokens": 200});
    let body = Body::from(chat_body(fields).to_string());
    let request = Request::post("/v1/chat/completions").header(header::CONTENT_TYPE, "application/json");
    let response = harness.respond(request.body(body).unwrap()).await;
    drop(response);
    let freed = async {
        while harness.engine.metrics().snapshot().running > 0
            || harness.engine.metrics().snapshot().waiting > 0
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), freed).await.expect("the request was cancelled");
}

#[tokio::test]
async fn a_guided_answer_goes_on_while_nobody_reads_it() {
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = steps.clone();
    let executor = ScriptedExecutor::new(LIMITS).on_collect(move |_| {
        counted.fetch_add(1, Relaxed);
    });
    let harness = Harness::new(executor, |_| {});
    let fields = json!({"structured_outputs": {"regex": "a{50}"}, "stream": true});
    let body = Body::from(chat_body(fields).to_string());
    let request = Request::post("/v1/chat/completions").header(header::CONTENT_TYPE, "application/json");
    let response = harness.respond(request.body(body).unwrap()).await;
    let ended = async {
        while steps.load(Relaxed) < 51 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ended).await.expect("all tokens were computed unread");
    drop(response);
}

/// Asserts a 400 with this `param` whose message has these words.
#[track_caller]
fn assert_refused(reply: &Reply, code: &str, param: &str, words: &[&str]) {
    let message = reply.error(400, code, Some(param));
    for word in words {
        assert!(message.contains(word), "'{word}' is not in: {message}");
    }
}

const SCHEMA: &str = "response_format.json_schema.schema";

#[tokio::test]
async fn a_schema_that_cannot_be_kept_is_refused_with_its_place() {
    let harness = noise();
    let nested = |depth: usize| (0..depth).fold(json!({"type": "null"}), |inner, _| json!({"items": inner}));
    let property = |schema: Value| json!({"properties": {"a": schema}});
    for (schema, words) in [
        (property(json!({"not": {}})), &["'not'", "#/properties/a"][..]),
        (property(json!({"type": "array", "uniqueItems": true})), &["'uniqueItems'", "#/properties/a"]),
        (property(json!({"type": "string", "format": "regex"})), &["'regex'", "#/properties/a"]),
        (json!({"x-guidance": {"lenient": true}}), &["'x-guidance'", "at #"]),
        (property(json!({"type": "strange"})), &["strange", "#/properties/a"]),
        (property(json!({"$ref": "#/$defs/missing"})), &["missing", "#/properties/a"]),
        (property(json!({"$ref": "http://127.0.0.1:9/schema"})), &["127.0.0.1:9", "#/properties/a"]),
        (property(json!({"pattern": "(?=a)b"})), &["#/properties/a"]),
        (property(json!({"oneOf": [{"type": "number"}, {"type": "integer"}]})), &["oneOf", "#/properties/a"]),
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), &["minimum"]),
        (property(json!({"type": "string", "pattern": "^(a"})), &["unclosed group", "#/properties/a"]),
        (property(json!({"type": "integer", "multipleOf": 4_000_037})), &["4000037", "#/properties/a"]),
        (property(json!({"type": "integer", "minimum": i64::MIN})), &["'minimum'", "#/properties/a"]),
        (property(json!({"$ref": "#/properties/a"})), &["leads back to itself", "#/properties/a"]),
        (nested(49), &["nested deeper than 48", "/items"]),
        (nested(1000), &["nested deeper"]),
    ] {
        let reply = harness.chat(json_schema(schema)).await;
        assert_refused(&reply, "invalid_value", SCHEMA, words);
    }
    // The largest multiple compiles.
    let multiple = json!({"type": "integer", "multipleOf": 10_000});
    harness.chat(with(json_schema(multiple), json!({"max_tokens": 3}))).await.json();
    // At the limit of depth it compiles.
    let reply = harness.chat(with(json_schema(nested(48)), json!({"max_tokens": 3}))).await;
    reply.json();
}

#[tokio::test]
async fn what_is_too_large_is_refused_by_its_field() {
    let harness = noise();
    let long = "a".repeat(129 << 10);
    assert_refused(
        &harness.chat(json_schema(json!({"enum": [long]}))).await,
        "invalid_value",
        SCHEMA,
        &["131072 bytes"],
    );
    for kind in ["regex", "grammar", "json"] {
        let reply = harness.complete("a", json!({"structured_outputs": {kind: long}})).await;
        assert_refused(&reply, "invalid_value", &format!("structured_outputs.{kind}"), &["131072 bytes"]);
    }
    let reply = harness.complete("a", json!({"structured_outputs": {"choice": [long]}})).await;
    assert_refused(&reply, "invalid_value", "structured_outputs.choice", &["131072 bytes"]);
}

#[tokio::test]
async fn what_takes_too_long_to_compile_is_refused() {
    let hasty = Harness::new(executor("a"), |config| config.limits.grammar_timeout = Duration::ZERO);
    // Long enough that it is not done before anyone looks.
    let words: Vec<String> = (0..20_000).map(|word| word.to_string()).collect();
    let reply = hasty.complete("a", json!({"structured_outputs": {"regex": words.join("|")}})).await;
    assert_refused(&reply, "invalid_value", "structured_outputs.regex", &["takes longer than 0 s"]);
}

#[tokio::test]
async fn long_chains_and_deep_nesting_do_not_exhaust_the_stack() {
    let harness = noise();
    let chain: serde_json::Map<String, Value> =
        (0..4000).map(|n| (n.to_string(), json!({"$ref": format!("#/$defs/{}", n + 1)}))).collect();
    let rules: String = (0..9000).map(|n| format!("r{n}: r{}\n", n + 1)).collect();
    for outputs in [
        json!({"json": {"$ref": "#/$defs/0", "$defs": chain}}),
        json!({"grammar": format!("start: {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000))}),
        json!({"grammar": format!("start: r0\n{rules}r9000: \"a\"")}),
        json!({"regex": format!("{}a{}", "(".repeat(60_000), ")".repeat(60_000))}),
    ] {
        let reply = harness.complete("a", json!({"structured_outputs": outputs, "max_tokens": 2})).await;
        assert!(matches!(reply.status.as_u16(), 200 | 400), "{}", reply.text());
    }
    harness.complete("a", json!({"structured_outputs": {"regex": "b"}})).await.json();
}

#[tokio::test]
async fn bad_forms_are_refused_by_field() {
    let harness = noise();
    let format = |format: Value| json!({"response_format": format});
    let outputs = |outputs: Value| json!({"structured_outputs": outputs});
    for (fields, code, param) in [
        (format(json!("json_object")), "invalid_type", "response_format"),
        (format(json!({})), "missing_required_parameter", "response_format.type"),
        (format(json!({"type": "yaml"})), "invalid_value", "response_format.type"),
        (format(json!({"type": "structural_tag"})), "unsupported_parameter", "response_format.type"),
        (format(json!({"type": "text", "schema": {}})), "unknown_parameter", "response_format.schema"),
        (format(json!({"type": "json_schema"})), "missing_required_parameter", "response_format.json_schema"),
        (
            format(json!({"type": "json_schema", "json_schema": {"name": "a"}})),
            "missing_required_parameter",
            SCHEMA,
        ),
        (json_schema(json!("text")), "invalid_type", SCHEMA),
        (outputs(json!({})), "invalid_value", "structured_outputs"),
        (outputs(json!({"regex": "a", "choice": ["b"]})), "invalid_value", "structured_outputs"),
        (outputs(json!({"regex": "("})), "invalid_value", "structured_outputs.regex"),
        (outputs(json!({"regex": 3})), "invalid_type", "structured_outputs.regex"),
        (outputs(json!({"regex": ""})), "invalid_value", "structured_outputs.regex"),
        (outputs(json!({"choice": []})), "invalid_value", "structured_outputs.choice"),
        (outputs(json!({"choice": "a"})), "invalid_type", "structured_outputs.choice"),
        (outputs(json!({"grammar": "start: missing"})), "invalid_value", "structured_outputs.grammar"),
        (outputs(json!({"json": "{"})), "invalid_value", "structured_outputs.json"),
        (outputs(json!({"json_object": false})), "invalid_value", "structured_outputs.json_object"),
        (
            outputs(json!({"regex": "a", "whitespace_pattern": " "})),
            "unsupported_parameter",
            "structured_outputs.whitespace_pattern",
        ),
        (outputs(json!({"regex": "a", "b": 1})), "unknown_parameter", "structured_outputs.b"),
        (
            json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
            "invalid_value",
            "structured_outputs",
        ),
    ] {
        harness.chat(fields.clone()).await.error(400, code, Some(param));
        harness.complete("a", fields).await.error(400, code, Some(param));
    }
}

#[tokio::test]
async fn guided_answers_fill_the_model_length_and_no_more() {
    let harness = noise();
    let reply = harness.chat(json!({"structured_outputs": {"regex": "a+"}, "min_tokens": 500})).await.json();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["total_tokens"], ROOMY.max_model_len);
}

#[tokio::test]
async fn guided_answers_survive_preemption() {
    // So few pages that sequences have to give way to each other.
    let limits = ExecutorLimits { num_pages: 64, ..LIMITS };
    let harness = Arc::new(Harness::new(ScriptedExecutor::new(limits), |_| {}));
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..6 {
        let harness = harness.clone();
        tasks.spawn(async move {
            let fields = json!({"structured_outputs": {"regex": "a[bc]{90}d"}, "seed": seed});
            let reply = harness.chat(with(fields, json!({"max_tokens": 120}))).await.json();
            assert_eq!(content(&reply, 0).len(), 92);
            assert_eq!(reply["choices"][0]["finish_reason"], "stop");
        });
    }
    tasks.join_all().await;
    assert!(harness.engine.metrics().snapshot().preemptions > 0, "the pool is too large for this test");
}

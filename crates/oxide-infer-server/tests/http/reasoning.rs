//! Reasoning sections: `reasoning_content`, and what answers are held to behind it.

use crate::harness::{Harness, LIMITS, executor, executor_with, noise_after};
use oxide_infer_engine::ExecutorLimits;
use serde_json::{Value, json};

const ROOMY: ExecutorLimits = ExecutorLimits { max_model_len: 1024, ..LIMITS };
/// Opens the section if it is told to, and closes it if thinking is turned off.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}\
    {% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}\
    {% if force_thinking %}<think>\n{% endif %}";
const TAGS: &[&str] = &["<think>", "</think>"];

async fn answer(harness: &Harness, fields: Value) -> (Value, Value) {
    let reply = harness.chat(fields).await.json();
    let message = &reply["choices"][0]["message"];
    (message["reasoning_content"].clone(), message["content"].clone())
}

#[tokio::test]
async fn reasoning_is_told_apart_with_tags_of_text_and_of_special_tokens() {
    for specials in [TAGS, &[]] {
        let answer_text = "<think>\nTwo and two\n</think>\n\nFour.";
        let harness = Harness::templated(executor_with(answer_text, specials, LIMITS), TEMPLATE, specials);
        assert_eq!(answer(&harness, json!({})).await, (json!("Two and two"), json!("Four.")));
        let events = harness.chat(json!({"stream": true})).await.events();
        let joined = |name: &str| -> String {
            events.iter().filter_map(|event| event["choices"][0]["delta"][name].as_str()).collect()
        };
        assert_eq!((joined("reasoning_content"), joined("content")), ("Two and two".into(), "Four.".into()));
    }
}

#[tokio::test]
async fn the_prompt_may_open_the_section_or_close_it() {
    let harness = Harness::templated(executor("a</think>b"), TEMPLATE, &[]);
    let forced = json!({"chat_template_kwargs": {"force_thinking": true}});
    assert_eq!(answer(&harness, forced).await, (json!("a"), json!("b")));
    let off = json!({"chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(answer(&harness, off).await, (Value::Null, json!("a</think>b")));
}

#[tokio::test]
async fn an_answer_that_is_cut_off_while_it_thinks_has_no_content() {
    let harness = Harness::templated(executor("<think>hm, well</think>b"), TEMPLATE, &[]);
    let reply = harness.chat(json!({"max_tokens": 12})).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["message"]["reasoning_content"], "hm, w");
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&Value::Null, &json!("length")));
}

#[tokio::test]
async fn a_template_without_reasoning_leaves_tags_as_text() {
    let harness = Harness::answering("<think>a</think>b");
    assert_eq!(answer(&harness, json!({})).await, (Value::Null, json!("<think>a</think>b")));
}

#[tokio::test]
async fn a_form_is_kept_behind_the_reasoning() {
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "it", "schema": {"enum": ["yes", "no"]}}});
    for specials in [TAGS, &[]] {
        let executor = noise_after("<think>It is so.</think>", specials, ROOMY);
        let harness = Harness::templated(executor, TEMPLATE, specials);
        for seed in 0..4 {
            let (reasoning, content) =
                answer(&harness, json!({"response_format": format, "seed": seed})).await;
            assert_eq!(reasoning, "It is so.");
            assert!(["\"yes\"", "\"no\""].contains(&content.as_str().unwrap()), "{content}");
        }
        // Turned off, the form begins at once.
        let off = json!({"response_format": format, "chat_template_kwargs": {"enable_thinking": false}});
        let (reasoning, content) = answer(&harness, off).await;
        assert_eq!(reasoning, Value::Null);
        assert!(["\"yes\"", "\"no\""].contains(&content.as_str().unwrap()), "{content}");
    }
}

#[tokio::test]
async fn calls_are_forced_behind_the_reasoning_that_the_prompt_opens() {
    let executor = noise_after("Look it up.\n</think>", &[], ROOMY);
    let harness = Harness::templated(executor, TEMPLATE, &[]);
    let fields = json!({
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "chat_template_kwargs": {"force_thinking": true},
        "max_tokens": 300,
    });
    let reply = harness.chat(fields).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "Look it up.");
    assert_eq!(message["tool_calls"][0]["function"]["name"], "f");
    assert_eq!(message["content"], Value::Null);
}

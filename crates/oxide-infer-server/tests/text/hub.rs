//! Model directories against what transformers makes of them.

use std::fs;

use oxide_infer::TokenId;
use oxide_infer_server::text::{
    AddSpecialTokens, ChatInput, ContentFormat, LoadError, NextTurn, PromptError, SpecialInOutput,
    TemplateError, TextModel, TextOptions, Tokenizer,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{plain_ids, read_json, testdata, token_ids};

#[test]
fn directories_encode_and_decode_as_in_transformers() {
    let expected = read_json(&testdata("hub/expected.json"));
    let expected = expected.as_array().unwrap();
    assert!(expected.len() >= 8);
    for directory in expected {
        let name = directory["directory"].as_str().unwrap();
        let tokenizer = Tokenizer::from_dir(&testdata("hub").join(name)).unwrap();
        let named = tokenizer.named();
        let roles = [("bos_token", &named.bos), ("eos_token", &named.eos)];
        for (role, token) in roles {
            let id = token.as_ref().map(|token| Value::from(token.id.0));
            assert_eq!(id.unwrap_or_default(), directory[role], "{name}: {role}");
        }
        for case in directory["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let what = format!("{name}: {text:?}");
            let ids = tokenizer.encode(text, AddSpecialTokens::Add).unwrap();
            assert_eq!(ids, token_ids(&case["ids"]), "{what}");
            assert_eq!(plain_ids(&tokenizer, text), token_ids(&case["plain_ids"]), "{what}");
            let decode = |special| tokenizer.decode(&ids, special);
            assert_eq!(decode(SpecialInOutput::Keep), case["decoded"].as_str().unwrap(), "{what}");
            let without = case["decoded_without_special"].as_str().unwrap();
            assert_eq!(decode(SpecialInOutput::Skip), without, "{what}");
        }
    }
}

#[test]
fn a_text_model_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<TextModel>();
}

/// A copy of a small model directory with more files in it.
fn model_dir(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let source = testdata("hub/llama-class-adds-a-bos");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(source.join(name), dir.path().join(name)).unwrap();
    }
    for (name, content) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

fn load(files: &[(&str, &str)]) -> Result<TextModel, LoadError> {
    TextModel::load(model_dir(files).path(), &TextOptions::default())
}

fn chat(messages: Value) -> ChatInput {
    ChatInput { messages: messages.as_array().unwrap().clone(), ..ChatInput::default() }
}

fn rendered(model: &TextModel, chat: &ChatInput) -> String {
    model.render_chat(chat).unwrap().text().to_owned()
}

#[test]
fn ids_that_end_an_answer_come_from_the_generation_config_first() {
    let ids = |files: &[(&str, &str)]| load(files).unwrap().eos_ids().to_vec();
    let config = ("config.json", r#"{"eos_token_id": 9}"#);
    assert_eq!(ids(&[]), [TokenId(1)], "the tokenizer's own");
    assert_eq!(ids(&[config]), [9, 1].map(TokenId));
    assert_eq!(
        ids(&[config, ("generation_config.json", r#"{"eos_token_id": [7, 1]}"#)]),
        [7, 1].map(TokenId)
    );
    assert_eq!(ids(&[config, ("generation_config.json", "{}")]), [9, 1].map(TokenId));
}

#[test]
fn the_chat_template_is_taken_from_the_first_place_that_has_one() {
    let text = |files: &[(&str, &str)]| rendered(&load(files).unwrap(), &chat(json!([{"role": "user"}])));
    let in_config =
        ("tokenizer_config.json", r#"{"chat_template": "config {{ bos_token }}", "bos_token": "<s>"}"#);
    let in_json = ("chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(text(&[in_json]), "json");
    assert_eq!(text(&[in_json, in_config]), "config <s>");
    assert_eq!(text(&[in_json, in_config, ("chat_template.jinja", "jinja")]), "jinja");
}

#[test]
fn a_template_given_by_file_goes_before_the_models_own() {
    let dir = model_dir(&[("chat_template.jinja", "own"), ("given.jinja", "given")]);
    let options =
        TextOptions { chat_template: Some(dir.path().join("given.jinja")), ..TextOptions::default() };
    let model = TextModel::load(dir.path(), &options).unwrap();
    assert_eq!(rendered(&model, &chat(json!([{"role": "user"}]))), "given");
    let missing = TextOptions { chat_template: Some("no/such.jinja".into()), ..TextOptions::default() };
    assert!(matches!(TextModel::load(dir.path(), &missing), Err(LoadError::Read { .. })));
}

#[test]
fn named_templates_are_chosen_by_whether_there_are_tools() {
    let config = json!({"chat_template": [
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
        {"name": "default", "template": "{{ tools is none }}"},
    ]});
    let model = load(&[("tokenizer_config.json", &config.to_string())]).unwrap();
    let mut chat = chat(json!([{"role": "user"}]));
    assert_eq!(rendered(&model, &chat), "True");
    chat.tools = Some(vec![json!({"type": "function"})]);
    assert_eq!(rendered(&model, &chat), "1 tools");
    let config = json!({"chat_template": [{"name": "rag", "template": ""}]});
    let error = load(&[("tokenizer_config.json", &config.to_string())]).unwrap_err();
    assert!(error.to_string().contains("\"default\""), "{error}");
}

#[test]
fn text_parts_are_joined_for_a_template_that_takes_text_and_strings_wrapped_for_one_that_takes_parts() {
    let parts = chat(
        json!([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]),
    );
    let text = chat(json!([{"role": "user", "content": "one"}]));
    let takes_text = load(&[("chat_template.jinja", "{{ '<' + messages[0].content + '>' }}")]).unwrap();
    assert_eq!(takes_text.chat_template().unwrap().content_format(), ContentFormat::Text);
    assert_eq!(rendered(&takes_text, &parts), "<one\ntwo>");
    let source = "{% for part in messages[0].content %}<{{ part.text + '>' }}{% endfor %}";
    let takes_parts = load(&[("chat_template.jinja", source)]).unwrap();
    assert_eq!(takes_parts.chat_template().unwrap().content_format(), ContentFormat::Parts);
    assert_eq!(rendered(&takes_parts, &parts), "<one><two>");
    assert_eq!(rendered(&takes_parts, &text), "<one>");
}

#[test]
fn the_last_message_can_be_left_open() {
    let source =
        "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}";
    let model = load(&[("chat_template.jinja", source)]).unwrap();
    let mut chat = chat(json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "The "}]));
    assert_eq!(rendered(&model, &chat), "[q][The ]>");
    chat.next = NextTurn::None;
    assert_eq!(rendered(&model, &chat), "[q][The ]");
    chat.next = NextTurn::ContinueLast;
    assert_eq!(rendered(&model, &chat), "[q][The ");
    let trimming =
        load(&[("chat_template.jinja", "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}")]);
    assert_eq!(rendered(&trimming.unwrap(), &chat), "[q][The");
    chat.messages[1]["content"] = Value::Null;
    assert!(matches!(model.render_chat(&chat), Err(PromptError::Continue(_))));
}

#[test]
fn arguments_of_tool_calls_are_objects_to_the_template() {
    let source = "{{ messages[0].tool_calls[0].function.arguments.city }}";
    let model = load(&[("chat_template.jinja", source)]).unwrap();
    let call = json!({"type": "function", "function": {"name": "f", "arguments": "{\"city\": \"Paris\"}"}});
    let chat = chat(json!([{"role": "assistant", "content": null, "tool_calls": [call]}]));
    assert_eq!(rendered(&model, &chat), "Paris");
}

#[test]
fn request_variables_reach_the_template() {
    let model = load(&[("chat_template.jinja", "{{ enable_thinking }}")]).unwrap();
    let mut chat = chat(json!([{"role": "user"}]));
    chat.variables.insert("enable_thinking".into(), false.into());
    assert_eq!(rendered(&model, &chat), "False");
}

#[test]
fn what_is_wrong_with_a_request_is_named() {
    let model = load(&[("chat_template.jinja", "{{ raise_exception('not today') }}")]).unwrap();
    let error = |messages: Value| model.render_chat(&chat(messages)).unwrap_err();
    assert!(matches!(error(json!([])), PromptError::NoMessages));
    let raised = error(json!([{"role": "user", "content": "x"}]));
    assert!(
        matches!(&raised, PromptError::Template(TemplateError::Raised(message)) if message == "not today")
    );
    let message = |messages: Value| error(messages).to_string();
    assert!(message(json!(["x"])).starts_with("messages[0]: "));
    assert!(message(json!([{"role": "user"}, {"content": "x"}])).starts_with("messages[1]: role"));
    assert!(message(json!([{"role": "user", "content": 3}])).contains("content must be"));
    let image = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
    assert!(message(image).contains("content[0] is \"image_url\""));
    let none = load(&[]).unwrap().render_chat(&chat(json!([{"role": "user"}]))).unwrap_err();
    assert!(matches!(none, PromptError::NoChatTemplate));
}

#[test]
fn what_is_wrong_with_a_directory_is_named() {
    let message = |files: &[(&str, &str)]| load(files).unwrap_err().to_string();
    let empty = tempfile::tempdir().unwrap();
    let error = TextModel::load(empty.path(), &TextOptions::default()).unwrap_err();
    assert!(matches!(error, LoadError::NoTokenizer(_)));
    assert!(message(&[("tokenizer.json", "{")]).contains("tokenizer.json: "));
    assert!(message(&[("tokenizer_config.json", "[")]).contains("tokenizer_config.json: "));
    let bad_id = r#"{"added_tokens_decoder": {"x": {"content": "<a>"}}}"#;
    assert!(message(&[("tokenizer_config.json", bad_id)]).contains("added_tokens_decoder[\"x\"]"));
    assert!(
        message(&[("generation_config.json", r#"{"eos_token_id": "2"}"#)]).contains("generation_config.json")
    );
    let no_bos = r#"{"tokenizer_class": "LlamaTokenizer"}"#;
    assert!(message(&[("tokenizer_config.json", no_bos)]).contains("no bos_token"));
    let syntax = message(&[("chat_template.jinja", "a\n{% if %}")]);
    assert!(syntax.contains("chat_template.jinja") && syntax.contains("line 2"), "{syntax}");
}

//! Special-token text in user content that is not to become special.

use std::sync::LazyLock;

use oxide_infer::TokenId;
use oxide_infer_server::text::{ChatInput, SpecialInContent, SpecialInOutput, TextModel, TextOptions};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{DEMO, demo_model, read_json, testdata, token_ids};

static ESCAPING: LazyLock<TextModel> = LazyLock::new(|| demo_model(SpecialInContent::Escape));

const START: TokenId = TokenId(1);
const END: TokenId = TokenId(2);

fn chat(messages: Value) -> ChatInput {
    ChatInput { messages: messages.as_array().unwrap().clone(), ..ChatInput::default() }
}

fn ids(model: &TextModel, messages: &Value) -> Vec<TokenId> {
    model.encode_prompt(&model.render_chat(&chat(messages.clone())).unwrap()).unwrap()
}

#[test]
fn special_text_in_content_is_text_and_the_templates_own_is_special() {
    let cases = read_json(&testdata("escape/expected.json"));
    let cases = cases.as_array().unwrap();
    assert!(cases.len() >= 8);
    for case in cases {
        let messages = &case["messages"];
        assert_eq!(ids(&ESCAPING, messages), token_ids(&case["ids"]), "{messages}");
        // The model sees the same text either way.
        let text = |model: &TextModel| model.render_chat(&chat(messages.clone())).unwrap().text().to_owned();
        assert_eq!(text(&ESCAPING), text(&DEMO), "{messages}");
    }
}

#[test]
fn without_escaping_the_same_text_is_special() {
    let messages = json!([{"role": "user", "content": "<|im_end|>"}]);
    let count = |model: &TextModel| ids(model, &messages).iter().filter(|&&id| id == END).count();
    assert_eq!((count(&DEMO), count(&ESCAPING)), (3, 2));
}

#[test]
fn special_text_made_of_two_parts_is_not_special() {
    let source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}</s>";
    let model = small_model(source);
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a</"}, {"type": "text", "text": "s>b"}]}]);
    let prompt = model.render_chat(&chat(parts)).unwrap();
    assert_eq!(prompt.text(), "a</s>b</s>");
    let ids = model.encode_prompt(&prompt).unwrap();
    assert_eq!(ids.iter().filter(|&&id| id == model.eos_ids()[0]).count(), 1);
    assert_eq!(ids.last(), model.eos_ids().first());
}

#[test]
fn special_text_in_tools_and_their_names_is_not_special() {
    let model = small_model("{{ tools | tojson }}<s>{{ messages[0].content }}");
    let mut chat = chat(json!([{"role": "user", "content": "a"}]));
    chat.tools = Some(vec![json!({"<s>": "</s>"})]);
    let prompt = model.render_chat(&chat).unwrap();
    assert_eq!(prompt.text(), "[{\"<s>\": \"</s>\"}]<s>a");
    let special = |id: &&TokenId| model.tokenizer().is_special(**id);
    assert_eq!(model.encode_prompt(&prompt).unwrap().iter().filter(special).count(), 1);
}

/// A directory model whose BPE can merge "<", "/", "s", ">" to the special token "</s>" by itself, with a metaspace
/// that only goes before the first word of a text.
fn small_model(template: &str) -> TextModel {
    let dir = tempfile::tempdir().unwrap();
    let source = testdata("hub/metaspace-before-the-first-word-only");
    let mut tokenizer = read_json(&source.join("tokenizer.json"));
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    for piece in ["<", "/", ">", "</", "s>"] {
        let id = vocab.len();
        vocab.entry(piece).or_insert(id.into());
    }
    let merges = tokenizer["model"]["merges"].as_array_mut().unwrap();
    merges.extend([json!(["<", "/"]), json!(["s", ">"]), json!(["</", "s>"]), json!(["<", "s>"])]);
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let id = vocab.len();
    vocab.entry("s").or_insert(id.into());
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::copy(source.join("tokenizer_config.json"), dir.path().join("tokenizer_config.json")).unwrap();
    std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    let options = TextOptions { special_in_content: SpecialInContent::Escape, ..TextOptions::default() };
    TextModel::load(dir.path(), &options).unwrap()
}

#[test]
fn a_model_that_merges_text_to_a_special_token_does_not_get_it_from_content() {
    let model = small_model("<s>{{ messages[0].content }}</s>");
    let content = |content: &str| ids(&model, &json!([{"role": "user", "content": content}]));
    let special = |ids: Vec<TokenId>| ids.into_iter().filter(|&id| model.tokenizer().is_special(id)).count();
    assert_eq!(special(content("he")), 2);
    assert_eq!(special(content("he </s><s> he</s>")), 2);
    let decoded = model.decode(&content("he </s><s> he</s>"), SpecialInOutput::Keep);
    assert_eq!(decoded, "<s>he </s><s> he</s></s>");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_content_keeps_its_text_and_brings_no_special_token(
        contents in prop::collection::vec(
            "(<\\|im_end\\|>|<\\|im_start\\|>|<\\|im_|end\\|>|<|[\u{F0000}-\u{F0003}]|[a-z ]{1,4}|\n|\\PC){0,8}", 1..4),
    ) {
        let turns: Vec<Value> = contents.iter().map(|text| json!({"role": "user", "content": text})).collect();
        let messages = Value::from(turns);
        let escaped = ids(&ESCAPING, &messages);
        // One start and one end for the system prompt and each message, one start for the answer.
        let count = |wanted: TokenId| escaped.iter().filter(|&&id| id == wanted).count();
        prop_assert_eq!((count(START), count(END)), (contents.len() + 2, contents.len() + 1));
        prop_assert_eq!(escaped.iter().filter(|&&id| DEMO.tokenizer().is_special(id)).count(), 2 * contents.len() + 3);

        let bytes = |ids: Vec<TokenId>| DEMO.decode(&ids, SpecialInOutput::Keep);
        let parsed = ids(&DEMO, &messages);
        prop_assert_eq!(bytes(escaped.clone()), bytes(parsed.clone()));
        if !contents.iter().any(|text| text.contains("<|im_end|>") || text.contains("<|im_start|>")) {
            prop_assert_eq!(escaped, parsed, "content without special-token text is encoded as ever");
        }
    }
}

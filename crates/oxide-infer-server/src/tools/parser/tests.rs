use super::*;
use crate::tools::notation::MistralForm;
use proptest::prelude::*;

const LLAMA: ToolNotation = ToolNotation::Llama3;
const HERMES: ToolNotation = ToolNotation::Hermes;
const MISTRAL: ToolNotation = ToolNotation::Mistral(MistralForm::Array);

/// Text, and calls as (id, name, arguments, complete).
type Parsed = (String, Vec<(Option<String>, String, String, bool)>);

fn parse<'a>(notation: ToolNotation, pieces: impl IntoIterator<Item = &'a str>) -> Parsed {
    let names: Arc<[String]> = ["f".to_owned(), "get_weather".to_owned()].into();
    let mut parser = ToolParser::new(notation, names);
    let mut found = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut found);
    }
    parser.finish(&mut found);
    let mut parsed = Parsed::default();
    for piece in found {
        match piece {
            Piece::Text(text) => parsed.0.push_str(&text),
            Piece::Begin { id, name } => parsed.1.push((id, name, String::new(), false)),
            Piece::Arguments(text) => parsed.1.last_mut().unwrap().2.push_str(&text),
            Piece::End => parsed.1.last_mut().unwrap().3 = true,
        }
    }
    parsed
}

#[track_caller]
fn check(notation: ToolNotation, text: &str, shown: &str, calls: &[(&str, &str)]) {
    let (got, found) = parse(notation, [text]);
    let found: Vec<(&str, &str)> = found.iter().map(|call| (call.1.as_str(), call.2.as_str())).collect();
    assert_eq!((got.as_str(), found.as_slice()), (shown, calls), "{text}");
}

#[test]
fn hermes_calls_are_found_between_text() {
    let text = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"<tool_call>\", \"b\": [{}]}}\n\
                </tool_call>\n<tool_call>{\"arguments\": {\"c\": 1}, \"name\": \"get_weather\"}</tool_call> Done.";
    let calls = [("f", r#"{"a": "<tool_call>", "b": [{}]}"#), ("get_weather", r#"{"c": 1}"#)];
    check(HERMES, text, "Let me see.\n\n Done.", &calls);
}

#[test]
fn hermes_calls_without_arguments_or_with_quoted_ones_are_calls() {
    check(HERMES, r#"<tool_call>{"name": "f"}</tool_call>"#, "", &[("f", "{}")]);
    check(HERMES, r#"<tool_call>{"name": "f", "arguments": null}</tool_call>"#, "", &[("f", "{}")]);
    let quoted = r#"<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>"#;
    check(HERMES, quoted, "", &[("f", r#"{"a": 1}"#)]);
    let odd = r#"<tool_call>{"type": "function", "id": 1, "name": "\u0066", "parameters": {}, "x": [1]}</tool_call>"#;
    check(HERMES, odd, "", &[("f", "{}")]);
}

#[test]
fn what_is_no_call_stays_text() {
    for text in [
        "<tool_call> yes",
        "a < b <tool <tool_call",
        r#"<tool_call>{"name": 1, "arguments": {}}</tool_call>"#,
        r#"<tool_call>{"name": "f", "arguments": [1]}</tool_call>"#,
        r#"<tool_call>{"function": "f"}</tool_call>"#,
        r#"<tool_call>{}</tool_call>"#,
    ] {
        check(HERMES, text, text, &[]);
    }
    for text in
        [r#"{"name": "other", "parameters": {}}"#, r#"{"name": "f"}"#, r#"{"a": 1}"#, "{", "x {", "  "]
    {
        check(LLAMA, text, text, &[]);
    }
    for text in ["[TOOL_CALLS] []", "[TOOL_CALLS]f[ARGS][1]", "[TOOL_CALLS]f[X", "[TOOL_CALL", "[1]"] {
        check(MISTRAL, text, text, &[]);
    }
}

#[test]
fn a_marker_in_a_marker_begins_the_call() {
    check(HERMES, r#"<tool_call><tool_call>{"name": "f"}"#, "<tool_call>", &[("f", "{}")]);
    check(HERMES, r#"<tool_call>{"name": "f"}<tool_call>{"name": "f"}"#, "", &[("f", "{}"), ("f", "{}")]);
}

#[test]
fn a_call_that_is_cut_off_is_told_as_far_as_it_came() {
    let (text, calls) = parse(HERMES, [r#"<tool_call>{"name": "f", "arguments": {"a": "b"#]);
    assert_eq!((text.as_str(), &calls[..]), ("", &[(None, "f".into(), r#"{"a": "b"#.into(), false)][..]));
    check(HERMES, r#"x<tool_call>{"name": "#, "x", &[]);
    check(MISTRAL, r#"[TOOL_CALLS][{"name": "f", "arguments": {}}, {"na"#, "", &[("f", "{}")]);
    check(LLAMA, r#"{"name": "f", "parameters": {}}; {"na"#, "", &[("f", "{}")]);
    check(LLAMA, r#"<|python_tag|>{"na"#, "", &[]);
    check(LLAMA, r#"{"na"#, r#"{"na"#, &[]);
}

#[test]
fn a_call_that_breaks_off_ends_there() {
    let broken = r#"<tool_call>{"name": "f", "arguments": {"a": </tool_call> after"#;
    let (text, calls) = parse(HERMES, [broken]);
    assert_eq!((text.as_str(), &calls[..]), (" after", &[(None, "f".into(), r#"{"a": "#.into(), true)][..]));
}

#[test]
fn llama_calls_are_whole_answers() {
    let weather = r#"{"name": "get_weather", "parameters": {"city": "Paris"}}"#;
    let call = ("get_weather", r#"{"city": "Paris"}"#);
    check(LLAMA, weather, "", &[call]);
    check(LLAMA, &format!("<|python_tag|>{weather}"), "", &[call]);
    check(LLAMA, &format!("\n{weather}; {weather}\n"), "", &[call, call]);
    check(LLAMA, &format!("See: <|python_tag|>{weather}"), "See: ", &[call]);
    check(LLAMA, &format!("See: {weather}"), &format!("See: {weather}"), &[]);
    let typed = r#"{"type": "function", "name": "f", "parameters": {}} and so on"#;
    check(LLAMA, typed, " and so on", &[("f", "{}")]);
}

#[test]
fn mistral_calls_are_an_array_or_follow_their_names() {
    let array = r#"Well [TOOL_CALLS] [{"name": "f", "arguments": {"a": [1]}}, {"name": "get_weather", "arguments": {}}] x"#;
    check(MISTRAL, array, "Well  x", &[("f", r#"{"a": [1]}"#), ("get_weather", "{}")]);
    let named = r#"[TOOL_CALLS]f[ARGS]{"a": "}"}[TOOL_CALLS]get_weather{}"#;
    check(MISTRAL, named, "", &[("f", r#"{"a": "}"}"#), ("get_weather", "{}")]);
    let (_, calls) = parse(MISTRAL, [r#"[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{}"#]);
    assert_eq!(calls, [(Some("abcDEF123".into()), "f".into(), "{}".into(), true)]);
    check(MISTRAL, r#"[TOOL_CALLS]{"name": "f", "arguments": {}}"#, "", &[("f", "{}")]);
}

/// Texts made of what notations are made of.
fn soup() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "{\"name\": \"f\", \"arguments\": {",
        "{\"name\": \"f\", \"parameters\": {}}",
        "\"a\": \"é\\\"}\"",
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
        "\"",
        "f",
        "\n",
        " ",
        "<",
        "é",
    ]);
    prop::collection::vec(words, 0..12).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn the_pieces_in_which_a_text_comes_do_not_matter(text in soup(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.get(&ends)).collect();
        cuts.sort_unstable();
        for notation in [HERMES, LLAMA, MISTRAL] {
            let whole = parse(notation, [text.as_str()]);
            let (mut pieces, mut from) = (Vec::new(), 0);
            for &cut in cuts.iter().chain([&text.len()]) {
                pieces.push(&text[from..cut]);
                from = cut;
            }
            prop_assert_eq!(&parse(notation, pieces), &whole);
            // Every place to split it in two.
            for &at in &ends {
                prop_assert_eq!(&parse(notation, [&text[..at], &text[at..]]), &whole);
            }
        }
    }

    #[test]
    fn a_call_written_as_the_notation_has_it_is_read_back(
        before in "[a-zé .\n]{0,8}",
        value in prop::collection::vec(any::<char>(), 0..12).prop_map(|chars| chars.into_iter().collect::<String>()),
    ) {
        let arguments = serde_json::json!({"key": value, "list": [1, {"k": null}]}).to_string();
        let call = |name: &str| format!("{{\"name\": \"f\", \"{name}\": {arguments}}}");
        for (notation, text) in [
            (HERMES, format!("{before}<tool_call>\n{}\n</tool_call>", call("arguments"))),
            (LLAMA, format!("{before}<|python_tag|>{}", call("parameters"))),
            (MISTRAL, format!("{before}[TOOL_CALLS][{}]", call("arguments"))),
            (MISTRAL, format!("{before}[TOOL_CALLS]f[ARGS]{arguments}")),
        ] {
            let expected = (before.clone(), vec![(None, "f".to_owned(), arguments.clone(), true)]);
            prop_assert_eq!(parse(notation, [text.as_str()]), expected);
        }
    }
}

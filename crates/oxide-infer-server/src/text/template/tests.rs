use super::*;
use proptest::prelude::*;
use serde_json::json;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, Map::new()).unwrap()
}

fn render(source: &str, variables: Value) -> Result<String, TemplateError> {
    template(source).render(variables.as_object().unwrap())
}

fn testdata(name: &str) -> String {
    let path = format!("{}/testdata/chat_templates/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn templates_render_as_transformers_renders_them() {
    let cases: Vec<Value> = serde_json::from_str(&testdata("expected.json")).unwrap();
    assert!(cases.len() >= 98);
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let rendered = render(&testdata(name), case["variables"].clone());
        let what = format!("{name}, {}", case["request"]);
        match (rendered, case["rendered"].as_str(), case["error"].as_str()) {
            (Ok(got), Some(expected), _) => assert_eq!(got, expected, "{what}"),
            (Err(TemplateError::Raised(got)), None, Some(expected)) => {
                assert_eq!(expected.strip_prefix("TemplateError: "), Some(got.as_str()), "{what}");
            }
            (Err(_), None, Some(expected)) => assert!(!expected.starts_with("TemplateError"), "{what}"),
            (got, expected, error) => panic!("{what}: got {got:?}, expected {expected:?} {error:?}"),
        }
    }
}

#[test]
fn the_content_that_a_template_takes_is_found_out() {
    let format = |name: &str| template(&testdata(name)).content_format();
    assert_eq!(format("chatml_tools.jinja"), ContentFormat::Text);
    assert_eq!(
        format("header_blocks.jinja"),
        ContentFormat::Text,
        "it prints a list, which is not taking it"
    );
    assert_eq!(format("parts.jinja"), ContentFormat::Parts);
    assert_eq!(format("either.jinja"), ContentFormat::Either);
}

#[test]
fn a_raised_message_is_told_from_a_failure() {
    let raised = render("{{ raise_exception('no ' ~ 'way') }}", json!({})).unwrap_err();
    assert!(matches!(&raised, TemplateError::Raised(message) if message == "no way"), "{raised:?}");
    let in_macro =
        "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{% for i in [1] %}{{ m() }}{% endfor %}";
    let raised = render(in_macro, json!({})).unwrap_err();
    assert!(matches!(&raised, TemplateError::Raised(message) if message == "deep"), "{raised:?}");
    let failed = render("one\ntwo\n{{ messages[0].content.strip() }}", json!({"messages": []})).unwrap_err();
    assert!(matches!(failed, TemplateError::Render { line: 3, .. }), "{failed:?}");
}

#[test]
fn a_syntax_error_names_its_line() {
    let error = ChatTemplate::new("{% if true %}\nx\n{% endfor %}", Map::new()).unwrap_err();
    assert!(matches!(error, TemplateError::Syntax { line: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("line 3"), "{error}");
}

#[test]
fn fixed_variables_give_way_to_those_of_the_request() {
    let fixed = json!({"bos_token": "<s>", "day": 1}).as_object().unwrap().clone();
    let template = ChatTemplate::new("{{ bos_token }}{{ day }}", fixed).unwrap();
    assert_eq!(template.render(json!({"day": 2}).as_object().unwrap()).unwrap(), "<s>2");
}

#[test]
fn line_ends_of_the_template_are_newlines_and_those_of_the_request_stay() {
    assert_eq!(render("a\r\n{{ x }}\rb", json!({"x": "c\r\nd"})).unwrap(), "a\nc\r\nd\nb");
}

#[test]
fn generation_tags_only_render_their_body() {
    let source = "a\n{%- generation -%}\n{{ x }}\n{%- endgeneration %}\nb{% generation %}c{%endgeneration%}";
    assert_eq!(render(source, json!({"x": "generation"})).unwrap(), "agenerationbc");
}

#[test]
fn strftime_now_knows_the_formats_templates_use_and_refuses_others() {
    let before = chrono::Local::now().format("%d %b %Y").to_string();
    let got = render("{{ strftime_now('%d %b %Y') }}", json!({})).unwrap();
    let after = chrono::Local::now().format("%d %b %Y").to_string();
    assert!(got == before || got == after, "{got}");
    assert!(render("{{ strftime_now('%Q') }}", json!({})).is_err());
}

#[test]
fn endless_templates_and_endless_output_are_stopped() {
    let steps = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(99) %}{% endfor %}{% endfor %}{% endfor %}";
    assert!(matches!(render(steps, json!({})).unwrap_err(), TemplateError::OutOfFuel(_)));
    let output = "{% set x = 'abcdefgh' * 100000 %}{% for a in range(999) %}{{ x }}{% endfor %}";
    assert!(matches!(render(output, json!({})).unwrap_err(), TemplateError::OutputTooLarge(_)));
}

#[test]
fn recursion_and_deep_values_end_in_an_error_on_a_small_stack() {
    let recursive = "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}";
    let nested =
        "{% set ns = namespace(v=[]) %}{% for i in range(5000) %}{% set ns.v = [ns.v] %}{% endfor %}";
    let sources =
        [recursive.to_owned(), format!("{nested}{{{{ ns.v }}}}"), format!("{nested}{{{{ ns.v|tojson }}}}")];
    // Worker threads of tokio have 2 MiB.
    let run = || sources.into_iter().for_each(|source| assert!(render(&source, json!({})).is_err()));
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
}

#[test]
fn a_panic_of_the_engine_is_an_error() {
    let error =
        render("{% for message in messages[::-1] %}{% endfor %}", json!({"messages": []})).unwrap_err();
    assert!(matches!(error, TemplateError::Engine), "{error:?}");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i32>().prop_map(|x| Value::from(f64::from(x) / 8.0)),
        "(\\PC|[\n\t\\\\\"'{}%<|>]){0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let fields = prop::collection::vec(("role|content|type|text|[a-z]{1,3}", inner.clone()), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            fields.prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_messages_make_a_template_panic(messages in prop::collection::vec(any_json(), 1..4), tools in any_json()) {
        for name in ["header_blocks.jinja", "chatml_tools.jinja", "thinking.jinja", "strict_turns.jinja", "either.jinja"] {
            let _ = render(&testdata(name), json!({"messages": messages, "tools": tools}));
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(
        pieces in prop::collection::vec("\\{[{%#]-?|-?[}%#]\\}|generation|for|if|in|end|[a-z\"'|.()\\[\\]+~ ]|\\PC", 0..20),
    ) {
        if let Ok(template) = ChatTemplate::new(&pieces.concat(), Map::new()) {
            let _ = template.render(&Map::new());
        }
    }

    #[test]
    fn tojson_writes_what_a_json_parser_reads_back(value in any_json(), indent in prop::option::of(0usize..5)) {
        let variables = json!({"value": value, "indent": indent});
        let written = render("{{ value | tojson(indent=indent) }}", variables).unwrap();
        prop_assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), value, "{}", written);
    }
}

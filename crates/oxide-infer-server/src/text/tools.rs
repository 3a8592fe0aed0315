//! Tools in chats whose template does not know them: they are described in the system message, and calls and their
//! answers become text, in the notation of Hermes.

use serde_json::{Map, Value, json};

use super::ChatTemplate;
use super::chat::joined;

/// Whether a template shows tools to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolSupport {
    /// It does, in the model's own notation.
    Native,
    /// It drops them: they are described in the notation of Hermes.
    Described,
}

/// Finds out by rendering a chat with a tool and without: a template that knows tools writes something else. One that only
/// writes calls knows them, too.
pub(super) fn detect(template: &ChatTemplate) -> ToolSupport {
    let parameters = json!({"type": "object", "properties": {}, "required": []});
    let function = json!({"name": "look_up", "description": "", "parameters": parameters});
    let tools = json!([{"type": "function", "function": function}]);
    let render = |content: &Value, tools: &Value| {
        let mut request = Map::new();
        request.insert("messages".into(), json!([{"role": "user", "content": content}]));
        request.insert("tools".into(), tools.clone());
        request.insert("documents".into(), Value::Null);
        request.insert("add_generation_prompt".into(), true.into());
        template.render(&request).ok()
    };
    let shows = |content: Value| render(&content, &tools) != render(&content, &Value::Null);
    let parts = json!([{"type": "text", "text": "a"}]);
    match template.source().contains("tool_calls") || shows(json!("a")) || shows(parts) {
        true => ToolSupport::Native,
        false => ToolSupport::Described,
    }
}

/// Puts into messages of text what a template that knows no tools would drop.
pub(super) fn describe(messages: &mut Vec<Value>, tools: Option<&[Value]>) {
    messages.iter_mut().for_each(write_calls);
    let mut written: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    let mut after_answer = false;
    for mut message in std::mem::take(messages) {
        let is_answer = message["role"] == "tool";
        if is_answer {
            let answer = format!("<tool_response>\n{}\n</tool_response>", content_text(&message["content"]));
            match written.last_mut().filter(|_| after_answer) {
                Some(last) => {
                    let joined = format!("{}\n{answer}", content_text(&last["content"]));
                    last["content"] = joined.into();
                    continue;
                }
                None => message = json!({"role": "user", "content": answer}),
            }
        }
        after_answer = is_answer;
        written.push(message);
    }
    if let Some(tools) = tools {
        describe_tools(&mut written, tools);
    }
    *messages = written;
}

fn describe_tools(messages: &mut Vec<Value>, tools: &[Value]) {
    let list: Vec<String> = tools.iter().map(Value::to_string).collect();
    let description = format!(
        "You can call functions. These are their signatures as JSON:\n<tools>\n{}\n</tools>\n\
         To call one, write its name and its arguments as JSON between tags:\n\
         <tool_call>\n{{\"name\": \"the function's name\", \"arguments\": {{\"an argument\": \"its value\"}}}}\n\
         </tool_call>",
        list.join("\n")
    );
    match messages.first_mut().filter(|first| first["role"] == "system" || first["role"] == "developer") {
        Some(system) => {
            let text = content_text(&system["content"]);
            system["content"] = format!("{text}\n\n{description}").into();
        }
        None => messages.insert(0, json!({"role": "system", "content": description})),
    }
}

/// An assistant's calls as text.
fn write_calls(message: &mut Value) {
    let Some(Value::Array(calls)) = message.as_object_mut().and_then(|fields| fields.remove("tool_calls"))
    else {
        return;
    };
    let mut text = content_text(&message["content"]);
    for call in calls {
        let function = &call["function"];
        if !text.is_empty() {
            text.push('\n');
        }
        let (name, arguments) = (&function["name"], &function["arguments"]);
        text.push_str(&format!(
            "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
        ));
    }
    message["content"] = text.into();
}

/// The text of a message's content; parts one below the other.
fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => joined(parts),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn testdata(name: &str) -> ChatTemplate {
        let path = format!("{}/testdata/chat_templates/{name}", env!("CARGO_MANIFEST_DIR"));
        ChatTemplate::new(&std::fs::read_to_string(path).unwrap(), Map::new()).unwrap()
    }

    #[test]
    fn whether_a_template_shows_tools_is_found_out() {
        for (name, expected) in [
            ("chatml_tools.jinja", ToolSupport::Native),
            ("header_blocks.jinja", ToolSupport::Native),
            ("thinking.jinja", ToolSupport::Described),
            ("parts.jinja", ToolSupport::Described),
        ] {
            assert_eq!(detect(&testdata(name)), expected, "{name}");
        }
    }

    #[test]
    fn calls_and_answers_become_text_and_tools_are_described_first() {
        let call = |name: &str, arguments: Value| json!({"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}});
        let mut messages = vec![
            json!({"role": "user", "content": "Hi"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call("f", json!({"a": 1})), call("g", json!({}))]}),
            json!({"role": "tool", "content": "one", "tool_call_id": "1"}),
            json!({"role": "tool", "content": "two", "tool_call_id": "2"}),
            json!({"role": "assistant", "content": "So."}),
        ];
        describe(&mut messages, Some(&[json!({"type": "function", "function": {"name": "f"}})]));
        let contents: Vec<&str> =
            messages.iter().map(|message| message["content"].as_str().unwrap()).collect();
        assert!(
            contents[0].contains("\n{\"type\":\"function\",\"function\":{\"name\":\"f\"}}\n"),
            "{}",
            contents[0]
        );
        assert_eq!(
            contents[2],
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"
        );
        assert_eq!(
            contents[3],
            "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
        );
        let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    }

    #[test]
    fn the_description_follows_what_the_system_message_says() {
        let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
        describe(&mut messages, Some(&[json!({})]));
        assert_eq!(messages.len(), 1);
        assert!(messages[0]["content"].as_str().unwrap().starts_with("Be brief.\n\nYou can call"));
    }
}

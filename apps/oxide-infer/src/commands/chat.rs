//! `oxide-infer chat`.

use crate::cli::options::ChatArgs;
use crate::generate::{Answer, End, Generator};
use crate::{load, terminal};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{DefaultEditor, Editor};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
/reset         forget the conversation
/system TEXT   set the system message and forget the conversation; without TEXT remove it
/help          show this
/quit          leave; so does Ctrl-D
Ctrl-C stops an answer. What was said so far stays in the conversation.
";

pub(crate) fn run(args: &ChatArgs) -> anyhow::Result<ExitCode> {
    terminal::start_logging(&args.model.log)?;
    let runtime = super::runtime()?;
    let generator = runtime.block_on(load::generator(&args.model))?;
    let mut conversation = Conversation::new(args.system.clone());
    let mut lines = Lines::open()?;
    lines.greet()?;
    while let Some(line) = lines.next()? {
        match Input::parse(&line) {
            Input::Nothing => {}
            Input::Quit => break,
            Input::Help => terminal::print(HELP)?,
            Input::Reset => conversation.reset(),
            Input::System(text) => conversation = Conversation::new(text),
            Input::Unknown(name) => {
                terminal::print(&format!("there is no {name}; /help lists the commands\n"))?
            }
            Input::Message(text) => {
                let answer = runtime.block_on(reply(&generator, args, &conversation, &text));
                match answer {
                    Ok(answer) => conversation.add(text, answer),
                    // A message that cannot be answered (too long, say) does not end the chat.
                    Err(error) => terminal::print_error(&error),
                }
            }
        }
    }
    lines.close();
    Ok(ExitCode::SUCCESS)
}

async fn reply(
    generator: &Generator,
    args: &ChatArgs,
    conversation: &Conversation,
    text: &str,
) -> anyhow::Result<Answer> {
    let mut messages = conversation.messages.clone();
    messages.push(json!({"role": "user", "content": text}));
    let prompt = generator.encode_chat(&messages)?;
    let answer = generator.answer(prompt, &args.sampling, terminal::interrupted(), terminal::print).await?;
    let end = match answer.end {
        End::Complete => "\n",
        End::Length => " […]\n",
        End::Interrupted => " [stopped]\n",
    };
    terminal::print(end)?;
    Ok(answer)
}

/// What has been said.
#[derive(Debug, PartialEq)]
struct Conversation {
    system: Option<String>,
    messages: Vec<Value>,
}

impl Conversation {
    fn new(system: Option<String>) -> Self {
        let mut conversation = Self { system, messages: Vec::new() };
        conversation.reset();
        conversation
    }

    fn reset(&mut self) {
        self.messages = self.system.iter().map(|text| json!({"role": "system", "content": text})).collect();
    }

    fn add(&mut self, user: String, answer: Answer) {
        self.messages.push(json!({"role": "user", "content": user}));
        self.messages.push(json!({"role": "assistant", "content": answer.text}));
    }
}

/// What the user typed.
#[derive(Debug, PartialEq)]
enum Input {
    Nothing,
    Quit,
    Help,
    Reset,
    System(Option<String>),
    Unknown(String),
    Message(String),
}

impl Input {
    fn parse(line: &str) -> Self {
        let line = line.trim();
        if line.is_empty() {
            return Input::Nothing;
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match word {
            "/quit" | "/exit" => Input::Quit,
            "/help" => Input::Help,
            "/reset" => Input::Reset,
            "/system" => Input::System(Some(rest.trim().to_owned()).filter(|text| !text.is_empty())),
            _ if word.starts_with('/') => Input::Unknown(word.to_owned()),
            _ => Input::Message(line.to_owned()),
        }
    }
}

/// Lines from the user, with a history that lasts.
struct Lines {
    editor: Editor<(), FileHistory>,
    history: Option<PathBuf>,
    is_terminal: bool,
}

impl Lines {
    fn open() -> anyhow::Result<Self> {
        let is_terminal = std::io::stdin().is_terminal();
        let history = if is_terminal { history_file() } else { None };
        let mut editor = DefaultEditor::new()?;
        if let Some(path) = &history {
            // There is none at the first time.
            editor.load_history(path).ok();
        }
        Ok(Self { editor, history, is_terminal })
    }

    fn greet(&self) -> std::io::Result<()> {
        if self.is_terminal { terminal::print("/help lists the commands\n") } else { Ok(()) }
    }

    /// The next line; none at the end of input. Ctrl-C drops the line that is being typed.
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            match self.editor.readline(if self.is_terminal { "> " } else { "" }) {
                Ok(line) => {
                    self.editor.add_history_entry(&line)?;
                    return Ok(Some(line));
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn close(mut self) {
        let Some(path) = &self.history else { return };
        let folder = path.parent().map(std::fs::create_dir_all).transpose();
        if let Err(error) = folder.map_err(ReadlineError::from).and_then(|_| self.editor.save_history(path)) {
            tracing::warn!("cannot save the history {}: {error}", path.display());
        }
    }
}

fn history_file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("oxide-infer").join("chat-history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_start_with_a_slash_and_the_rest_is_said() {
        assert_eq!(Input::parse("  "), Input::Nothing);
        assert_eq!(Input::parse(" Hello there "), Input::Message("Hello there".into()));
        assert_eq!(Input::parse("/reset"), Input::Reset);
        assert_eq!(Input::parse("/quit "), Input::Quit);
        assert_eq!(
            Input::parse("/system You are a  pirate."),
            Input::System(Some("You are a  pirate.".into()))
        );
        assert_eq!(Input::parse("/system"), Input::System(None));
        assert_eq!(Input::parse("/fly"), Input::Unknown("/fly".into()));
    }

    #[test]
    fn a_reset_keeps_the_system_message_only() {
        let mut conversation = Conversation::new(Some("Be brief.".into()));
        let answer = |text: &str| Answer { text: text.into(), end: End::Complete };
        conversation.add("Hi".into(), answer("Hello"));
        conversation.add("Bye".into(), answer("Ciao"));
        let roles: Vec<_> = conversation.messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
        assert_eq!(conversation.messages[4]["content"], "Ciao");
        conversation.reset();
        assert_eq!(conversation, Conversation::new(Some("Be brief.".into())));
        assert_eq!(Conversation::new(None).messages.len(), 0);
    }
}

//! Chat templates: the Jinja that models are published with.
//!
//! A template is rendered as `transformers` renders it: block trimming, loop controls, `{% generation %}` blocks,
//! `raise_exception`, `strftime_now`, a `tojson` that writes what Python's `json.dumps` writes, and Python's string
//! and dictionary methods.

mod content;
mod functions;
mod json;
mod methods;
mod python;

use std::{error::Error as _, io, panic::AssertUnwindSafe};

use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

pub use self::content::ContentFormat;
use self::functions::Raised;
use super::TemplateError;
use super::tools::{self, ToolSupport};

const NAME: &str = "chat";
/// Template instructions in one rendering; a thousand messages take some hundred thousand.
const FUEL: u64 = 5_000_000;
/// Bytes in one rendering: far more than any context window holds.
const MAX_OUTPUT: usize = 64 << 20;
/// Nesting of loops, conditions, macro calls. A published template needs about 20; the stack of a worker thread holds
/// several hundred.
const MAX_RECURSION: usize = 200;

/// A parsed chat template with the variables that stay the same for every request (`bos_token` and such).
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    variables: Map<String, Value>,
    format: ContentFormat,
    tools: ToolSupport,
}

impl ChatTemplate {
    /// Parses a template and finds out which message content it takes, and whether it shows tools.
    pub fn new(source: &str, variables: Map<String, Value>) -> Result<Self, TemplateError> {
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(MAX_RECURSION);
        env.set_formatter(python::format);
        env.set_unknown_method_callback(methods::call);
        functions::register(&mut env);
        // Jinja reads every line end as a newline.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        env.add_template_owned(NAME, without_generation_tags(&source)).map_err(template_error)?;
        let (format, tools) = (ContentFormat::Text, ToolSupport::Native);
        let mut template = Self { env, source, variables, format, tools };
        template.format = content::detect(&template);
        template.tools = tools::detect(&template);
        Ok(template)
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The form of message content that the template takes.
    pub fn content_format(&self) -> ContentFormat {
        self.format
    }

    /// Whether the template shows tools to the model.
    pub fn tool_support(&self) -> ToolSupport {
        self.tools
    }

    /// Renders the template. `request` holds `messages`, `tools` and so on, and goes before the fixed variables.
    pub fn render(&self, request: &Map<String, Value>) -> Result<String, TemplateError> {
        let mut context = self.variables.clone();
        context.extend(request.iter().map(|(name, value)| (name.clone(), value.clone())));
        let template = self.env.get_template(NAME).map_err(template_error)?;
        let mut output = Limited::default();
        // minijinja 2.24 panics on some operations, `[][::-1]` among them. Nothing outlives this call but the parsed
        // template, which rendering does not change.
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let context = minijinja::Value::from_serialize(&context);
            template.render_captured_to(context, &mut output).map(drop)
        }));
        if output.is_full {
            return Err(TemplateError::OutputTooLarge(MAX_OUTPUT));
        }
        result.map_err(|_| TemplateError::Engine)?.map_err(template_error)?;
        // Written by `fmt::Write`, so it is UTF-8.
        Ok(String::from_utf8_lossy(&output.bytes).into_owned())
    }
}

/// A buffer that refuses to grow beyond [`MAX_OUTPUT`].
#[derive(Default)]
struct Limited {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn template_error(error: minijinja::Error) -> TemplateError {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        cause = inner.source();
    }
    let line = error.line().unwrap_or(1);
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    let message = format!("{}{detail}", error.kind());
    match error.kind() {
        ErrorKind::SyntaxError => TemplateError::Syntax { line, message },
        ErrorKind::OutOfFuel => TemplateError::OutOfFuel(FUEL),
        _ => TemplateError::Render { line, message },
    }
}

/// `{% generation %}` marks what the model wrote, for training. It renders its body, so it can be read as a condition
/// that always holds; the tags keep their place, so whitespace control and line numbers stay right.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let name_at = tag.find(|c: char| !c.is_whitespace() && c != '-' && c != '+').unwrap_or(tag.len());
        let (lead, name) = tag.split_at(name_at);
        let replaced =
            [("generation", "if true"), ("endgeneration", "endif")].into_iter().find_map(|(from, to)| {
                let after = name.strip_prefix(from)?;
                let end = after.trim_start().trim_start_matches(['-', '+']);
                end.starts_with("%}").then_some((to, after))
            });
        rest = match replaced {
            Some((to, after)) => {
                out.push_str(lead);
                out.push_str(to);
                after
            }
            None => tag,
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;

//! Everything about a model's text, loaded from its directory or file.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use oxide_infer::TokenId;
use oxide_infer_engine::gguf::Gguf;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    AddSpecialTokens, ChatInput, ChatTemplate, DecodeFrom, Detokenizer, GgufTokenizerData, LoadError,
    NamedTokens, Prompt, PromptError, SpecialInOutput, Tokenizer,
    hub::{self, ChatTemplateConfig, TokenizerConfig},
    special::Marker,
};

/// What special-token text in the content of a chat stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialInContent {
    /// The special token, as in `transformers`.
    #[default]
    Parse,
    /// Itself (`--escape-special-tokens`).
    Escape,
}

/// How a [`TextModel`] is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// A template that goes before the model's own (`--chat-template`).
    pub chat_template: Option<PathBuf>,
    /// What special-token text in the content of a chat stands for.
    pub special_in_content: SpecialInContent,
}

/// A model's tokenizer, chat templates, and the ids that end an answer.
#[derive(Debug)]
pub struct TextModel {
    tokenizer: Tokenizer,
    templates: Option<Templates>,
    eos_ids: Vec<TokenId>,
    special_in_content: SpecialInContent,
}

#[derive(Debug)]
struct Templates {
    default: ChatTemplate,
    /// Used when a request has tools.
    tool_use: Option<ChatTemplate>,
}

impl TextModel {
    /// Loads a model directory or a `.gguf` file.
    pub fn load(path: &Path, options: &TextOptions) -> Result<Self, LoadError> {
        if path.is_dir() {
            return Self::from_dir(path, options);
        }
        let gguf = Gguf::open(path).map_err(|error| LoadError::invalid(path, error))?;
        Self::from_gguf(&gguf, options)
    }

    /// Loads a model directory.
    pub fn from_dir(dir: &Path, options: &TextOptions) -> Result<Self, LoadError> {
        let tokenizer = Tokenizer::from_dir(dir)?;
        let sources = match given_template(options)? {
            Some(given) => Some(given),
            None => TemplateSources::of_dir(dir)?,
        };
        let eos_ids = dir_eos_ids(dir, tokenizer.named())?;
        Self::assemble(tokenizer, sources, eos_ids, options)
    }

    /// Uses the metadata of a GGUF file.
    pub fn from_gguf(gguf: &Gguf, options: &TextOptions) -> Result<Self, LoadError> {
        let data = GgufTokenizerData::read(gguf)?;
        let eos_ids = data.eos_ids();
        let sources = match (given_template(options)?, data.chat_template) {
            (Some(given), _) => Some(given),
            (None, Some(source)) => Some(TemplateSources::single("GGUF metadata", source.to_owned())),
            (None, None) => None,
        };
        Self::assemble(Tokenizer::from_gguf(&data)?, sources, eos_ids, options)
    }

    fn assemble(
        tokenizer: Tokenizer,
        sources: Option<TemplateSources>,
        eos_ids: Vec<TokenId>,
        options: &TextOptions,
    ) -> Result<Self, LoadError> {
        let variables = named_variables(tokenizer.named());
        let templates = sources.map(|sources| sources.parse(&variables)).transpose()?;
        Ok(Self { tokenizer, templates, eos_ids, special_in_content: options.special_in_content })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The ids that end an answer, the main one first.
    pub fn eos_ids(&self) -> &[TokenId] {
        &self.eos_ids
    }

    /// The template for chats without tools, if the model has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.templates.as_ref().map(|templates| &templates.default)
    }

    /// The template for chats with tools, if the model has one.
    pub fn tool_template(&self) -> Option<&ChatTemplate> {
        self.templates.as_ref().map(|templates| templates.tool_use.as_ref().unwrap_or(&templates.default))
    }

    /// Renders a chat to a prompt, which [`encode_prompt`](Self::encode_prompt) takes.
    pub fn render_chat(&self, chat: &ChatInput) -> Result<Prompt, PromptError> {
        let templates = self.templates.as_ref().ok_or(PromptError::NoChatTemplate)?;
        let template = match &templates.tool_use {
            Some(tool_use) if chat.tools.is_some() => tool_use,
            _ => &templates.default,
        };
        let mut variables = chat.to_variables(template)?;
        let marker = match self.special_in_content {
            SpecialInContent::Parse => None,
            SpecialInContent::Escape => {
                let values: Vec<&Value> = variables.values().collect();
                Marker::choose(self.tokenizer.specials(), template.source(), &values)?
            }
        };
        if let Some(marker) = &marker {
            variables.values_mut().for_each(|value| marker.mark(value));
        }
        let rendered = chat.cut(template.render(&variables)?)?;
        Ok(match marker {
            Some(marker) => marker.unmark(rendered),
            None => Prompt::plain(rendered),
        })
    }

    /// Token ids of a rendered chat. The template has written the special tokens, so none are added.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<TokenId>, PromptError> {
        self.tokenizer.encode_prompt(prompt, AddSpecialTokens::Omit)
    }

    /// Token ids of a plain text.
    pub fn encode(&self, text: &str, add: AddSpecialTokens) -> Result<Vec<TokenId>, PromptError> {
        self.tokenizer.encode(text, add)
    }

    /// The text of `ids`.
    pub fn decode(&self, ids: &[TokenId], special: SpecialInOutput) -> String {
        self.tokenizer.decode(ids, special)
    }

    /// A decoder for the stream of ids that follows a prompt.
    pub fn detokenizer(&self, special: SpecialInOutput) -> Detokenizer {
        self.tokenizer.detokenizer(special, DecodeFrom::Continuation)
    }
}

/// Template texts before they are parsed.
struct TemplateSources {
    origin: String,
    default: String,
    tool_use: Option<String>,
}

impl TemplateSources {
    fn single(origin: impl Into<String>, source: String) -> Self {
        Self { origin: origin.into(), default: source, tool_use: None }
    }

    /// The order of `transformers`: `chat_template.jinja`, then `tokenizer_config.json`, then `chat_template.json`.
    fn of_dir(dir: &Path) -> Result<Option<Self>, LoadError> {
        let path = dir.join("chat_template.jinja");
        if let Some(source) = hub::read_text(&path)? {
            let mut sources = Self::single(path.display().to_string(), source);
            sources.tool_use = hub::read_text(&dir.join("additional_chat_templates/tool_use.jinja"))?;
            return Ok(Some(sources));
        }
        for name in ["tokenizer_config.json", "chat_template.json"] {
            let path = dir.join(name);
            let config: Option<TokenizerConfig> = hub::read_json(&path)?;
            let origin = path.display().to_string();
            match config.and_then(|config| config.chat_template) {
                Some(ChatTemplateConfig::Single(source)) => return Ok(Some(Self::single(origin, source))),
                Some(ChatTemplateConfig::Named(named)) => {
                    let named = named.into_iter().map(|template| (template.name, template.template));
                    let mut named: HashMap<String, String> = named.collect();
                    let default = named.remove("default");
                    let default = default.ok_or_else(|| {
                        LoadError::invalid(
                            &path,
                            "chat_template has several templates and none is named \"default\"",
                        )
                    })?;
                    return Ok(Some(Self { origin, default, tool_use: named.remove("tool_use") }));
                }
                None => {}
            }
        }
        Ok(None)
    }

    fn parse(self, variables: &Map<String, Value>) -> Result<Templates, LoadError> {
        let parse = |source: &str| {
            let template = ChatTemplate::new(source, variables.clone());
            template.map_err(|source| LoadError::Template { origin: self.origin.clone(), source })
        };
        Ok(Templates {
            default: parse(&self.default)?,
            tool_use: self.tool_use.as_deref().map(parse).transpose()?,
        })
    }
}

fn given_template(options: &TextOptions) -> Result<Option<TemplateSources>, LoadError> {
    let Some(path) = &options.chat_template else { return Ok(None) };
    let source = fs::read_to_string(path).map_err(|source| LoadError::Read { path: path.clone(), source })?;
    Ok(Some(TemplateSources::single(path.display().to_string(), source)))
}

/// `bos_token` and so on, as templates know them; a token the model does not have is undefined.
fn named_variables(named: &NamedTokens) -> Map<String, Value> {
    let tokens = [
        ("bos_token", &named.bos),
        ("eos_token", &named.eos),
        ("unk_token", &named.unk),
        ("pad_token", &named.pad),
    ];
    let defined = tokens.into_iter().filter_map(|(name, token)| Some((name.to_owned(), token.as_ref()?)));
    defined.map(|(name, token)| (name, Value::from(token.text.as_str()))).collect()
}

/// `eos_token_id` of `generation_config.json` or `config.json`.
#[derive(Deserialize)]
struct EosConfig {
    eos_token_id: Option<EosIds>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EosIds {
    One(u32),
    Several(Vec<u32>),
}

/// The ids of `generation_config.json`, or else `config.json`, and the tokenizer's end-of-sequence token.
fn dir_eos_ids(dir: &Path, named: &NamedTokens) -> Result<Vec<TokenId>, LoadError> {
    let mut ids = Vec::new();
    for name in ["generation_config.json", "config.json"] {
        let config: Option<EosConfig> = hub::read_json(&dir.join(name))?;
        match config.and_then(|config| config.eos_token_id) {
            Some(EosIds::One(id)) => ids.push(TokenId(id)),
            Some(EosIds::Several(several)) => ids.extend(several.into_iter().map(TokenId)),
            None => continue,
        }
        break;
    }
    let of_tokenizer = named.eos.as_ref().map(|token| token.id);
    ids.extend(of_tokenizer.filter(|id| !ids.contains(id)));
    Ok(ids)
}

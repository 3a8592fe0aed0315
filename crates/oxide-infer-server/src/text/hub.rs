//! Tokenizers of model directories, as published on the Hugging Face hub.

use std::{fs, io, path::Path};

use oxide_infer::TokenId;
use serde::{Deserialize, de::DeserializeOwned};
use tokenizers::{AddedToken, PreTokenizerWrapper};

use super::{LoadError, NamedToken, NamedTokens, Tokenizer, tokenizer::Affixes};

/// The fields of `tokenizer_config.json` that change how text is tokenized or rendered.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TokenizerConfig {
    tokenizer_class: Option<String>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    add_prefix_space: Option<bool>,
    #[serde(flatten)]
    roles: Roles,
    /// Ids as strings, in any order.
    added_tokens_decoder: Option<serde_json::Map<String, serde_json::Value>>,
    pub(super) chat_template: Option<ChatTemplateConfig>,
}

/// `chat_template` of `tokenizer_config.json`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum ChatTemplateConfig {
    Single(String),
    Named(Vec<NamedTemplate>),
}

/// One of several chat templates.
#[derive(Debug, Deserialize)]
pub(super) struct NamedTemplate {
    pub(super) name: String,
    pub(super) template: String,
}

/// The special tokens with a role: in `tokenizer_config.json`, and in `special_tokens_map.json` of older models.
#[derive(Debug, Default, Deserialize)]
struct Roles {
    bos_token: Option<TokenText>,
    eos_token: Option<TokenText>,
    unk_token: Option<TokenText>,
    pad_token: Option<TokenText>,
    additional_special_tokens: Option<Vec<TokenText>>,
}

/// A token given as its text or as an object that holds it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum TokenText {
    Text(String),
    Object { content: String },
}

impl TokenText {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

/// Reads a JSON file that may be absent.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, LoadError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|error| LoadError::invalid(path, error))
}

/// Reads a text file that may be absent.
pub(super) fn read_text(path: &Path) -> Result<Option<String>, LoadError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LoadError::Read { path: path.into(), source }),
    }
}

pub(super) fn load(dir: &Path) -> Result<Tokenizer, LoadError> {
    let path = dir.join("tokenizer.json");
    let text = read_text(&path)?.ok_or_else(|| LoadError::NoTokenizer(dir.into()))?;
    let mut inner: tokenizers::Tokenizer = text.parse().map_err(|error| LoadError::invalid(&path, error))?;
    drop(text);

    let config_path = dir.join("tokenizer_config.json");
    let mut config: TokenizerConfig = read_json(&config_path)?.unwrap_or_default();
    if let Some(map) = read_json(&dir.join("special_tokens_map.json"))? {
        config.roles.fill_from(map);
    }
    add_missing_tokens(&mut inner, &mut config, &config_path)?;
    set_prefix_space(&mut inner, &config);
    let named = config.roles.resolve(&inner);
    let affixes = affixes(&config, &named, &config_path)?;
    Tokenizer::assemble(inner, affixes, named)
}

impl Roles {
    fn fill_from(&mut self, other: Roles) {
        let fill = |ours: &mut Option<TokenText>, theirs| *ours = ours.take().or(theirs);
        fill(&mut self.bos_token, other.bos_token);
        fill(&mut self.eos_token, other.eos_token);
        fill(&mut self.unk_token, other.unk_token);
        fill(&mut self.pad_token, other.pad_token);
        self.additional_special_tokens =
            self.additional_special_tokens.take().or(other.additional_special_tokens);
    }

    fn texts(&self) -> impl Iterator<Item = String> + '_ {
        let single = [&self.bos_token, &self.eos_token, &self.unk_token, &self.pad_token];
        let more = self.additional_special_tokens.iter().flatten();
        single.into_iter().flatten().chain(more).cloned().map(TokenText::into_text)
    }

    fn resolve(&self, inner: &tokenizers::Tokenizer) -> NamedTokens {
        let named = |role: &Option<TokenText>| {
            let text = role.clone()?.into_text();
            let id = TokenId(inner.token_to_id(&text)?);
            Some(NamedToken { text, id })
        };
        NamedTokens {
            bos: named(&self.bos_token),
            eos: named(&self.eos_token),
            unk: named(&self.unk_token),
            pad: named(&self.pad_token),
        }
    }
}

/// Adds what the configuration knows and `tokenizer.json` does not, as `transformers` does: tokens listed with other
/// properties, and tokens that only have a role.
fn add_missing_tokens(
    inner: &mut tokenizers::Tokenizer,
    config: &mut TokenizerConfig,
    path: &Path,
) -> Result<(), LoadError> {
    let mut listed = Vec::new();
    for (id, token) in config.added_tokens_decoder.take().into_iter().flatten() {
        let bad = |error: &dyn std::fmt::Display| {
            LoadError::invalid(path, format!("added_tokens_decoder[{id:?}]: {error}"))
        };
        let number: u32 = id.parse().map_err(|error| bad(&error))?;
        let token: ListedToken = serde_json::from_value(token).map_err(|error| bad(&error))?;
        listed.push((number, token.into_added()));
    }
    listed.sort_by_key(|&(id, _)| id);
    let known = inner.get_added_tokens_decoder();
    let roles: Vec<String> = config.roles.texts().collect();
    let missing = listed.into_iter().filter(|(id, token)| known.get(id) != Some(token)).map(|(_, token)| {
        let special = token.special || roles.contains(&token.content);
        token.special(special)
    });
    inner.add_tokens(&missing.collect::<Vec<_>>());

    let added = inner.get_added_vocabulary();
    let unknown = roles.into_iter().filter(|text| !added.get_vocab().contains_key(text));
    let unknown: Vec<AddedToken> = unknown.map(|text| AddedToken::from(text, true)).collect();
    inner.add_special_tokens(&unknown);
    Ok(())
}

/// An entry of `added_tokens_decoder`; what it leaves out is as in `transformers`.
#[derive(Deserialize)]
struct ListedToken {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl ListedToken {
    fn into_added(self) -> AddedToken {
        let normalized = self.normalized.unwrap_or(!self.special);
        AddedToken::from(self.content, self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(normalized)
    }
}

/// `transformers` sets `add_prefix_space` of a plain byte-level pre-tokenizer from the configuration, absent meaning no.
fn set_prefix_space(inner: &mut tokenizers::Tokenizer, config: &TokenizerConfig) {
    if let Some(PreTokenizerWrapper::ByteLevel(byte_level)) = inner.get_pre_tokenizer() {
        let byte_level = byte_level.add_prefix_space(config.add_prefix_space.unwrap_or(false));
        inner.with_pre_tokenizer(Some(byte_level));
    }
}

/// Some classes of `transformers` replace the post-processor by what the configuration says.
fn affixes(config: &TokenizerConfig, named: &NamedTokens, path: &Path) -> Result<Affixes, LoadError> {
    let class = config.tokenizer_class.as_deref().unwrap_or_default();
    let bos_by_default = match class.strip_suffix("Fast").unwrap_or(class) {
        "LlamaTokenizer" | "CodeLlamaTokenizer" | "GemmaTokenizer" | "CohereTokenizer" => true,
        "GPTNeoXTokenizer" => false,
        _ => return Ok(Affixes::PostProcessor),
    };
    let wanted = |wanted: bool, token: &Option<NamedToken>, name: &str| match token {
        _ if !wanted => Ok(Vec::new()),
        Some(token) => Ok(vec![token.id]),
        None => {
            Err(LoadError::invalid(path, format!("add_{name}_token is true but there is no {name}_token")))
        }
    };
    Ok(Affixes::Fixed {
        before: wanted(config.add_bos_token.unwrap_or(bos_by_default), &named.bos, "bos")?,
        after: wanted(config.add_eos_token.unwrap_or(false), &named.eos, "eos")?,
    })
}

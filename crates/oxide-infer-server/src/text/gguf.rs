//! Tokenizers rebuilt from GGUF metadata.

mod pre_tokenizer;
mod sentencepiece;

use oxide_infer::TokenId;
use oxide_infer_engine::gguf::{Gguf, GgufError};
use tokenizers::{
    AddedToken, NormalizerWrapper, PreTokenizerWrapper,
    decoders::byte_level::ByteLevel,
    models::bpe::{BpeBuilder, Vocab},
    normalizers::NFC,
};

use self::pre_tokenizer::PreTokenizerSpec;
use super::{LoadError, NamedToken, NamedTokens, Tokenizer, tokenizer::Affixes};

/// The `tokenizer.*` metadata of a GGUF file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTokenizerData<'a> {
    /// `tokenizer.ggml.model`: `gpt2` or `llama`.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`; `default` when absent. Only `gpt2` has pre-tokenizers.
    pub pre: Option<&'a str>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<&'a str>,
    /// `tokenizer.ggml.token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte. Empty means
    /// all normal.
    pub token_types: Vec<i64>,
    /// `tokenizer.ggml.scores`, by id. Needed by `llama`.
    pub scores: Vec<f64>,
    /// `tokenizer.ggml.merges`: two entries with a space between them, most frequent first. Needed by `gpt2`.
    pub merges: Vec<&'a str>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: end of message.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<&'a str>,
}

/// The values of `tokenizer.ggml.token_type` that change how text is tokenized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenType {
    /// Found by the model: normal (1), unused (5), and anything not known.
    Normal,
    /// 2 and 3, unknown and control: special.
    Special,
    /// 4, user defined: found before the model runs, and not special.
    Added,
    /// 6: one byte.
    Byte,
}

impl<'a> GgufTokenizerData<'a> {
    /// Reads the metadata of a file.
    pub fn read(gguf: &'a Gguf) -> Result<Self, LoadError> {
        Self::try_read(gguf).map_err(|error| LoadError::invalid(gguf.path(), error))
    }

    fn try_read(gguf: &'a Gguf) -> Result<Self, GgufError> {
        Ok(Self {
            model: gguf.string("tokenizer.ggml.model")?.unwrap_or_default(),
            pre: gguf.string("tokenizer.ggml.pre")?,
            tokens: gguf.strings("tokenizer.ggml.tokens")?.unwrap_or_default(),
            token_types: gguf.ints("tokenizer.ggml.token_type")?.unwrap_or_default(),
            scores: gguf.floats("tokenizer.ggml.scores")?.unwrap_or_default(),
            merges: gguf.strings("tokenizer.ggml.merges")?.unwrap_or_default(),
            bos: gguf.u32("tokenizer.ggml.bos_token_id")?,
            eos: gguf.u32("tokenizer.ggml.eos_token_id")?,
            eot: gguf.u32("tokenizer.ggml.eot_token_id")?,
            eom: gguf.u32("tokenizer.ggml.eom_token_id")?,
            unk: gguf.u32("tokenizer.ggml.unknown_token_id")?,
            pad: gguf.u32("tokenizer.ggml.padding_token_id")?,
            add_bos: gguf.boolean("tokenizer.ggml.add_bos_token")?,
            add_eos: gguf.boolean("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: gguf.boolean("tokenizer.ggml.add_space_prefix")?,
            chat_template: gguf.string("tokenizer.chat_template")?,
        })
    }

    /// The type of a token.
    pub(super) fn token_type(&self, id: usize) -> TokenType {
        match self.token_types.get(id) {
            Some(2 | 3) => TokenType::Special,
            Some(4) => TokenType::Added,
            Some(6) => TokenType::Byte,
            _ => TokenType::Normal,
        }
    }

    /// Ids that end an answer: those with a role, and control tokens whose text says so, since few files set the keys
    /// for all of them.
    pub(super) fn eos_ids(&self) -> Vec<TokenId> {
        const END_TEXTS: [&str; 10] = [
            "<|eot_id|>",
            "<|eom_id|>",
            "<|im_end|>",
            "<|end|>",
            "<|end_of_text|>",
            "<|endoftext|>",
            "<end_of_turn>",
            "<end_of_utterance>",
            "<EOT>",
            "<｜end▁of▁sentence｜>",
        ];
        let mut ids: Vec<TokenId> =
            [self.eos, self.eot, self.eom].into_iter().flatten().map(TokenId).collect();
        for (id, text) in self.tokens.iter().enumerate() {
            let id_ends = END_TEXTS.contains(text) && self.token_type(id) == TokenType::Special;
            if id_ends && !ids.contains(&TokenId(id as u32)) {
                ids.push(TokenId(id as u32));
            }
        }
        ids
    }

    fn check(&self) -> Result<(), LoadError> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(LoadError::Vocabulary("tokenizer.ggml.tokens is missing or empty".into()));
        }
        let lists = [("token_type", self.token_types.len()), ("scores", self.scores.len())];
        if let Some((key, len)) = lists.into_iter().find(|&(_, len)| len != 0 && len != count) {
            let message = format!("tokenizer.ggml.{key} has {len} entries for {count} tokens");
            return Err(LoadError::Vocabulary(message));
        }
        let roles = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("eot", self.eot),
            ("eom", self.eom),
            ("unknown", self.unk),
            ("padding", self.pad),
        ];
        for (role, id) in roles {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                let message =
                    format!("tokenizer.ggml.{role}_token_id is {id}, the vocabulary has {count} tokens");
                return Err(LoadError::Vocabulary(message));
            }
        }
        Ok(())
    }

    fn named(&self) -> NamedTokens {
        let named = |id: Option<u32>| {
            let id = id?;
            Some(NamedToken { text: (*self.tokens.get(id as usize)?).to_owned(), id: TokenId(id) })
        };
        NamedTokens { bos: named(self.bos), eos: named(self.eos), unk: named(self.unk), pad: named(self.pad) }
    }

    fn affixes(&self, bos_by_default: AddBos) -> Result<Affixes, LoadError> {
        let wanted = |wanted: bool, id: Option<u32>, role: &str| match id {
            _ if !wanted => Ok(Vec::new()),
            Some(id) => Ok(vec![TokenId(id)]),
            None => {
                let message = format!("tokenizer.ggml.add_{role}_token is true without a {role}_token_id");
                Err(LoadError::Vocabulary(message))
            }
        };
        let add_bos = self.add_bos.unwrap_or(bos_by_default == AddBos::Yes);
        Ok(Affixes::Fixed {
            before: wanted(add_bos, self.bos, "bos")?,
            after: wanted(self.add_eos.unwrap_or(false), self.eos, "eos")?,
        })
    }

    /// The added tokens, by id.
    fn added_tokens(&self) -> Vec<AddedToken> {
        let added = |(id, text): (usize, &&str)| {
            let special = match self.token_type(id) {
                TokenType::Special => true,
                TokenType::Added => false,
                TokenType::Normal | TokenType::Byte => return None,
            };
            Some(AddedToken::from(*text, special).normalized(false))
        };
        self.tokens.iter().enumerate().filter_map(added).collect()
    }

    /// The tokens as the map that the model wants.
    fn vocab(&self) -> Result<Vocab, LoadError> {
        let mut vocab = Vocab::with_capacity(self.tokens.len());
        for (id, text) in self.tokens.iter().enumerate() {
            // Some files pad the vocabulary with empty entries; they only have to be distinct.
            let text = if text.is_empty() { format!("[EMPTY_{id}]") } else { (*text).to_owned() };
            let id = id as u32;
            if let Some(first) = vocab.insert(text, id) {
                let message = format!("tokens {first} and {id} are the same");
                return Err(LoadError::Vocabulary(message));
            }
        }
        Ok(vocab)
    }
}

/// Whether a beginning-of-sequence token is added where the file does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddBos {
    Yes,
    No,
}

pub(super) fn build(data: &GgufTokenizerData<'_>) -> Result<Tokenizer, LoadError> {
    match data.model {
        "gpt2" => byte_level(data),
        "llama" => sentencepiece::build(data),
        model => {
            Err(LoadError::UnsupportedGgufModel { model: model.into(), supported: vec!["gpt2", "llama"] })
        }
    }
}

/// Byte-level BPE (`gpt2`): merges over GPT-2's byte alphabet, inside the pieces of a pre-tokenizer.
fn byte_level(data: &GgufTokenizerData<'_>) -> Result<Tokenizer, LoadError> {
    data.check()?;
    let spec = PreTokenizerSpec::named(data.pre.unwrap_or("default"))?;
    let merges = data.merges.iter().map(|merge| split_merge(merge)).collect::<Result<Vec<_>, _>>()?;
    let model = BpeBuilder::new()
        .vocab_and_merges(data.vocab()?, merges)
        .ignore_merges(spec.ignore_merges)
        .build()
        .map_err(vocabulary_error)?;

    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_normalizer(spec.nfc.then_some(NormalizerWrapper::from(NFC)));
    inner.with_pre_tokenizer(Some(PreTokenizerWrapper::from(spec.build()?)));
    inner.with_decoder(Some(ByteLevel::default()));
    inner.add_tokens(&data.added_tokens());
    Tokenizer::assemble(inner, data.affixes(spec.add_bos)?, data.named())
}

/// Splits `"a b"` at its space; the first entry may itself be a space.
fn split_merge(merge: &str) -> Result<(String, String), LoadError> {
    let space = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
    let parts = space.map(|at| (merge[..at].to_owned(), merge[at + 1..].to_owned()));
    parts.ok_or_else(|| {
        LoadError::Vocabulary(format!("merge {merge:?} is not two entries with a space between"))
    })
}

fn vocabulary_error(error: tokenizers::Error) -> LoadError {
    LoadError::Vocabulary(error.to_string())
}

//! Text to token ids and back.

use std::{path::Path, sync::Arc};

use oxide_infer::TokenId;
use tokenizers::{
    Encoding, Model, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Token,
    tokenizer::normalizer::Range,
};

use super::{
    DecodeFrom, Detokenizer, GgufTokenizerData, LoadError, Prompt, PromptError, SpecialInOutput,
    codec::Codec,
    gguf, hub,
    special::{MarkedText, SpecialTexts},
    token_table::TokenTable,
};

/// More ids than any published vocabulary has: a larger id is a damaged file, not a reason to reserve memory.
const MAX_VOCAB: u32 = 1 << 24;

/// Whether encoding adds what the tokenizer puts around a text, such as the beginning-of-sequence token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddSpecialTokens {
    /// As for a plain text (`/v1/completions`).
    Add,
    /// As for a rendered chat template, which writes them itself.
    Omit,
}

/// A token with its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedToken {
    /// The text of the vocabulary entry.
    pub text: String,
    /// Its id.
    pub id: TokenId,
}

/// The tokens that a tokenizer gives a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedTokens {
    /// Beginning of sequence.
    pub bos: Option<NamedToken>,
    /// End of sequence.
    pub eos: Option<NamedToken>,
    /// Stands for text outside the vocabulary.
    pub unk: Option<NamedToken>,
    /// Padding.
    pub pad: Option<NamedToken>,
}

/// A tokenizer that gives the ids `transformers` gives.
///
/// Special-token text is parsed in any text; [`Prompt`]s of a template rendered with escaping are the exception.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    table: Arc<TokenTable>,
    specials: SpecialTexts,
    affixes: Affixes,
    named: NamedTokens,
}

/// Where [`AddSpecialTokens::Add`] takes its tokens from.
#[derive(Debug)]
pub(super) enum Affixes {
    /// From the post-processor of the `tokenizer.json`.
    PostProcessor,
    /// From the configuration, which overrides the post-processor.
    Fixed {
        /// Put before the text.
        before: Vec<TokenId>,
        /// Put after the text.
        after: Vec<TokenId>,
    },
}

impl Tokenizer {
    /// Loads `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json` (the latter two may be absent).
    pub fn from_dir(dir: &Path) -> Result<Self, LoadError> {
        hub::load(dir)
    }

    /// Rebuilds the tokenizer that a GGUF file describes.
    pub fn from_gguf(data: &GgufTokenizerData<'_>) -> Result<Self, LoadError> {
        gguf::build(data)
    }

    pub(super) fn assemble(
        mut inner: tokenizers::Tokenizer,
        affixes: Affixes,
        named: NamedTokens,
    ) -> Result<Self, LoadError> {
        // A limit or padding stored with the tokenizer is for training; it must not cut or pad prompts.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| LoadError::Vocabulary(error.to_string()))?;
        let table = build_table(&inner, Codec::of_decoder(inner.get_decoder())?)?;
        let added = inner.get_added_vocabulary().get_added_tokens_decoder();
        let special = added.values().filter(|token| token.special && !token.content.is_empty());
        let specials = SpecialTexts::new(special.map(|token| token.content.clone()).collect());
        Ok(Self { inner, table: Arc::new(table), specials, affixes, named })
    }

    /// Token ids of a text.
    pub fn encode(&self, text: &str, add: AddSpecialTokens) -> Result<Vec<TokenId>, PromptError> {
        let post_process = add == AddSpecialTokens::Add && matches!(self.affixes, Affixes::PostProcessor);
        let encoding = self.inner.encode_fast(text, post_process).map_err(encode_error)?;
        Ok(self.with_affixes(&encoding, add))
    }

    /// Token ids of a prompt; special-token text in it that is user content stays text.
    pub fn encode_prompt(&self, prompt: &Prompt, add: AddSpecialTokens) -> Result<Vec<TokenId>, PromptError> {
        let Some(marked) = prompt.marked() else { return self.encode(prompt.text(), add) };
        let encoding = self.encode_marked(prompt.text(), marked).map_err(encode_error)?;
        let post_process = add == AddSpecialTokens::Add && matches!(self.affixes, Affixes::PostProcessor);
        let encoding = self.inner.post_process(encoding, None, post_process).map_err(encode_error)?;
        Ok(self.with_affixes(&encoding, add))
    }

    /// The text of all `ids` at once, from the start of a text.
    pub fn decode(&self, ids: &[TokenId], special: SpecialInOutput) -> String {
        let mut detokenizer = self.detokenizer(special, DecodeFrom::Start);
        let mut text = String::new();
        for &id in ids {
            detokenizer.push_into(id, &mut text);
        }
        text.push_str(&detokenizer.finish());
        text
    }

    /// A decoder for a stream of ids.
    pub fn detokenizer(&self, special: SpecialInOutput, from: DecodeFrom) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.table), special, from)
    }

    /// The bytes that a token stands for, which need not be whole characters; none for an id outside the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.table.bytes(id)
    }

    /// The text that a token stands for, with U+FFFD for incomplete characters.
    pub fn token_text(&self, id: TokenId) -> String {
        String::from_utf8_lossy(self.table.bytes(id)).into_owned()
    }

    /// The vocabulary entry itself, such as `Ġhello`.
    pub fn token_piece(&self, id: TokenId) -> Option<String> {
        self.inner.id_to_token(id.0)
    }

    /// The id of a vocabulary entry.
    pub fn token_id(&self, piece: &str) -> Option<TokenId> {
        self.inner.token_to_id(piece).map(TokenId)
    }

    /// Whether a token is special: left out of answers and escaped in user content.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.table.is_special(id)
    }

    /// The tokens with a role.
    pub fn named(&self) -> &NamedTokens {
        &self.named
    }

    /// One more than the largest id the tokenizer knows. A model's vocabulary may be padded beyond it.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    pub(super) fn specials(&self) -> &SpecialTexts {
        &self.specials
    }

    fn with_affixes(&self, encoding: &Encoding, add: AddSpecialTokens) -> Vec<TokenId> {
        let ids = encoding.get_ids().iter().copied().map(TokenId);
        match (&self.affixes, add) {
            (Affixes::Fixed { before, after }, AddSpecialTokens::Add) => {
                before.iter().copied().chain(ids).chain(after.iter().copied()).collect()
            }
            _ => ids.collect(),
        }
    }

    /// The steps of `tokenizers`' own encoding, with the added tokens found in the marked text instead of in `text`.
    fn encode_marked(&self, text: &str, marked: &MarkedText) -> tokenizers::Result<Encoding> {
        let normalizer = self.inner.get_normalizer();
        let added = self.inner.get_added_vocabulary().extract_and_normalize(normalizer, marked.text());
        let unmarked = marked.offsets();
        let mut found = Vec::new();
        for (_, (start, end), tokens) in added.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            if let Some([token]) = tokens.as_deref() {
                found.push((unmarked(start)..unmarked(end), token.id));
            }
        }

        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, whole| {
            let slice = |range: std::ops::Range<usize>| whole.slice(Range::Original(range));
            let mut splits = Vec::with_capacity(2 * found.len() + 1);
            let mut done = 0;
            for (range, id) in &found {
                splits.extend(slice(done..range.start).map(|piece| (piece, None)));
                splits.extend(slice(range.clone()).map(|piece| {
                    let token = Token::new(*id, piece.get().to_owned(), (0, piece.len()));
                    (piece, Some(vec![token]))
                }));
                done = range.end;
            }
            splits.extend(slice(done..text.len()).map(|piece| (piece, None)));
            Ok(splits)
        })?;
        pieces.normalize(|piece| normalizer.map_or(Ok(()), |normalizer| normalizer.normalize(piece)))?;
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.tokenize_as_text(piece.get()))?;
        pieces.into_encoding(None, 0, OffsetType::None)
    }

    /// Runs the model so that it yields no special token: some vocabularies can merge `<`, `s` and `>` to the token `<s>`.
    fn tokenize_as_text(&self, piece: &str) -> tokenizers::Result<Vec<Token>> {
        let model = self.inner.get_model();
        let tokens = model.tokenize(piece)?;
        let unknown = self.named.unk.as_ref().map(|token| token.id);
        let is_special = |id: TokenId| self.table.is_special(id) && Some(id) != unknown;
        if !tokens.iter().any(|token| is_special(TokenId(token.id))) {
            return Ok(tokens);
        }
        let mut tokens = Vec::new();
        let mut start = 0;
        for end in self.specials.breaks(piece).into_iter().chain([piece.len()]) {
            tokens.extend(model.tokenize(&piece[start..end])?);
            start = end;
        }
        Ok(tokens)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("named", &self.named)
            .finish()
    }
}

fn encode_error(error: tokenizers::Error) -> PromptError {
    PromptError::Encode(error.to_string())
}

fn build_table(inner: &tokenizers::Tokenizer, codec: Codec) -> Result<TokenTable, LoadError> {
    let mut table = TokenTable::new(codec);
    let added = inner.get_added_vocabulary();
    for id in 0..id_end(inner)? {
        let in_added = added.simple_id_to_token(id);
        let special = in_added.as_deref().is_some_and(|piece| added.is_special_token(piece));
        table.push(in_added.or_else(|| inner.get_model().id_to_token(id)).as_deref(), special);
    }
    table.shrink();
    Ok(table)
}

/// One more than the largest id. Ids may have gaps, so the number of entries does not tell; the vocabulary is only
/// copied to look at its ids when there are some.
fn id_end(inner: &tokenizers::Tokenizer) -> Result<u32, LoadError> {
    let added = inner.get_added_vocabulary().get_added_tokens_decoder();
    let added_end = added.keys().max().map_or(0, |&id| u64::from(id) + 1);
    let in_model = inner.get_vocab_size(false) as u64;
    let has_gaps = (0..in_model).any(|id| inner.get_model().id_to_token(id as u32).is_none());
    let model_end = if has_gaps {
        inner.get_vocab(false).into_values().max().map_or(0, |id| u64::from(id) + 1)
    } else {
        in_model
    };
    let end = model_end.max(added_end);
    u32::try_from(end).ok().filter(|&end| end <= MAX_VOCAB).ok_or_else(|| {
        LoadError::Vocabulary(format!("token id {} is beyond the {MAX_VOCAB} ids supported", end - 1))
    })
}

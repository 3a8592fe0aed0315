//! SentencePiece BPE (`llama`): Llama 2 and Mistral.

use std::collections::HashMap;

use tokenizers::{
    DecoderWrapper, NormalizerWrapper,
    decoders::{byte_fallback::ByteFallback, fuse::Fuse, sequence::Sequence as Decoders, strip::Strip},
    models::bpe::BpeBuilder,
    normalizers::{Prepend, Replace, Sequence as Normalizers},
};

use super::{AddBos, GgufTokenizerData, LoadError, TokenType, vocabulary_error};
use crate::text::Tokenizer;

pub(super) fn build(data: &GgufTokenizerData<'_>) -> Result<Tokenizer, LoadError> {
    data.check()?;
    if data.scores.is_empty() {
        return Err(LoadError::Vocabulary(
            "tokenizer.ggml.scores is missing; the model llama needs it".into(),
        ));
    }
    let prefix = match data.add_space_prefix {
        Some(false) => SpacePrefix::Absent,
        Some(true) | None => SpacePrefix::Added,
    };
    let mut model = BpeBuilder::new().fuse_unk(true).byte_fallback(true);
    if let Some(unk) = data.named().unk {
        model = model.unk_token(unk.text);
    }
    let model = model.vocab_and_merges(data.vocab()?, merges(data)).build().map_err(vocabulary_error)?;

    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_normalizer(Some(normalizer(prefix)?));
    inner.with_decoder(Some(decoder(prefix)?));
    inner.add_tokens(&data.added_tokens());
    Tokenizer::assemble(inner, data.affixes(AddBos::Yes)?, data.named())
}

/// The merges that scores stand for: two entries merge when the vocabulary has their concatenation, best score first.
/// The order among equals is that of `transformers`' conversion of SentencePiece models.
fn merges(data: &GgufTokenizerData<'_>) -> Vec<(String, String)> {
    struct Merge<'a> {
        left: &'a str,
        right: &'a str,
        score: f64,
    }
    // SentencePiece never yields control tokens or bytes from text, so they are neither parts nor results of merges.
    let normal = |id: usize| matches!(data.token_type(id), TokenType::Normal | TokenType::Added);
    let pieces = || data.tokens.iter().enumerate().filter(|&(id, _)| normal(id));
    let ids: HashMap<&str, usize> = pieces().map(|(id, text)| (*text, id)).collect();
    let mut merges = Vec::new();
    for (id, text) in pieces() {
        let splits = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let mut of_token: Vec<_> = splits
            .filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?, left, right)))
            .collect();
        of_token.sort_by_key(|&(left, right, ..)| (left, right));
        let score = data.scores[id];
        merges.extend(of_token.into_iter().map(|(_, _, left, right)| Merge { left, right, score }));
    }
    let chars = |text: &str| text.chars().count();
    merges.sort_by(|a, b| {
        let lengths = |m: &Merge| (chars(m.left), chars(m.right));
        b.score.total_cmp(&a.score).then_with(|| lengths(b).cmp(&lengths(a)))
    });
    merges.into_iter().map(|merge| (merge.left.to_owned(), merge.right.to_owned())).collect()
}

const SPACE: &str = "▁";

/// Whether a text is tokenized as if a space stood before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SpacePrefix {
    Added,
    Absent,
}

fn normalizer(prefix: SpacePrefix) -> Result<Normalizers, LoadError> {
    let mut steps = Vec::new();
    if prefix == SpacePrefix::Added {
        steps.push(NormalizerWrapper::from(Prepend::new(SPACE.into())));
    }
    steps.push(NormalizerWrapper::from(Replace::new(" ", SPACE).map_err(vocabulary_error)?));
    Ok(Normalizers::new(steps))
}

fn decoder(prefix: SpacePrefix) -> Result<Decoders, LoadError> {
    let mut steps = vec![
        DecoderWrapper::from(Replace::new(SPACE, " ").map_err(vocabulary_error)?),
        DecoderWrapper::from(ByteFallback::new()),
        DecoderWrapper::from(Fuse::new()),
    ];
    if prefix == SpacePrefix::Added {
        steps.push(DecoderWrapper::from(Strip::new(' ', 1, 0)));
    }
    Ok(Decoders::new(steps))
}

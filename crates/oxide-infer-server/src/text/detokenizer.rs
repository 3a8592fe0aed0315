//! Token ids to text, one at a time.

use std::sync::Arc;

use oxide_infer::TokenId;

use super::token_table::TokenTable;

/// What becomes of special tokens in decoded text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialInOutput {
    /// They are left out (`skip_special_tokens`).
    #[default]
    Skip,
    /// Their text is shown.
    Keep,
}

/// Where the first token of a [`Detokenizer`] stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeFrom {
    /// At the start of a text: the space that SentencePiece tokenizers put before a text's first word is dropped.
    Start,
    /// After a prompt: the first token keeps its space, so that prompt and answer can be joined.
    Continuation,
}

/// Decodes a stream of token ids without ever emitting a broken UTF-8 sequence.
///
/// Each id costs time in proportion to its own bytes. Bytes that end inside a character are held back (at most three)
/// until the character is complete, or shown as U+FFFD once they cannot become one.
///
/// The pieces joined are what decoding all ids at once gives. That in turn is what `transformers` gives, with one
/// exception: where a run of SentencePiece byte tokens holds both complete characters and invalid bytes, the complete
/// characters are kept, while `transformers` replaces the whole run. Holding back whole runs would delay every line end.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    table: Arc<TokenTable>,
    special: SpecialInOutput,
    /// Special tokens that are shown in any case.
    shown: Arc<[TokenId]>,
    pending: Vec<u8>,
    strip: usize,
}

impl Detokenizer {
    pub(super) fn new(table: Arc<TokenTable>, special: SpecialInOutput, from: DecodeFrom) -> Self {
        let strip = match from {
            DecodeFrom::Start => table.codec().strip_leading(),
            DecodeFrom::Continuation => 0,
        };
        Self { table, special, shown: Arc::default(), pending: Vec::new(), strip }
    }

    /// Shows the special tokens `ids`, whatever becomes of others.
    pub fn showing(self, ids: Arc<[TokenId]>) -> Self {
        Self { shown: ids, ..self }
    }

    /// The text that `id` completes; empty while a character is incomplete. An id outside the vocabulary has no text.
    pub fn push(&mut self, id: TokenId) -> String {
        let mut text = String::new();
        self.push_into(id, &mut text);
        text
    }

    /// As [`push`](Self::push), appending to `out`.
    pub fn push_into(&mut self, id: TokenId, out: &mut String) {
        let is_hidden = self.special == SpecialInOutput::Skip && self.table.is_special(id);
        if is_hidden && !self.shown.contains(&id) {
            return;
        }
        self.pending.extend_from_slice(self.table.bytes(id));
        self.drain_into(out);
    }

    /// The text of what is still incomplete when no more ids come: U+FFFD for a truncated character.
    pub fn finish(&mut self) -> String {
        let invalid = std::mem::take(&mut self.pending).len();
        if invalid == 0 { String::new() } else { "\u{FFFD}".repeat(self.table.codec().replacements(invalid)) }
    }

    /// Moves everything decided from `pending` to `out`.
    fn drain_into(&mut self, out: &mut String) {
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            done += chunk.valid().len();
            push_stripped(&mut self.strip, chunk.valid(), out);
            let invalid = chunk.invalid();
            let may_complete = done + invalid.len() == self.pending.len() && is_incomplete(invalid);
            if invalid.is_empty() || may_complete {
                break;
            }
            done += invalid.len();
            self.strip = 0;
            for _ in 0..self.table.codec().replacements(invalid.len()) {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..done);
    }
}

/// Appends `text` without the leading spaces that are still to be dropped.
fn push_stripped(strip: &mut usize, text: &str, out: &mut String) {
    if text.is_empty() {
        return;
    }
    let spaces = text.bytes().take(*strip).take_while(|&b| b == b' ').count();
    *strip = if spaces == text.len() { *strip - spaces } else { 0 };
    out.push_str(&text[spaces..]);
}

/// Whether more bytes could make a character of these.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

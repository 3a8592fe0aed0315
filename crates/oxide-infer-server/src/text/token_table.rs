//! The bytes of every vocabulary entry.

use oxide_infer::TokenId;

use super::codec::Codec;

/// What each token id decodes to, in one flat buffer: a fraction of the memory that the vocabulary's hash maps take,
/// and shared by every detokenizer.
#[derive(Debug)]
pub(super) struct TokenTable {
    codec: Codec,
    bytes: Vec<u8>,
    /// `bytes[ends[i - 1]..ends[i]]` is token `i`.
    ends: Vec<u32>,
    special: Vec<bool>,
}

impl TokenTable {
    pub(super) fn new(codec: Codec) -> Self {
        Self { codec, bytes: Vec::new(), ends: Vec::new(), special: Vec::new() }
    }

    /// Appends the entry of the next id; `None` is an id without a token.
    pub(super) fn push(&mut self, piece: Option<&str>, special: bool) {
        if let Some(piece) = piece {
            self.codec.append_bytes(piece, &mut self.bytes);
        }
        self.ends.push(self.bytes.len() as u32);
        self.special.push(special);
    }

    /// Gives back what growing reserved.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        self.special.shrink_to_fit();
    }

    pub(super) fn codec(&self) -> &Codec {
        &self.codec
    }

    /// One more than the largest known id.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token; none for an id outside the vocabulary, as models pad theirs.
    pub(super) fn bytes(&self, id: TokenId) -> &[u8] {
        let Some(&end) = self.ends.get(id.index()) else { return &[] };
        let start = id.index().checked_sub(1).map_or(0, |previous| self.ends[previous]);
        &self.bytes[start as usize..end as usize]
    }

    pub(super) fn is_special(&self, id: TokenId) -> bool {
        self.special.get(id.index()).copied().unwrap_or(false)
    }
}

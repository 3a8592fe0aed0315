use crate::TokenId;

/// The tokens that may be sampled: one bit per vocabulary entry, set for allowed.
///
/// Bit `t % 32` of word `t / 32` is token `t`, the layout that grammar engines (xgrammar, llguidance) and GPU kernels
/// share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    vocab_size: usize,
}

impl TokenMask {
    /// A mask that allows every token.
    pub fn all(vocab_size: usize) -> Self {
        Self::from_words(vec![u32::MAX; vocab_size.div_ceil(32)], vocab_size)
    }

    /// A mask that allows no token.
    pub fn none(vocab_size: usize) -> Self {
        Self { words: vec![0; vocab_size.div_ceil(32)], vocab_size }
    }

    /// A mask from its words: missing words allow nothing, bits past the vocabulary are cleared.
    pub fn from_words(mut words: Vec<u32>, vocab_size: usize) -> Self {
        words.resize(vocab_size.div_ceil(32), 0);
        if let (Some(last), tail @ 1..) = (words.last_mut(), vocab_size % 32) {
            *last &= (1 << tail) - 1;
        }
        Self { words, vocab_size }
    }

    /// Allows a token. Ids past the vocabulary change nothing.
    pub fn allow(&mut self, token: TokenId) {
        if token.index() < self.vocab_size {
            self.words[token.index() / 32] |= 1 << (token.index() % 32);
        }
    }

    /// Forbids a token. Ids past the vocabulary change nothing.
    pub fn forbid(&mut self, token: TokenId) {
        if token.index() < self.vocab_size {
            self.words[token.index() / 32] &= !(1 << (token.index() % 32));
        }
    }

    /// Whether the token may be sampled; `false` past the vocabulary.
    pub fn allows(&self, token: TokenId) -> bool {
        self.words.get(token.index() / 32).is_some_and(|word| word >> (token.index() % 32) & 1 == 1)
    }

    /// The words.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Number of tokens that the mask covers.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

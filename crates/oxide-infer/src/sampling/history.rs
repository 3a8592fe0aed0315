use crate::TokenId;
use std::collections::HashMap;

/// How often a sequence has used each token: what the penalties read.
///
/// Kept up to date with one [`TokenHistory::push`] per sampled token, so a step costs the distinct tokens of the
/// sequence and not its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenHistory {
    used: HashMap<TokenId, TokenUse>,
}

/// What a sequence has done with one token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUse {
    /// Times in the prompt.
    pub prompt: u32,
    /// Times in the output.
    pub output: u32,
}

impl TokenHistory {
    /// A sequence with this prompt and no output.
    pub fn new(prompt: impl IntoIterator<Item = TokenId>) -> Self {
        let mut history = Self::default();
        for token in prompt {
            history.used.entry(token).or_default().prompt += 1;
        }
        history
    }

    /// Adds a token to the output.
    pub fn push(&mut self, token: TokenId) {
        self.used.entry(token).or_default().output += 1;
    }

    /// Every token that was used, in no order.
    pub fn used(&self) -> impl Iterator<Item = (TokenId, TokenUse)> + '_ {
        self.used.iter().map(|(&token, &used)| (token, used))
    }

    /// What the sequence has done with one token.
    pub fn of(&self, token: TokenId) -> TokenUse {
        self.used.get(&token).copied().unwrap_or_default()
    }
}

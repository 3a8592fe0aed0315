//! One answer's way through its grammar.

use super::Grammar;
use llguidance::Matcher;
use oxide_infer::TokenId;
use oxide_infer::sampling::TokenMask;
use std::sync::{Arc, Mutex, PoisonError};

/// What may follow in an answer.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// One of these tokens. In a complete answer they are those that end it.
    Mask(Arc<TokenMask>),
    /// Nothing: the answer is complete, and the model has no token that says so.
    End,
}

/// One answer's way through its grammar.
#[derive(Clone)]
pub(crate) struct Guide {
    grammar: Arc<Grammar>,
    /// `None` before the first token.
    matcher: Arc<Mutex<Option<Matcher>>>,
}

impl Guide {
    /// At the beginning of an answer.
    pub(crate) fn new(grammar: &Arc<Grammar>) -> Self {
        Self { grammar: grammar.clone(), matcher: Arc::default() }
    }

    /// Takes the answer's next token on a worker thread, and gives `next` what may follow it, or why that cannot be found.
    /// The tokens of one answer must be given one after the other.
    pub(crate) fn advance(&self, token: TokenId, next: impl FnOnce(Result<Step, String>) + Send + 'static) {
        let guide = self.clone();
        self.grammar.workers.submit(move || next(guide.advance_here(token)));
    }

    fn advance_here(&self, token: TokenId) -> Result<Step, String> {
        let mut matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner);
        // A copy of its own, so that answers neither wait for each other nor share one limit.
        let matcher = matcher.get_or_insert_with(|| {
            self.grammar.start.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
        });
        matcher.consume_token(token.0).map_err(|error| error.to_string())?;
        mask(matcher, self.grammar.vocab_size)
    }
}

/// What may follow where `matcher` stands.
pub(super) fn mask(matcher: &mut Matcher, vocab_size: usize) -> Result<Step, String> {
    let allowed = matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
    if allowed.is_zero() {
        return Ok(Step::End);
    }
    Ok(Step::Mask(Arc::new(TokenMask::from_words(allowed.as_slice().to_vec(), vocab_size))))
}

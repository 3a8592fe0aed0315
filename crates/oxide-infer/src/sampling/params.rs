use crate::TokenId;
use std::ops::RangeInclusive;
use std::sync::Arc;
use thiserror::Error;

/// How one sequence samples. Validated by [`SamplingParams::validate`]; immutable afterwards.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 means greedy.
    pub temperature: f32,
    /// Keep the `k` most probable tokens; `None` keeps all.
    pub top_k: Option<u32>,
    /// Keep the smallest set of most probable tokens whose probability reaches this, in (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this fraction of the best token's probability, in [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token that the output already has.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for every time that the output already has it.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Arc<[(TokenId, f32)]>,
    /// Keys the counter-based generator, with the choice index, the position and the draw.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Arc::from([]),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Checks every field against its range and the biased tokens against the vocabulary.
    ///
    /// # Errors
    /// [`SamplingParamsError`] naming the first field that is out of range, what was expected, and the value.
    pub fn validate(&self, vocab_size: usize) -> Result<(), SamplingParamsError> {
        within("temperature", self.temperature, 0.0..=f32::MAX, "a finite number of at least 0")?;
        if self.top_k == Some(0) {
            return Err(SamplingParamsError::TopK);
        }
        // The open end at 0 is the least positive number.
        within("top_p", self.top_p, f32::from_bits(1)..=1.0, "in (0, 1]")?;
        within("min_p", self.min_p, 0.0..=1.0, "in [0, 1]")?;
        let positive = f32::MIN_POSITIVE..=f32::MAX;
        within("repetition_penalty", self.repetition_penalty, positive, "a finite number over 0")?;
        let finite = f32::MIN..=f32::MAX;
        within("presence_penalty", self.presence_penalty, finite.clone(), "a finite number")?;
        within("frequency_penalty", self.frequency_penalty, finite.clone(), "a finite number")?;
        for &(token, bias) in self.logit_bias.iter() {
            if token.index() >= vocab_size {
                return Err(SamplingParamsError::BiasToken { token, vocab_size });
            }
            within("logit_bias", bias, finite.clone(), "a finite number")?;
        }
        Ok(())
    }

    /// Whether the token is the argmax of the adjusted logits, with no draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether any penalty reads the token history.
    pub fn reads_history(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

fn within(
    field: &'static str,
    got: f32,
    range: RangeInclusive<f32>,
    expected: &'static str,
) -> Result<(), SamplingParamsError> {
    // NaN is in no range.
    if range.contains(&got) { Ok(()) } else { Err(SamplingParamsError::Range { field, expected, got }) }
}

/// A sampling parameter outside its range.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum SamplingParamsError {
    /// A number out of range.
    #[error("{field} must be {expected}, got {got}")]
    Range {
        /// The field of [`SamplingParams`].
        field: &'static str,
        /// What is admitted, in words.
        expected: &'static str,
        /// The value.
        got: f32,
    },
    /// A top-k that keeps nothing.
    #[error("top_k must be at least 1 (leave it out to keep every token), got 0")]
    TopK,
    /// A bias on a token that the model does not have.
    #[error("logit_bias must name tokens in 0..{vocab_size}, got {token}")]
    BiasToken {
        /// The token.
        token: TokenId,
        /// The size of the vocabulary.
        vocab_size: usize,
    },
}

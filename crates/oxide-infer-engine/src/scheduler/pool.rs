//! The hidden states of a prompt, on their way to one vector.

use crate::batch::HiddenStates;
use crate::request::Pooling;

/// What is known of a prompt's pooled hidden state.
#[derive(Debug)]
pub(super) struct Pool {
    pooling: Pooling,
    /// `[hidden_size]`.
    sum: Vec<f64>,
    /// States in the sum.
    states: usize,
}

impl Pool {
    pub(super) fn new(pooling: Pooling, hidden_size: usize) -> Self {
        Self { pooling, sum: vec![0.0; hidden_size], states: 0 }
    }

    pub(super) fn hidden_size(&self) -> usize {
        self.sum.len()
    }

    /// What a row that computes the prompt up to `end` has to bring.
    pub(super) fn wanted(&self, end: usize, prompt_len: usize) -> HiddenStates {
        match self.pooling {
            Pooling::Last if end == prompt_len => HiddenStates::Last,
            Pooling::Mean if end > self.states => HiddenStates::All,
            Pooling::Last | Pooling::Mean => HiddenStates::None,
        }
    }

    /// If every token's state is needed: of how many, from the first on, it is known.
    pub(super) fn known_of_each(&self) -> Option<usize> {
        match self.pooling {
            Pooling::Last => None,
            Pooling::Mean => Some(self.states),
        }
    }

    /// Takes in `[states, hidden_size]` of the tokens from position `from` on. One after the other, so that the sum does not depend
    /// on how the prompt was cut into steps.
    pub(super) fn add(&mut self, from: usize, states: &[f32]) {
        let known = match self.pooling {
            Pooling::Last => 0,
            // After a preemption some come again.
            Pooling::Mean => self.states.saturating_sub(from),
        };
        for state in states.chunks_exact(self.sum.len()).skip(known) {
            self.sum.iter_mut().zip(state).for_each(|(sum, element)| *sum += f64::from(*element));
            self.states += 1;
        }
    }

    /// The vector, once all states are there.
    pub(super) fn pooled(&self) -> Vec<f32> {
        self.sum.iter().map(|sum| (sum / self.states as f64) as f32).collect()
    }
}

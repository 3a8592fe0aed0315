use crate::batch::{SlotId, SlotStart};
use crate::request::ChoiceIndex;
use oxide_infer::TokenId;
use oxide_infer::sampling::{SamplingParams, TokenHistory};
use std::sync::Arc;

/// What the executor keeps of a running sequence.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) choice: ChoiceIndex,
    pub(super) sampling: Arc<SamplingParams>,
    /// Stays empty while no penalty reads it.
    pub(super) history: TokenHistory,
    /// The token sampled last.
    pub(super) last: Option<TokenId>,
}

impl Slot {
    fn new(start: &SlotStart) -> Self {
        let history = match start.sampling.reads_history() {
            true => {
                let mut history = TokenHistory::new(start.prompt.iter().copied());
                start.output.iter().for_each(|&token| history.push(token));
                history
            }
            false => TokenHistory::default(),
        };
        let last = start.output.last().copied();
        Self { choice: start.choice, sampling: start.sampling.clone(), history, last }
    }

    /// The sequence goes on with this token.
    pub(super) fn push(&mut self, token: TokenId) {
        self.last = Some(token);
        if self.sampling.reads_history() {
            self.history.push(token);
        }
    }
}

/// The slots of an executor.
#[derive(Debug)]
pub(super) struct Slots(Vec<Option<Slot>>);

impl Slots {
    pub(super) fn new(max_sequences: usize) -> Self {
        Self((0..max_sequences).map(|_| None).collect())
    }

    /// A slot begins anew. `None` when there is no such slot.
    pub(super) fn start(&mut self, start: &SlotStart) -> Option<()> {
        *self.0.get_mut(start.slot.0 as usize)? = Some(Slot::new(start));
        Some(())
    }

    pub(super) fn get(&self, slot: SlotId) -> Option<&Slot> {
        self.0.get(slot.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: SlotId) -> Option<&mut Slot> {
        self.0.get_mut(slot.0 as usize)?.as_mut()
    }
}

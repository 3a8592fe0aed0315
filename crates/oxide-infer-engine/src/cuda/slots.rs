use crate::batch::{SlotId, SlotStart};
use crate::request::ChoiceIndex;
use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use std::sync::Arc;

/// What the host keeps of a running sequence; its last token and its history are on the device.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) choice: ChoiceIndex,
    pub(super) sampling: Arc<SamplingParams>,
    /// Its logit biases in the order of tokens, those of one token in the order in which they were given.
    pub(super) biases: Vec<(TokenId, f32)>,
}

/// The slots of an executor.
#[derive(Debug)]
pub(super) struct Slots(Vec<Option<Slot>>);

impl Slots {
    pub(super) fn new(max_sequences: usize) -> Self {
        Self(vec![None; max_sequences])
    }

    /// A slot begins anew. `None` when there is no such slot.
    pub(super) fn start(&mut self, start: &SlotStart) -> Option<()> {
        let sampling = start.sampling.clone();
        let mut biases = sampling.logit_bias.to_vec();
        biases.sort_by_key(|(token, _)| *token);
        *self.0.get_mut(start.slot.0 as usize)? = Some(Slot { choice: start.choice, sampling, biases });
        Some(())
    }

    pub(super) fn get(&self, slot: SlotId) -> Option<&Slot> {
        self.0.get(slot.0 as usize)?.as_ref()
    }
}

//! Which tokens a sequence that starts has had already, for its penalties.

use crate::batch::{SlotId, SlotStart};
use oxide_infer::TokenId;
use oxide_infer_cuda::runtime::{PinnedMemory, RegionError};
use std::iter::repeat_n;

/// Tokens of prompts and outputs that one launch notes.
pub(super) const MAX_ENTRIES: usize = 1 << 14;
/// Words of a launch's entries: `[MAX_ENTRIES]` slots, then tokens, then kinds.
pub(super) const WORDS: usize = 3 * MAX_ENTRIES;

/// What an entry is, in the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Padding = 0,
    Prompt = 1,
    Output = 2,
}

/// The entries of a sequence that starts, once for each request whose penalties read them.
pub(super) fn entries(start: &SlotStart) -> Vec<(TokenId, Kind)> {
    let prompt = start.prompt.iter().map(|&token| (token, Kind::Prompt));
    let output = start.output.iter().map(|&token| (token, Kind::Output));
    prompt.chain(output).collect()
}

/// Writes at most [`MAX_ENTRIES`] entries of one slot, and padding.
pub(super) fn write(
    words: &PinnedMemory<u32>,
    slot: SlotId,
    entries: &[(TokenId, Kind)],
) -> Result<(), RegionError> {
    let padding = MAX_ENTRIES - entries.len();
    let (tokens, kinds) = (MAX_ENTRIES, 2 * MAX_ENTRIES);
    words.write_from(0, repeat_n(slot.0, MAX_ENTRIES))?;
    words.write_from(tokens, entries.iter().map(|(token, _)| token.0))?;
    words.write_from(tokens + entries.len(), repeat_n(0, padding))?;
    words.write_from(kinds, entries.iter().map(|&(_, kind)| kind as u32))?;
    words.write_from(kinds + entries.len(), repeat_n(Kind::Padding as u32, padding))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::ChoiceIndex;
    use oxide_infer_cuda::driver::simulated::SimulatedDriver;
    use oxide_infer_cuda::runtime::Context;
    use std::sync::Arc;

    #[test]
    fn a_resumed_sequence_has_entries_for_its_prompt_and_its_output_and_the_rest_is_padding() {
        let start = SlotStart {
            slot: SlotId(3),
            choice: ChoiceIndex(0),
            sampling: Arc::default(),
            prompt: Arc::from([TokenId(7), TokenId(8)]),
            output: vec![TokenId(7)],
        };
        let context = Context::primary_on(SimulatedDriver::new(), 0).unwrap();
        let words = PinnedMemory::allocate(&context, WORDS).unwrap();
        // What an earlier step left there.
        words.write(0, &vec![77; WORDS]).unwrap();
        write(&words, start.slot, &entries(&start)).unwrap();
        let array = |index: usize| {
            let words = (0..MAX_ENTRIES).map(|at| words.read(index * MAX_ENTRIES + at).unwrap());
            words.collect::<Vec<_>>()
        };
        assert!(array(0).iter().all(|&slot| slot == 3));
        let (tokens, kinds) = (array(1), array(2));
        assert_eq!((&tokens[..3], &kinds[..3]), (&[7, 8, 7][..], &[1, 1, 2][..]));
        assert!(tokens[3..].iter().chain(&kinds[3..]).all(|&word| word == 0));
    }
}

//! Logits that were drawn from, for parity runs.

use super::executor::{CudaExecutor, StepLists, failure};
use super::head::{HeadRow, Sampling};
use crate::batch::{ExecutorError, LogitsTap};
use oxide_infer_cuda::runtime::{CommandScope, PinnedMemory};

/// Which logits of the step that was collected last were drawn from.
#[derive(Default)]
pub(super) struct KeptLogits {
    /// Rows of the logits.
    rows: Vec<usize>,
    /// Where they are copied to, as large as was ever needed.
    staged: Option<PinnedMemory<f32>>,
}

impl KeptLogits {
    /// Notes which logits a step drew from that has just been collected.
    pub(super) fn note(&mut self, lists: &StepLists) -> Result<(), ExecutorError> {
        self.rows = drawn_rows(lists)?;
        Ok(())
    }
}

impl LogitsTap for CudaExecutor {
    fn keep_logits(&mut self) {
        self.kept.get_or_insert_default();
    }

    fn logits(&mut self) -> Result<Vec<f32>, ExecutorError> {
        if !self.in_flight.is_empty() {
            return Err(failure("the step in flight must be collected before its logits are read"));
        }
        let Some(KeptLogits { rows, staged }) = &mut self.kept else {
            return Err(failure("the logits of this step were not kept"));
        };
        let vocab_size = self.limits.vocab_size;
        let held = rows.last().map_or(0, |&row| row + 1);
        let source = self.buffers.logits.slice(0..held * vocab_size).map_err(failure)?;
        let staged = match staged {
            Some(staged) if staged.len() >= source.len() => staged,
            _ => {
                let fresh = PinnedMemory::allocate(self.stream.context(), source.len()).map_err(failure)?;
                staged.insert(fresh)
            }
        };
        let mut scope = CommandScope::new(&self.stream).map_err(failure)?;
        let target = staged.slice(0..source.len()).map_err(failure)?;
        scope.copy_out(&source, &target).map_err(failure)?;
        scope.finish().map_err(failure)?.wait().map_err(failure)?;
        let mut logits = vec![0.0; rows.len() * vocab_size];
        for (row, logits) in rows.iter().zip(logits.chunks_exact_mut(vocab_size)) {
            target.read_into(row * vocab_size, logits).map_err(failure)?;
        }
        Ok(logits)
    }
}

/// Rows of the logits of a step that drew, one for each token that any draw was from.
fn drawn_rows(lists: &StepLists) -> Result<Vec<usize>, ExecutorError> {
    let draws: Vec<_> = lists.chunks.iter().filter(|chunk| chunk.sampling != Sampling::None).collect();
    match draws[..] {
        [] => Ok(Vec::new()),
        [chunk] if lists.chunks.len() == 1 => {
            let tokens: Vec<_> = lists.rows[chunk.rows.clone()].iter().map(HeadRow::token).collect();
            let first = |row: &usize| *row == 0 || tokens[*row] != tokens[row - 1];
            Ok((0..tokens.len()).filter(first).collect())
        }
        _ => Err(failure("logits are kept of steps whose rows are computed at once, without prompt rows")),
    }
}

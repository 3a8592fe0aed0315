//! `embedding::gather`.

use crate::error::check_len;
use crate::rows::SharedRows;
use crate::{CpuError, PackedMatrix, TASK_ELEMENTS, Team};
use oxide_infer::{DataError, FloatViewMut, TokenId};

/// Looks up rows of a packed table `[vocab_size, hidden_size]`: `output[t] = table[ids[t]]`, `[tokens, hidden_size]`.
///
/// # Errors
/// [`CpuError::Length`] when the output is not one row per id, [`CpuError::Data`] for an id that has no row; nothing is
/// written then.
pub fn gather(
    team: &Team<'_>,
    ids: &[TokenId],
    table: &PackedMatrix,
    output: &mut [f32],
) -> Result<(), CpuError> {
    let [vocab_size, hidden_size] = table.shape();
    check_len("output", ids.len() * hidden_size, output.len())?;
    if let Some(row) = ids.iter().position(|id| id.index() >= vocab_size) {
        return Err(DataError::Token { row, token: ids[row].0, vocab_size }.into());
    }
    let mut view = FloatViewMut::contiguous(output, [ids.len(), hidden_size])?;
    let output = SharedRows::new(&mut view);
    let level = team.level();
    team.run_ranges(ids.len(), TASK_ELEMENTS.div_ceil(hidden_size.max(1)), &|range| {
        for row in range {
            // SAFETY: every row is one task's.
            unsafe {
                output
                    .update([row, 0], hidden_size, |output| table.read_row(level, ids[row].index(), output));
            }
        }
    });
    Ok(())
}

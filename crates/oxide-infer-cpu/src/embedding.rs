//! `embedding::gather`, from a packed table and from any other.

use crate::error::check_len;
use crate::rows;
use crate::{CpuError, Operator, PackedMatrix, Team};
use oxide_infer::embedding::gather::{Operands, Spec};
use oxide_infer::quantization::dequantize;
use oxide_infer::{Contract, DataError, FloatViewMut, OperandError, Spec as _, TokenId, Weight};

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
    let level = team.level();
    rows::for_each(team, &mut view, &|[row, _], output| table.read_row(level, ids[row].index(), output));
    Ok(())
}

/// Lookups in a table as the contract describes it. An engine packs its table once and calls [`gather`].
impl Operator for Spec {
    type Operands<'a> = Operands<'a>;
    type Prepared = ();
    type Output = ();
    type Error = OperandError;
    const ALGORITHM: &'static str = "row_by_row";

    fn prepare(&self) {}

    fn run(&self, (): &(), team: &Team<'_>, mut operands: Operands<'_>) -> Result<(), OperandError> {
        operands.check(self)?;
        operands.check_indices().map_err(|error| OperandError::Data { contract: Contract::GATHER, error })?;
        let hidden_size = self.config().hidden_size;
        let (ids, table) = (operands.ids, operands.table);
        rows::for_each(team, &mut operands.output, &|[row, _], output| {
            let id = ids.at([row]) as usize;
            match &table {
                Weight::Dense(view) => {
                    output.copy_from_slice(rows::read(view, [id, 0], hidden_size, &mut Vec::new()));
                }
                Weight::Blocks(blocks) => {
                    let read = dequantize(blocks.format(), blocks.row(id), output);
                    debug_assert_eq!(read, Ok(()), "a BlockMatrix has whole rows");
                }
            }
        });
        Ok(())
    }
}

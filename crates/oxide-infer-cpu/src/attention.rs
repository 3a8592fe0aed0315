//! The attention contracts.
//!
//! # Order of the sums
//!
//! Keys are taken in blocks of 64 positions, counted from the start of the sequence: scores, a running maximum and sum,
//! and weighted values, key by key. Runs of 512 positions are summed from zero and then joined in order. Where blocks and
//! runs begin depends on nothing but positions, so a row's bits do not depend on the chunk, the batch, the pages or the
//! threads that it is computed with; and one long sequence can be split among threads.

mod kernel;
mod source;

use crate::rows::SharedRows;
use crate::simd::Level;
use crate::{Operator, Team};
use kernel::{Attend, Finish, Join, Partial, SPLIT, Scratch};
use oxide_infer::attention::{Attention, Mask, paged_decode, paged_prefill, ragged_prefill, single_decode};
use oxide_infer::kv_cache::{PageTables, Paging};
use oxide_infer::{Contract, FloatView, FloatViewMut, OperandError, Spec as _, View, ViewMut};
use source::Source;
use std::ops::Range;

/// Query rows (tokens times heads of a group) that share the work of reading a block of keys.
const TILE_ROWS: usize = 48;

/// What every attention contract comes down to.
struct Call<'a> {
    attention: &'a Attention,
    mask: Mask,
    level: Level,
    q: FloatView<'a, 3>,
    output: SharedRows<'a, 3>,
    lse: Option<SharedRows<'a, 2>>,
    /// Keys and values of a sequence's head.
    source: &'a (dyn Fn(usize, usize) -> [Source<'a>; 2] + Sync),
}

/// The query rows of one sequence, aligned to the end of its keys.
struct Sequence {
    rows: Range<usize>,
    kv_len: usize,
}

/// Some rows of a sequence with the query heads that share a key/value head.
struct Tile {
    sequence: usize,
    kv_head: usize,
    rows: Range<usize>,
    /// The position of the first row.
    position: usize,
    kv_len: usize,
}

impl Call<'_> {
    fn run(&self, team: &Team<'_>, sequences: impl Iterator<Item = Sequence>) {
        let tiles = self.tiles(sequences);
        let longest = tiles.iter().map(|tile| self.splits(tile).count()).max().unwrap_or(0);
        if longest > 1 && team.threads() > 1 && tiles.len() < 4 * team.threads() {
            return self.run_split(team, &tiles, longest);
        }
        team.run(tiles.len(), &|index| {
            let tile = &tiles[index];
            Scratch::with(|scratch| {
                let (mut total, mut part) =
                    (std::mem::take(&mut scratch.total), std::mem::take(&mut scratch.part));
                total.reset(self.tile_rows(tile), self.attention.head_dim);
                for split in self.splits(tile) {
                    self.attend(tile, split, scratch, &mut part);
                    self.level.run(Join { total: &mut total, part: &part });
                }
                self.finish(tile, &total);
                (scratch.total, scratch.part) = (total, part);
            });
        });
    }

    /// The same with the splits of a tile on different threads: for few sequences with many keys.
    fn run_split(&self, team: &Team<'_>, tiles: &[Tile], longest: usize) {
        let mut parts: Vec<Partial> = Vec::new();
        parts.resize_with(tiles.len() * longest, Partial::default);
        team.for_each(&mut parts, &|index, part| {
            let tile = &tiles[index / longest];
            if let Some(split) = self.splits(tile).nth(index % longest) {
                Scratch::with(|scratch| self.attend(tile, split, scratch, part));
            }
        });
        for (tile, parts) in tiles.iter().zip(parts.chunks(longest)) {
            let mut total = Partial::default();
            total.reset(self.tile_rows(tile), self.attention.head_dim);
            for (_, part) in self.splits(tile).zip(parts) {
                self.level.run(Join { total: &mut total, part });
            }
            self.finish(tile, &total);
        }
    }

    /// All tiles, those with the most keys first.
    fn tiles(&self, sequences: impl Iterator<Item = Sequence>) -> Vec<Tile> {
        let tokens = (TILE_ROWS / self.attention.group_size()).max(1);
        let mut tiles = Vec::new();
        for (sequence, Sequence { rows, kv_len }) in sequences.enumerate() {
            // A padding row has no keys.
            let first_position = kv_len.saturating_sub(rows.len());
            for start in rows.clone().step_by(tokens).rev() {
                let position = first_position + start - rows.start;
                let rows = start..rows.end.min(start + tokens);
                tiles.extend((0..self.attention.num_kv_heads).map(|kv_head| Tile {
                    sequence,
                    kv_head,
                    rows: rows.clone(),
                    position,
                    kv_len,
                }));
            }
        }
        tiles
    }

    fn tile_rows(&self, tile: &Tile) -> usize {
        tile.rows.len() * self.attention.group_size()
    }

    /// The positions that a row sees; `token` counts from the start of the tile.
    fn seen(&self, tile: &Tile, token: usize) -> Range<usize> {
        let position = tile.position + token;
        let end = match self.mask {
            Mask::Causal => (position + 1).min(tile.kv_len),
            Mask::Full => tile.kv_len,
        };
        self.attention.window.map_or(0, |window| (position + 1).saturating_sub(window))..end
    }

    /// The positions that any row of a tile sees.
    fn positions(&self, tile: &Tile) -> Range<usize> {
        self.seen(tile, 0).start..self.seen(tile, tile.rows.len() - 1).end
    }

    /// Those, cut at multiples of [`SPLIT`].
    fn splits(&self, tile: &Tile) -> impl Iterator<Item = Range<usize>> {
        let Range { start, end } = self.positions(tile);
        (start / SPLIT..end.div_ceil(SPLIT))
            .map(move |split| start.max(split * SPLIT)..end.min((split + 1) * SPLIT))
    }

    fn attend(&self, tile: &Tile, positions: Range<usize>, scratch: &mut Scratch, part: &mut Partial) {
        let Attention { head_dim, scale, soft_cap, .. } = *self.attention;
        let group_size = self.attention.group_size();
        part.reset(self.tile_rows(tile), head_dim);
        scratch.queries.clear();
        scratch.seen.clear();
        for (token, row) in tile.rows.clone().enumerate() {
            for head in tile.kv_head * group_size..(tile.kv_head + 1) * group_size {
                let query = crate::rows::read(&self.q, [row, head, 0], head_dim, &mut scratch.widened);
                scratch.queries.extend_from_slice(query);
                scratch.seen.push(self.seen(tile, token));
            }
        }
        let [keys, values] = (self.source)(tile.sequence, tile.kv_head);
        self.level.run(Attend { head_dim, scale, soft_cap, positions, keys, values, scratch, part });
    }

    fn finish(&self, tile: &Tile, total: &Partial) {
        let Attention { head_dim, .. } = *self.attention;
        let group_size = self.attention.group_size();
        for index in 0..self.tile_rows(tile) {
            let row = tile.rows.start + index / group_size;
            let head = tile.kv_head * group_size + index % group_size;
            // SAFETY: a row and head is one tile's, and a tile one task's.
            unsafe {
                self.output.update([row, head, 0], head_dim, |output| {
                    self.level.run(Finish { total, index, output });
                });
                if let Some(lse) = &self.lse {
                    lse.update([row, head], 1, |lse| lse[0] = total.log_sum_exp(index));
                }
            }
        }
    }
}

/// Keys and values in pages, with the rows of each sequence.
struct Paged<'a> {
    attention: &'a Attention,
    mask: Mask,
    paging: Paging,
    q: FloatView<'a, 3>,
    k_pages: FloatView<'a, 4>,
    v_pages: FloatView<'a, 4>,
    block_table: View<'a, i32, 2>,
}

impl Paged<'_> {
    fn run(
        self,
        team: &Team<'_>,
        mut output: FloatViewMut<'_, 3>,
        lse: Option<ViewMut<'_, f32, 2>>,
        sequences: impl Iterator<Item = Sequence>,
    ) {
        let Self { attention, mask, paging, q, k_pages, v_pages, block_table } = self;
        let tables = PageTables { block_table, paging, num_pages: k_pages.shape()[0] };
        let mut lse = lse.map(FloatViewMut::F32);
        Call {
            attention,
            mask,
            level: team.level(),
            q,
            output: SharedRows::new(&mut output),
            lse: lse.as_mut().map(SharedRows::new),
            source: &|sequence, head| {
                [&k_pages, &v_pages].map(|pages| Source::paged(pages, tables, sequence, head))
            },
        }
        .run(team, sequences);
    }
}

fn range(starts: View<'_, i32, 1>, sequence: usize) -> Range<usize> {
    starts.at([sequence]) as usize..starts.at([sequence + 1]) as usize
}

impl Operator for paged_prefill::Spec {
    type Operands<'a> = paged_prefill::Operands<'a>;
    type Prepared = ();
    type Output = ();
    type Error = OperandError;
    const ALGORITHM: &'static str = "blocks_of_64";

    fn prepare(&self) {}

    fn run(
        &self,
        (): &(),
        team: &Team<'_>,
        operands: paged_prefill::Operands<'_>,
    ) -> Result<(), OperandError> {
        operands.check(self)?;
        let contract = Contract::PAGED_PREFILL;
        operands.check_indices(self).map_err(|error| OperandError::Data { contract, error })?;
        let paged_prefill::Config { attention, paging, mask } = self.config();
        let paged_prefill::Operands { q, k_pages, v_pages, block_table, kv_len, query_start, output, lse } =
            operands;
        let sequences = (0..block_table.shape()[0]).map(|sequence| Sequence {
            rows: range(query_start, sequence),
            kv_len: kv_len.at([sequence]) as usize,
        });
        let (mask, paging) = (*mask, *paging);
        Paged { attention, mask, paging, q, k_pages, v_pages, block_table }.run(team, output, lse, sequences);
        Ok(())
    }
}

impl Operator for paged_decode::Spec {
    type Operands<'a> = paged_decode::Operands<'a>;
    type Prepared = ();
    type Output = ();
    type Error = OperandError;
    const ALGORITHM: &'static str = "blocks_of_64";

    fn prepare(&self) {}

    fn run(
        &self,
        (): &(),
        team: &Team<'_>,
        operands: paged_decode::Operands<'_>,
    ) -> Result<(), OperandError> {
        operands.check(self)?;
        let contract = Contract::PAGED_DECODE;
        operands.check_indices(self).map_err(|error| OperandError::Data { contract, error })?;
        let paged_decode::Config { attention, paging } = self.config();
        let paged_decode::Operands { q, k_pages, v_pages, block_table, kv_len, output, lse } = operands;
        let sequences =
            (0..q.shape()[0]).map(|row| Sequence { rows: row..row + 1, kv_len: kv_len.at([row]) as usize });
        let (mask, paging) = (Mask::Causal, *paging);
        Paged { attention, mask, paging, q, k_pages, v_pages, block_table }.run(team, output, lse, sequences);
        Ok(())
    }
}

impl Operator for ragged_prefill::Spec {
    type Operands<'a> = ragged_prefill::Operands<'a>;
    type Prepared = ();
    type Output = ();
    type Error = OperandError;
    const ALGORITHM: &'static str = "blocks_of_64";

    fn prepare(&self) {}

    fn run(
        &self,
        (): &(),
        team: &Team<'_>,
        operands: ragged_prefill::Operands<'_>,
    ) -> Result<(), OperandError> {
        operands.check(self)?;
        let contract = Contract::RAGGED_PREFILL;
        operands.check_indices().map_err(|error| OperandError::Data { contract, error })?;
        let ragged_prefill::Config { attention, mask } = self.config();
        let ragged_prefill::Operands { q, k, v, query_start, kv_start, mut output, lse } = operands;
        let sequences = (0..query_start.shape()[0] - 1).map(|sequence| Sequence {
            rows: range(query_start, sequence),
            kv_len: range(kv_start, sequence).len(),
        });
        let mut lse = lse.map(FloatViewMut::F32);
        Call {
            attention,
            mask: *mask,
            level: team.level(),
            q,
            output: SharedRows::new(&mut output),
            lse: lse.as_mut().map(SharedRows::new),
            source: &|sequence, head| {
                [&k, &v].map(|rows| Source::flat(rows, range(kv_start, sequence).start, head))
            },
        }
        .run(team, sequences);
        Ok(())
    }
}

impl Operator for single_decode::Spec {
    type Operands<'a> = single_decode::Operands<'a>;
    type Prepared = ();
    type Output = ();
    type Error = OperandError;
    const ALGORITHM: &'static str = "blocks_of_64";

    fn prepare(&self) {}

    fn run(
        &self,
        (): &(),
        team: &Team<'_>,
        operands: single_decode::Operands<'_>,
    ) -> Result<(), OperandError> {
        operands.check(self)?;
        let single_decode::Operands { q, k, v, mut output, lse } = operands;
        let kv_len = k.shape()[0];
        let mut lse = lse.map(FloatViewMut::F32);
        Call {
            attention: self.config(),
            mask: Mask::Causal,
            level: team.level(),
            q,
            output: SharedRows::new(&mut output),
            lse: lse.as_mut().map(SharedRows::new),
            source: &|_, head| [&k, &v].map(|rows| Source::flat(rows, 0, head)),
        }
        .run(team, std::iter::once(Sequence { rows: 0..1, kv_len }));
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! How the rows of a weight are shared among blocks.

/// Most rows of a tile.
pub(super) const ROWS: usize = 16;
/// Most rows of a tile of a gated product: as many of the gate, and as many of what it gates.
pub(super) const PAIRS: usize = ROWS / 2;

/// Tiles of so many weight rows, at which so many blocks take turns: block `b` has the tiles `b`, `b + blocks`, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    pub(super) rows: usize,
    pub(super) blocks: usize,
}

impl Tiles {
    /// Up to `largest` rows a tile, so that the multiprocessor with the most rows has the fewest, and of those the fewest
    /// tiles: one costs about as much time as a row, whatever it holds.
    pub(super) fn choose(n: usize, largest: usize, multiprocessors: usize) -> Self {
        let cost = |&rows: &usize| turns(n, rows, multiprocessors) * (rows + 1);
        let rows = (1..=largest).rev().min_by_key(cost).unwrap_or(1);
        Self::of(n, rows, multiprocessors)
    }

    /// So many rows a tile; no more blocks than it takes for all to have about the same number of tiles.
    pub(super) fn of(n: usize, rows: usize, multiprocessors: usize) -> Self {
        let blocks = n.div_ceil(rows).div_ceil(turns(n, rows, multiprocessors).max(1)).max(1);
        Self { rows, blocks }
    }
}

/// Tiles of the busiest block, if every multiprocessor has one block.
fn turns(n: usize, rows: usize, multiprocessors: usize) -> usize {
    n.div_ceil(rows).div_ceil(multiprocessors.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_busiest_of_132_multiprocessors_has_the_fewest_rows() {
        let chosen = |n, largest| {
            let Tiles { rows, blocks } = Tiles::choose(n, largest, 132);
            [rows, blocks]
        };
        // 128 of the 132 have 12 rows; with 11 some would have two tiles.
        assert_eq!(chosen(1536, 16), [12, 128]);
        // 10 tiles of 7 rows take 80, 9 of 8 take 81.
        assert_eq!(chosen(8960, 8), [7, 128]);
        assert_eq!(chosen(8, 16), [1, 8]);
        assert_eq!(Tiles::of(2048, 16, 132), Tiles { rows: 16, blocks: 128 });
        assert_eq!(Tiles::of(4608, 16, 132), Tiles { rows: 16, blocks: 96 });
    }

    proptest! {
        #[test]
        fn tiles_cover_every_row_once_and_no_block_is_more_than_a_tile_ahead(
            n in 1_usize..200_000,
            largest in 1_usize..=16,
            multiprocessors in 1_usize..200,
        ) {
            let Tiles { rows, blocks } = Tiles::choose(n, largest, multiprocessors);
            prop_assert!((1..=largest).contains(&rows) && (1..=multiprocessors).contains(&blocks));
            let tiles = n.div_ceil(rows);
            // What the kernel counts: a block's tiles, and the rows of each.
            let mut covered = vec![0_u8; n];
            let mut taken = Vec::new();
            for block in 0..blocks {
                let own: Vec<_> = (block..tiles).step_by(blocks).collect();
                for tile in &own {
                    covered[tile * rows..((tile + 1) * rows).min(n)].iter_mut().for_each(|row| *row += 1);
                }
                taken.push(own.len());
            }
            prop_assert!(covered.iter().all(|&times| times == 1));
            let (most, fewest) = (taken.iter().max().unwrap(), taken.iter().min().unwrap());
            prop_assert!(most - fewest <= 1, "{taken:?}");
        }
    }
}

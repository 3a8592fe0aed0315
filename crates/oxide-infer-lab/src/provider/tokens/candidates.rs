//! `sampling.candidates`, and the sampler that reads them: greedy rows of `sampling.sample` by the best of every tile of
//! the vocabulary. The first multiplies, so it is given a product that comes to the rows' logits.

use super::{Batch, Left, Tables, fail};
use crate::call::{Call, failed};
use crate::provider::{OxideTile, with};
use half::bf16;
use oxide_infer::TokenId;
use oxide_infer::conformance::Refusal;
use oxide_infer::sampling::{LogitsRow, Sampled, argmax, log_probabilities};
use oxide_infer_cuda::artifact::Request;

/// Tokens of a candidate that the sampler is given: few, so that there are more candidates than a block has threads.
const GIVEN_TILE: usize = 16;
/// How far a logit may be off, relatively: its three parts are added up by tensor cores.
const TOLERANCE: f32 = 1e-5;

impl Batch<'_> {
    /// Refuses rows that need more than their best logit.
    pub(super) fn check_plain(&self) -> Result<(), Refusal> {
        let plain = |row: &LogitsRow<'_>| {
            let params = row.params;
            let added = params.reads_history() || !params.logit_bias.is_empty() || row.mask.is_some();
            params.is_greedy() && !added
        };
        match self.rows.iter().all(plain) {
            true => Ok(()),
            false => Err(Refusal::NotAdmitted("only greedy rows with nothing added are".to_owned())),
        }
    }

    /// The best of every tile by the device, the best of those by the host.
    pub(super) fn candidates(&self, tile: &mut OxideTile) -> Result<Vec<Sampled>, Refusal> {
        self.check_plain()?;
        let columns = tile.artifact.manifest().properties.get("tile").map(ToString::to_string);
        let columns =
            columns.and_then(|columns| columns.parse::<usize>().ok()).filter(|&columns| columns > 0);
        let columns = columns.ok_or_else(|| Refusal::Failed("the artifact says no tile".to_owned()))?;
        let (logits, head) = (self.infinite_logits(), Head::with(self));
        let tiles = self.vocab_size.div_ceil(columns);
        let (mut best_logits, mut best_tokens) =
            (vec![0.0_f32; self.device_rows() * tiles], vec![0_u32; self.device_rows() * tiles]);
        let properties = [("input", "bf16"), ("weight", "bf16"), ("logits", "f32")];
        let asked = Request::new("sampling.candidates", 1).property("tile", columns as u64);
        let asked = properties.iter().fold(asked, |asked, (name, value)| asked.property(name, *value));
        let sizes = [
            ("rows", self.device_rows()),
            ("vocab_size", self.vocab_size),
            ("hidden_size", head.hidden_size),
        ];
        let mut call = Call::new(with(asked, &sizes));
        call.read_list("input", &head.input);
        call.read_list("weight", &head.weight);
        call.write_list("best_logits", &mut best_logits);
        call.write_list("best_tokens", &mut best_tokens);
        tile.run(call)?;

        let mut sampled = Vec::new();
        for (device, row) in self.each().enumerate() {
            let logits = &logits[device * self.vocab_size..][..self.vocab_size];
            let found = best_logits[device * tiles..].iter().zip(&best_tokens[device * tiles..]).take(tiles);
            for (number, (want, (&logit, &token))) in best_of_tiles(logits, columns).zip(found).enumerate() {
                check_candidate(want, (logit, token))
                    .or_else(|what| fail(format!("tile {number} of row {device}: {what}")))?;
            }
            if let Some((row, Ok(want))) = row.map(|row| (&self.rows[row], &self.expected[row])) {
                let best = argmax(&best_logits[device * tiles..][..tiles]).unwrap_or_default();
                let token = TokenId(best_tokens[device * tiles + best.index()]);
                if token != want.token {
                    return fail(format!("the token of row {device} should be {}, got {token}", want.token));
                }
                // Not this artifact's: those of its token.
                let logprobs = row.top_logprobs.map(|top_n| log_probabilities(row.logits, token, top_n));
                sampled.push(Sampled { token, logprobs: logprobs.transpose().map_err(failed)? });
            }
        }
        Ok(sampled)
    }

    /// The logits that [`Head`] comes to.
    fn infinite_logits(&self) -> Vec<f32> {
        let mut logits = self.logits();
        for (row, logits) in self.each().zip(logits.chunks_exact_mut(self.vocab_size)) {
            let nans = logits.iter_mut().filter(|logit| row.is_some() && logit.is_nan());
            nans.for_each(|logit| *logit = f32::INFINITY);
        }
        logits
    }

    /// Candidates by the host, later tiles first; which of them is a row's token by the device.
    pub(super) fn pick(&self, tile: &mut OxideTile) -> Result<Vec<Sampled>, Refusal> {
        self.check_plain()?;
        let (logits, tables) = (self.logits(), Tables::new(self)?);
        let mut left = Left::new(self, &tables);
        let candidates: Vec<(f32, u32)> = logits
            .chunks_exact(self.vocab_size)
            .flat_map(|row| best_of_tiles(row, GIVEN_TILE).collect::<Vec<_>>().into_iter().rev())
            .collect();
        let (best_logits, best_tokens): (Vec<_>, Vec<_>) = candidates.into_iter().unzip();
        let asked =
            Request::new("sampling.sample", 1).property("logits", "candidates").property("method", "greedy");
        let sizes = [
            ("rows", self.device_rows()),
            ("candidates", self.vocab_size.div_ceil(GIVEN_TILE)),
            ("max_sequences", self.max_sequences()),
        ];
        let mut call = Call::new(with(asked, &sizes));
        call.read_list("best_logits", &best_logits);
        call.read_list("best_tokens", &best_tokens);
        call.read_list("row_ints", &tables.ints);
        left.bind(&mut call);
        tile.run(call)?;
        left.check(self, &tables)
    }
}

/// Of every tile the greatest logit and the first token that has it; a NaN is greater than any number.
fn best_of_tiles(logits: &[f32], columns: usize) -> impl Iterator<Item = (f32, u32)> + '_ {
    logits.chunks(columns).zip((0..).step_by(columns)).map(|(tile, first)| {
        let best = (0..).zip(tile).fold((tile[0], 0), |best, (at, &logit)| {
            if logit > best.0 || logit.is_nan() { (logit, at) } else { best }
        });
        (best.0, first + best.1)
    })
}

/// Of a tile in which no token may be sampled, or that fails its row, the token may be any.
fn check_candidate(want: (f32, u32), got: (f32, u32)) -> Result<(), String> {
    let fits = match want.0 {
        logit if logit.is_finite() => (got.0 - logit).abs() <= TOLERANCE * logit.abs().max(1.0),
        logit => got.0.to_bits() == logit.to_bits() || got.0.is_nan() && logit.is_nan(),
    };
    if !fits {
        return Err(format!("its best logit should be {}, got {}", want.0, got.0));
    }
    if want.0.is_finite() && want.1 != got.1 {
        return Err(format!("its token should be {}, got {}", want.1, got.1));
    }
    Ok(())
}

/// A product that comes to the rows' logits: each row of the input has a few columns of the weight to itself.
struct Head {
    /// `[rows, hidden_size]`
    input: Vec<bf16>,
    /// `[vocab_size, hidden_size]`
    weight: Vec<bf16>,
    hidden_size: usize,
}

impl Head {
    /// Columns that a row has to itself: parts of a logit, and what makes it infinite.
    const COLUMNS: usize = 4;

    /// The row that pads the batch has NaN for input. In others a NaN is plus infinity, since a weight that is none would
    /// be in every row's logit; of either a row fails.
    fn with(batch: &Batch<'_>) -> Self {
        let hidden_size = (Self::COLUMNS * batch.device_rows()).next_multiple_of(8);
        // Its square is past every f32.
        let vast = bf16::from_f32(2.0_f32.powi(100));
        let input = batch.each().enumerate().flat_map(|(device, row)| {
            let own = [bf16::ONE, bf16::ONE, bf16::ONE, vast];
            let at = move |column: usize| match (row, column / Self::COLUMNS == device) {
                (None, _) => bf16::NAN,
                (Some(_), true) => own[column % Self::COLUMNS],
                (Some(_), false) => bf16::ZERO,
            };
            (0..hidden_size).map(at)
        });
        let parts = |logit: f32| match logit {
            f32::NEG_INFINITY => [bf16::ZERO, bf16::ZERO, bf16::ZERO, -vast],
            logit if !logit.is_finite() => [bf16::ZERO, bf16::ZERO, bf16::ZERO, vast],
            logit => {
                let first = bf16::from_f32(logit);
                let second = bf16::from_f32(logit - first.to_f32());
                let third = bf16::from_f32(logit - first.to_f32() - second.to_f32());
                [first, second, third, bf16::ZERO]
            }
        };
        let rows: Vec<_> = batch.each().collect();
        let mut weight = vec![bf16::ZERO; batch.vocab_size * hidden_size];
        for (token, columns) in weight.chunks_exact_mut(hidden_size).enumerate() {
            for (own, row) in columns.chunks_exact_mut(Self::COLUMNS).zip(&rows) {
                if let Some(row) = row {
                    own.copy_from_slice(&parts(batch.rows[*row].logits[token]));
                }
            }
        }
        Self { input: input.collect(), weight, hidden_size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_has_its_first_best_token_and_a_nan_is_the_best_of_all() {
        let nothing = f32::NEG_INFINITY;
        let logits = [1.0, 3.0, 3.0, nothing, nothing, nothing, 2.0];
        let best: Vec<_> = best_of_tiles(&logits, 3).collect();
        assert_eq!(best, [(3.0, 1), (nothing, 3), (2.0, 6)]);
        let (logit, token) = best_of_tiles(&[f32::NAN, 5.0], 4).next().unwrap();
        assert_eq!((logit.is_nan(), token), (true, 0));
        assert!(best_of_tiles(&[5.0, f32::NAN, 6.0], 4).next().unwrap().0.is_nan());
    }

    #[test]
    fn a_candidate_is_off_by_its_logit_or_its_token() {
        assert_eq!(check_candidate((3.0, 7), (3.0, 7)), Ok(()));
        assert_eq!(check_candidate((f32::NEG_INFINITY, 7), (f32::NEG_INFINITY, 9)), Ok(()));
        assert!(check_candidate((3.0, 7), (3.1, 7)).unwrap_err().contains("logit should be 3"));
        assert!(check_candidate((3.0, 7), (3.0, 8)).unwrap_err().contains("token should be 7"));
        assert!(check_candidate((f32::INFINITY, 7), (f32::NAN, 7)).is_err());
    }
}

/// Names one random number: the same name gives the same number on every provider, in any batch.
///
/// # Algorithm
/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) with
///
/// ```text
/// key     = [seed bits 0..32, seed bits 32..64]
/// counter = [position bits 0..32, position bits 32..64, choice, draw]
/// x       = philox4x32_10(counter, key)
/// uniform = ((x[0] << 21) | (x[1] >> 11)) · 2⁻⁵³      x[0], x[1] widened to 64 bits; 53 bits in all
/// ```
///
/// so `uniform` is a multiple of 2⁻⁵³ in [0, 1), exact in an `f64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Draw {
    /// [`super::SamplingParams::seed`].
    pub seed: u64,
    /// Which of a request's `n` choices.
    pub choice: u32,
    /// Position in the sequence of the token that is sampled: prompt length + tokens sampled before it.
    pub position: u64,
    /// Which of the numbers drawn for that token; sampling uses draw 0 alone.
    pub draw: u32,
}

impl Draw {
    /// The four words that the name stands for.
    pub fn words(self) -> [u32; 4] {
        let [position_low, position_high] = halves(self.position);
        philox4x32_10([position_low, position_high, self.choice, self.draw], halves(self.seed))
    }

    /// A number in [0, 1), a multiple of 2⁻⁵³.
    pub fn uniform(self) -> f64 {
        let [x0, x1, ..] = self.words();
        let bits = u64::from(x0) << 21 | u64::from(x1 >> 11);
        bits as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Philox4x32 with ten rounds, as in the paper and in Random123's `philox4x32`.
///
/// One round with key `(k0, k1)`: `(hi0, lo0) = c0 · 0xD2511F53`, `(hi1, lo1) = c2 · 0xCD9E8D57` as 64-bit products, and
/// the next counter is `[hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0]`. Between rounds `k0 += 0x9E3779B9` and
/// `k1 += 0xBB67AE85`, modulo 2³².
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let [lo0, hi0] = halves(u64::from(c0) * 0xD251_1F53);
        let [lo1, hi1] = halves(u64::from(c2) * 0xCD9E_8D57);
        [c0, c1, c2, c3] = [hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0];
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

/// Low and high half.
fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `philox4x32 10` lines of Random123's `tests/kat_vectors`.
    #[test]
    fn philox_gives_the_published_random123_vectors() {
        let ones = u32::MAX;
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox4x32_10([ones; 4], [ones; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            philox4x32_10([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn the_uniform_number_is_the_top_53_bits_of_the_first_two_words() {
        // 0x6627e8d5 and 0xe169c58d of the first vector: (0x6627e8d5 << 21 | 0xe169c58d >> 11) / 2^53.
        let zero = Draw::default();
        assert_eq!(zero.uniform(), 3_594_291_074_837_816.0 / 9_007_199_254_740_992.0);
    }

    #[test]
    fn every_part_of_the_name_matters() {
        let base = Draw { seed: 1, choice: 2, position: 3, draw: 4 };
        let others = [
            Draw { seed: 2, ..base },
            Draw { seed: 1 | 1 << 32, ..base },
            Draw { choice: 3, ..base },
            Draw { position: 4, ..base },
            Draw { position: 3 | 1 << 32, ..base },
            Draw { draw: 5, ..base },
        ];
        for other in others {
            assert_ne!(other.words(), base.words(), "{other:?}");
        }
    }

    #[test]
    fn a_thousand_positions_spread_evenly() {
        let mut bins = [0; 10];
        for position in 0..1000 {
            bins[(Draw { seed: 42, position, ..Draw::default() }.uniform() * 10.0) as usize] += 1;
        }
        // Binomial(1000, 0.1): standard deviation 9.5; this allows about five.
        assert!(bins.iter().all(|count| (53..=147).contains(count)), "{bins:?}");
    }
}

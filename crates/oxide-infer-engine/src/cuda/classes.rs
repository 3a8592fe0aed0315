//! The sizes that steps are planned for. A step runs in the smallest class that holds it, padded.

/// Rows of decode steps, and rows whose logits are computed at once.
const ROWS: [usize; 16] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 240, 256];
/// Logits are computed for at most so many rows at once: more gain nothing and cost memory.
const MAX_HEAD_ROWS: usize = 256;
/// Tokens of all other steps.
const TOKENS: [usize; 18] =
    [16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384];
/// Sequences of all other steps.
const SEQUENCES: [usize; 3] = [4, 32, 256];

/// The classes of one executor, each ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Classes {
    /// Rows of a decode step; steps of more rows are mixed.
    pub(super) decode: Vec<usize>,
    /// Tokens of a mixed step.
    pub(super) tokens: Vec<usize>,
    /// Sequences of a mixed step.
    pub(super) sequences: Vec<usize>,
    /// Rows whose logits are computed.
    pub(super) head: Vec<usize>,
}

/// What a step's operators are planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StepClass {
    /// One token for each of so many sequences.
    Decode { rows: usize },
    /// So many tokens of so many sequences.
    Mixed { tokens: usize, sequences: usize },
}

impl Classes {
    pub(super) fn new(max_sequences: usize, max_batch_tokens: usize) -> Self {
        let up_to = |sizes: &[usize], most: usize| {
            let mut classes: Vec<_> = sizes.iter().copied().filter(|&size| size < most).collect();
            classes.push(most);
            classes
        };
        Self {
            decode: up_to(&ROWS, max_sequences.min(MAX_HEAD_ROWS)),
            tokens: up_to(&TOKENS, max_batch_tokens),
            sequences: up_to(&SEQUENCES, max_sequences),
            head: up_to(&ROWS, max_sequences.min(MAX_HEAD_ROWS)),
        }
    }

    /// Every class of a step.
    pub(super) fn steps(&self) -> impl Iterator<Item = StepClass> {
        let decode = self.decode.iter().map(|&rows| StepClass::Decode { rows });
        let mixed = self.tokens.iter().flat_map(|&tokens| {
            self.sequences.iter().map(move |&sequences| StepClass::Mixed { tokens, sequences })
        });
        decode.chain(mixed)
    }

    /// Index of the smallest of `sizes` that holds `count`, if one does.
    pub(super) fn index(sizes: &[usize], count: usize) -> Option<usize> {
        let index = sizes.partition_point(|&size| size < count);
        (index < sizes.len()).then_some(index)
    }
}

impl StepClass {
    pub(super) fn tokens(self) -> usize {
        match self {
            Self::Decode { rows } => rows,
            Self::Mixed { tokens, .. } => tokens,
        }
    }

    pub(super) fn sequences(self) -> usize {
        match self {
            Self::Decode { rows } => rows,
            Self::Mixed { sequences, .. } => sequences,
        }
    }

    /// Rows of the block table: padding tokens of a mixed step belong to a sequence of their own.
    pub(super) fn table_rows(self) -> usize {
        match self {
            Self::Decode { rows } => rows,
            Self::Mixed { sequences, .. } => sequences + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_to_the_limits_and_the_smallest_that_holds_a_step_is_taken() {
        let classes = Classes::new(20, 100);
        assert_eq!(classes.decode, [1, 2, 4, 8, 16, 20]);
        assert_eq!(classes.tokens, [16, 32, 64, 100]);
        assert_eq!(classes.sequences, [4, 20]);
        assert_eq!(Classes::index(&classes.decode, 1), Some(0));
        assert_eq!(Classes::index(&classes.decode, 3), Some(2));
        assert_eq!(Classes::index(&classes.decode, 20), Some(5));
        assert_eq!(Classes::index(&classes.decode, 21), None);
        assert_eq!(classes.steps().count(), 6 + 4 * 2);
        assert_eq!(Classes::new(1000, 1000).head.last(), Some(&256));
    }
}

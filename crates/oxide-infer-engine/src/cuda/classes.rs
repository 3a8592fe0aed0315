//! The sizes that steps are planned for. A step runs in the smallest class that holds it, padded.

use super::options::CudaOptions;
use crate::batch::PlanGoal;

/// Rows of decode steps, and rows whose logits are computed at once.
const ROWS: [usize; 16] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 240, 256];
/// Logits are computed for at most so many rows at once: more gain nothing and cost memory.
pub(super) const MAX_HEAD_ROWS: usize = 256;
/// Tokens of all other steps.
const TOKENS: [usize; 18] =
    [16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384];
/// Sequences of all other steps.
const SEQUENCES: [usize; 3] = [4, 32, 256];

/// Tokens of a sequence up to which one launch reads its pages as fast as shares that a second launch merges (the record
/// of decode attention, one row, compared at 256 to 16,384 tokens).
pub(super) const SHORT: usize = 4096;

/// The classes of one executor, each ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Classes {
    /// Decode steps; steps of more rows are mixed.
    pub(super) decode: Vec<DecodeClass>,
    /// Tokens of a mixed step.
    pub(super) tokens: Vec<usize>,
    /// Sequences of a mixed step.
    pub(super) sequences: Vec<usize>,
    /// Rows whose logits are computed.
    pub(super) head: Vec<usize>,
}

/// One token for each of so many sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DecodeClass {
    pub(super) rows: usize,
    pub(super) reach: Reach,
}

/// How long the sequences of a decode step may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// At most [`SHORT`] tokens.
    Short,
    /// As long as the model's.
    Any,
}

/// What a step's operators are planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StepClass {
    /// Every sequence has one token.
    Decode(DecodeClass),
    /// So many tokens of so many sequences.
    Mixed { tokens: usize, sequences: usize },
}

impl Classes {
    /// The classes of an executor whose longest sequence has so many tokens.
    pub(super) fn of(options: &CudaOptions, max_model_len: usize) -> Self {
        let reach = match options.goal {
            PlanGoal::Fastest => max_model_len,
            // One row is computed alike whatever its length.
            PlanGoal::Deterministic => max_model_len.min(SHORT),
        };
        Self::new(options.max_sequences, options.max_batch_tokens, reach)
    }

    pub(super) fn new(max_sequences: usize, max_batch_tokens: usize, max_model_len: usize) -> Self {
        let up_to = |sizes: &[usize], most: usize| {
            let mut classes: Vec<_> = sizes.iter().copied().filter(|&size| size < most).collect();
            classes.push(most);
            classes
        };
        let rows = up_to(&ROWS, max_sequences.min(MAX_HEAD_ROWS));
        // Of several sequences the long ones share the device with the others, and one launch does for all.
        let short = DecodeClass { rows: 1, reach: Reach::Short };
        let short = Some(short).filter(|_| rows[0] == 1 && max_model_len > SHORT);
        let any = rows.iter().map(|&rows| DecodeClass { rows, reach: Reach::Any });
        Self {
            decode: short.into_iter().chain(any).collect(),
            tokens: up_to(&TOKENS, max_batch_tokens),
            sequences: up_to(&SEQUENCES, max_sequences),
            head: rows,
        }
    }

    /// Every class of a step.
    pub(super) fn steps(&self) -> impl Iterator<Item = StepClass> {
        self.decode.iter().map(|&class| StepClass::Decode(class)).chain(self.mixed())
    }

    /// Every class of a step that is no decode step.
    pub(super) fn mixed(&self) -> impl Iterator<Item = StepClass> {
        self.tokens.iter().flat_map(|&tokens| {
            self.sequences.iter().map(move |&sequences| StepClass::Mixed { tokens, sequences })
        })
    }

    /// Index of the first decode class for so many sequences, the longest of which has `kv_len` tokens.
    pub(super) fn decode_index(&self, rows: usize, kv_len: usize) -> Option<usize> {
        self.decode.iter().position(|class| class.rows >= rows && class.reach.holds(kv_len))
    }

    /// Index of the smallest of `sizes` that holds `count`, if one does.
    pub(super) fn index(sizes: &[usize], count: usize) -> Option<usize> {
        let index = sizes.partition_point(|&size| size < count);
        (index < sizes.len()).then_some(index)
    }
}

impl Reach {
    fn holds(self, kv_len: usize) -> bool {
        match self {
            Self::Short => kv_len <= SHORT,
            Self::Any => true,
        }
    }
}

impl StepClass {
    pub(super) fn tokens(self) -> usize {
        match self {
            Self::Decode(class) => class.rows,
            Self::Mixed { tokens, .. } => tokens,
        }
    }

    pub(super) fn sequences(self) -> usize {
        match self {
            Self::Decode(class) => class.rows,
            Self::Mixed { sequences, .. } => sequences,
        }
    }

    /// Rows of the block table: padding tokens of a mixed step belong to a sequence of their own.
    pub(super) fn table_rows(self) -> usize {
        match self {
            Self::Decode(class) => class.rows,
            Self::Mixed { sequences, .. } => sequences + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(rows: usize) -> DecodeClass {
        DecodeClass { rows, reach: Reach::Any }
    }

    #[test]
    fn classes_ascend_to_the_limits_and_the_smallest_that_holds_a_step_is_taken() {
        let classes = Classes::new(20, 100, SHORT);
        assert_eq!(classes.decode, [1, 2, 4, 8, 16, 20].map(any));
        assert_eq!(classes.tokens, [16, 32, 64, 100]);
        assert_eq!(classes.sequences, [4, 20]);
        assert_eq!(classes.decode_index(1, 9), Some(0));
        assert_eq!(classes.decode_index(3, 9), Some(2));
        assert_eq!(classes.decode_index(20, SHORT), Some(5));
        assert_eq!(classes.decode_index(21, 9), None);
        assert_eq!(Classes::index(&classes.tokens, 33), Some(2));
        assert_eq!(Classes::index(&classes.tokens, 101), None);
        assert_eq!(classes.steps().count(), 6 + 4 * 2);
        assert_eq!(Classes::new(1000, 1000, SHORT).head.last(), Some(&256));
    }

    #[test]
    fn one_sequence_has_a_class_of_its_own_while_it_is_short_if_it_may_become_long() {
        let classes = Classes::new(4, 100, SHORT + 1);
        let short = DecodeClass { rows: 1, reach: Reach::Short };
        assert_eq!(classes.decode, [short, any(1), any(2), any(4)]);
        assert_eq!(classes.decode_index(1, 1), Some(0));
        assert_eq!(classes.decode_index(1, SHORT), Some(0));
        assert_eq!(classes.decode_index(1, SHORT + 1), Some(1));
        assert_eq!(classes.decode_index(2, 1), Some(2));
        assert_eq!(classes.head, [1, 2, 4]);
    }
}

use crate::batch::ExecutorLimits;
use crate::model::{Buffer, ModelConfig, QkNorm};

/// A block of memory `[rows, width]` that one or several of the model's buffers lie in, side by side. Buffers that one
/// product writes share a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Slab {
    Hidden,
    Normed,
    /// Query, key, value.
    Projected,
    /// Query and key, normalized.
    NormedHeads,
    Rotated,
    Attention,
    /// Gate, up.
    Inner,
    Activated,
    Logits,
}

const SLABS: usize = 9;

/// Where a buffer lies: `width` columns from column `start` of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) slab: Slab,
    /// Columns of the slab.
    pub(super) stride: usize,
    pub(super) start: usize,
    pub(super) width: usize,
}

impl Region {
    pub(super) fn of(buffer: Buffer, config: &ModelConfig) -> Self {
        let (query, kv, inner) = (config.query_size(), config.kv_size(), config.intermediate_size);
        let (slab, start, width) = match buffer {
            Buffer::Hidden => (Slab::Hidden, 0, config.hidden_size),
            Buffer::Normed => (Slab::Normed, 0, config.hidden_size),
            Buffer::Query => (Slab::Projected, 0, query),
            Buffer::Key => (Slab::Projected, query, kv),
            Buffer::Value => (Slab::Projected, query + kv, kv),
            Buffer::NormedQuery => (Slab::NormedHeads, 0, query),
            Buffer::NormedKey => (Slab::NormedHeads, query, kv),
            Buffer::Rotated => (Slab::Rotated, 0, query),
            Buffer::Attention => (Slab::Attention, 0, query),
            Buffer::Gate => (Slab::Inner, 0, inner),
            Buffer::Up => (Slab::Inner, inner, inner),
            Buffer::Activated => (Slab::Activated, 0, inner),
            Buffer::Logits => (Slab::Logits, 0, config.vocab_size),
        };
        Self { slab, stride: slab.width(config), start, width }
    }
}

impl Slab {
    fn width(self, config: &ModelConfig) -> usize {
        let (query, kv, inner) = (config.query_size(), config.kv_size(), config.intermediate_size);
        match self {
            Self::Hidden | Self::Normed => config.hidden_size,
            Self::Projected => query + 2 * kv,
            Self::NormedHeads => match config.qk_norm {
                QkNorm::None => 0,
                QkNorm::PerHead => query + kv,
            },
            Self::Rotated | Self::Attention => query,
            Self::Inner => 2 * inner,
            Self::Activated => inner,
            Self::Logits => config.vocab_size,
        }
    }
}

/// The memory of a step's intermediate values, allocated once.
#[derive(Debug)]
pub(super) struct Slabs([Vec<f32>; SLABS]);

impl Slabs {
    const ALL: [Slab; SLABS] = [
        Slab::Hidden,
        Slab::Normed,
        Slab::Projected,
        Slab::NormedHeads,
        Slab::Rotated,
        Slab::Attention,
        Slab::Inner,
        Slab::Activated,
        Slab::Logits,
    ];

    pub(super) fn new(config: &ModelConfig, limits: &ExecutorLimits, logit_rows: usize) -> Self {
        Self(Self::ALL.map(|slab| vec![0.0; Self::len(slab, config, limits, logit_rows)]))
    }

    /// Bytes that [`Slabs::new`] allocates.
    pub(super) fn bytes(config: &ModelConfig, limits: &ExecutorLimits, logit_rows: usize) -> u64 {
        let elements: usize = Self::ALL.map(|slab| Self::len(slab, config, limits, logit_rows)).iter().sum();
        (elements * size_of::<f32>()) as u64
    }

    fn len(slab: Slab, config: &ModelConfig, limits: &ExecutorLimits, logit_rows: usize) -> usize {
        let rows = match slab {
            Slab::Logits => logit_rows,
            _ => limits.max_batch_tokens,
        };
        rows * slab.width(config)
    }

    /// The first `rows` rows of a slab.
    pub(super) fn rows(&self, slab: Slab, rows: usize, width: usize) -> &[f32] {
        &self.0[slab as usize][..rows * width]
    }

    /// As [`Self::rows`], to write.
    pub(super) fn rows_mut(&mut self, slab: Slab, rows: usize, width: usize) -> &mut [f32] {
        &mut self.0[slab as usize][..rows * width]
    }

    /// Copies one row of a slab over another.
    pub(super) fn move_row(&mut self, slab: Slab, from: usize, to: usize, width: usize) {
        self.0[slab as usize].copy_within(from * width..(from + 1) * width, to * width);
    }

    /// Slabs to read and one to write.
    ///
    /// # Panics
    /// When the one to write is among those to read: lowering gives every operator an output of its own.
    pub(super) fn split<const N: usize>(
        &mut self,
        read: [Slab; N],
        write: Slab,
    ) -> ([&[f32]; N], &mut [f32]) {
        let (before, rest) = self.0.split_at_mut(write as usize);
        let (written, after) = rest.split_first_mut().expect("every slab has its place");
        let reads = read.map(|slab| match (slab as usize).checked_sub(before.len()) {
            None => &before[slab as usize][..],
            Some(0) => panic!("{slab:?} is read and written at once"),
            Some(past) => &after[past - 1][..],
        });
        (reads, written)
    }
}

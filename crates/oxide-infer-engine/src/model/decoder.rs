use super::{ModelConfig, OutputHead, QkNorm};
use std::fmt;
use std::num::NonZeroU32;

/// A dense decoder as an ordered list of operators. Executors lower it; it knows no device.
///
/// `embed` and `layers` run over all tokens of a step, `head` only over the rows whose logits are needed.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseDecoder {
    /// Token ids to the residual stream.
    pub embed: Operator,
    /// Of every layer, its operators in order.
    pub layers: Vec<Vec<Operator>>,
    /// The residual stream to logits.
    pub head: Vec<Operator>,
}

/// One operator over the tokens of a step. Buffers are `[num_tokens, width]`.
#[derive(Clone, Debug, PartialEq)]
pub enum Operator {
    /// `out = table[token]`
    Gather {
        /// `[vocab_size, hidden_size]`
        table: Matrix,
        /// Written.
        out: Buffer,
    },
    /// Normalizes groups of `weight.len` neighbours: the whole row, or every head of it.
    RmsNorm {
        /// Read.
        input: Buffer,
        /// The weight of a group.
        weight: Vector,
        /// Added to the mean square.
        eps: f32,
        /// Written.
        out: Buffer,
    },
    /// `out = input · weightᵀ + bias`, or `out += …`
    Dense {
        /// Read.
        input: Buffer,
        /// `[out, in]`
        weight: Matrix,
        /// `[out]`
        bias: Option<Vector>,
        /// What is there before.
        write: Write,
        /// Written.
        out: Buffer,
    },
    /// `out = rope(query)`; `rope(key)` and `value` go into the layer's KV pages. Pairs are `(i, i + head_dim / 2)`.
    RopeAppend {
        /// Read.
        query: Buffer,
        /// Read.
        key: Buffer,
        /// Read.
        value: Buffer,
        /// Written.
        out: Buffer,
    },
    /// Causal attention over the layer's KV pages, scores scaled by `1 / √head_dim`.
    Attention {
        /// Read.
        query: Buffer,
        /// How many tokens back a token sees, itself included.
        window: Option<NonZeroU32>,
        /// Written.
        out: Buffer,
    },
    /// `out = silu(gate) · up`
    SwiGlu {
        /// Read.
        gate: Buffer,
        /// Read.
        up: Buffer,
        /// Written.
        out: Buffer,
    },
}

/// What a product does with what is in its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Overwrites it.
    Replace,
    /// Adds to it: the residual stream.
    Add,
}

/// Where operators read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// The residual stream, `hidden_size` wide.
    Hidden,
    /// The normalized residual stream, `hidden_size` wide.
    Normed,
    /// Query heads, `num_heads · head_dim` wide.
    Query,
    /// Key heads, `num_kv_heads · head_dim` wide.
    Key,
    /// Value heads, `num_kv_heads · head_dim` wide.
    Value,
    /// Query heads, each normalized.
    NormedQuery,
    /// Key heads, each normalized.
    NormedKey,
    /// Query heads turned by their positions.
    Rotated,
    /// What the query heads attended to, `num_heads · head_dim` wide.
    Attention,
    /// `intermediate_size` wide.
    Gate,
    /// `intermediate_size` wide.
    Up,
    /// `silu(gate) · up`, `intermediate_size` wide.
    Activated,
    /// `vocab_size` wide.
    Logits,
}

/// A weight matrix that an operator refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Which.
    pub id: WeightId,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

/// A weight vector that an operator refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// Which.
    pub id: WeightId,
    /// Elements.
    pub len: usize,
}

/// Names a weight, independent of what files call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeightId {
    /// The layer, if it is in one.
    pub layer: Option<usize>,
    /// What it is there.
    pub role: WeightRole,
}

/// What a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum WeightRole {
    TokenEmbedding,
    AttentionNorm,
    Query,
    QueryBias,
    Key,
    KeyBias,
    Value,
    ValueBias,
    QueryNorm,
    KeyNorm,
    AttentionOutput,
    AttentionOutputBias,
    FeedForwardNorm,
    Gate,
    GateBias,
    Up,
    UpBias,
    Down,
    DownBias,
    FinalNorm,
    OutputHead,
}

/// A weight that an operator refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightRef {
    /// `[rows, cols]`
    Matrix(Matrix),
    /// `[len]`
    Vector(Vector),
}

impl WeightRef {
    /// Which weight it is.
    pub fn id(&self) -> WeightId {
        match self {
            Self::Matrix(matrix) => matrix.id,
            Self::Vector(vector) => vector.id,
        }
    }

    /// Its shape, outermost dimension first.
    pub fn shape(&self) -> Vec<u64> {
        match self {
            Self::Matrix(matrix) => vec![matrix.rows as u64, matrix.cols as u64],
            Self::Vector(vector) => vec![vector.len as u64],
        }
    }
}

impl Operator {
    /// The weights that it reads.
    pub fn weights(&self) -> impl Iterator<Item = WeightRef> {
        let weights = match self {
            Self::Gather { table, .. } => [Some(WeightRef::Matrix(*table)), None],
            Self::RmsNorm { weight, .. } => [Some(WeightRef::Vector(*weight)), None],
            Self::Dense { weight, bias, .. } => {
                [Some(WeightRef::Matrix(*weight)), bias.map(WeightRef::Vector)]
            }
            Self::RopeAppend { .. } | Self::Attention { .. } | Self::SwiGlu { .. } => [None, None],
        };
        weights.into_iter().flatten()
    }
}

impl DenseDecoder {
    /// The operators of a model.
    pub fn new(config: &ModelConfig) -> Self {
        let layers = (0..config.num_layers).map(|layer| Layer { config, layer }.operators()).collect();
        let role = match config.output_head {
            OutputHead::Tied => WeightRole::TokenEmbedding,
            OutputHead::Separate => WeightRole::OutputHead,
        };
        let (vocab_size, hidden_size) = (config.vocab_size, config.hidden_size);
        let whole = |role| WeightId { layer: None, role };
        Self {
            embed: Operator::Gather {
                table: Matrix { id: whole(WeightRole::TokenEmbedding), rows: vocab_size, cols: hidden_size },
                out: Buffer::Hidden,
            },
            layers,
            head: vec![
                Operator::RmsNorm {
                    input: Buffer::Hidden,
                    weight: Vector { id: whole(WeightRole::FinalNorm), len: hidden_size },
                    eps: config.rms_norm_eps,
                    out: Buffer::Normed,
                },
                Operator::Dense {
                    input: Buffer::Normed,
                    weight: Matrix { id: whole(role), rows: vocab_size, cols: hidden_size },
                    bias: None,
                    write: Write::Replace,
                    out: Buffer::Logits,
                },
            ],
        }
    }

    /// All operators in order.
    pub fn operators(&self) -> impl Iterator<Item = &Operator> {
        std::iter::once(&self.embed).chain(self.layers.iter().flatten()).chain(&self.head)
    }

    /// Every weight once, in the order of its first use.
    pub fn weights(&self) -> Vec<WeightRef> {
        let mut seen = std::collections::HashSet::new();
        self.operators().flat_map(Operator::weights).filter(|weight| seen.insert(weight.id())).collect()
    }
}

/// Builds the operators of one layer.
struct Layer<'a> {
    config: &'a ModelConfig,
    layer: usize,
}

impl Layer<'_> {
    fn operators(&self) -> Vec<Operator> {
        use WeightRole as W;
        let config = self.config;
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (query, kv) = (config.query_size(), config.kv_size());
        let biases = config.biases;
        let mut operators = vec![
            self.norm(W::AttentionNorm),
            self.dense(
                Buffer::Normed,
                (W::Query, query, hidden),
                biases.qkv.then_some(W::QueryBias),
                Buffer::Query,
            ),
            self.dense(Buffer::Normed, (W::Key, kv, hidden), biases.qkv.then_some(W::KeyBias), Buffer::Key),
            self.dense(
                Buffer::Normed,
                (W::Value, kv, hidden),
                biases.qkv.then_some(W::ValueBias),
                Buffer::Value,
            ),
        ];
        let (query, key) = match config.qk_norm {
            QkNorm::None => (Buffer::Query, Buffer::Key),
            QkNorm::PerHead => {
                operators.push(self.head_norm(W::QueryNorm, Buffer::Query, Buffer::NormedQuery));
                operators.push(self.head_norm(W::KeyNorm, Buffer::Key, Buffer::NormedKey));
                (Buffer::NormedQuery, Buffer::NormedKey)
            }
        };
        let output_bias = biases.output.then_some(W::AttentionOutputBias);
        let (gate_bias, up_bias) =
            (biases.feed_forward.then_some(W::GateBias), biases.feed_forward.then_some(W::UpBias));
        operators.extend([
            Operator::RopeAppend { query, key, value: Buffer::Value, out: Buffer::Rotated },
            Operator::Attention {
                query: Buffer::Rotated,
                window: config.sliding_windows[self.layer],
                out: Buffer::Attention,
            },
            self.dense(
                Buffer::Attention,
                (W::AttentionOutput, hidden, config.query_size()),
                output_bias,
                Buffer::Hidden,
            ),
            self.norm(W::FeedForwardNorm),
            self.dense(Buffer::Normed, (W::Gate, inner, hidden), gate_bias, Buffer::Gate),
            self.dense(Buffer::Normed, (W::Up, inner, hidden), up_bias, Buffer::Up),
            Operator::SwiGlu { gate: Buffer::Gate, up: Buffer::Up, out: Buffer::Activated },
            self.dense(
                Buffer::Activated,
                (W::Down, hidden, inner),
                biases.feed_forward.then_some(W::DownBias),
                Buffer::Hidden,
            ),
        ]);
        operators
    }

    fn id(&self, role: WeightRole) -> WeightId {
        WeightId { layer: Some(self.layer), role }
    }

    fn norm(&self, role: WeightRole) -> Operator {
        Operator::RmsNorm {
            input: Buffer::Hidden,
            weight: Vector { id: self.id(role), len: self.config.hidden_size },
            eps: self.config.rms_norm_eps,
            out: Buffer::Normed,
        }
    }

    fn head_norm(&self, role: WeightRole, input: Buffer, out: Buffer) -> Operator {
        Operator::RmsNorm {
            input,
            weight: Vector { id: self.id(role), len: self.config.head_dim },
            eps: self.config.rms_norm_eps,
            out,
        }
    }

    /// A product; one into the residual stream adds to it.
    fn dense(
        &self,
        input: Buffer,
        (role, rows, cols): (WeightRole, usize, usize),
        bias: Option<WeightRole>,
        out: Buffer,
    ) -> Operator {
        Operator::Dense {
            input,
            weight: Matrix { id: self.id(role), rows, cols },
            bias: bias.map(|role| Vector { id: self.id(role), len: rows }),
            write: if out == Buffer::Hidden { Write::Add } else { Write::Replace },
            out,
        }
    }
}

impl fmt::Display for DenseDecoder {
    /// A line for every operator; neighbouring layers with the same operators are shown once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.embed)?;
        let mut first = 0;
        for run in self.layers.chunk_by(|a, b| same_operators(a, b)) {
            let last = first + run.len() - 1;
            match run.len() {
                1 => writeln!(f, "layer {first}")?,
                _ => writeln!(f, "layers {first} to {last}")?,
            }
            for operator in &run[0] {
                writeln!(f, "  {operator}")?;
            }
            first = last + 1;
        }
        self.head.iter().try_for_each(|operator| writeln!(f, "{operator}"))
    }
}

/// Operators print without their layer's number.
fn same_operators(a: &[Operator], b: &[Operator]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_string() == b.to_string())
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gather { table, out } => write!(f, "{out:?} = gather {table}"),
            Self::RmsNorm { input, weight, eps, out } => {
                write!(f, "{out:?} = rms_norm {input:?} {:?}[{}] eps {eps}", weight.id.role, weight.len)
            }
            Self::Dense { input, weight, bias, write, out } => {
                let sign = match write {
                    Write::Replace => "=",
                    Write::Add => "+=",
                };
                write!(f, "{out:?} {sign} dense {input:?} {weight}")?;
                bias.iter().try_for_each(|bias| write!(f, " {:?}[{}]", bias.id.role, bias.len))
            }
            Self::RopeAppend { query, key, value, out } => {
                write!(f, "{out:?}, KV pages = rope_append {query:?} {key:?} {value:?}")
            }
            Self::Attention { query, window, out } => {
                write!(f, "{out:?} = paged_attention {query:?}")?;
                window.iter().try_for_each(|window| write!(f, " window {window}"))
            }
            Self::SwiGlu { gate, up, out } => write!(f, "{out:?} = swiglu {gate:?} {up:?}"),
        }
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{}, {}]", self.id.role, self.rows, self.cols)
    }
}

#[cfg(test)]
mod tests;

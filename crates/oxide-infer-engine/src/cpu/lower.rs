use super::plan::PAGE_SIZE;
use super::workspace::Region;
use crate::load::{LoadError, LoadProgress};
use crate::model::{Buffer, DenseDecoder, Matrix, ModelConfig, Operator, Vector, WeightId, Write};
use crate::weights::ModelWeights;
use oxide_infer::activation::swiglu;
use oxide_infer::attention::{Attention, Mask, paged_prefill};
use oxide_infer::kv_cache::{PageLayout, Paging, rope_append};
use oxide_infer::normalization::rms_norm;
use oxide_infer::{DType, Presence, SpecError};
use oxide_infer_cpu::{PackedMatrix, Plan, Update};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

/// A model's operators with their weights packed, in order.
#[derive(Debug)]
pub(super) struct CpuModel {
    /// Over all tokens of a step.
    pub(super) body: Vec<CpuOperator>,
    /// Over the rows whose logits are needed.
    pub(super) head: Vec<CpuOperator>,
}

impl CpuModel {
    /// The operators of the head that come before the logits: the last norm.
    pub(super) fn last_norm(&self) -> &[CpuOperator] {
        self.head.split_last().map_or(&[], |(_logits, before)| before)
    }
}

/// An operator with everything but its operands.
#[derive(Debug)]
pub(super) enum CpuOperator {
    Gather {
        table: Arc<PackedMatrix>,
        out: Region,
    },
    RmsNorm {
        plan: Plan<rms_norm::Spec>,
        weight: Vec<f32>,
        input: Region,
        out: Region,
    },
    Product {
        weight: Arc<PackedMatrix>,
        bias: Option<Vec<f32>>,
        update: Update,
        input: Region,
        out: Region,
    },
    RopeAppend {
        plan: Arc<Plan<rope_append::Spec>>,
        layer: usize,
        query: Region,
        key: Region,
        value: Region,
        out: Region,
    },
    Attention {
        plan: Plan<paged_prefill::Spec>,
        layer: usize,
        query: Region,
        out: Region,
    },
    SwiGlu {
        plan: Plan<swiglu::Spec>,
        gate: Region,
        up: Region,
        out: Region,
    },
}

/// Packs the weights and lowers the operators of a decoder. Each tensor's bytes in the file are released once packed.
pub(super) fn lower(
    config: &ModelConfig,
    decoder: &DenseDecoder,
    weights: &ModelWeights<'_>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<CpuModel, LoadError> {
    let total = LoadProgress {
        tensors: weights.weights().len(),
        bytes: weights.weights().iter().map(|weight| weights.stored_bytes(weight.id()) as u64).sum(),
        ..LoadProgress::default()
    };
    let rope_append = Arc::new(Plan::new(rope_append_spec(config)?));
    let mut lowering =
        Lowering { config, weights, rope_append, packed: HashMap::new(), done: total, progress };
    (lowering.progress)(total);
    let mut body = lowering.operators(std::slice::from_ref(&decoder.embed), 0)?;
    for (layer, operators) in decoder.layers.iter().enumerate() {
        body.extend(lowering.operators(operators, layer)?);
    }
    let head = lowering.operators(&decoder.head, 0)?;
    Ok(CpuModel { body, head })
}

struct Lowering<'a> {
    config: &'a ModelConfig,
    weights: &'a ModelWeights<'a>,
    /// One for all layers: it has a table of angles.
    rope_append: Arc<Plan<rope_append::Spec>>,
    /// Matrices by their weights, for those that two operators read.
    packed: HashMap<Vec<WeightId>, Arc<PackedMatrix>>,
    done: LoadProgress,
    progress: &'a mut dyn FnMut(LoadProgress),
}

impl Lowering<'_> {
    /// Lowers operators in order; neighbouring products of one input into neighbouring buffers become one.
    fn operators(&mut self, operators: &[Operator], layer: usize) -> Result<Vec<CpuOperator>, LoadError> {
        let groups = operators.chunk_by(|a, b| self.are_one_product(a, b));
        groups.map(<[_]>::to_vec).collect::<Vec<_>>().iter().map(|group| self.group(group, layer)).collect()
    }

    fn are_one_product(&self, a: &Operator, b: &Operator) -> bool {
        match (a, b) {
            (
                Operator::Dense { input: a_input, write: a_write, out: a_out, .. },
                Operator::Dense { input, write, out, .. },
            ) => {
                let (a_out, out) = (self.region(*a_out), self.region(*out));
                a_input == input
                    && a_write == write
                    && a_out.slab == out.slab
                    && a_out.start + a_out.width == out.start
            }
            _ => false,
        }
    }

    fn group(&mut self, group: &[Operator], layer: usize) -> Result<CpuOperator, LoadError> {
        Ok(match group[0] {
            Operator::Gather { table, out } => {
                CpuOperator::Gather { table: self.matrix(&[table])?, out: self.region(out) }
            }
            Operator::RmsNorm { input, weight, eps, out } => CpuOperator::RmsNorm {
                plan: Plan::new(rms_norm_spec(weight.len, eps)?),
                weight: self.vector(&weight),
                input: self.region(input),
                out: self.region(out),
            },
            Operator::Dense { input, write, out, .. } => self.product(group, input, write, out)?,
            Operator::RopeAppend { query, key, value, out } => CpuOperator::RopeAppend {
                plan: self.rope_append.clone(),
                layer,
                query: self.region(query),
                key: self.region(key),
                value: self.region(value),
                out: self.region(out),
            },
            Operator::Attention { query, window, out } => CpuOperator::Attention {
                plan: Plan::new(attention_spec(self.config, window)?),
                layer,
                query: self.region(query),
                out: self.region(out),
            },
            Operator::SwiGlu { gate, up, out } => CpuOperator::SwiGlu {
                plan: Plan::new(swiglu_spec(self.config)?),
                gate: self.region(gate),
                up: self.region(up),
                out: self.region(out),
            },
        })
    }

    fn product(
        &mut self,
        group: &[Operator],
        input: Buffer,
        write: Write,
        first_out: Buffer,
    ) -> Result<CpuOperator, LoadError> {
        let mut matrices = Vec::new();
        let mut bias = Vec::new();
        let mut has_bias = false;
        for operator in group {
            let Operator::Dense { weight, bias: own, .. } = operator else { continue };
            matrices.push(*weight);
            has_bias |= own.is_some();
            match own {
                Some(own) => bias.extend(self.vector(own)),
                None => bias.resize(bias.len() + weight.rows, 0.0),
            }
        }
        let first = self.region(first_out);
        Ok(CpuOperator::Product {
            weight: self.matrix(&matrices)?,
            bias: has_bias.then_some(bias),
            update: match write {
                Write::Replace => Update::Overwrite,
                Write::Add => Update::Add,
            },
            input: self.region(input),
            out: Region { width: matrices.iter().map(|matrix| matrix.rows).sum(), ..first },
        })
    }

    /// Matrices stacked along their rows.
    fn matrix(&mut self, matrices: &[Matrix]) -> Result<Arc<PackedMatrix>, LoadError> {
        let ids: Vec<_> = matrices.iter().map(|matrix| matrix.id).collect();
        if let Some(packed) = self.packed.get(&ids) {
            return Ok(packed.clone());
        }
        let mut packed = PackedMatrix::new(matrices[0].cols);
        for matrix in matrices {
            let stored = self.weights.matrix(matrix);
            packed.push(stored.format, matrix.rows, &stored.bytes)?;
            self.loaded(matrix.id);
        }
        let packed = Arc::new(packed);
        self.packed.insert(ids, packed.clone());
        Ok(packed)
    }

    fn vector(&mut self, vector: &Vector) -> Vec<f32> {
        let values = self.weights.vector(vector);
        self.loaded(vector.id);
        values
    }

    fn loaded(&mut self, id: WeightId) {
        self.weights.release(id);
        self.done.tensors_done += 1;
        self.done.bytes_done += self.weights.stored_bytes(id) as u64;
        (self.progress)(self.done);
    }

    fn region(&self, buffer: Buffer) -> Region {
        Region::of(buffer, self.config)
    }
}

fn rms_norm_spec(hidden_size: usize, epsilon: f32) -> Result<rms_norm::Spec, SpecError> {
    rms_norm::Spec::new(rms_norm::Config {
        dtype: DType::F32,
        weight_dtype: DType::F32,
        output_dtype: DType::F32,
        hidden_size,
        epsilon,
        residual: Presence::Absent,
    })
}

const PAGING: Paging = Paging { dtype: DType::F32, layout: PageLayout::Hnd, page_size: PAGE_SIZE };

fn rope_append_spec(config: &ModelConfig) -> Result<rope_append::Spec, SpecError> {
    rope_append::Spec::new(rope_append::Config {
        rope: config.rope.contract(DType::F32, config.head_dim),
        num_q_heads: config.num_heads,
        num_kv_heads: config.num_kv_heads,
        paging: PAGING,
    })
}

fn swiglu_spec(config: &ModelConfig) -> Result<swiglu::Spec, SpecError> {
    swiglu::Spec::new(swiglu::Config { dtype: DType::F32, size: config.intermediate_size })
}

fn attention_spec(
    config: &ModelConfig,
    window: Option<NonZeroU32>,
) -> Result<paged_prefill::Spec, SpecError> {
    paged_prefill::Spec::new(paged_prefill::Config {
        attention: Attention {
            dtype: DType::F32,
            num_q_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            scale: (1.0 / (config.head_dim as f64).sqrt()) as f32,
            window: window.map(|window| window.get() as usize),
            soft_cap: None,
            lse: Presence::Absent,
        },
        paging: PAGING,
        mask: Mask::Causal,
    })
}

use super::lower::CpuOperator;
use super::pools::Pools;
use super::workspace::{Region, Slabs};
use crate::batch::BatchRow;
use oxide_infer::activation::swiglu;
use oxide_infer::attention::paged_prefill;
use oxide_infer::kv_cache::rope_append;
use oxide_infer::normalization::rms_norm;
use oxide_infer::{FloatView, FloatViewMut, LayoutError, OperandError, PageId, Spec as _, TokenId, View};
use oxide_infer_cpu::{CpuError, Plan, Team};

/// What the operators of a step need to know of its rows, in the contracts' arrays. Reused between steps.
#[derive(Debug, Default)]
pub(super) struct StepTables {
    /// `[tokens]`
    pub(super) tokens: Vec<TokenId>,
    /// `[tokens]`
    pub(super) positions: Vec<i32>,
    /// `[batch + 1]`
    pub(super) query_start: Vec<i32>,
    /// `[batch]`
    pub(super) kv_len: Vec<i32>,
    /// `[batch, max_pages]`
    pub(super) block_table: Vec<i32>,
    pub(super) max_pages: usize,
}

/// An operator refused its operands: the step that was handed over is not one that can be computed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    #[error(transparent)]
    Operand(#[from] OperandError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Cpu(#[from] CpuError),
}

/// Everything that an operator computes on.
pub(super) struct Forward<'a> {
    pub(super) team: &'a Team<'a>,
    pub(super) slabs: &'a mut Slabs,
    pub(super) pools: &'a mut Pools,
    pub(super) tables: &'a StepTables,
    pub(super) num_pages: usize,
}

impl Forward<'_> {
    /// Runs operators in order over the first `rows` rows of their buffers.
    pub(super) fn run(&mut self, operators: &[CpuOperator], rows: usize) -> Result<(), ForwardError> {
        operators.iter().try_for_each(|operator| self.operator(operator, rows))
    }

    fn operator(&mut self, operator: &CpuOperator, rows: usize) -> Result<(), ForwardError> {
        match operator {
            CpuOperator::Gather { table, out } => {
                let output = self.slabs.rows_mut(out.slab, rows, out.stride);
                oxide_infer_cpu::gather(self.team, &self.tables.tokens, table, output)?;
            }
            CpuOperator::RmsNorm { plan, weight, input, out } => {
                let group = weight.len();
                let ([source], target) = self.slabs.split([input.slab], out.slab);
                let operands = rms_norm::Operands {
                    input: heads(source, *input, rows, group)?,
                    weight: FloatView::contiguous(weight, [group])?,
                    residual: None,
                    output: heads_mut(target, *out, rows, group)?,
                };
                plan.run(self.team, operands)?;
            }
            CpuOperator::Product { weight, bias, update, input, out } => {
                let ([source], target) = self.slabs.split([input.slab], out.slab);
                let source = &source[..rows * input.stride];
                let target = &mut target[..rows * out.stride];
                oxide_infer_cpu::gemm(self.team, source, weight, bias.as_deref(), *update, target)?;
            }
            CpuOperator::RopeAppend { plan, layer, query, key, value, out } => {
                self.rope_append(plan, *layer, [*query, *key, *value], *out, rows)?;
            }
            CpuOperator::Attention { plan, layer, query, out } => {
                self.attention(plan, *layer, *query, *out, rows)?;
            }
            CpuOperator::SwiGlu { plan, gate, up, out } => {
                let ([gates, ups], target) = self.slabs.split([gate.slab, up.slab], out.slab);
                let operands = swiglu::Operands {
                    gate: columns(gates, *gate, rows)?,
                    up: columns(ups, *up, rows)?,
                    output: FloatViewMut::strided(target, [rows, out.width], [out.stride, 1])?,
                };
                plan.run(self.team, operands)?;
            }
        }
        Ok(())
    }

    fn rope_append(
        &mut self,
        plan: &Plan<rope_append::Spec>,
        layer: usize,
        [query, key, value]: [Region; 3],
        out: Region,
        rows: usize,
    ) -> Result<(), ForwardError> {
        let config = plan.spec().config();
        let head_dim = config.rope.head_dim;
        let shape = config.paging.pool_shape(self.num_pages, config.num_kv_heads, head_dim);
        let ([queries, keys, values], target) =
            self.slabs.split([query.slab, key.slab, value.slab], out.slab);
        let (k_pages, v_pages) = self.pools.layer(layer);
        let operands = rope_append::Operands {
            q: heads(queries, query, rows, head_dim)?,
            k: heads(keys, key, rows, head_dim)?,
            v: heads(values, value, rows, head_dim)?,
            positions: View::contiguous(&self.tables.positions, [rows])?,
            query_start: self.tables.query_start()?,
            block_table: self.tables.block_table()?,
            q_out: heads_mut(target, out, rows, head_dim)?,
            k_pages: FloatViewMut::contiguous(k_pages, shape)?,
            v_pages: FloatViewMut::contiguous(v_pages, shape)?,
        };
        plan.run(self.team, operands)?;
        Ok(())
    }

    fn attention(
        &mut self,
        plan: &Plan<paged_prefill::Spec>,
        layer: usize,
        query: Region,
        out: Region,
        rows: usize,
    ) -> Result<(), ForwardError> {
        let config = plan.spec().config();
        let head_dim = config.attention.head_dim;
        let shape = config.paging.pool_shape(self.num_pages, config.attention.num_kv_heads, head_dim);
        let ([queries], target) = self.slabs.split([query.slab], out.slab);
        let (k_pages, v_pages) = self.pools.layer(layer);
        let operands = paged_prefill::Operands {
            q: heads(queries, query, rows, head_dim)?,
            k_pages: FloatView::contiguous(k_pages, shape)?,
            v_pages: FloatView::contiguous(v_pages, shape)?,
            block_table: self.tables.block_table()?,
            kv_len: View::contiguous(&self.tables.kv_len, [self.tables.kv_len.len()])?,
            query_start: self.tables.query_start()?,
            output: heads_mut(target, out, rows, head_dim)?,
            lse: None,
        };
        plan.run(self.team, operands)?;
        Ok(())
    }
}

impl StepTables {
    /// Begins a step whose longest block table has `max_pages` entries.
    pub(super) fn clear(&mut self, max_pages: usize) {
        self.tokens.clear();
        self.positions.clear();
        self.query_start.clear();
        self.query_start.push(0);
        self.kv_len.clear();
        self.block_table.clear();
        self.max_pages = max_pages;
    }

    /// Adds a row's place, length and pages.
    pub(super) fn add_row(&mut self, row: &BatchRow, pages: &[PageId]) {
        self.query_start.push(row.tokens.end as i32);
        self.kv_len.push(row.kv_len as i32);
        self.block_table.extend(pages.iter().map(|page| page.0 as i32));
        // Entries that no position needs are never read.
        self.block_table.resize(self.kv_len.len() * self.max_pages, 0);
    }

    fn query_start(&self) -> Result<View<'_, i32, 1>, LayoutError> {
        View::contiguous(&self.query_start, [self.query_start.len()])
    }

    fn block_table(&self) -> Result<View<'_, i32, 2>, LayoutError> {
        View::contiguous(&self.block_table, [self.kv_len.len(), self.max_pages])
    }
}

/// A region as `[rows, heads, head_dim]`.
fn heads(
    slab: &[f32],
    region: Region,
    rows: usize,
    head_dim: usize,
) -> Result<FloatView<'_, 3>, LayoutError> {
    let shape = [rows, region.width / head_dim, head_dim];
    FloatView::strided(&slab[region.start..], shape, [region.stride, head_dim, 1])
}

/// As [`heads`], to write.
fn heads_mut(
    slab: &mut [f32],
    region: Region,
    rows: usize,
    head_dim: usize,
) -> Result<FloatViewMut<'_, 3>, LayoutError> {
    let shape = [rows, region.width / head_dim, head_dim];
    FloatViewMut::strided(&mut slab[region.start..], shape, [region.stride, head_dim, 1])
}

/// A region as `[rows, width]`.
fn columns(slab: &[f32], region: Region, rows: usize) -> Result<FloatView<'_, 2>, LayoutError> {
    FloatView::strided(&slab[region.start..], [rows, region.width], [region.stride, 1])
}

//! What follows a step's body: from its rows to logits and tokens.

use super::{Binder, PrepareError, Sequence, part};
use crate::cuda::classes::DecodeClass;
use crate::cuda::fuse::Step;
use crate::cuda::inputs::{HeadInputLayout, HeadOutputLayout};
use crate::cuda::lower::{Activation, Norm};
use crate::cuda::memory::Activations;
use crate::cuda::plan::HeadOperator;
use oxide_infer_cuda::runtime::{Operands, Region, RegionError};

/// From logits to tokens.
pub(in crate::cuda) struct Samplers {
    /// Of rows that all take their best token.
    pub(in crate::cuda) greedy: Sequence,
    pub(in crate::cuda) full: Sequence,
}

/// What is done with rows whose logits are needed, in one class.
pub(in crate::cuda) struct BoundHead {
    pub(in crate::cuda) rows: usize,
    pub(in crate::cuda) inputs: HeadInputLayout,
    pub(in crate::cuda) outputs: HeadOutputLayout,
    /// From a step's residual stream to those rows of it.
    pub(in crate::cuda) picked: Sequence,
    /// From what a step that reads prompts leaves, the last layer's attention and the residual stream before it, to those
    /// rows of the residual stream after that layer.
    pub(in crate::cuda) last: Sequence,
    /// From picked rows to logits.
    pub(in crate::cuda) logits: Sequence,
    pub(in crate::cuda) samplers: Samplers,
    /// Log-probabilities of the tokens that were sampled.
    pub(in crate::cuda) sampled_logprobs: Sequence,
    /// Log-probabilities of the tokens that were given.
    pub(in crate::cuda) given_logprobs: Sequence,
}

impl BoundHead {
    pub(in crate::cuda) fn sequences(&self) -> [&Sequence; 7] {
        let Self { picked, last, logits, samplers, sampled_logprobs, given_logprobs, .. } = self;
        let Samplers { greedy, full } = samplers;
        [picked, last, logits, greedy, full, sampled_logprobs, given_logprobs]
    }
}

impl Binder<'_> {
    /// Nearly every row of a decode step is sampled: the head reads the residual stream itself.
    pub(super) fn decode_logits(
        &mut self,
        class: DecodeClass,
        step: &Step,
    ) -> Result<Sequence, PrepareError> {
        let mut sequence = Sequence::default();
        match &step.logits {
            Some(request) => self.scaled_logits(request, &mut sequence)?,
            None => {
                self.head_norm(class.rows, &self.buffers.step, &mut sequence)?;
                self.logits(class.rows, &mut sequence)?;
            }
        }
        Ok(sequence)
    }

    /// Tokens of greedy rows by the best of the tiles of their logits, which are in no memory.
    pub(super) fn candidates(
        &mut self,
        class: DecodeClass,
        draws: &Draws,
    ) -> Result<Option<Sequence>, PrepareError> {
        let Some([candidates, best]) = self.requests.candidates(class) else { return Ok(None) };
        let (buffers, output) = (self.buffers, self.requests.model.head.output);
        let mut sequence = Sequence::default();
        self.head_norm(class.rows, &buffers.step, &mut sequence)?;
        let weight = self.weight(output.id, output.rows * output.cols)?;
        let operands = Operands::new()
            .span("input", buffers.picked.span(Activation::Normed)?)
            .region("weight", &weight)
            .region("best_logits", &buffers.best_logits)
            .region("best_tokens", &buffers.best_tokens);
        self.bind(&candidates, operands, &mut sequence)?;
        let operands = Operands::new()
            .region("best_logits", &buffers.best_logits)
            .region("best_tokens", &buffers.best_tokens);
        let operands = draws.add_to(operands).region("last_tokens", &buffers.last_tokens);
        self.bind(&best, operands, &mut sequence)?;
        Ok(Some(sequence))
    }

    pub(in crate::cuda) fn head(&mut self, rows: usize) -> Result<BoundHead, PrepareError> {
        let (inputs, outputs) = (HeadInputLayout::new(rows), HeadOutputLayout::new(rows));
        let buffers = self.buffers;
        let mut picked = Sequence::default();
        self.pick(Activation::Hidden, rows, &inputs, &mut picked)?;
        let last = self.last_layer(rows, &inputs)?;
        let mut logits = Sequence::default();
        self.head_norm(rows, &buffers.picked, &mut logits)?;
        self.logits(rows, &mut logits)?;
        let draws = Draws::new((&buffers.head_inputs, &inputs), (&buffers.head_outputs, &outputs))?;
        let samplers = self.samplers(rows, &draws)?;
        let given = part(&buffers.head_inputs, &inputs.given)?;
        let mut sampled_logprobs = Sequence::default();
        self.logprobs(rows, &draws.tokens, &outputs, &mut sampled_logprobs)?;
        let mut given_logprobs = Sequence::default();
        self.logprobs(rows, &given, &outputs, &mut given_logprobs)?;
        Ok(BoundHead {
            rows,
            inputs,
            outputs,
            picked,
            last,
            logits,
            samplers,
            sampled_logprobs,
            given_logprobs,
        })
    }

    /// What comes after the last attention, of picked rows alone.
    fn last_layer(&mut self, rows: usize, inputs: &HeadInputLayout) -> Result<Sequence, PrepareError> {
        let mut sequence = Sequence::default();
        self.pick(Activation::Hidden, rows, inputs, &mut sequence)?;
        self.pick(Activation::Attention, rows, inputs, &mut sequence)?;
        for operator in self.requests.model.last_layer().1 {
            let Some(request) = self.requests.last(operator, rows) else {
                unreachable!("the model is covered, and this operator has no contract: {operator:?}")
            };
            self.row_wise(&request, operator, &self.buffers.picked, &mut sequence)?;
        }
        Ok(sequence)
    }

    fn pick(
        &mut self,
        activation: Activation,
        rows: usize,
        inputs: &HeadInputLayout,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let ids = part::<u32>(&self.buffers.head_inputs, &inputs.rows)?;
        let operands = Operands::new()
            .region("ids", &ids)
            .span("table", self.buffers.step.span(activation)?)
            .span("output", self.buffers.picked.span(activation)?)
            .status(self.status);
        self.bind(&self.requests.head(HeadOperator::Pick(activation), rows), operands, to)
    }

    /// Normalizes a residual stream: a step's or that of picked rows.
    fn head_norm(&mut self, rows: usize, of: &Activations, to: &mut Sequence) -> Result<(), PrepareError> {
        let Norm { weight, eps } = self.requests.model.head.norm;
        let weight = self.weight(weight.id, weight.len)?;
        let operands = Operands::new()
            .span("input", of.span(Activation::Hidden)?)
            .region("weight", &weight)
            .span("output", self.buffers.picked.span(Activation::Normed)?)
            .attribute("epsilon", eps);
        self.bind(&self.requests.head(HeadOperator::Norm, rows), operands, to)
    }

    fn logits(&mut self, rows: usize, to: &mut Sequence) -> Result<(), PrepareError> {
        let output = self.requests.model.head.output;
        let weight = self.weight(output.id, output.rows * output.cols)?;
        let operands = Operands::new()
            .span("input", self.buffers.picked.span(Activation::Normed)?)
            .region("weight", &weight)
            .region("output", &self.buffers.logits);
        self.bind(&self.requests.head(HeadOperator::Logits, rows), operands, to)
    }

    pub(super) fn samplers(&mut self, rows: usize, draws: &Draws) -> Result<Samplers, PrepareError> {
        Ok(Samplers {
            greedy: self.sampler(HeadOperator::Greedy, rows, draws)?,
            full: self.sampler(HeadOperator::Sample, rows, draws)?,
        })
    }

    fn sampler(
        &mut self,
        operator: HeadOperator,
        rows: usize,
        draws: &Draws,
    ) -> Result<Sequence, PrepareError> {
        let buffers = self.buffers;
        let operands =
            Operands::new().region("logits", &buffers.logits).region("last_tokens", &buffers.last_tokens);
        let mut operands = draws.add_to(operands);
        if operator == HeadOperator::Sample {
            operands = operands
                .region("row_floats", &draws.floats)
                .region("masks", &buffers.masks)
                .region("adjust_start", &draws.adjust_start)
                .region("adjust_tokens", &buffers.adjust_tokens)
                .region("adjust_values", &buffers.adjust_values)
                .region("history", &buffers.history);
        }
        let mut sequence = Sequence::default();
        self.bind(&self.requests.head(operator, rows), operands, &mut sequence)?;
        Ok(sequence)
    }

    fn logprobs(
        &mut self,
        rows: usize,
        tokens: &Region<u32>,
        outputs: &HeadOutputLayout,
        to: &mut Sequence,
    ) -> Result<(), PrepareError> {
        let memory = &self.buffers.head_outputs;
        let (chosen, rank) =
            (part::<f32>(memory, &outputs.chosen_logprob)?, part::<u32>(memory, &outputs.chosen_rank)?);
        let (top_tokens, top_logprobs) =
            (part::<u32>(memory, &outputs.top_tokens)?, part::<f32>(memory, &outputs.top_logprobs)?);
        let row_status = part::<i32>(memory, &outputs.logprob_status)?;
        let operands = Operands::new()
            .region("logits", &self.buffers.logits)
            .region("tokens", tokens)
            .region("chosen_logprob", &chosen)
            .region("chosen_rank", &rank)
            .region("top_tokens", &top_tokens)
            .region("top_logprobs", &top_logprobs)
            .region("row_status", &row_status);
        self.bind(&self.requests.head(HeadOperator::LogProbs, rows), operands, to)
    }
}

/// What sampling reads of a chunk's rows, and where its tokens go.
pub(super) struct Draws {
    ints: Region<u32>,
    floats: Region<f32>,
    adjust_start: Region<i32>,
    tokens: Region<u32>,
    row_status: Region<i32>,
}

impl Draws {
    pub(super) fn new(
        (inputs, of_inputs): (&Region<u32>, &HeadInputLayout),
        (outputs, of_outputs): (&Region<u32>, &HeadOutputLayout),
    ) -> Result<Self, RegionError> {
        Ok(Self {
            ints: part(inputs, &of_inputs.ints)?,
            floats: part(inputs, &of_inputs.floats)?,
            adjust_start: part(inputs, &of_inputs.adjust_start)?,
            tokens: part(outputs, &of_outputs.tokens)?,
            row_status: part(outputs, &of_outputs.row_status)?,
        })
    }

    /// Adds what every sampler has.
    fn add_to<'a>(&'a self, operands: Operands<'a>) -> Operands<'a> {
        operands
            .region("row_ints", &self.ints)
            .region("tokens", &self.tokens)
            .region("row_status", &self.row_status)
    }
}

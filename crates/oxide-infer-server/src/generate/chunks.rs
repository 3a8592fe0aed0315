//! OpenAI's form of streams for chats and completions: chunks of one shape.

use super::choice::Delta;
use super::stream::{EventWriter, Frame, WrittenFields};
use super::{Generation, PromptRun};
use crate::error::ApiError;
use crate::protocol::params::UsageReports;
use crate::protocol::response::{Beginning, Head, PromptTokenLogprobs, Rest, Usage};
use oxide_infer::TokenId;
use serde::Serialize;
use std::sync::Arc;

/// The form of one route's answers.
pub(crate) trait Format: Send + 'static {
    /// `object` of a whole response.
    const WHOLE: &'static str;
    /// `object` of a chunk.
    const CHUNK: &'static str;
    /// An answer.
    type Choice: Serialize;
    /// A piece of an answer.
    type Chunk: Serialize;

    /// A whole answer; `delta` has all of it.
    fn choice(&self, generation: &Generation, run: &PromptRun, index: usize, delta: Delta) -> Self::Choice;

    /// What is sent before an answer's first piece.
    fn opening(&self, generation: &Generation, run: &PromptRun, index: usize) -> Option<Self::Chunk>;

    /// A piece of an answer; `None` if there is nothing to show.
    fn chunk(
        &self,
        generation: &Generation,
        run: &PromptRun,
        index: usize,
        delta: Delta,
    ) -> Option<Self::Chunk>;

    /// The prompt's tokens, where the response and not each answer has them.
    fn prompt_token_ids(&self, generation: &Generation) -> Option<Arc<[TokenId]>>;

    /// The prompt's log-probabilities, where the response and not each answer has them.
    fn prompt_logprobs(&self, generation: &Generation) -> Option<Vec<Option<PromptTokenLogprobs>>>;
}

/// All answers as (number, prompt, choice of the prompt), in order.
pub(super) fn answers(generation: &Generation) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
    let (prompts, choices) = (generation.prompts().len(), generation.params().choices.get() as usize);
    (0..prompts * choices).map(move |index| (index, index / choices, index % choices))
}

/// Writes the answers' pieces as chunks.
#[derive(Debug)]
pub(crate) struct ChunkWriter<F> {
    format: F,
    beginning: WrittenFields,
    usage: UsageReports,
    /// Which answers have had their opening.
    opened: Vec<bool>,
}

impl<F: Format> ChunkWriter<F> {
    /// Before the first chunk.
    ///
    /// # Errors
    /// [`ApiError::Internal`] if what chunks begin with cannot be written as JSON.
    pub(crate) fn new(
        generation: &Generation,
        format: F,
        head: Head,
        usage: UsageReports,
    ) -> Result<Self, ApiError> {
        let beginning = WrittenFields::of(&Beginning::new(head))?;
        Ok(Self { format, beginning, usage, opened: vec![false; answers(generation).count()] })
    }

    /// `usage` of a chunk that is not the last: null says that the last will have it.
    fn chunk_usage(&self, so_far: Usage) -> Option<Option<Usage>> {
        match self.usage {
            UsageReports::None => None,
            UsageReports::AtEnd => Some(None),
            UsageReports::Always => Some(Some(so_far)),
        }
    }

    fn write_chunk(
        &self,
        frame: &mut Frame,
        chunk: Option<F::Chunk>,
        usage: Option<Option<Usage>>,
        prompt_token_ids: Option<Arc<[TokenId]>>,
    ) -> Result<(), ApiError> {
        let Some(chunk) = chunk else { return Ok(()) };
        let mut rest = Rest::new([chunk], usage);
        rest.prompt_token_ids = prompt_token_ids;
        frame.event_after(&self.beginning, &rest)
    }
}

impl<F: Format> EventWriter for ChunkWriter<F> {
    const END: &'static [u8] = b"data: [DONE]\n\n";

    fn news(&mut self, generation: &mut Generation, frame: &mut Frame) -> Result<(), ApiError> {
        for (index, prompt, choice) in answers(generation) {
            let delta = generation.take_delta(prompt, choice);
            let run = &generation.prompts()[prompt];
            if run.cached_tokens.is_none() {
                continue;
            }
            let usage = self.chunk_usage(run.usage_of(choice));
            if !std::mem::replace(&mut self.opened[index], true) {
                let prompt_ids = self.format.prompt_token_ids(generation).filter(|_| index == 0);
                let opening = self.format.opening(generation, run, index);
                self.write_chunk(frame, opening, usage, prompt_ids)?;
            }
            let chunk = self.format.chunk(generation, run, index, delta);
            self.write_chunk(frame, chunk, usage, None)?;
        }
        if generation.is_done() && self.usage != UsageReports::None {
            let none: [F::Chunk; 0] = [];
            frame.event_after(&self.beginning, &Rest::new(none, Some(Some(generation.usage()))))?;
        }
        Ok(())
    }

    fn failure(&mut self, error: &ApiError, frame: &mut Frame) -> Result<(), ApiError> {
        frame.event(None, &error.body())
    }
}

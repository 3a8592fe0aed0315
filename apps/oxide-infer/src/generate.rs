//! One answer in this process: a prompt goes into the engine, text comes out piece by piece.

use crate::cli::options::SamplingOptions;
use crate::generation_config::GenerationConfig;
use anyhow::Context;
use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use oxide_infer_engine::request::{Masking, StopConditions};
use oxide_infer_engine::{EngineEvent, EngineHandle, EngineRequest, FinishReason};
use oxide_infer_server::text::{
    ChatInput, Detokenizer, SpecialInOutput, StopMatcher, StopStep, StopText, TextModel,
};
use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;

/// A loaded model that answers.
pub(crate) struct Generator {
    pub(crate) text: Arc<TextModel>,
    pub(crate) engine: EngineHandle,
    pub(crate) defaults: GenerationConfig,
}

/// What came of a prompt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) end: End,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The model ended it, or a stop string did.
    Complete,
    /// There may be no more tokens.
    Length,
    /// The user did.
    Interrupted,
}

impl Generator {
    /// Token ids of a conversation, with the head of the next answer.
    pub(crate) fn encode_chat(&self, messages: &[serde_json::Value]) -> anyhow::Result<Vec<TokenId>> {
        let chat = ChatInput { messages: messages.to_vec(), ..ChatInput::default() };
        let prompt = self.text.render_chat(&chat)?;
        Ok(self.text.encode_prompt(&prompt)?)
    }

    /// Generates until the answer ends or `interrupt` does, and hands each piece of text to `write`.
    pub(crate) async fn answer(
        &self,
        prompt: Vec<TokenId>,
        sampling: &SamplingOptions,
        interrupt: impl Future<Output = ()>,
        mut write: impl FnMut(&str) -> std::io::Result<()>,
    ) -> anyhow::Result<Answer> {
        let mut pieces = Pieces {
            detokenizer: self.text.detokenizer(SpecialInOutput::Skip),
            stops: StopMatcher::new(&sampling.stop, StopText::Exclude)?,
            text: String::new(),
        };
        let mut events = self.engine.submit(self.request(prompt, sampling)?)?;
        let mut interrupt = std::pin::pin!(interrupt);
        let end = loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = &mut interrupt => break End::Interrupted,
            };
            match event {
                Some(EngineEvent::Token { token, .. }) => {
                    if let Stopped::Yes = pieces.take(token, &mut write)? {
                        break End::Complete;
                    }
                }
                Some(EngineEvent::Finished { reason, .. }) => break end_of(reason),
                Some(EngineEvent::Failed(error)) => return Err(error).context("the model could not answer"),
                Some(EngineEvent::PromptDone { .. }) => {}
                None => break End::Complete,
            }
        };
        // Cancels what is left of the request.
        drop(events);
        pieces.finish(&mut write)?;
        Ok(Answer { text: pieces.text, end })
    }

    fn request(&self, prompt: Vec<TokenId>, options: &SamplingOptions) -> anyhow::Result<EngineRequest> {
        let limits = self.engine.limits();
        let room = limits.max_model_len.saturating_sub(prompt.len());
        let stop = StopConditions {
            max_tokens: options.max_tokens.min(u32::try_from(room).unwrap_or(u32::MAX)),
            eos_token_ids: self.text.eos_ids().into(),
            ..StopConditions::default()
        };
        Ok(EngineRequest {
            prompt: prompt.into(),
            choices: NonZeroU32::MIN,
            sampling: Arc::new(self.sampling(options, limits.vocab_size)?),
            stop,
            logprobs: None,
            prompt_logprobs: None,
            masking: Masking::None,
            pooling: None,
        })
    }

    fn sampling(&self, options: &SamplingOptions, vocab_size: usize) -> anyhow::Result<SamplingParams> {
        let defaults = &self.defaults;
        let params = SamplingParams {
            temperature: options.temperature.or(defaults.temperature).unwrap_or(1.0),
            top_k: options.top_k.or(defaults.top_k).filter(|k| *k > 0),
            top_p: options.top_p.or(defaults.top_p).unwrap_or(1.0),
            min_p: options.min_p.or(defaults.min_p).unwrap_or(0.0),
            repetition_penalty: options.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0),
            presence_penalty: options.presence_penalty,
            frequency_penalty: options.frequency_penalty,
            logit_bias: Arc::from([]),
            seed: options.seed.unwrap_or_else(random_seed),
        };
        params.validate(vocab_size)?;
        Ok(params)
    }
}

fn end_of(reason: FinishReason) -> End {
    match reason {
        FinishReason::Length => End::Length,
        FinishReason::EndOfSequence
        | FinishReason::StopToken(_)
        | FinishReason::Host
        | FinishReason::Pooled => End::Complete,
    }
}

/// A seed that differs from run to run: the standard library keys its hash maps at random.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Tokens on their way to text.
struct Pieces {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    text: String,
}

enum Stopped {
    Yes,
    No,
}

impl Pieces {
    fn take(
        &mut self,
        token: TokenId,
        write: &mut impl FnMut(&str) -> std::io::Result<()>,
    ) -> std::io::Result<Stopped> {
        let piece = self.detokenizer.push(token);
        match self.stops.push(&piece) {
            StopStep::Emit(text) => {
                self.emit(&text, write)?;
                Ok(Stopped::No)
            }
            StopStep::Stop { text, .. } => {
                self.emit(&text, write)?;
                Ok(Stopped::Yes)
            }
        }
    }

    /// What was held back until no more can come.
    fn finish(&mut self, write: &mut impl FnMut(&str) -> std::io::Result<()>) -> std::io::Result<()> {
        let rest = self.detokenizer.finish();
        let (StopStep::Emit(text) | StopStep::Stop { text, .. }) = self.stops.push(&rest);
        self.emit(&text, write)?;
        let held = self.stops.finish();
        self.emit(&held, write)
    }

    fn emit(
        &mut self,
        text: &str,
        write: &mut impl FnMut(&str) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        self.text.push_str(text);
        if text.is_empty() { Ok(()) } else { write(text) }
    }
}

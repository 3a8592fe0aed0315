//! From a checked request to the engine and back: prompts in, deltas of answers out.

mod chat;
mod choice;
mod chunks;
mod completion;
mod embedding;
mod events;
mod logprobs;
mod messages;
mod output;
mod parts;
mod responses;
mod stream;
mod whole;

pub(crate) use chat::ChatFormat;
pub(crate) use chunks::{ChunkWriter, Format};
pub(crate) use completion::CompletionFormat;
pub(crate) use embedding::{EmbeddingJob, EmbeddingPrompt, places as embedding_places};
pub(crate) use messages::{MessageHead, MessageWriter};
pub(crate) use output::{CallEnding, CallPlan, OutputPlan, TextBeside};
pub(crate) use responses::{ResponseHead, ResponseWriter};
pub(crate) use stream::respond_streaming;
pub(crate) use whole::respond_whole;

use crate::app::{App, InFlight};
use crate::error::ApiError;
use crate::grammar::Grammar;
use crate::metrics::FinishedChoice;
use crate::protocol::params::{GenerationParams, TokenIds};
use crate::protocol::response::Usage;
use crate::text::{StopMatcher, Tokenizer};
use choice::{AfterToken, Choice, Delta, KeptTokens};
use events::{Events, request_error};
use oxide_infer::TokenId;
use oxide_infer::sampling::{LogProbs, SamplingParamsError};
use oxide_infer_engine::request::{ChoiceIndex, Masking, StopConditions, Timings};
use oxide_infer_engine::{EngineEvent, EngineRequest, FinishReason, SubmitError};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A prompt that is ready for the engine.
#[derive(Clone, Debug)]
pub(crate) struct PreparedPrompt {
    /// Its tokens.
    pub(crate) tokens: Arc<[TokenId]>,
    /// Its text, where answers start with it.
    pub(crate) echo: Option<String>,
    /// Tokens that an answer may have.
    pub(crate) max_tokens: u32,
    /// The field it came in.
    pub(crate) param: String,
}

/// A request that is ready for the engine.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The prompts; at least one.
    pub(crate) prompts: Vec<PreparedPrompt>,
    /// How to answer.
    pub(crate) params: GenerationParams,
    /// Log-probabilities of generated tokens.
    pub(crate) logprobs: Option<u32>,
    /// Log-probabilities of prompt tokens.
    pub(crate) prompt_logprobs: Option<u32>,
    /// What every answer is held to.
    pub(crate) grammar: Option<Arc<Grammar>>,
    /// What the answers' text is made of.
    pub(crate) output: OutputPlan,
}

/// A request that the engine works on. Dropping it cancels what is left of it.
#[derive(Debug)]
pub(crate) struct Generation {
    app: Arc<App>,
    params: GenerationParams,
    prompts: Vec<PromptRun>,
    arrived: Instant,
    failure: Option<ApiError>,
    span: tracing::Span,
    _in_flight: InFlight,
}

/// One prompt with its answers.
#[derive(Debug)]
pub(crate) struct PromptRun {
    /// The prompt.
    pub(crate) prompt: PreparedPrompt,
    /// Tokens that the prefix cache had; `None` until the prompt has been computed.
    pub(crate) cached_tokens: Option<u32>,
    /// Log-probabilities of all prompt tokens but the first, if asked for.
    pub(crate) logprobs: Option<Vec<LogProbs>>,
    answers: Vec<Answer>,
    events: Events,
    open_answers: usize,
}

#[derive(Debug)]
struct Answer {
    choice: Choice,
    /// When its last token was made, since the request's arrival.
    last_token: Option<Duration>,
}

impl Generation {
    /// Hands a request to the engine: all prompts of it, or none.
    pub(crate) fn start(
        app: Arc<App>,
        job: Job,
        arrived: Instant,
        in_flight: InFlight,
    ) -> Result<Self, ApiError> {
        let prompts = job.prompts.iter().map(|prompt| PromptRun::start(&app, &job, prompt));
        let prompts = prompts.collect::<Result<Vec<_>, ApiError>>()?;
        Ok(Self {
            app,
            params: job.params,
            prompts,
            arrived,
            failure: None,
            span: tracing::Span::current(),
            _in_flight: in_flight,
        })
    }

    /// The tokenizer of the model that answers.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        self.app.text().tokenizer()
    }

    /// How to answer.
    pub(crate) fn params(&self) -> &GenerationParams {
        &self.params
    }

    /// The prompts, in the order of the request.
    pub(crate) fn prompts(&self) -> &[PromptRun] {
        &self.prompts
    }

    /// Waits until there is something new, and takes in everything that is.
    ///
    /// # Errors
    /// The engine failed or was stopped; nothing more will come.
    pub(crate) async fn advance(&mut self) -> Result<(), ApiError> {
        let advanced = poll_fn(|context| self.poll_advance(context)).await;
        if let Err(error) = &advanced {
            self.failure = Some(error.clone());
        }
        advanced
    }

    /// Waits until every answer is complete. Dropping the future (the client went away) cancels them.
    ///
    /// # Errors
    /// As [`Self::advance`].
    pub(crate) async fn completed(mut self) -> Result<Self, ApiError> {
        while !self.is_done() {
            self.advance().await?;
        }
        Ok(self)
    }

    /// Whether every answer is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.prompts.iter().all(|prompt| prompt.open_answers == 0)
    }

    /// What is new in one answer since the last call. Answers are numbered prompt by prompt.
    pub(crate) fn take_delta(&mut self, prompt: usize, choice: usize) -> Delta {
        self.prompts[prompt].answers[choice].choice.take_delta()
    }

    /// What the whole request took so far.
    pub(crate) fn usage(&self) -> Usage {
        self.prompts.iter().fold(Usage::default(), |total, prompt| {
            let generated = prompt.answers.iter().map(|answer| u64::from(answer.choice.generated())).sum();
            total + prompt.usage_with(generated)
        })
    }

    /// Tokens of reasoning in all answers.
    pub(crate) fn reasoning_tokens(&self) -> u32 {
        let answers = self.prompts.iter().flat_map(|prompt| &prompt.answers);
        answers.map(|answer| answer.choice.reasoning_tokens()).sum()
    }

    fn poll_advance(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ApiError>> {
        let mut news = self.is_done();
        for prompt in &mut self.prompts {
            while prompt.open_answers > 0 {
                let Poll::Ready(event) = prompt.events.poll_next(context) else { break };
                news = true;
                match event {
                    Some(event) => prompt.apply(event?, &self.app, self.arrived)?,
                    None => prompt.open_answers = 0,
                }
            }
        }
        if news { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let usage = self.usage();
        let outcome = match &self.failure {
            Some(error) => error.code(),
            None if self.is_done() => "complete",
            None => "cancelled",
        };
        tracing::info!(
            parent: &self.span,
            outcome,
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.prompt_tokens_details.cached_tokens,
            completion_tokens = usage.completion_tokens,
            seconds = self.arrived.elapsed().as_secs_f64(),
            "generation ended"
        );
    }
}

impl PromptRun {
    fn start(app: &App, job: &Job, prompt: &PreparedPrompt) -> Result<Self, ApiError> {
        let params = &job.params;
        let matcher = StopMatcher::new(&params.stop, params.stop_text).map_err(|error| {
            ApiError::InvalidValue { param: "stop".to_owned(), reason: error.to_string() }
        })?;
        let stream = app.engine().submit(EngineRequest {
            prompt: prompt.tokens.clone(),
            choices: params.choices,
            sampling: params.sampling.clone(),
            stop: StopConditions {
                max_tokens: prompt.max_tokens,
                min_tokens: params.min_tokens,
                eos_token_ids: app.eos_token_ids().clone(),
                stop_token_ids: params.stop_token_ids.clone(),
                eos: params.eos,
            },
            logprobs: job.logprobs,
            prompt_logprobs: job.prompt_logprobs,
            masking: if job.grammar.is_some() { Masking::PerToken } else { Masking::None },
            pooling: None,
        });
        let stream = stream.map_err(|error| submit_error(error, &prompt.param, job.prompts.len()))?;
        let events = match &job.grammar {
            Some(grammar) => Events::guided(app, stream, grammar, params.choices, prompt.max_tokens)?,
            None => Events::Free(stream),
        };
        let tokenizer = app.text().tokenizer();
        let kept = match (job.logprobs, params.token_ids) {
            (None, TokenIds::Omit) => KeptTokens::None,
            _ => KeptTokens::All,
        };
        let answer = || Answer {
            choice: Choice::new(params, &job.output, kept, matcher.clone(), app.eos_token_ids(), tokenizer),
            last_token: None,
        };
        let answers: Vec<Answer> = (0..params.choices.get()).map(|_| answer()).collect();
        let open_answers = answers.len();
        Ok(Self {
            prompt: prompt.clone(),
            cached_tokens: None,
            logprobs: None,
            answers,
            events,
            open_answers,
        })
    }

    /// What one answer and its prompt took so far.
    pub(crate) fn usage_of(&self, choice: usize) -> Usage {
        self.usage_with(u64::from(self.answers[choice].choice.generated()))
    }

    /// Log-probabilities of each prompt token. The first has none, because nothing precedes it; without end.
    pub(crate) fn logprobs_by_token(&self) -> impl Iterator<Item = Option<&LogProbs>> {
        let after_first = self.logprobs.as_deref().unwrap_or_default();
        std::iter::once(None).chain(after_first.iter().map(Some)).chain(std::iter::repeat(None))
    }

    fn usage_with(&self, completion_tokens: u64) -> Usage {
        let cached_tokens = u64::from(self.cached_tokens.unwrap_or(0));
        Usage::new(self.prompt.tokens.len() as u64, completion_tokens, cached_tokens)
    }

    fn apply(&mut self, event: EngineEvent, app: &App, arrived: Instant) -> Result<(), ApiError> {
        match event {
            EngineEvent::PromptDone { cached_tokens, logprobs, pooled: _ } => {
                self.cached_tokens = Some(cached_tokens);
                self.logprobs = logprobs;
                app.metrics().requests.prompt_done(self.prompt.tokens.len(), cached_tokens);
            }
            EngineEvent::Token { choice, token, logprobs, at } => {
                self.token(choice, token, logprobs, app, at.saturating_duration_since(arrived));
            }
            EngineEvent::Finished { choice, reason, timings } => {
                self.finished(choice, reason, timings, app, arrived);
            }
            EngineEvent::Failed(error) => {
                self.open_answers = 0;
                return Err(request_error(error));
            }
        }
        Ok(())
    }

    fn token(
        &mut self,
        index: ChoiceIndex,
        token: TokenId,
        logprobs: Option<LogProbs>,
        app: &App,
        since_arrival: Duration,
    ) {
        let Some(answer) = self.answers.get_mut(index.0 as usize) else { return };
        if answer.choice.ended() {
            return;
        }
        match answer.last_token.replace(since_arrival) {
            None => app.metrics().requests.first_token(since_arrival),
            Some(last) => app.metrics().requests.next_token(since_arrival.saturating_sub(last)),
        }
        if answer.choice.push(token, logprobs) == AfterToken::EndChoice {
            self.events.end_choice(index);
        }
    }

    fn finished(
        &mut self,
        index: ChoiceIndex,
        reason: FinishReason,
        timings: Timings,
        app: &App,
        arrived: Instant,
    ) {
        let Some(answer) = self.answers.get_mut(index.0 as usize) else { return };
        answer.choice.finish(reason);
        app.metrics().requests.choice_finished(FinishedChoice {
            arrived,
            timings,
            prompt_tokens: self.prompt.tokens.len(),
            cached_tokens: self.cached_tokens.unwrap_or(0),
            generated: answer.choice.generated(),
            max_tokens: self.prompt.max_tokens,
        });
        self.open_answers -= 1;
        if self.open_answers == 0 {
            let longest = self.answers.iter().map(|answer| answer.choice.generated()).max().unwrap_or(0);
            app.metrics().requests.prompt_finished(self.answers.len() as u32, longest);
        }
    }
}

/// The error of a prompt that the engine does not take; `prompt_param` is the field it came in, of `prompts` in all.
fn submit_error(error: SubmitError, prompt_param: &str, prompts: usize) -> ApiError {
    let invalid = |param: &str, reason: String| ApiError::InvalidValue { param: param.to_owned(), reason };
    match error {
        // Waiting would not help.
        SubmitError::QueueFull { limit, .. } if prompts > limit => {
            invalid("prompt", format!("has {prompts} prompts; at most {limit} can wait at once"))
        }
        SubmitError::QueueFull { retry_after, .. } => {
            ApiError::Busy { reason: error.to_string(), retry_after }
        }
        SubmitError::ShuttingDown => ApiError::Draining,
        SubmitError::Failed(message) => ApiError::EngineFailed(message),
        SubmitError::EmptyPrompt => invalid(prompt_param, "must give at least one token".to_owned()),
        SubmitError::TooLong { .. } | SubmitError::TooManyPages { .. } => {
            ApiError::ContextLength { param: prompt_param.to_owned(), message: error.to_string() }
        }
        SubmitError::UnknownToken { .. } => invalid(prompt_param, format!("cannot be computed: {error}")),
        SubmitError::NoHiddenStates => invalid("model", format!("gives no embeddings: {error}")),
        SubmitError::TooManyChoices { .. } => invalid("n", format!("is too large: {error}")),
        SubmitError::TooManyLogprobs { field, .. } => invalid(field, format!("is too large: {error}")),
        SubmitError::Sampling(error) => {
            let param = match error {
                SamplingParamsError::Range { field, .. } => field,
                SamplingParamsError::TopK => "top_k",
                SamplingParamsError::BiasToken { .. } => "logit_bias",
            };
            invalid(param, format!("is out of range: {error}"))
        }
    }
}

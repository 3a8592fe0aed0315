//! The engine's events of one prompt, with masks supplied where its answers are held to a grammar.

use crate::app::App;
use crate::error::ApiError;
use crate::grammar::{Grammar, Guide, Step};
use oxide_infer::TokenId;
use oxide_infer_engine::request::{ChoiceIndex, RequestError};
use oxide_infer_engine::{EngineEvent, EngineHandle, EventStream};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The events of one prompt. Dropping them cancels what is left of its answers.
#[derive(Debug)]
pub(super) enum Events {
    /// As they come from the engine.
    Free(EventStream),
    /// By way of a task that supplies the masks. It must not depend on the client's reading, as the engine does not.
    Guided {
        events: UnboundedReceiver<Result<EngineEvent, ApiError>>,
        /// Answers to be ended. The task ends when this is dropped.
        ends: UnboundedSender<ChoiceIndex>,
    },
}

impl Events {
    /// The events of a request whose masks the engine waits for, `Masking::PerToken`.
    pub(super) fn guided(
        app: &App,
        stream: EventStream,
        grammar: &Arc<Grammar>,
        choices: NonZeroU32,
        max_tokens: u32,
    ) -> Result<Self, ApiError> {
        let (sender, events) = unbounded_channel();
        let (ends, ending) = unbounded_channel();
        let (verdicts, judged) = unbounded_channel();
        let path = || Path { guide: Guide::new(grammar), tokens: 0 };
        let guided = Guided {
            stream,
            engine: app.engine().clone(),
            grammar: grammar.clone(),
            eos_token_ids: app.eos_token_ids().clone(),
            max_tokens,
            paths: (0..choices.get()).map(|_| path()).collect(),
            verdicts,
        };
        guided.supply_first_masks()?;
        tokio::spawn(guided.run(sender, ending, judged));
        Ok(Self::Guided { events, ends })
    }

    /// The next event, or `None` after the last.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<EngineEvent, ApiError>>> {
        match self {
            Self::Free(stream) => stream.poll_next(context).map(|event| event.map(Ok)),
            Self::Guided { events, .. } => Poll::Ready(ready!(events.poll_recv(context))),
        }
    }

    /// Ends one answer, because its end has been found in its text.
    pub(super) fn end_choice(&self, choice: ChoiceIndex) {
        match self {
            Self::Free(stream) => stream.end_choice(choice),
            // A task that has ended has no answers left.
            Self::Guided { ends, .. } => drop(ends.send(choice)),
        }
    }
}

/// What a mask's computation tells beside the mask.
#[derive(Debug)]
enum Verdict {
    /// The answer is complete, and no token says so.
    Complete(ChoiceIndex),
    /// The answer cannot go on.
    Failed(ApiError),
}

/// One answer's way through the grammar.
struct Path {
    guide: Guide,
    /// Tokens that it has.
    tokens: u32,
}

/// Passes events on and has the mask computed that follows each token.
struct Guided {
    stream: EventStream,
    engine: EngineHandle,
    grammar: Arc<Grammar>,
    eos_token_ids: Arc<[TokenId]>,
    max_tokens: u32,
    paths: Vec<Path>,
    verdicts: UnboundedSender<Verdict>,
}

impl Guided {
    fn supply_first_masks(&self) -> Result<(), ApiError> {
        for choice in (0..).take(self.paths.len()).map(ChoiceIndex) {
            let supplied = self.engine.supply_mask(self.stream.id(), choice, 0, self.grammar.first_mask());
            supplied.map_err(|error| self.grammar.failure(&error.to_string()))?;
        }
        Ok(())
    }

    async fn run(
        mut self,
        events: UnboundedSender<Result<EngineEvent, ApiError>>,
        mut ends: UnboundedReceiver<ChoiceIndex>,
        mut verdicts: UnboundedReceiver<Verdict>,
    ) {
        loop {
            tokio::select! {
                event = self.stream.next() => {
                    let Some(event) = event else { return };
                    if let EngineEvent::Token { choice, token, .. } = event {
                        self.advance(choice, token);
                    }
                    if events.send(Ok(event)).is_err() {
                        return;
                    }
                }
                end = ends.recv() => match end {
                    Some(choice) => self.stream.end_choice(choice),
                    None => return,
                },
                // `self` has a sender, so there is always a next one.
                Some(verdict) = verdicts.recv() => match verdict {
                    Verdict::Complete(choice) => self.stream.end_choice(choice),
                    Verdict::Failed(error) => {
                        // The one who reads them may be gone.
                        let _ = events.send(Err(error));
                        return;
                    }
                },
            }
        }
    }

    fn advance(&mut self, choice: ChoiceIndex, token: TokenId) {
        let Some(path) = self.paths.get_mut(choice.0 as usize) else { return };
        path.tokens += 1;
        if path.tokens >= self.max_tokens || self.eos_token_ids.contains(&token) {
            return;
        }
        let (request, index) = (self.stream.id(), path.tokens);
        let (engine, grammar, verdicts) = (self.engine.clone(), self.grammar.clone(), self.verdicts.clone());
        path.guide.advance(token, move |step| {
            let verdict = match step {
                Ok(Step::Mask(mask)) => match engine.supply_mask(request, choice, index, mask) {
                    Ok(()) => return,
                    Err(error) => Verdict::Failed(grammar.failure(&error.to_string())),
                },
                Ok(Step::End) => Verdict::Complete(choice),
                Err(reason) => Verdict::Failed(grammar.failure(&reason)),
            };
            // The task is gone if its client is.
            let _ = verdicts.send(verdict);
        });
    }
}

/// The error of an event that ends a request.
pub(super) fn request_error(error: RequestError) -> ApiError {
    match error {
        RequestError::Executor(message) => ApiError::EngineFailed(message),
        RequestError::Sampling(_) => ApiError::Internal(error.to_string()),
        RequestError::ShutDown => ApiError::CutOff,
    }
}

//! A scheduler and a scripted executor, stepped by hand, and what they owe to each request.

use super::audit::audit;
use crate::admission;
use crate::batch::{EngineBatch, Executor, ExecutorLimits, StepOutput};
use crate::kv::PrefixCache;
use crate::request::{
    ChoiceIndex, EngineEvent, EngineRequest, EosPolicy, FinishReason, Masking, RequestError, RequestId,
    StopConditions, SubmitError,
};
use crate::scheduler::{Notice, Scheduled, Scheduler};
use crate::testing::scripted::{
    SMALL_LIMITS, ScriptedExecutor, expected_answer, expected_pooled, expected_prompt_logprobs,
};
use oxide_infer::TokenId;
use oxide_infer::sampling::{LogProbs, SamplingParams, TokenMask};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct Harness {
    pub(super) scheduler: Scheduler,
    executor: ScriptedExecutor,
    limits: ExecutorLimits,
    /// The step that was scheduled last.
    pub(super) batch: EngineBatch,
    output: StepOutput,
    pub(super) clients: BTreeMap<RequestId, Client>,
}

/// What a request's client has seen.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) request: EngineRequest,
    pub(super) choices: Vec<Choice>,
    /// Cached tokens and log-probabilities, once the prompt is done.
    pub(super) prompt: Option<(u32, Option<Vec<LogProbs>>)>,
    pub(super) pooled: Option<Vec<f32>>,
    pub(super) failed: Option<RequestError>,
    pub(super) started: bool,
    pub(super) ended: bool,
    pub(super) cancelled: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    pub(super) tokens: Vec<TokenId>,
    pub(super) finished: Option<FinishReason>,
}

impl Harness {
    pub(super) fn new(limits: ExecutorLimits) -> Self {
        Self::with(limits, PrefixCache::Enabled, ScriptedExecutor::new(limits))
    }

    pub(super) fn with(
        limits: ExecutorLimits,
        prefix_cache: PrefixCache,
        executor: ScriptedExecutor,
    ) -> Self {
        Self {
            scheduler: Scheduler::new(limits, prefix_cache),
            executor,
            limits,
            batch: EngineBatch::default(),
            output: StepOutput::default(),
            clients: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, request: EngineRequest) -> Result<RequestId, SubmitError> {
        admission::check(&request, &self.limits)?;
        let id = RequestId(self.clients.len() as u64);
        let choices = vec![Choice::default(); request.choices.get() as usize];
        self.scheduler.add(id, request.clone(), Instant::now());
        let (prompt, pooled, failed) = (None, None, None);
        let client = Client {
            request,
            choices,
            prompt,
            pooled,
            failed,
            started: false,
            ended: false,
            cancelled: false,
        };
        self.clients.insert(id, client);
        self.observe();
        Ok(id)
    }

    /// Schedules a step and submits it, if the executor may have one more in flight.
    pub(super) fn schedule(&mut self) -> Scheduled {
        if self.scheduler.steps_in_flight() == self.limits.steps_in_flight {
            return Scheduled::Nothing;
        }
        let scheduled = self.scheduler.schedule(&mut self.batch, Instant::now());
        self.observe();
        if scheduled == Scheduled::Step {
            self.executor.submit(&self.batch).unwrap();
        } else {
            assert!(
                self.batch.slot_starts.is_empty() && self.batch.page_copies.is_empty(),
                "{:?}",
                self.batch
            );
        }
        scheduled
    }

    /// Collects and settles the oldest step in flight, if there is one.
    pub(super) fn settle(&mut self) {
        if self.scheduler.steps_in_flight() > 0 {
            self.executor.collect(&mut self.output).unwrap();
            self.scheduler.settle(&mut self.output, Instant::now()).unwrap();
            self.observe();
        }
    }

    /// One turn of the engine's loop: the plain one if the executor takes one step, else the overlapped one. Says whether
    /// it scheduled a step.
    pub(super) fn turn(&mut self) -> Scheduled {
        let scheduled = self.schedule();
        if self.scheduler.steps_in_flight() == self.limits.steps_in_flight || scheduled == Scheduled::Nothing
        {
            self.settle();
        }
        scheduled
    }

    /// Runs until nothing can be done without the host.
    pub(super) fn run(&mut self) {
        loop {
            let in_flight = self.scheduler.steps_in_flight();
            if self.turn() == Scheduled::Nothing && in_flight == 0 {
                return;
            }
        }
    }

    /// Runs to the end of all requests; masks come when they can.
    pub(super) fn finish_all(&mut self) {
        self.run();
        let mut rounds = 0;
        while self.supply_masks() {
            self.run();
            rounds += 1;
            assert!(rounds < 1000, "masks do not get the requests on");
        }
    }

    pub(super) fn cancel(&mut self, id: RequestId) {
        self.scheduler.cancel(id);
        if let Some(client) = self.clients.get_mut(&id) {
            client.cancelled |= !client.ended;
        }
        self.observe();
    }

    pub(super) fn end_choice(&mut self, id: RequestId, choice: ChoiceIndex) {
        self.scheduler.end_choice(id, choice, Instant::now());
        self.observe();
    }

    /// Supplies the mask for the next token of a choice, as far as its client knows.
    pub(super) fn supply_mask(&mut self, id: RequestId, choice: ChoiceIndex) {
        let index = self.clients[&id].choices[choice.0 as usize].tokens.len() as u32;
        self.scheduler.supply_mask(id, choice, index, mask_for(choice, index, self.limits.vocab_size));
        self.observe();
    }

    /// Supplies every mask that is waited for; false if there is none.
    pub(super) fn supply_masks(&mut self) -> bool {
        let open = self.clients.iter().filter(|(_, client)| !client.ended && !client.cancelled);
        let masked = open.filter(|(_, client)| client.request.masking == Masking::PerToken);
        let waited_for: Vec<_> = masked
            .flat_map(|(id, client)| {
                (0..client.choices.len() as u32).map(|choice| (*id, ChoiceIndex(choice)))
            })
            .collect();
        waited_for.iter().for_each(|(id, choice)| self.supply_mask(*id, *choice));
        !waited_for.is_empty()
    }

    /// Hands the notices to the clients, checks that they come in order, and audits the scheduler.
    fn observe(&mut self) {
        for notice in self.scheduler.notices().drain(..) {
            match notice {
                Notice::Started(id, _) => {
                    let client = self.clients.get_mut(&id).unwrap();
                    assert!(!std::mem::replace(&mut client.started, true));
                }
                Notice::Event(id, event) => self.clients.get_mut(&id).unwrap().take(event),
                Notice::Ended(id) => {
                    let client = self.clients.get_mut(&id).unwrap();
                    assert!(!std::mem::replace(&mut client.ended, true));
                }
            }
        }
        audit(&self.scheduler);
    }

    /// Checks every client's tokens against the model worked out one token after the other.
    pub(super) fn check_answers(&self) {
        for (id, client) in &self.clients {
            for (index, choice) in (0u32..).map(ChoiceIndex).zip(&client.choices) {
                let expected = client.expected(index, &self.limits);
                match choice.finished {
                    None | Some(FinishReason::Host) => {
                        assert!(
                            client.cancelled || choice.finished.is_some(),
                            "{id:?} {index:?} never ended"
                        );
                        assert!(expected.starts_with(&choice.tokens), "{id:?} {index:?}");
                    }
                    Some(reason) => {
                        assert_eq!(choice.tokens, expected, "{id:?} {index:?}");
                        assert_eq!(reason, client.expected_reason(&expected), "{id:?} {index:?}");
                    }
                }
            }
            client.check_prompt(&self.limits);
        }
    }
}

impl Client {
    fn take(&mut self, event: EngineEvent) {
        assert!(!self.ended && self.failed.is_none() && !self.cancelled, "an event after the end: {event:?}");
        assert!(self.started, "an event before the start: {event:?}");
        match event {
            EngineEvent::PromptDone { cached_tokens, logprobs, pooled } => {
                assert_eq!(self.prompt.replace((cached_tokens, logprobs)), None);
                self.pooled = pooled;
            }
            EngineEvent::Token { choice, token, logprobs, at: _ } => {
                assert!(self.prompt.is_some());
                assert_eq!(logprobs.map(|logprobs| logprobs.top.len() as u32), self.request.logprobs);
                let choice = &mut self.choices[choice.0 as usize];
                assert_eq!(choice.finished, None);
                choice.tokens.push(token);
            }
            EngineEvent::Finished { choice, reason, timings } => {
                assert_eq!(self.choices[choice.0 as usize].finished.replace(reason), None);
                let order = [timings.arrived, timings.scheduled, timings.first_token, timings.finished];
                assert!(order.is_sorted(), "{timings:?}");
            }
            EngineEvent::Failed(error) => self.failed = Some(error),
        }
    }

    fn expected(&self, choice: ChoiceIndex, limits: &ExecutorLimits) -> Vec<TokenId> {
        if self.request.pooling.is_some() {
            return Vec::new();
        }
        expected_answer(&self.request, choice, limits, |index| match self.request.masking {
            Masking::None => None,
            Masking::PerToken => Some(mask_for(choice, index, limits.vocab_size)),
        })
    }

    fn expected_reason(&self, tokens: &[TokenId]) -> FinishReason {
        let stop = &self.request.stop;
        match tokens.last() {
            None if self.request.pooling.is_some() => FinishReason::Pooled,
            Some(last) if stop.eos == EosPolicy::Stop && stop.eos_token_ids.contains(last) => {
                FinishReason::EndOfSequence
            }
            Some(last) if stop.stop_token_ids.contains(last) => FinishReason::StopToken(*last),
            _ => FinishReason::Length,
        }
    }

    fn check_prompt(&self, limits: &ExecutorLimits) {
        let Some((cached, logprobs)) = &self.prompt else { return };
        assert!((*cached as usize) < self.request.prompt.len());
        assert_eq!(*cached as usize % limits.page_size, 0);
        let top = self.request.prompt_logprobs;
        let expected = top.map(|top| expected_prompt_logprobs(&self.request.prompt, top, limits));
        assert_eq!(*logprobs, expected);
        let pooled = self.request.pooling.map(|pooling| expected_pooled(&self.request.prompt, pooling));
        assert_eq!(self.pooled, pooled);
    }
}

/// The mask that the tests' host has for a token: a third of the vocabulary, another one each time.
fn mask_for(choice: ChoiceIndex, index: u32, vocab_size: usize) -> Arc<TokenMask> {
    let mut mask = TokenMask::none(vocab_size);
    (0..vocab_size as u32)
        .filter(|id| id % 3 == (choice.0 + index) % 3)
        .for_each(|id| mask.allow(TokenId(id)));
    Arc::new(mask)
}

/// A greedy request.
pub(super) fn request(prompt: impl IntoIterator<Item = u32>, max_tokens: u32) -> EngineRequest {
    EngineRequest {
        prompt: prompt.into_iter().map(TokenId).collect(),
        choices: NonZeroU32::MIN,
        sampling: Arc::new(SamplingParams { temperature: 0.0, ..Default::default() }),
        stop: StopConditions { max_tokens, ..Default::default() },
        logprobs: None,
        prompt_logprobs: None,
        masking: Masking::None,
        pooling: None,
    }
}

/// The limits that most tests start from.
pub(super) fn limits() -> ExecutorLimits {
    SMALL_LIMITS
}

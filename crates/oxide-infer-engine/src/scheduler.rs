//! The scheduler: which sequences compute which tokens in the next step, and what becomes of what they sampled.
//!
//! A plain state machine over plain data. Requests wait in the order in which they came and run in the same order, so the
//! newest running sequence is always the last one, and everything that runs is older than everything that waits.
//!
//! A step takes, in this order and within the token budget:
//! 1. one token of every sequence that needs only one more (decodes), so that prompts never hold them up;
//! 2. further chunks of prompts that have begun;
//! 3. the first chunk of requests that wait, as long as there are slots and pages for their whole prompt.
//!
//! An executor may want prompts and generated tokens in steps of their own instead (`apart.rs`).
//!
//! A prompt gets all its pages when it starts. So only a decode can find the pool empty, and then the newest sequence
//! gives back its pages and waits, to be computed again from its tokens.

mod apart;
mod pool;
mod request_map;
mod sequence;
mod settle;
mod step;

use crate::batch::{EngineBatch, ExecutorLimits, SlotId, StepKind, StepMix};
use crate::kv::{Pager, PrefixCache};
use crate::metrics::MetricsSnapshot;
use crate::request::{
    ChoiceIndex, EngineEvent, EngineRequest, FinishReason, Masking, RequestError, RequestId,
};
use oxide_infer::PageId;
use oxide_infer::sampling::TokenMask;
use sequence::{Request, SequenceKey, Slot, SlotState, Stage};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use step::Step;

pub(crate) use request_map::RequestMap;

/// The state of all requests, pages and slots.
#[derive(Debug)]
pub struct Scheduler {
    limits: ExecutorLimits,
    pager: Pager,
    requests: RequestMap<Request>,
    /// Oldest first.
    waiting: VecDeque<SequenceKey>,
    /// Oldest first, all older than those that wait.
    running: Vec<SequenceKey>,
    free_slots: Vec<SlotId>,
    /// Steps that are submitted and not collected, oldest first.
    in_flight: VecDeque<Step>,
    /// Settled steps, kept for their allocations.
    spare_steps: Vec<Step>,
    /// Pages of a prefix, while it is looked up.
    prefix_pages: Vec<PageId>,
    /// Of the step that was scheduled last.
    last_kind: StepKind,
    notices: Vec<Notice>,
    stats: MetricsSnapshot,
}

/// Whether there is a step to submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduled {
    /// The batch holds one.
    Step,
    /// Nothing can be computed now.
    Nothing,
}

/// What the scheduler has to tell.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The request has left the queue.
    Started(RequestId, Instant),
    /// For the request's client.
    Event(RequestId, EngineEvent),
    /// The request has ended; nothing about it follows.
    Ended(RequestId),
}

/// How the decodes of a step went.
struct Decodes {
    pressure: Pressure,
    /// Index of the first running sequence that has more than one token to compute; past the end if none has.
    first_prompt: usize,
}

/// Whether a step had to take pages from a running sequence.
#[derive(Clone, Copy, PartialEq)]
enum Pressure {
    None,
    Preempted,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(limits: ExecutorLimits, prefix_cache: PrefixCache) -> Self {
        Self {
            limits,
            pager: Pager::new(limits.num_pages, limits.page_size, prefix_cache),
            requests: RequestMap::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            free_slots: (0..limits.max_sequences as u32).rev().map(SlotId).collect(),
            in_flight: VecDeque::new(),
            spare_steps: Vec::new(),
            prefix_pages: Vec::new(),
            last_kind: StepKind::default(),
            notices: Vec::new(),
            stats: MetricsSnapshot { kv_pages_total: limits.num_pages as u64, ..MetricsSnapshot::default() },
        }
    }

    /// Puts a request that passed the checks of submission at the end of the queue.
    pub fn add(&mut self, id: RequestId, request: EngineRequest, arrived: Instant) {
        self.stats.waiting += u64::from(request.choices.get());
        self.requests.insert(id, Request::new(request, arrived, &self.limits));
        self.waiting.push_back(SequenceKey { request: id, choice: ChoiceIndex(0) });
    }

    /// Ends a request whose client is gone.
    pub fn cancel(&mut self, id: RequestId) {
        self.end_all(id, End::Cancelled);
    }

    /// Ends a choice whose end the host has found. Does nothing before its first token or after its end.
    pub fn end_choice(&mut self, id: RequestId, choice: ChoiceIndex, now: Instant) {
        let Some(request) = self.requests.get(&id) else { return };
        if request.sequences.get(choice.0 as usize).is_some_and(|sequence| sequence.first_token.is_some()) {
            self.finish(SequenceKey { request: id, choice }, FinishReason::Host, now);
        }
    }

    /// Takes the mask for token `index` of a choice, if that is the first that no step samples yet and the request has
    /// masks.
    pub fn supply_mask(&mut self, id: RequestId, choice: ChoiceIndex, index: u32, mask: Arc<TokenMask>) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let masked = request.spec.masking == Masking::PerToken;
        if let Some(sequence) = request.sequences.get_mut(choice.0 as usize)
            && masked
            && sequence.output.len() + sequence.pending == index as usize
        {
            sequence.mask = Some(mask);
        }
    }

    /// Fills the batch with the next step.
    pub fn schedule(&mut self, batch: &mut EngineBatch, now: Instant) -> Scheduled {
        batch.clear();
        let mut step = self.spare_steps.pop().unwrap_or_default();
        match self.limits.step_mix {
            StepMix::Mixed => self.mix(batch, &mut step, now),
            StepMix::Apart => self.take_turns(batch, &mut step, now),
        }
        self.join_forks(&mut step);
        self.stats.kv_pages_used = self.pager.used() as u64;
        if step.rows.is_empty() {
            self.spare_steps.push(step);
            return Scheduled::Nothing;
        }
        self.stats.iteration_tokens.observe(batch.tokens.len() as u64);
        self.in_flight.push_back(step);
        Scheduled::Step
    }

    /// Steps that are submitted and not settled.
    pub fn steps_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether no request is left and no step in flight.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.in_flight.is_empty()
    }

    /// What there is to tell, in order, for the caller to take out.
    pub fn notices(&mut self) -> &mut Vec<Notice> {
        &mut self.notices
    }

    /// The counters.
    pub fn stats(&self) -> &MetricsSnapshot {
        &self.stats
    }

    /// Counts every sequence that is left as failed: the engine has ended under it.
    pub fn abandon(&mut self) {
        self.stats.finished_failed += self.stats.running + self.stats.waiting;
        (self.stats.running, self.stats.waiting) = (0, 0);
    }

    /// Fills a step with whatever there is.
    fn mix(&mut self, batch: &mut EngineBatch, step: &mut Step, now: Instant) {
        let Decodes { pressure, first_prompt } = self.schedule_decodes(batch, step);
        self.schedule_prompts(first_prompt, batch, step);
        if pressure == Pressure::None {
            self.admit(batch, step, now);
        }
    }

    /// One token of every running sequence that needs only one more.
    fn schedule_decodes(&mut self, batch: &mut EngineBatch, step: &mut Step) -> Decodes {
        let mut decodes = Decodes { pressure: Pressure::None, first_prompt: usize::MAX };
        let mut next = 0;
        while let Some(&key) = self.running.get(next) {
            let ready = self.ready_tokens(key);
            if ready == 1 {
                while !self.make_writable(key, batch) {
                    self.preempt_newest();
                    decodes.pressure = Pressure::Preempted;
                    if self.running.len() == next {
                        return decodes; // it was the newest itself
                    }
                }
                self.place(key, 1, batch, step);
            } else if ready > 1 {
                decodes.first_prompt = decodes.first_prompt.min(next);
            }
            next += 1;
        }
        decodes
    }

    /// Further chunks of the prompts that have begun, which are in the list of the running from `first` on.
    fn schedule_prompts(&mut self, first: usize, batch: &mut EngineBatch, step: &mut Step) {
        for next in first..self.running.len() {
            let key = self.running[next];
            let ready = self.ready_tokens(key);
            let room = self.limits.max_batch_tokens - batch.tokens.len();
            if ready > 1 && room > 0 {
                self.place(key, ready.min(room), batch, step);
            }
        }
    }

    /// First chunks of the requests that wait, strictly in their order.
    fn admit(&mut self, batch: &mut EngineBatch, step: &mut Step, now: Instant) {
        while batch.tokens.len() < self.limits.max_batch_tokens
            && let Some(&key) = self.waiting.front()
            && self.start(key, now)
        {
            self.waiting.pop_front();
            self.running.push(key);
            let room = self.limits.max_batch_tokens - batch.tokens.len();
            let chunk = self.ready_tokens(key).min(room);
            if chunk > 0 {
                self.place(key, chunk, batch, step);
            }
        }
    }

    /// Gives a waiting sequence its slots and the pages of all its tokens, if there are enough.
    fn start(&mut self, key: SequenceKey, now: Instant) -> bool {
        let sharable = self.sharable(key);
        let request = live(&mut self.requests, key);
        let slots = request.sampled_by(key.choice);
        // A token that is still in flight must be known before it can be computed again.
        if request.sequence(key.choice).is_in_flight() || slots.len() > self.free_slots.len() {
            return false;
        }

        let len = request.len(key.choice);
        let reusable = request.reusable_tokens(key.choice).min(sharable) / self.limits.page_size;
        self.prefix_pages.clear();
        let page_size = self.limits.page_size;
        let prefix = self.pager.find_prefix(
            reusable,
            |page, buffer| request.copy_tokens(key.choice, page * page_size, buffer),
            &mut self.prefix_pages,
        );
        let cached = self.prefix_pages.len();
        // One page of reserve for every sequence that runs, which each may need soon; else the newcomer would only be
        // preempted again.
        let reserve = if self.running.is_empty() { 0 } else { self.running.len() + slots.len() - 1 };
        let taken_from_cache = self.prefix_pages.iter().filter(|page| self.pager.owners(**page) == 0).count();
        let needed = self.pager.pages_for(len) - cached;
        if needed + taken_from_cache + reserve > self.pager.available() {
            return false;
        }

        let sequence = request.sequence_mut(key.choice);
        for &page in &self.prefix_pages {
            self.pager.retain(page);
            sequence.pages.push(page);
        }
        sequence.pages.extend((0..needed).map_while(|_| self.pager.allocate()));
        sequence.scheduled = cached * page_size;
        sequence.published = (cached, Some(prefix));
        sequence.stage = Stage::Running;
        for choice in slots.clone() {
            request.sequences[choice].slot =
                self.free_slots.pop().map(|id| Slot { id, state: SlotState::Assigned });
        }
        self.stats.running += slots.len() as u64;
        self.stats.waiting -= slots.len() as u64;
        if request.scheduled.is_none() {
            request.scheduled = Some(now);
            request.cached_tokens = cached * page_size;
            if request.known_of_each().is_none() {
                self.stats.prefix_cache_queries += len as u64;
                self.stats.prefix_cache_hits += (cached * page_size) as u64;
            }
            self.notices.push(Notice::Started(key.request, now));
        }
        true
    }

    /// Takes the newest running sequence's pages and slots and puts it before all that wait.
    fn preempt_newest(&mut self) {
        let Some(key) = self.running.pop() else { return };
        self.waiting.push_front(key);
        let request = live(&mut self.requests, key);
        let slots = request.sampled_by(key.choice);
        let sequence = request.sequence_mut(key.choice);
        self.pager.release_all(&mut sequence.pages);
        sequence.stage = Stage::Waiting;
        sequence.scheduled = 0;
        for choice in slots.clone() {
            self.free_slots.extend(request.sequences[choice].slot.take().map(|slot| slot.id));
        }
        self.stats.preemptions += 1;
        self.stats.running -= slots.len() as u64;
        self.stats.waiting += slots.len() as u64;
    }

    /// Ends a choice and tells its client why.
    fn finish(&mut self, key: SequenceKey, reason: FinishReason, now: Instant) {
        let end = match reason {
            FinishReason::Length => End::Length,
            FinishReason::EndOfSequence
            | FinishReason::StopToken(_)
            | FinishReason::Host
            | FinishReason::Pooled => End::Stop,
        };
        if self.end(key, end) {
            let timings = self.request(key).timings(key.choice, now);
            let event = EngineEvent::Finished { choice: key.choice, reason, timings };
            self.notices.push(Notice::Event(key.request, event));
            self.remove_if_ended(key.request);
        }
    }

    /// Ends a request that cannot go on.
    fn fail(&mut self, id: RequestId, error: RequestError) {
        self.notices.push(Notice::Event(id, EngineEvent::Failed(error)));
        self.end_all(id, End::Failed);
    }

    fn end_all(&mut self, id: RequestId, end: End) {
        let choices = self.requests.get(&id).map_or(0, |request| request.sequences.len() as u32);
        for choice in (0..choices).map(ChoiceIndex) {
            self.end(SequenceKey { request: id, choice }, end);
        }
        self.remove_if_ended(id);
    }

    /// Takes everything from a choice; false if it had ended before. A step in flight may still use its pages and its
    /// slot: whoever gets them next does so in a later step.
    fn end(&mut self, key: SequenceKey, end: End) -> bool {
        let sequence = live(&mut self.requests, key).sequence_mut(key.choice);
        match std::mem::replace(&mut sequence.stage, Stage::Ended) {
            Stage::Ended => return false,
            Stage::Waiting => self.waiting.retain(|waiting| *waiting != key),
            Stage::Running => self.running.retain(|running| *running != key),
            Stage::AwaitsFork => {}
        }
        self.pager.release_all(&mut sequence.pages);
        match sequence.slot.take() {
            Some(slot) => {
                self.free_slots.push(slot.id);
                self.stats.running -= 1;
            }
            None => self.stats.waiting -= 1,
        }
        match end {
            End::Stop => self.stats.finished_stop += 1,
            End::Length => self.stats.finished_length += 1,
            End::Cancelled => self.stats.finished_cancelled += 1,
            End::Failed => self.stats.finished_failed += 1,
        }
        self.stats.kv_pages_used = self.pager.used() as u64;
        true
    }

    fn remove_if_ended(&mut self, id: RequestId) {
        let ended =
            |request: &Request| request.sequences.iter().all(|sequence| sequence.stage == Stage::Ended);
        if self.requests.get(&id).is_some_and(ended) {
            self.requests.remove(&id);
            self.notices.push(Notice::Ended(id));
        }
    }

    fn ready_tokens(&self, key: SequenceKey) -> usize {
        self.request(key).ready_tokens(key.choice)
    }

    fn request(&self, key: SequenceKey) -> &Request {
        &self.requests[&key.request]
    }
}

/// How a sequence ended, for the counters.
#[derive(Clone, Copy)]
enum End {
    Stop,
    Length,
    Cancelled,
    Failed,
}

/// The request of a key from one of the queues. It is live: `end` takes a sequence off its queue before its request goes.
/// A function over the map alone, so that the other fields can be used beside it.
fn live(requests: &mut RequestMap<Request>, key: SequenceKey) -> &mut Request {
    requests.get_mut(&key.request).expect("a queued sequence has a live request")
}

#[cfg(test)]
mod tests;

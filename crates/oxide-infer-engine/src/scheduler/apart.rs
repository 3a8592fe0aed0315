//! Steps of prompts or of generated tokens, never of both ([`StepMix::Apart`](crate::batch::StepMix::Apart)).
//!
//! A token's keys and values must have the same bits whenever they are computed. So what was generated is computed one
//! token a row even after a preemption, and only pages of prompt tokens are indexed for reuse or found.

use super::sequence::SequenceKey;
use super::step::Step;
use super::{Pressure, Scheduler};
use crate::batch::{EngineBatch, StepKind, StepMix};
use std::time::Instant;

impl Scheduler {
    /// Fills a step; where there are prompts and generated tokens to compute, they take turns.
    pub(super) fn take_turns(&mut self, batch: &mut EngineBatch, step: &mut Step, now: Instant) {
        let mut pressure = Pressure::None;
        if self.last_kind != StepKind::Generated {
            pressure = self.place_generated(batch, step);
        }
        if step.rows.is_empty() {
            self.place_prompts(pressure, batch, step, now);
        }
        // Also for a sequence that has just started and whose whole prompt was cached.
        if step.rows.is_empty() {
            self.place_generated(batch, step);
        }
        if !step.rows.is_empty() {
            self.last_kind = batch.kind;
        }
    }

    /// How many of a sequence's first tokens can be in pages that others use too.
    pub(super) fn sharable(&self, key: SequenceKey) -> usize {
        match self.limits.step_mix {
            StepMix::Mixed => usize::MAX,
            StepMix::Apart => self.request(key).spec.prompt.len(),
        }
    }

    /// Tokens of prompts, as far as the budget goes; a sequence starts only if none had to give way.
    fn place_prompts(&mut self, pressure: Pressure, batch: &mut EngineBatch, step: &mut Step, now: Instant) {
        batch.kind = StepKind::Prompt;
        for next in 0..self.running.len() {
            self.place_prompt(self.running[next], batch, step);
        }
        while pressure == Pressure::None
            && batch.tokens.len() < self.limits.max_batch_tokens
            && let Some(&key) = self.waiting.front()
            && self.start(key, now)
        {
            self.waiting.pop_front();
            self.running.push(key);
            self.place_prompt(key, batch, step);
        }
    }

    fn place_prompt(&mut self, key: SequenceKey, batch: &mut EngineBatch, step: &mut Step) {
        let room = self.limits.max_batch_tokens - batch.tokens.len();
        let request = self.request(key);
        let left = request.spec.prompt.len().saturating_sub(request.sequence(key.choice).scheduled);
        let chunk = self.ready_tokens(key).min(left).min(room);
        if chunk > 0 {
            self.place(key, chunk, batch, step);
        }
    }

    /// One generated token of every sequence that has one to compute; then, in rows that are left, further ones of those
    /// that are computed again, up to the end of a page.
    fn place_generated(&mut self, batch: &mut EngineBatch, step: &mut Step) -> Pressure {
        batch.kind = StepKind::Generated;
        let mut pressure = Pressure::None;
        let mut next = 0;
        while let Some(&key) = self.running.get(next) {
            if self.generated_ready(key) > 0 {
                while !self.make_writable(key, batch) {
                    self.preempt_newest();
                    pressure = Pressure::Preempted;
                    if self.running.len() == next {
                        return pressure; // it was the newest itself
                    }
                }
                self.place(key, 1, batch, step);
            }
            next += 1;
        }
        for next in 0..self.running.len() {
            let key = self.running[next];
            while step.rows.len() < self.limits.max_sequences
                && self.generated_ready(key) > 0
                && self.request(key).sequence(key.choice).pending == 0
                // The rows of a sequence write one page: what a row reads before its last page is there when a step begins.
                && !self.request(key).sequence(key.choice).scheduled.is_multiple_of(self.limits.page_size)
                // It has all its pages since it started again, for itself alone.
                && self.make_writable(key, batch)
            {
                self.place(key, 1, batch, step);
            }
        }
        pressure
    }

    /// Tokens that the next step can compute, once the prompt is in its pages or in a step before.
    fn generated_ready(&self, key: SequenceKey) -> usize {
        let request = self.request(key);
        match request.sequence(key.choice).scheduled < request.spec.prompt.len() {
            true => 0,
            false => self.ready_tokens(key),
        }
    }
}

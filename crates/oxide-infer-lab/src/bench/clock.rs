//! Times of bound operators: as a caller enqueues them, and as a graph replays them.

use anyhow::Result;
use oxide_infer_cuda::driver::EventTiming;
use oxide_infer_cuda::provider::BoundPlan;
use oxide_infer_cuda::runtime::{CommandScope, Context, Event, Graph, Region, Stream};
use std::time::{Duration, Instant};

/// Passes through the L2 cache of 60 MB several times.
const FLUSH: usize = 256 << 20;
/// Bytes of the copy that the device's rate is measured with.
const COPY: usize = 2 << 30;
/// Calls of one graph are at least this many, so that its launch does not show.
const GRAPH_CALLS: usize = 12;
/// What one sample may take, where calls are long.
const SAMPLE: Duration = Duration::from_millis(8);
const MOST_CALLS: usize = 200;
const LEAST_CALLS: usize = 5;

/// A stream with what is needed to time work on it.
pub(super) struct Clock {
    pub(super) stream: Stream,
    flush: Region<u8>,
    start: Event,
    end: Event,
}

/// What the L2 cache holds when a replay begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cache {
    /// What the replay before has left.
    Warm,
    /// Nothing of the operands.
    Flushed,
}

/// Whether calls that a caller makes one after another share a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scopes {
    OneEach,
    OneForAll,
}

impl Clock {
    pub(super) fn new(context: &Context) -> Result<Self> {
        let event = || Event::new(context, EventTiming::Enabled);
        let (start, end) = (event()?, event()?);
        Ok(Self { stream: context.stream()?, flush: Region::allocate(context, FLUSH)?, start, end })
    }

    /// Bytes read and written in a second by a large copy, the best of ten.
    pub(super) fn copy_rate(&self) -> Result<f64> {
        let context = self.stream.context();
        let (from, to) = (Region::<u8>::allocate(context, COPY)?, Region::<u8>::allocate(context, COPY)?);
        let mut best = f64::INFINITY;
        for _ in 0..10 {
            best = best.min(self.time(|scope| Ok(scope.copy(&from, &to)?), |_| Ok(()))?);
        }
        Ok(2.0 * COPY as f64 / best * 1e6)
    }

    /// Microseconds of a call when a host makes several and then waits for them.
    pub(super) fn eager(&self, bound: &BoundPlan, calls: usize, scopes: Scopes) -> Result<f64> {
        self.calls_of(calls, scopes, |scope| Ok(bound.enqueue(scope)?))
    }

    /// As [`Clock::eager`], of what a graph of one call enqueues.
    pub(super) fn eager_graph(&self, graph: &Graph, calls: usize) -> Result<f64> {
        self.calls_of(calls, Scopes::OneEach, |scope| Ok(graph.replay(scope)?))
    }

    fn calls_of(
        &self,
        calls: usize,
        scopes: Scopes,
        call: impl Fn(&mut CommandScope) -> Result<()>,
    ) -> Result<f64> {
        self.stream.synchronize()?;
        let mut completions = Vec::with_capacity(calls);
        let begin = Instant::now();
        match scopes {
            Scopes::OneEach => {
                for _ in 0..calls {
                    let mut scope = CommandScope::new(&self.stream)?;
                    call(&mut scope)?;
                    completions.push(scope.finish()?);
                }
            }
            Scopes::OneForAll => {
                let mut scope = CommandScope::new(&self.stream)?;
                for _ in 0..calls {
                    call(&mut scope)?;
                }
                completions.push(scope.finish()?);
            }
        }
        self.stream.synchronize()?;
        let took = begin.elapsed();
        for completion in completions {
            completion.wait()?;
        }
        Ok(took.as_secs_f64() * 1e6 / calls as f64)
    }

    /// How often to call what takes so many microseconds.
    pub(super) fn calls(microseconds: f64) -> usize {
        let fit = SAMPLE.as_secs_f64() * 1e6 / microseconds.max(1e-3);
        (fit as usize).clamp(LEAST_CALLS, MOST_CALLS)
    }

    /// A graph that makes calls in turn, at least as often as each is there, and how often that is.
    pub(super) fn capture(&self, sets: &[BoundPlan]) -> Result<(Graph, usize)> {
        let calls = sets.len().max(GRAPH_CALLS);
        let capture = |scope: &mut CommandScope| {
            sets.iter().cycle().take(calls).try_for_each(|bound| bound.enqueue(scope))
        };
        Ok((Graph::capture(&self.stream, capture)?, calls))
    }

    /// Microseconds of a call in one replay.
    pub(super) fn replay(&self, graph: &(Graph, usize), cache: Cache) -> Result<f64> {
        let flush = |scope: &mut CommandScope| match cache {
            Cache::Warm => Ok(()),
            Cache::Flushed => Ok(scope.fill(&self.flush, 0)?),
        };
        let took = self.time(|scope| Ok(graph.0.replay(scope)?), flush)?;
        Ok(took / graph.1 as f64)
    }

    /// Microseconds between the events around what `timed` enqueues, after what `before` does.
    fn time(
        &self,
        timed: impl FnOnce(&mut CommandScope) -> Result<()>,
        before: impl FnOnce(&mut CommandScope) -> Result<()>,
    ) -> Result<f64> {
        let mut scope = CommandScope::new(&self.stream)?;
        before(&mut scope)?;
        scope.record(&self.start)?;
        timed(&mut scope)?;
        scope.record(&self.end)?;
        scope.finish()?.wait()?;
        Ok(f64::from(self.end.elapsed_since(&self.start)?) * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_calls_are_made_less_often_and_short_ones_no_more_than_the_most() {
        assert_eq!(Clock::calls(0.0), MOST_CALLS);
        assert_eq!(Clock::calls(200.0), 40);
        assert_eq!(Clock::calls(50_000.0), LEAST_CALLS);
    }
}

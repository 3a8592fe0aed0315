"""Times of calls on one stream: eager, and as replays of a graph with the L2 cache warm or flushed."""

import gc
import time
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]
# As `crates/oxide-infer-lab/src/bench/clock.rs` has them.
FLUSH_BYTES = 256 << 20
GRAPH_CALLS = 12
SAMPLE_US = 8_000.0
MOST_CALLS, LEAST_CALLS = 200, 5
# Calls of a graph that takes long are fewer.
GRAPH_US = 4_000.0
# Replays of each of the four turns (ours, theirs, theirs, ours).
REPLAYS = 8
EAGER_SAMPLES = 4


class Clock:
    """What all rows are timed with."""

    def __init__(self) -> None:
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def events(self, work: Call) -> float:
        """Microseconds of some work, by the device's events."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    def estimate(self, call: Call) -> float:
        """Microseconds of a call, roughly: the second time it is made."""
        call()
        torch.cuda.synchronize()
        return self.events(call)

    def eager(self, call: Call, samples: int = EAGER_SAMPLES) -> list[float]:
        """Microseconds of a call when a host makes several and then waits for them."""
        calls = max(LEAST_CALLS, min(MOST_CALLS, int(SAMPLE_US / max(self.estimate(call), 1e-3))))
        found = []
        gc.disable()
        try:
            for _ in range(samples + 1):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(calls):
                    call()
                torch.cuda.synchronize()
                found.append((time.perf_counter() - begin) * 1e6 / calls)
        finally:
            gc.enable()
        return found[1:]

    def graph(self, calls: Sequence[Call]) -> "Graph":
        """A graph that makes calls in turn."""
        estimate = self.estimate(calls[0])
        wanted = max(2, min(GRAPH_CALLS, int(GRAPH_US / estimate)))
        return Graph(self, calls, max(len(calls), wanted))


class Graph:
    """Calls that were captured once, in turn."""

    def __init__(self, clock: Clock, calls: Sequence[Call], count: int) -> None:
        self.clock, self.count = clock, count
        # What is made when it is called first is not captured.
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for index in range(count):
                calls[index % len(calls)]()
        self.kept = calls

    def warm(self) -> float:
        """Microseconds of a call in one replay, after what the last has left in the cache."""
        return self.clock.events(self.graph.replay) / self.count

    def flushed(self) -> float:
        """Microseconds of a call in one replay, after something else has passed through the cache."""
        self.clock.flush.zero_()
        return self.clock.events(self.graph.replay) / self.count


def in_turns(ours: Callable[[], float], theirs: Callable[[], float]) -> dict[str, list[float]]:
    """Samples of both in the order A B B A, each turn after one that does not count."""
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    for name, sample in (("ours", ours), ("theirs", theirs), ("theirs", theirs), ("ours", ours)):
        sample()
        found[name] += [sample() for _ in range(REPLAYS)]
    return found

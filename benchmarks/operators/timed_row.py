"""One row: both sides on the same numbers, compared, then timed."""

import statistics
from typing import Any

import sides
import torch
from clock import Clock, Graph, in_turns
from matrix import Row
from ours import Ours

PROBES = 3


def time_row(row: Row, ours: Ours, clock: Clock) -> dict[str, Any]:
    """A row of the record."""
    both = sides.make(row, ours)
    both.ours[0]()
    torch.cuda.synchronize()
    graphs, eager, refused, differences = {}, {}, {}, {}
    for name, peer in both.peers.items():
        try:
            both.choose(name)
            calls = peer()
            differences[name] = both.error(calls[0]())
            eager[name] = clock.eager(calls[0])
            graphs[name] = (clock.graph(calls[:1]), clock.graph(calls))
        except (RuntimeError, ValueError, NotImplementedError, ImportError, AttributeError) as error:
            # One that does not admit the row; a lost context shows at once in what comes next.
            torch.cuda.synchronize()
            refused[name] = f"{type(error).__name__}: {error}"[:400]
    if not graphs:
        raise ValueError(f"no peer admits the row: {refused}")
    own = (clock.graph(both.ours[:1]), clock.graph(both.ours))
    found = {"id": row.id, "family": row.family, "artifact": both.artifact, "sets": both.sets}
    found |= {"layout": both.layout, "peer_layout": both.peer_layout, "bytes": row.bytes, "operations": row.operations}
    for index, (mode, sample) in enumerate((("warm", Graph.warm), ("flushed", Graph.flushed))):
        probes = {}
        for name, pair in graphs.items():
            probes[name] = statistics.median([sample(pair[index]) for _ in range(PROBES + 1)][1:])
        best = min(probes, key=probes.get)
        turns = in_turns(lambda i=index, s=sample: s(own[i]), lambda i=index, s=sample, b=best: s(graphs[b][i]))
        found[mode] = {**turns, "peer": best, "probes": probes, "calls": [own[index].count, graphs[best][index].count]}
    # Once more after the turns, so that both orders are there.
    for name in graphs:
        both.choose(name)
        eager[name] += clock.eager(both.peers[name]()[0])
    found |= {"eager": eager, "peer": found["flushed"]["peer"], "refused": refused, "differences": differences}
    found["difference"] = worst = max(differences.values())
    if not worst <= sides.TOLERANCE:
        found["error"] = f"results differ by {worst:.2e}: {differences}"
    return found

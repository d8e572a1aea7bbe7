"""Whether CUDA graphs could replace a rank's launches, what prevents it, and the estimated gain.

A graph replays one sequence of operations. So the sequence has to repeat, and the host must not wait within
it: each wait ends a part that can be captured. Within a part, the next operation begins about `NODE_GAP_NS`
after the one before, however long the host takes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from perfd.trace.breakdown.activity_links import activity_links
from perfd.trace.breakdown.cuda_graph_launches import launched_by_graphs
from perfd.trace.breakdown.idle_time import HOST_WAIT_NS
from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.model.intervals import Flags, Ns

NODE_GAP_NS = 1_500
"""Between two kernels of a graph (H200: 0.7 to 1.6 µs between kernels that were queued)."""
REPEATED_RATIO = 0.95
"""Share of operations that come again at the same distance, from which a sequence repeats."""
_LEAST_REPEATS = 3
"""Two occurrences can be chance, and give only one distance."""
_ANCHORS, _OCCURRENCES, _DISTANCES = 8, 64, 16
"""Rarest operations, their first places, and the most frequent distances between those, which are tried as
periods: they bound the time. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphUse:
    """One rank's launches, within its window."""

    in_graphs_ratio: float
    """Share of the launched operations that graphs launch already."""
    sequence_count: int | None
    """Operations launched one by one in a repetition, the median; None if nothing repeats."""
    repeats_count: int
    """Marked steps, else repetitions of the sequence; 0 if nothing repeats."""
    same_ratio: float
    """Share of steps (after the first) that launch exactly what the step before did, else of operations that
    come again at the distance of the sequence."""
    waits_count: int
    """Waits of launching threads for the GPU."""
    reads_count: int
    """Of these, waits for a copy to the host, by whose value it may decide what to launch."""
    launch_gap_s: float
    """Time without an operation on the GPU before operations that the host launched only then."""
    gain_s: float
    """The part that graphs would save: gaps of up to `HOST_WAIT_NS` within parts, less `NODE_GAP_NS` each. In
    longer ones the host does something else. 0 if nothing repeats."""

    @property
    def repeats(self) -> bool:
        """Whether graphs could replay any of it."""
        return self.sequence_count is not None


def graph_use(timeline: RankTimeline) -> GraphUse | None:
    """Of one rank; None without launches in its window."""
    trace, window, at = timeline.trace, timeline.window, timeline.launched_by
    starts = trace.operations.start_ns
    launched = (at >= 0) & (starts >= window.start_ns) & (starts < window.end_ns)
    if not launched.any():
        return None
    in_graph = launched & launched_by_graphs(timeline)
    alone = np.flatnonzero(launched & ~in_graph)
    # As the host launched them: on several streams, the order of starts is not the same each time.
    alone = alone[np.argsort(at[alone], kind="stable")]
    sequence_count, repeats_count, same_ratio = _repetition(timeline, alone)
    links = activity_links(timeline)
    inside = (links.wait_start_ns >= window.start_ns) & (links.wait_start_ns < window.end_ns)
    to_host = np.array(["DtoH" in name for name in trace.names], dtype=np.bool_)
    follows = _within_parts(timeline, alone, links.wait_end_ns)
    gap_ns, saved_ns = _gaps(timeline, follows)
    return GraphUse(
        in_graphs_ratio=float(in_graph.sum() / launched.sum()),
        sequence_count=sequence_count,
        repeats_count=repeats_count,
        same_ratio=same_ratio,
        waits_count=int(inside.sum()),
        reads_count=int(to_host[trace.operations.name[links.awaited[inside]]].sum()),
        launch_gap_s=gap_ns / 1e9,
        gain_s=saved_ns / 1e9 if sequence_count is not None else 0.0,
    )


def _repetition(timeline: RankTimeline, alone: Ns) -> tuple[int | None, int, float]:
    """Operations of a repetition, how many repetitions, and how far they are the same."""
    trace, steps = timeline.trace, timeline.window.steps
    what = trace.operations.name[alone].astype(np.int64)
    if trace.detail is not None:
        # Other shapes are other arguments, which a graph cannot have.
        what = what * (len(trace.detail.launch_shapes) + 1) + trace.detail.launch_shape[alone] + 1
    if len(steps) > 1:
        called_ns = trace.calls.start_ns[timeline.launched_by[alone]]
        own = [what[(called_ns >= step.start_ns) & (called_ns < step.end_ns)] for step in steps]
        same = [np.array_equal(one, before) for before, one in pairwise(own)]
        count = int(np.median([len(one) for one in own]))
        return (count if any(same) and count else None), len(steps), sum(same) / len(same)
    distance, same_ratio = _distance(what)
    if distance is None or same_ratio < REPEATED_RATIO:
        return None, 0, same_ratio
    return distance, len(what) // distance, same_ratio


def _distance(what: Ns) -> tuple[int | None, float]:
    """After how many operations most come again, the least of such; and the share that does."""
    _, place, counts = np.unique(what, return_inverse=True, return_counts=True)
    rare = [at for at in np.argsort(counts, kind="stable").tolist() if counts[at] >= _LEAST_REPEATS]
    found: Counter[int] = Counter()
    for at in rare[:_ANCHORS]:
        where = np.flatnonzero(place == at)[:_OCCURRENCES]
        apart = (where[None, :] - where[:, None]).ravel()
        found.update(apart[apart > 0].tolist())
    best: tuple[int | None, float] = (None, 0.0)
    for distance in sorted(one for one, _ in found.most_common(_DISTANCES)):
        if distance * _LEAST_REPEATS > len(what):
            break
        ratio = float(np.mean(what[distance:] == what[:-distance]))
        if ratio >= REPEATED_RATIO:
            return distance, ratio
        best = max(best, (distance, ratio), key=lambda one: one[1])
    return best


def _within_parts(timeline: RankTimeline, alone: Ns, wait_end_ns: Ns) -> Flags:
    """Which operations were launched one by one, and with no wait since the launch before."""
    trace = timeline.trace
    calls = timeline.launched_by[alone]
    called_ns = trace.calls.start_ns[calls]
    waits = np.searchsorted(wait_end_ns, called_ns, side="right")
    found = np.zeros(len(trace.operations), dtype=np.bool_)
    found[alone[1:]] = waits[1:] == waits[:-1]
    return found


def _gaps(timeline: RankTimeline, follows: Flags) -> tuple[int, int]:
    """Nanoseconds of all gaps that launches ended, and how much of them graphs would save."""
    trace, window, at = timeline.trace, timeline.window, timeline.launched_by
    starts, ends = timeline.busy.gaps(window.start_ns, window.end_ns)
    ended_by = np.searchsorted(trace.operations.start_ns, ends)
    known = ended_by < len(trace.operations)
    starts, ends, ended_by = starts[known], ends[known], ended_by[known]
    late = (at[ended_by] >= 0) & (trace.calls.end_ns[np.maximum(at[ended_by], 0)] > starts)
    length = (ends - starts)[late]
    short = follows[ended_by[late]] & (length <= HOST_WAIT_NS)
    return int(length.sum()), int(np.maximum(length[short] - NODE_GAP_NS, 0).sum())

"""How much sooner a capture would end if a part of its critical path took no time: then other work decides.

The capture is run again as a graph: operations begin after those before them on their stream and after their
launch, launches follow on the host's waits, collectives end by the rank that comes last. What was observed
between these (latency, Python) stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfd.trace.breakdown.activity_links import activity_links
from perfd.trace.breakdown.collective_matching import Collectives
from perfd.trace.breakdown.critical_path import DATA_LOADING, CriticalPath, PathKind, operation_at_end
from perfd.trace.breakdown.rank_breakdown import RankTimeline

_HOST = frozenset({PathKind.HOST.value, DATA_LOADING})
_MOST_CLASSES = 8
"""Of work on a path, the costliest: each takes a pass over all operations. Chosen."""
_PENDING = -1.0
"""A time that is not computed yet; no real one is negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathGain:
    """What a class of work on the critical path is worth."""

    part_class: str
    path_s: float
    """Its time on the path, over all ranks."""
    gain_s: float
    """The capture would end so much sooner if it took no time on any rank: at most `path_s`."""


def path_gains(
    timelines: Mapping[int, RankTimeline], found: Collectives, path: CriticalPath
) -> list[PathGain]:
    """The costliest classes of the path; one pass over all operations for each."""
    graph = _Graph({rank: timeline for rank, timeline in timelines.items() if timeline.complete}, found)
    plain = graph.end_ns(path.end_rank, frozenset())
    gains = []
    for part_class, path_s in list(path.by_class().items())[:_MOST_CLASSES]:
        if part_class in {PathKind.GAP.value, PathKind.LAUNCH.value, PathKind.WAIT_RETURN.value}:
            continue
        free = _HOST if part_class in _HOST else frozenset({part_class})
        gain_s = (plain - graph.end_ns(path.end_rank, free)) / 1e9
        gains.append(PathGain(part_class=part_class, path_s=path_s, gain_s=min(max(gain_s, 0.0), path_s)))
    return gains


class _Node:
    """One rank: lists, because each value is read once in every pass."""

    def __init__(self, timeline: RankTimeline) -> None:
        links, operations = activity_links(timeline), timeline.trace.operations
        self.begin, self.end = timeline.window.start_ns, timeline.window.end_ns
        self.classes = [timeline.trace.classes[at] for at in operations.name.tolist()]
        starts, ends = operations.start_ns, operations.end_ns
        bases = np.concatenate((links.wait_end_ns, [self.begin]))
        # The last wait before each launch and before each wait; -1, the begin of the window, for none.
        wait = np.searchsorted(links.wait_end_ns, links.launched_ns, side="right") - 1
        launched = links.launched_ns
        padded = np.append(ends, np.iinfo(np.int64).min // 2)
        ready = np.maximum(padded[links.previous], padded[links.before])
        ready = np.where(launched >= 0, np.maximum(ready, launched), ready)
        ready = np.where(ready < self.begin, self.begin, ready)
        self.start: list[int] = starts.tolist()
        self.length: list[int] = (np.minimum(ends, self.end) - np.minimum(starts, self.end)).tolist()
        self.stop: list[int] = ends.tolist()
        self.lag: list[int] = (starts - ready).tolist()
        self.previous: list[int] = links.previous.tolist()
        self.before: list[int] = links.before.tolist()
        self.launch_wait: list[int] = np.where(launched >= 0, wait, -2).tolist()
        self.launch_after: list[int] = (launched - bases[wait]).tolist()
        self.awaited: list[int] = links.awaited.tolist()
        self.host: list[int] = (
            links.wait_start_ns - np.concatenate(([self.begin], links.wait_end_ns))[:-1]
        ).tolist()
        ready = np.maximum(ends[links.awaited], links.wait_start_ns)
        self.returned: list[int] = (links.wait_end_ns - ready).tolist()
        self.wait_end: list[int] = links.wait_end_ns.tolist()
        count = len(starts)
        times = np.concatenate((starts, links.wait_end_ns))
        is_operation = np.concatenate((np.ones(count, np.int8), np.zeros(len(links.wait_end_ns), np.int8)))
        # Operations have their index, waits theirs behind all operations.
        self.events: list[int] = np.lexsort((is_operation, times)).tolist()
        self.last_wait = int(np.searchsorted(links.wait_end_ns, self.end, side="right")) - 1
        self.has_host = bool(len(timeline.trace.calls))
        self.last_operation = operation_at_end(timeline)


class _Pass:
    """The times of one rank in one pass."""

    def __init__(self, node: _Node) -> None:
        self.starts = [_PENDING] * len(node.start)
        self.ends = [_PENDING] * len(node.start)
        self.waits: list[float] = [_PENDING] * len(node.awaited)
        self.position = 0


class _Graph:
    def __init__(self, timelines: Mapping[int, RankTimeline], found: Collectives) -> None:
        self._nodes = {rank: _Node(timeline) for rank, timeline in timelines.items()}
        self._joined: dict[tuple[int, int], tuple[Sequence[tuple[int, int]], int]] = {}
        for together in (*found.joined, *found.messages):
            members = [(rank, one.at) for rank, one in together.items()]
            if all(rank in self._nodes for rank, _ in members):
                transfer = round(min(one.duration_s for one in together.values()) * 1e9)
                for member in members:
                    known = self._joined.get(member)
                    if known is None or transfer < known[1]:
                        self._joined[member] = (members, transfer)

    def end_ns(self, end_rank: int, free: frozenset[str]) -> float:
        """When the window of a rank ends, from its begin, if classes of work take no time."""
        passes = {rank: _Pass(node) for rank, node in self._nodes.items()}
        moving = True
        while moving:
            moving = False
            for rank in passes:
                moving |= self._advance(rank, passes, free)
            if not moving and any(p.position < len(self._nodes[r].events) for r, p in passes.items()):
                # Matched wrongly: what is awaited never begins. Its own duration counts instead.
                moving = self._force(passes)
        node, mine = self._nodes[end_rank], passes[end_rank]
        ended = 0.0
        if node.last_operation >= 0:
            at = node.last_operation
            beyond = node.stop[at] - node.end if (end_rank, at) in self._joined else 0
            ended = self._ended(end_rank, at, passes, free) - (0 if node.classes[at] in free else beyond)
            if not node.has_host:
                return ended
        base = mine.waits[node.last_wait] if node.last_wait >= 0 else 0.0
        since = node.wait_end[node.last_wait] if node.last_wait >= 0 else node.begin
        return max(ended, base + (0 if free & _HOST else node.end - since))

    def _advance(self, rank: int, passes: Mapping[int, _Pass], free: frozenset[str]) -> bool:
        """Go on with a rank until something of another rank is missing; whether it moved."""
        node, mine = self._nodes[rank], passes[rank]
        starts, ends, waits = mine.starts, mine.ends, mine.waits
        count, events, first = len(node.start), node.events, mine.position
        host_free = bool(free & _HOST)
        while mine.position < len(events):
            at = events[mine.position]
            if at >= count:
                at -= count
                ended = self._ended(rank, node.awaited[at], passes, free)
                if ended == _PENDING:
                    break
                earlier = waits[at - 1] if at else 0.0
                waits[at] = max(earlier + (0 if host_free else node.host[at]), ended) + node.returned[at]
            elif node.start[at] < node.begin:
                starts[at], ends[at] = node.start[at] - node.begin, max(node.stop[at] - node.begin, 0)
            else:
                ready = 0.0
                missing = False
                for source in {node.previous[at], node.before[at]}:
                    if source >= 0:
                        ended = self._ended(rank, source, passes, free)
                        missing |= ended == _PENDING
                        ready = max(ready, ended)
                if missing:
                    break
                wait = node.launch_wait[at]
                if wait > -2:
                    base = waits[wait] if wait >= 0 else 0.0
                    ready = max(ready, base + (0 if host_free else node.launch_after[at]))
                starts[at] = ready + node.lag[at]
                if (rank, at) not in self._joined:
                    ends[at] = starts[at] + (0 if node.classes[at] in free else node.length[at])
            mine.position += 1
        return mine.position > first

    def _ended(self, rank: int, at: int, passes: Mapping[int, _Pass], free: frozenset[str]) -> float:
        """When an operation ends; pending while a rank that takes part has not begun."""
        ends = passes[rank].ends
        if ends[at] == _PENDING and (rank, at) in self._joined:
            members, transfer = self._joined[rank, at]
            begun = [passes[other].starts[place] for other, place in members]
            if _PENDING not in begun:
                ends[at] = max(begun) + (0 if self._nodes[rank].classes[at] in free else transfer)
        return ends[at]

    def _force(self, passes: Mapping[int, _Pass]) -> bool:
        for (rank, at), (_, transfer) in self._joined.items():
            mine = passes[rank]
            if mine.starts[at] != _PENDING and mine.ends[at] == _PENDING:
                mine.ends[at] = mine.starts[at] + transfer
                return True
        return False

"""The critical path of a capture: the chain of work, over all ranks, that its length is due to.

It is followed from the end backward: an operation began because the one before it on its stream had ended,
another stream's had, or the host had launched it; a host that waited went on because an operation had ended;
a collective ends by the rank that came last. So of several things at one time only that counts on which the
next had to wait. Clocks of ranks are not compared.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from perfd.trace.breakdown.activity_links import activity_links
from perfd.trace.breakdown.collective_matching import Collectives
from perfd.trace.breakdown.loader_time import is_loading, of_launching_threads
from perfd.trace.breakdown.rank_breakdown import RankTimeline
from perfd.trace.model.intervals import Ns


class PathKind(StrEnum):
    """What a segment of the path is."""

    OPERATION = "operation"
    """A kernel, copy or fill."""
    HOST = "host"
    LAUNCH = "launch"
    """From the launching call's return to the operation's begin, with nothing before it on the GPU."""
    GAP = "gap"
    """Between an operation's end and the begin of the one that it released."""
    WAIT_RETURN = "wait_return"
    """From an operation's end to the return of the call that waited for it."""


_CHAINED = array("q", [-1])
DATA_LOADING = "data_loading"
"""The class of the host's work within a range around input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSegments:
    """What of the path is on one rank, in no order."""

    operation: Ns
    """Indices of the operations on the path."""
    start_ns: Ns
    end_ns: Ns
    """Of these operations, on the rank's clock; up to where the next one began."""
    gap_start_ns: Ns
    gap_end_ns: Ns
    """Between operations of which one released the next."""
    others: Sequence[tuple[PathKind, int, int]]
    """What is neither: kind, start and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPart:
    """All of one name in one step of one rank."""

    rank: int
    step: int | None
    """None outside of whole steps."""
    part_class: str
    """Of an operation its class, else `data_loading` or the `PathKind`."""
    name: str
    """Of the operation, or the innermost range around the host's work; else empty."""
    count: int
    total_s: float
    """A saving here shortens the capture by so much at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The path of a capture; its parts sum to its length."""

    end_rank: int
    """Where it ends: the rank with the longest window."""
    length_s: float
    segments: Mapping[int, PathSegments]
    """By rank."""
    parts: Sequence[PathPart]
    """The longest first."""

    def by_rank(self) -> dict[int, float]:
        """Seconds on each rank, the longest first."""
        total: dict[int, float] = {}
        for part in self.parts:
            total[part.rank] = total.get(part.rank, 0.0) + part.total_s
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    def by_class(self) -> dict[str, float]:
        """Seconds of each class, the longest first."""
        return _by_class(self.parts)

    def by_step(self) -> dict[int, dict[str, float]]:
        """Seconds of each class in each whole step."""
        steps = sorted({part.step for part in self.parts if part.step is not None})
        return {step: _by_class(part for part in self.parts if part.step == step) for step in steps}


def critical_path(timelines: Mapping[int, RankTimeline], found: Collectives) -> CriticalPath | None:
    """The path through the ranks with all their records; None without such a rank."""
    whole = {rank: timeline for rank, timeline in timelines.items() if timeline.complete}
    if not whole:
        return None
    end_rank = max(whole, key=lambda rank: (whole[rank].window.end_ns - whole[rank].window.start_ns, -rank))
    walk = _Walk(whole, last_arrivals(found))
    walk.backward_from(end_rank)
    segments = {rank: trail.segments() for rank, trail in walk.trails.items()}
    parts = [part for rank, one in segments.items() for part in _parts(rank, whole[rank], one)]
    parts.sort(key=lambda part: (-part.total_s, part.rank, part.part_class, part.name))
    return CriticalPath(
        end_rank=end_rank,
        length_s=sum(part.total_s for part in parts),
        segments=segments,
        parts=parts,
    )


def last_arrivals(found: Collectives) -> dict[int, dict[int, tuple[int, int]]]:
    """By rank and operation that was matched: rank and operation of the one that came last."""
    last: dict[int, dict[int, tuple[int, int]]] = {}
    shortest: dict[tuple[int, int], float] = {}
    for together in (*found.joined, *found.messages):
        came = min(together, key=lambda rank: (together[rank].duration_s, rank))
        for rank, one in together.items():
            # A kernel with several messages is done with the one whose other end came last.
            if together[came].duration_s < shortest.get((rank, one.at), float("inf")):
                shortest[rank, one.at] = together[came].duration_s
                last.setdefault(rank, {})[one.at] = (came, together[came].at)
    return last


class _Trail:
    """What a walk found on one rank."""

    def __init__(self, timeline: RankTimeline) -> None:
        links = activity_links(timeline)
        self.timeline, self.operations = timeline, timeline.trace.operations
        # Python reads single numbers from it as fast as from a list, which takes five times the memory.
        self.before = links.before.data
        self.wait_ends: list[int] = links.wait_end_ns[links.held].tolist()
        self.awaited = links.awaited[links.held]
        self.begin_ns = timeline.window.start_ns
        self.reached_ns = timeline.window.end_ns
        """The walk has not been before this time."""
        self._path = array("q")
        self._limits = array("q")
        """Until when each operation counts; -1 for the begin of the one before it in the list."""
        self._others: list[tuple[PathKind, int, int]] = []

    def launched_ns(self, at: int) -> int:
        """When the call that launched an operation returned, at its start at the latest; -1 for unknown."""
        call = int(self.timeline.launched_by[at])
        if call < 0:
            return -1
        return min(int(self.timeline.trace.calls.end_ns[call]), int(self.operations.start_ns[at]))

    def add(self, kind: PathKind, start_ns: int, end_ns: int) -> None:
        """Something other than operations."""
        if max(start_ns, self.begin_ns) < end_ns:
            self._others.append((kind, max(start_ns, self.begin_ns), end_ns))

    def follow(self, at: int, now: int, stops: Mapping[int, object]) -> tuple[int, int]:
        """Back along operations that released each other, until `stops`; the last one, and its begin."""
        path, before = self._path, self.before
        first = len(path)
        path.append(at)
        while (earlier := before[at]) >= 0 and earlier not in stops:
            at = earlier
            path.append(at)
        self._limits.append(now)
        self._limits.extend(_CHAINED * (len(path) - first - 1))
        return at, min(now, int(self.operations.start_ns[at]))

    def segments(self) -> PathSegments:
        """All of it."""
        path = np.frombuffer(self._path, dtype=np.int64)
        limits = np.array(self._limits, dtype=np.int64)
        starts, ends = self.operations.start_ns[path], self.operations.end_ns[path]
        chained = np.flatnonzero(limits < 0)
        limits[chained] = starts[chained - 1]
        ends = np.minimum(ends, limits)
        gap_starts, gap_ends = np.maximum(ends[chained], self.begin_ns), limits[chained]
        gaps = gap_starts < gap_ends
        starts = np.maximum(starts, self.begin_ns)
        kept = starts < ends
        return PathSegments(
            operation=path[kept],
            start_ns=starts[kept],
            end_ns=ends[kept],
            gap_start_ns=gap_starts[gaps],
            gap_end_ns=gap_ends[gaps],
            others=self._others,
        )


class _Walk:
    """From the end of a rank's window backward to the begin of a window."""

    def __init__(
        self, timelines: Mapping[int, RankTimeline], last: Mapping[int, Mapping[int, tuple[int, int]]]
    ) -> None:
        self.trails = {rank: _Trail(timeline) for rank, timeline in timelines.items()}
        self._last = last

    def backward_from(self, rank: int) -> None:
        """Leaves the path in the trails."""
        trail = self.trails[rank]
        now, at = trail.reached_ns, operation_at_end(trail.timeline)
        while now > trail.begin_ns:
            if at < 0:
                wait = bisect_right(trail.wait_ends, now) - 1
                begin = trail.wait_ends[wait] if wait >= 0 else trail.begin_ns
                trail.add(PathKind.HOST, begin, now)
                if wait < 0:
                    return
                at = int(trail.awaited[wait])
                now = min(int(trail.operations.end_ns[at]), begin)
                trail.add(PathKind.WAIT_RETURN, now, begin)
            came_rank, came = self._last.get(rank, {}).get(at, (rank, at))
            if came_rank != rank and self._may_enter(came_rank, came):
                # The others waited for this rank: what they had of the transfer is its kernel.
                rank, at, trail = came_rank, came, self.trails[came_rank]
                now = min(int(trail.operations.end_ns[at]), trail.reached_ns)
            at, now = trail.follow(at, now, self._last.get(rank, {}))
            before, launched = trail.before[at], trail.launched_ns(at)
            if before >= 0:
                ended = min(int(trail.operations.end_ns[before]), now)
                trail.add(PathKind.GAP, ended, now)
                at, now = before, ended
            elif launched >= 0:
                trail.add(PathKind.LAUNCH, launched, now)
                at, now = -1, min(launched, now)
            else:
                trail.add(PathKind.GAP, trail.begin_ns, now)
                return
            trail.reached_ns = now

    def _may_enter(self, rank: int, at: int) -> bool:
        """Whether that is before all that was visited there: what was matched wrongly must not loop."""
        trail = self.trails.get(rank)
        return trail is not None and int(trail.operations.start_ns[at]) < trail.reached_ns


def operation_at_end(timeline: RankTimeline) -> int:
    """The operation that runs when the window ends, or the last one of a trace without the host; else -1."""
    operations, end_ns = timeline.trace.operations, timeline.window.end_ns
    running = np.flatnonzero((operations.start_ns < end_ns) & (operations.end_ns >= end_ns))
    if not len(running) and not len(timeline.trace.calls):
        running = np.flatnonzero(operations.end_ns <= end_ns)
    return int(running[np.argmax(operations.end_ns[running])]) if len(running) else -1


def _parts(rank: int, timeline: RankTimeline, segments: PathSegments) -> Iterator[PathPart]:
    labels, which, starts, ends = _named(timeline, segments)
    for step, clipped in _by_step(timeline, starts, ends):
        total = np.bincount(which, weights=clipped, minlength=len(labels))
        count = np.bincount(which[clipped > 0], minlength=len(labels))
        for at in np.flatnonzero(total > 0).tolist():
            yield PathPart(
                rank=rank,
                step=step,
                part_class=labels[at][0],
                name=labels[at][1],
                count=int(count[at]),
                total_s=float(total[at]) / 1e9,
            )


def _named(timeline: RankTimeline, segments: PathSegments) -> tuple[list[tuple[str, str]], Ns, Ns, Ns]:
    """Classes and names, and of each segment which of these, start and end; the host is cut at its ranges."""
    trace, ranges = timeline.trace, HostRanges(timeline)
    labels = list(zip(trace.classes, trace.names, strict=True))
    numbers: dict[tuple[str, str], int] = {}
    rows = []
    for kind, start_ns, end_ns in segments.others:
        pieces: Iterable[tuple[int, int, str, bool]] = ((start_ns, end_ns, "", False),)
        if kind is PathKind.HOST:
            pieces = ranges.pieces(start_ns, end_ns)
        for begin, end, name, loads in pieces:
            label = (DATA_LOADING if loads else kind.value, name)
            rows.append((numbers.setdefault(label, len(labels) + len(numbers)), begin, end))
    gap = numbers.setdefault((PathKind.GAP.value, ""), len(labels) + len(numbers))
    gaps = np.full(len(segments.gap_start_ns), gap)
    which, starts, ends = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return (
        [*labels, *numbers],
        np.concatenate((trace.operations.name[segments.operation].astype(np.int64), gaps, which)),
        np.concatenate((segments.start_ns, segments.gap_start_ns, starts)),
        np.concatenate((segments.end_ns, segments.gap_end_ns, ends)),
    )


def _by_step(timeline: RankTimeline, starts: Ns, ends: Ns) -> Iterator[tuple[int | None, Ns]]:
    """Of each whole step, and outside of all, how long of each interval."""
    left = ends - starts
    for step in timeline.window.steps:
        inside = np.minimum(ends, step.end_ns) - np.maximum(starts, step.start_ns)
        inside = np.minimum(np.maximum(inside, 0), left)
        left = left - inside
        yield step.number, inside
    yield None, left


def _by_class(parts: Iterable[PathPart]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        total[part.part_class] = total.get(part.part_class, 0.0) + part.total_s
    return dict(sorted(total.items(), key=lambda item: -item[1]))


class HostRanges:
    """The innermost range of a rank's launching threads: of those that are open the one that began last."""

    def __init__(self, timeline: RankTimeline) -> None:
        self._phases = of_launching_threads(timeline.trace, timeline)
        self._cuts: list[tuple[int, str, bool]] | None = None
        self._times: list[int] = []

    def pieces(self, start_ns: int, end_ns: int) -> Iterator[tuple[int, int, str, bool]]:
        """Begin, end, innermost range (empty for none) and whether any range there is around input."""
        if self._cuts is None:
            self._cuts = self._all_cuts()
            self._times = [time for time, _, _ in self._cuts]
        at = bisect_right(self._times, start_ns) - 1
        while start_ns < end_ns:
            until = min(self._times[at + 1], end_ns) if at + 1 < len(self._times) else end_ns
            _, name, loads = self._cuts[at] if at >= 0 else (0, "", False)
            if start_ns < until:
                yield start_ns, until, name, loads
            start_ns, at = until, at + 1

    def _all_cuts(self) -> list[tuple[int, str, bool]]:
        """From when on which range is the innermost one, in order."""
        events = sorted(
            [(phase.start_ns, 1, at) for at, phase in enumerate(self._phases)]
            + [(phase.end_ns, 0, at) for at, phase in enumerate(self._phases)]
        )
        open_: dict[int, bool] = {}
        cuts: list[tuple[int, str, bool]] = []
        for time, begins, at in events:
            if begins:
                open_[at] = is_loading(self._phases[at].name)
            else:
                open_.pop(at, None)
            inner = next(reversed(open_), None)
            cut = (time, "" if inner is None else self._phases[inner].name, any(open_.values()))
            if cuts and cuts[-1][0] == time:
                cuts[-1] = cut
            else:
                cuts.append(cut)
        return cuts

"""Why one rank of a capture is slow: it beside its peers, by what differs and costs most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from perfd.formatting import duration, percent, rank_names
from perfd.trace.breakdown import loader_time
from perfd.trace.diagnosis.trace_analysis import RankAnalysis, TraceAnalysis

_LEAST_RATIO = 0.01
"""Of the window: what differs by less is chance."""
_MOST_ROWS = 12
"""Differences between a rank and its peers that are listed, the costliest."""
_OTHER_WORK = " They are of other stages, whose work differs: no rank of its own was captured."
_MORE_WORK = 1.02
"""So many times as many kernels as its peers' are more work, and not slower work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that the rank does longer, or shorter, than its peers. Seconds of the rank's window."""

    what: str
    """`host`, `kernel`, `collective` or `range`."""
    name: str
    own_s: float
    peers_s: float
    """The median of its peers, as if their windows were as long."""
    own_count: int | None = None
    peers_count: float | None = None

    @property
    def cost_s(self) -> float:
        """What it does longer; negative for what it does shorter."""
        return self.own_s - self.peers_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerComparison:
    """A rank beside the ranks of the same stage, or beside others where none of these was captured."""

    rank: int
    peers: Sequence[int]
    span_s: float
    answer: str
    """Why it is slow, in a sentence; that nothing differs, or what is missing."""
    cost_ratio: float | None
    """What it does longer than its peers, by the window; None where nothing differs, or that is unknown."""
    differences: Sequence[Difference] = ()
    """What costs most first, then what it does shorter."""
    alike: bool = True
    """Whether the peers have the same work."""


def _input_s(rank: RankAnalysis) -> float:
    found = loader_time(rank.timeline)
    return 0.0 if found is None else found.idle_s


_Seconds = Callable[[RankAnalysis], float]
_DOES = {
    "input": "waits for input",
    "host": "launches nothing in gaps over 100 µs: its host is busy with something else",
    "launches": "launches later",
    "synchronization": "lets its GPU idle by waiting for it",
    "copies": "copies with nothing beside it",
    "compute": "computes",
}
"""What can make a rank late, each instant of its window in one of them."""


def _parts(own: RankAnalysis, peers: Sequence[RankAnalysis]) -> Mapping[str, _Seconds]:
    """How long a rank does each.

    Its GPU may idle behind a pause of its host only because the host had waited before and was not ahead.
    That is the synchronization's where the rank has more of it than its peers, and the pause's otherwise.
    """
    waits = sum(point.count for point in own.syncs)
    usual = median(_scaled(sum(point.count for point in one.syncs), one, own) for one in peers)
    more_waits = waits >= _MORE_WORK * usual and waits > usual + 1

    def host_s(rank: RankAnalysis) -> float:
        idle = rank.whole.idle
        busy_s = 0.0 if idle is None else idle.host_s if more_waits else idle.paused_s
        return max(0.0, busy_s - _input_s(rank))

    def launches_s(rank: RankAnalysis) -> float:
        idle = rank.whole.idle
        if idle is None:
            return 0.0
        return idle.unlaunched_s - idle.host_s if more_waits else idle.launch_s - idle.paused_s

    def waits_s(rank: RankAnalysis) -> float:
        idle = rank.whole.idle
        return 0.0 if idle is None else idle.synchronizing_s if more_waits else idle.sync_s

    return {
        "input": _input_s,
        "host": host_s,
        "launches": launches_s,
        "synchronization": waits_s,
        "copies": lambda rank: rank.whole.exposed_memory_s,
        "compute": lambda rank: rank.whole.compute_s,
    }


def compare(analysis: TraceAnalysis, rank: int) -> PeerComparison:
    """The rank beside the complete ranks of its stage; without any, beside all others."""
    own = next((one for one in analysis.complete if one.rank == rank), None)
    if own is None:
        return _unknown(rank, f"Why rank {rank} is slow is not known: its GPU's records are not all there.")
    others = [one for one in analysis.complete if one.rank != rank]
    if not others:
        return _unknown(rank, f"Why rank {rank} is slow is not known: no peer of it was captured.")
    of_stage = [one for one in others if one.stage == own.stage]
    peers = of_stage or others
    parts = [
        _difference("host" if name != "compute" else name, name, seconds, own, peers)
        for name, seconds in _parts(own, peers).items()
    ]
    worst = max(parts, key=lambda part: part.cost_s)
    span_s = own.whole.span_s
    details = [*_kernels(own, peers), *_collectives(analysis, own, peers), *_ranges(own, peers)]
    rows = [one for one in (*parts, *details) if abs(one.cost_s) >= _LEAST_RATIO * span_s]
    differs = worst.cost_s >= _LEAST_RATIO * span_s
    return PeerComparison(
        rank=rank,
        peers=[one.rank for one in peers],
        span_s=span_s,
        answer=(_answer(own, peers, worst, details) if differs else _alike(rank, peers))
        + ("" if of_stage else _OTHER_WORK),
        cost_ratio=sum(max(0.0, part.cost_s) for part in parts) / span_s if differs else None,
        differences=sorted(rows, key=lambda one: -one.cost_s)[:_MOST_ROWS],
        alike=bool(of_stage),
    )


def _unknown(rank: int, answer: str) -> PeerComparison:
    return PeerComparison(rank=rank, peers=(), span_s=0.0, answer=answer, cost_ratio=None)


def _alike(rank: int, peers: Sequence[RankAnalysis]) -> str:
    return (
        f"In this capture rank {rank} does as its peers do ({rank_names([one.rank for one in peers])}):"
        f" nothing takes it {percent(_LEAST_RATIO, 0)} of the window longer."
    )


def _answer(
    own: RankAnalysis, peers: Sequence[RankAnalysis], worst: Difference, details: Iterable[Difference]
) -> str:
    does = _DOES[worst.name]
    names = rank_names([one.rank for one in peers])
    sentence = (
        f"Rank {own.rank} {does}: {duration(worst.own_s)} of {duration(own.whole.span_s)}, its peers"
        f" {duration(worst.peers_s)} ({names}; median)."
        if worst.name != "compute"
        else f"Rank {own.rank} computes {duration(worst.own_s)} of {duration(own.whole.span_s)}, its peers"
        f" {duration(worst.peers_s)} ({names}; median){_how(own, peers)}."
    )
    of_it = "kernel" if worst.name in {"compute", "copies"} else "range"
    most = max((one for one in details if one.what == of_it), key=lambda one: one.cost_s, default=None)
    if most is None or most.cost_s < _LEAST_RATIO * own.whole.span_s:
        return sentence
    usual = round(most.peers_count or 0)
    counts = "" if most.own_count == usual else f", {most.own_count} times instead of {usual}"
    return f"{sentence} Most of it: {of_it} {most.name[:64]}, {duration(most.cost_s)} longer{counts}."


def _how(own: RankAnalysis, peers: Sequence[RankAnalysis]) -> str:
    """Whether it has more kernels, or slower ones."""
    counts = [one.whole.kernel_count / one.whole.span_s for one in peers if one.whole.span_s]
    usual = median(counts) * own.whole.span_s if counts else 0.0
    if not usual:
        return ""
    if own.whole.kernel_count >= _MORE_WORK * usual:
        return f": it has more work, {own.whole.kernel_count} kernels instead of {usual:.0f}"
    return ": the same kernels take longer"


def _difference(
    what: str, name: str, seconds: _Seconds, own: RankAnalysis, peers: Sequence[RankAnalysis]
) -> Difference:
    return Difference(
        what=what,
        name=name,
        own_s=seconds(own),
        peers_s=median(_scaled(seconds(one), one, own) for one in peers),
    )


def _scaled(value: float, peer: RankAnalysis, own: RankAnalysis) -> float:
    return value * own.whole.span_s / peer.whole.span_s if peer.whole.span_s else 0.0


def _kernels(own: RankAnalysis, peers: Sequence[RankAnalysis]) -> list[Difference]:
    def rows(rank: RankAnalysis) -> dict[str, tuple[float, int]]:
        return {
            row.name: (row.path_s, row.count) for row in rank.kernels if row.kernel_class != "communication"
        }

    return _by_name("kernel", rows, own, peers)


def _collectives(
    analysis: TraceAnalysis, own: RankAnalysis, peers: Sequence[RankAnalysis]
) -> list[Difference]:
    def rows(rank: RankAnalysis) -> dict[str, tuple[float, int]]:
        found: dict[str, tuple[float, int]] = {}
        for row in analysis.collectives.by_rank.get(rank.rank, ()):
            name = f"{row.operation} of {row.group or 'an unnamed group'}"
            seconds, count = found.get(name, (0.0, 0))
            found[name] = seconds + row.total_s, count + row.count
        return found

    return _by_name("collective", rows, own, peers)


def _ranges(own: RankAnalysis, peers: Sequence[RankAnalysis]) -> list[Difference]:
    def rows(rank: RankAnalysis) -> dict[str, tuple[float, int]]:
        return {row.name: (row.host_s, row.count) for row in rank.phases}

    return _by_name("range", rows, own, peers)


def _by_name(
    what: str,
    rows: Callable[[RankAnalysis], dict[str, tuple[float, int]]],
    own: RankAnalysis,
    peers: Sequence[RankAnalysis],
) -> list[Difference]:
    mine, theirs = rows(own), [(one, rows(one)) for one in peers]
    names = {name for _, found in theirs for name in found} | set(mine)
    return [
        Difference(
            what=what,
            name=name,
            own_s=mine.get(name, (0.0, 0))[0],
            peers_s=median(_scaled(found.get(name, (0.0, 0))[0], one, own) for one, found in theirs),
            own_count=mine.get(name, (0.0, 0))[1],
            peers_count=median(_scaled(found.get(name, (0.0, 0))[1], one, own) for one, found in theirs),
        )
        for name in sorted(names)
    ]

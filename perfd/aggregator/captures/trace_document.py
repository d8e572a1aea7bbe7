"""What the aggregator reads of an analysis of traces (`perfd.trace/2`): the verdict, where the time went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from perfd.model import GroupShares, TraceShares

_MATRIX = frozenset({"matmul", "attention", "convolution"})
_NAMELESS = frozenset({"graph", "other"})
_NOT_COMPUTE = frozenset({"communication", "copy"})
_MOST = 0.5
"""Of the time in collectives, matched across ranks: with less, waiting is unknown. Chosen."""
_MOST_GROUPS = 64
"""Of one trace, those with the most communication."""


class _Finding(msgspec.Struct):
    sentence: str
    evidence: list[str] = []


class _Comparison(msgspec.Struct):
    answer: str


class _Step(msgspec.Struct):
    span_s: float


class _Idle(msgspec.Struct):
    launch_s: float
    sync_s: float
    other_s: float
    host_s: float
    after_sync_s: float


class _Collective(msgspec.Struct):
    total_s: float
    transfer_s: float | None
    wait_s: float | None
    exposed_s: float | None = None
    operation: str = ""
    group: str | None = None
    group_ranks: list[int] = []


class _Rank(msgspec.Struct):
    rank: int
    span_s: float
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    overlap_ratio: float | None
    exposed_memory_s: float
    idle_s: float | None
    idle: _Idle | None
    complete: bool
    steps: list[_Step] = []
    classes: dict[str, float] = {}
    collectives: list[_Collective] = []


class TraceDocument(msgspec.Struct):
    """What is read of the document."""

    bottleneck: _Finding | None = None
    cause: _Finding | None = None
    comparison: _Comparison | None = None
    ranks: list[_Rank] = []

    def words(self) -> str:
        """Why the rank is slow that it was made for, and what limits the capture, in a sentence or two."""
        found = self.cause or self.bottleneck
        answer = [] if self.comparison is None else [self.comparison.answer]
        if found is None:
            return " ".join([*answer, "What limits it is not known: no rank has all its GPU records."])
        said = f"{found.sentence}."
        return " ".join([*(one for one in answer if one not in found.evidence), said, *found.evidence[:1]])

    def overlap_ratio(self) -> float | None:
        """The share of communication that compute covers, the mean over ranks; None without communication."""
        found = [rank.overlap_ratio for rank in self.ranks if rank.complete]
        known = [ratio for ratio in found if ratio is not None]
        return sum(known) / len(known) if known else None

    def shares(self) -> TraceShares | None:
        """Where the time went; None when no rank has all its records."""
        ranks = [rank for rank in self.ranks if rank.complete and rank.span_s > 0]
        return _shares(ranks) if ranks else None


DOCUMENTS = msgspec.json.Decoder(TraceDocument)
"""Created at import: msgspec 0.22 crashes if two threads first decode a type concurrently."""


def _shares(ranks: Sequence[_Rank]) -> TraceShares:
    def mean(seconds: Callable[[_Rank], float]) -> float:
        return float(np.mean([seconds(rank) / rank.span_s for rank in ranks]))

    def of_idle(seconds: Callable[[_Idle], float]) -> float:
        return mean(lambda rank: seconds(rank.idle) if rank.idle else 0.0)

    steps = [step.span_s for rank in ranks for step in rank.steps]
    return TraceShares(
        ranks=tuple(sorted(rank.rank for rank in ranks)),
        step_time_s=float(np.median(steps)) if steps else None,
        compute_ratio=mean(lambda rank: rank.compute_s),
        matrix_ratio=_matrix_ratio(ranks),
        communication_ratio=mean(lambda rank: rank.communication_s),
        exposed_communication_ratio=mean(lambda rank: rank.exposed_communication_s),
        waiting_ratio=_waiting_ratio([row for rank in ranks for row in rank.collectives]),
        exposed_copies_ratio=mean(lambda rank: rank.exposed_memory_s),
        launch_ratio=of_idle(lambda idle: idle.launch_s - idle.after_sync_s + idle.other_s),
        long_gaps_ratio=of_idle(lambda idle: idle.host_s),
        synchronization_ratio=of_idle(lambda idle: idle.sync_s + idle.after_sync_s),
        unexplained_idle_ratio=mean(lambda rank: 0.0 if rank.idle else rank.idle_s or 0.0),
        groups=_groups(ranks),
    )


def _groups(ranks: Sequence[_Rank]) -> tuple[GroupShares, ...]:
    """Groups whose members lie alike are one: of a thousand tensor groups there is one entry an operation."""
    alike: dict[tuple[str, tuple[int, ...]], list[tuple[float, _Collective]]] = {}
    for rank in ranks:
        for row in rank.collectives:
            if row.group_ranks and row.exposed_s is not None:
                places = tuple(one - row.group_ranks[0] for one in row.group_ranks)
                alike.setdefault((row.operation, places), []).append((rank.span_s, row))

    def share(rows: Sequence[tuple[float, _Collective]], seconds: Callable[[_Collective], float]) -> float:
        return sum(seconds(row) / span_s for span_s, row in rows) / len(ranks)

    found = [
        GroupShares(
            ranks=tuple(rows[0][1].group_ranks),
            name=rows[0][1].group or "",
            operation=operation,
            communication_ratio=share(rows, lambda row: row.total_s),
            exposed_ratio=share(rows, lambda row: row.exposed_s or 0.0),
            waiting_ratio=_waiting_ratio([row for _, row in rows]),
        )
        for (operation, _), rows in alike.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.communication_ratio)[:_MOST_GROUPS])


def _matrix_ratio(ranks: Sequence[_Rank]) -> float | None:
    total_s, matrix_s = 0.0, 0.0
    for rank in ranks:
        computing: Mapping[str, float] = {
            name: seconds for name, seconds in rank.classes.items() if name not in _NOT_COMPUTE
        }
        total_s += sum(computing.values())
        matrix_s += sum(computing.get(name, 0.0) for name in _MATRIX | _NAMELESS)
    return matrix_s / total_s if total_s > 0 else None


def _waiting_ratio(rows: Sequence[_Collective]) -> float | None:
    total_s = sum(row.total_s for row in rows)
    wait_s = sum(row.wait_s or 0.0 for row in rows)
    matched_s = wait_s + sum(row.transfer_s or 0.0 for row in rows)
    return wait_s / matched_s if total_s > 0 and matched_s >= _MOST * total_s else None

"""Alterations of what agents send while a job runs: they restart, reconnect, are late, or see less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from benchmarks.headlines.alterations import (
    Alteration,
    Piece,
    each,
    gpu_of,
    last_rank,
    moved,
    of_rank,
    without,
)
from perfd.model import CollectiveTimes, RankPlacement, Record

_S = 1_000_000_000
"""Nanoseconds."""
_RESTARTS_NS = 6 * _S
"""For how long an agent is away."""
_DELAY_NS = 20 * _S
"""By which one rank's records come late."""
_AGAIN_NS = 5 * _S
"""How much an agent sends again after it reconnected."""
_STEP_NS = 800_000_000
"""By which a clock is set."""
_ONE_OF = 10
"""Of the operations that are sampled."""
_OTHER_NODE = "other"


def _middle_ns(found: list[Piece]) -> int:
    return (found[0].unix_ns + found[-1].unix_ns) // 2


def _agent_restarts(found: list[Piece]) -> Iterator[Piece]:
    """Nothing is read for some seconds in the middle; what jobs print is, later."""
    begins = _middle_ns(found)
    for piece in found:
        if not begins <= piece.unix_ns < begins + _RESTARTS_NS:
            yield piece
        elif piece.printed:
            yield replace(piece, unix_ns=begins + _RESTARTS_NS, records=())


def _all_start_late(found: list[Piece]) -> Iterator[Piece]:
    """All agents start while the job runs: of the time before, they read only the log, at once."""
    begins = found[0].unix_ns + (found[-1].unix_ns - found[0].unix_ns) * 4 // 10
    for piece in found:
        if piece.unix_ns >= begins:
            yield piece
        else:
            ranks = [record for record in piece.records if isinstance(record, RankPlacement)]
            yield replace(piece, unix_ns=begins, records=ranks)


def _sent_again(found: list[Piece]) -> Iterator[Piece]:
    """The records of some seconds come twice."""
    at = _middle_ns(found)
    for piece in found:
        yield piece
        if at - _AGAIN_NS <= piece.unix_ns < at:
            yield replace(piece, unix_ns=piece.unix_ns + _AGAIN_NS, printed=b"")


def _clock_set(found: list[Piece]) -> Iterator[Piece]:
    """The last rank on a node of its own, whose clock is set ahead in the middle."""
    last, at = last_rank(found), _middle_ns(found)
    gpu = gpu_of(found, last)
    for piece in found:
        by_ns = _STEP_NS if piece.unix_ns >= at else 0
        yield replace(piece, records=_kept(piece, last, gpu))
        if theirs := _theirs(piece, last, gpu):
            yield Piece(piece.unix_ns, _OTHER_NODE, records=[moved(one, by_ns) for one in theirs])


def _delayed(found: list[Piece]) -> Iterator[Piece]:
    """What is read of the last rank comes later, from a node of its own."""
    last, end = last_rank(found), found[-1].unix_ns
    gpu = gpu_of(found, last)
    for piece in found:
        yield replace(piece, records=_kept(piece, last, gpu))
        if theirs := _theirs(piece, last, gpu):
            yield Piece(min(piece.unix_ns + _DELAY_NS, end), _OTHER_NODE, records=theirs)


def _kept(piece: Piece, rank: int, gpu: str | None) -> list[Record]:
    return [left for record in piece.records if (left := without(record, rank, gpu)) is not None]


def _theirs(piece: Piece, rank: int, gpu: str | None) -> list[Record]:
    return [own for record in piece.records if (own := of_rank(record, rank, gpu)) is not None]


def _sampled(record: Record) -> Record | None:
    """One of ten operations, by their sequence numbers, so that all ranks have the same."""
    if not isinstance(record, CollectiveTimes):
        return record
    kept = [at for at, sequence in enumerate(record.sequences) if sequence % _ONE_OF == 0]
    starts_us = (
        [sum(record.start_increments_us[: at + 1]) for at in kept] if record.start_increments_us else []
    )
    increments = [at - before for before, at in zip([0, *starts_us], starts_us, strict=False)]
    return replace(
        record,
        sequences=[record.sequences[at] for at in kept],
        durations_ns=[record.durations_ns[at] for at in kept],
        sizes_bytes=[record.sizes_bytes[at] for at in kept] if record.sizes_bytes else (),
        gpu_starts_ns=[record.gpu_starts_ns[at] for at in kept] if record.gpu_starts_ns else (),
        start_increments_us=increments,
        queued_us=[record.queued_us[at] for at in kept] if record.queued_us else (),
    )


def _plugin_on_one_node(found: list[Piece]) -> Iterator[Piece]:
    """The last rank is on a node of its own, without the plugin."""
    last = last_rank(found)
    gpu = gpu_of(found, last)
    for piece in found:
        yield replace(piece, records=_kept(piece, last, gpu))
        theirs = [one for one in _theirs(piece, last, gpu) if not isinstance(one, CollectiveTimes)]
        if theirs:
            yield Piece(piece.unix_ns, _OTHER_NODE, records=theirs)


def _one_gpu_in_turns(found: list[Piece]) -> Iterator[Piece]:
    """Another job, with the same ranks, is on the job's GPUs all the time."""
    for piece in found:
        others = [
            replace(record, job=f"{record.job}-other", pid=None if record.pid is None else record.pid + 1)
            for record in piece.records
            if isinstance(record, RankPlacement)
        ]
        yield replace(piece, records=[*piece.records, *others])


OF_AGENTS: Mapping[str, Alteration] = {
    "agent restarts": _agent_restarts,
    "perfd starts late": _all_start_late,
    "batches sent again": _sent_again,
    "clock set by 0.8 s": _clock_set,
    "a rank 20 s late": _delayed,
    "1 of 10 operations": each(_sampled),
    "plugin on one node": _plugin_on_one_node,
    "GPUs shared": _one_gpu_in_turns,
}

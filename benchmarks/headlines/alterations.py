"""Recordings as lists of pieces, and ways in which something of them is missing or wrong."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfd.model import CollectiveTimes, Event, RankPlacement, Record, SampleTable, Scope
from perfd.recording import open_recording
from perfd.recording.recording_writer import RecordingWriter
from perfd.recording.records_stream import items, plain_file

RESTARTED = "restarted"
"""After which the phases of the truth are at other times."""
_OTHER_NODE = "other"
_RARE_NS = 10_000_000_000
"""Between samples of a GPU that is read rarely."""
_ANEW_NS = 3_000_000_000
"""After which all communicators are others."""


_RARE_STEPS = 100
"""From one line of a log to the next where it has few."""
_ITERATION = re.compile(rb"\biteration +(\d+)/")
_INTERVAL = re.compile(rb"(?m)^(.*\blog_interval \.+ )\d+")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one node sent at one time: records, or what a job printed."""

    unix_ns: int
    node: str
    records: Sequence[Record] = ()
    printed: bytes = b""


Alteration = Callable[[list[Piece]], Iterable[Piece]]
"""From all pieces in order to others."""


def pieces(recording: Path) -> list[Piece]:
    """All of a recording, in the order of time."""
    opened = open_recording(recording, allow_missing=True)
    found: list[Piece] = []
    with tempfile.TemporaryDirectory() as scratch:
        for stream in opened.manifest.streams:
            path, _ = plain_file(opened, stream, Path(scratch))
            if stream.kind == "records":
                found += [
                    Piece(batch.sent_unix_ns, stream.node, records=batch.records) for batch in items(path)
                ]
            elif stream.kind == "training-log":
                found += _printed(recording / stream.path, path.read_bytes(), stream.node)
    return sorted(found, key=lambda piece: piece.unix_ns)


def _printed(path: Path, content: bytes, node: str) -> Iterator[Piece]:
    begin = 0
    for line in path.with_name(f"{path.name}.times").read_text().splitlines():
        unix_s, end = line.split()
        yield Piece(round(float(unix_s) * 1e9), node, printed=content[begin : int(end)])
        begin = int(end)


def write(altered: Iterable[Piece], folder: Path, name: str) -> None:
    """A recording of these pieces in `folder`, which does not exist yet."""
    ordered = sorted(altered, key=lambda piece: piece.unix_ns)
    writer = RecordingWriter(folder, name=name, start_unix_ns=ordered[0].unix_ns)
    for piece in ordered:
        if piece.printed:
            writer.add_log(piece.node, piece.printed, piece.unix_ns)
        writer.add_records(piece.node, piece.records, piece.unix_ns)
    writer.close()


def each(change: Callable[[Record], Record | None]) -> Alteration:
    """Every record by itself; None drops it."""

    def altered(found: list[Piece]) -> Iterator[Piece]:
        for piece in found:
            changed = [record for record in map(change, piece.records) if record is not None]
            yield replace(piece, records=changed)

    return altered


def _rows(table: SampleTable, keep: Callable[[str], bool]) -> SampleTable | None:
    kept = [at for at, entity in enumerate(table.entities) if keep(entity)]
    if not kept:
        return None
    return replace(
        table,
        times_unix_ns=[table.times_unix_ns[at] for at in kept],
        entities=[table.entities[at] for at in kept],
        columns={name: [values[at] for at in kept] for name, values in table.columns.items()},
    )


def of_rank(record: Record, rank: int, gpu: str | None) -> Record | None:
    """What of a record is of one rank and its GPU."""
    match record:
        case CollectiveTimes() | RankPlacement():
            return record if record.rank == rank else None
        case SampleTable(scope=Scope.RANK):
            return _rows(record, lambda entity: entity.endswith(f"/{rank}"))
        case SampleTable(scope=Scope.GPU):
            return _rows(record, lambda entity: entity == gpu)
    return None


def without(record: Record, rank: int, gpu: str | None) -> Record | None:
    """What of a record is of all but one rank and its GPU."""
    match record:
        case CollectiveTimes() | RankPlacement():
            return None if record.rank == rank else record
        case SampleTable(scope=Scope.RANK):
            return _rows(record, lambda entity: not entity.endswith(f"/{rank}"))
        case SampleTable(scope=Scope.GPU):
            return _rows(record, lambda entity: entity != gpu)
    return record


def gpu_of(found: Sequence[Piece], rank: int) -> str | None:
    """The GPU that a rank is on, if known."""
    for piece in found:
        for record in piece.records:
            if isinstance(record, RankPlacement) and record.rank == rank and record.gpu is not None:
                return str(record.gpu)
    return None


def _without_last(found: list[Piece]) -> Iterator[Piece]:
    last = last_rank(found)
    gpu = gpu_of(found, last)
    for piece in found:
        kept = [left for record in piece.records if (left := without(record, last, gpu)) is not None]
        yield replace(piece, records=kept)


def moved(record: Record, by_ns: int) -> Record:
    """The record, so much later."""
    match record:
        case CollectiveTimes():
            starts, ends = record.start_unix_ns + by_ns, record.end_unix_ns + by_ns
            return replace(record, start_unix_ns=starts, end_unix_ns=ends)
        case SampleTable():
            return replace(record, times_unix_ns=[at + by_ns for at in record.times_unix_ns])
        case Event():
            return replace(record, time_unix_ns=record.time_unix_ns + by_ns)
    return record


def _apart(by_s: float) -> Alteration:
    """The last rank on a node of its own, whose clock is ahead."""

    def altered(found: list[Piece]) -> Iterator[Piece]:
        last, by_ns = last_rank(found), round(by_s * 1e9)
        gpu = gpu_of(found, last)
        for piece in found:
            kept = [left for record in piece.records if (left := without(record, last, gpu)) is not None]
            yield replace(piece, records=kept)
            theirs = [own for record in piece.records if (own := of_rank(record, last, gpu)) is not None]
            if theirs:
                late = [moved(record, by_ns) for record in theirs]
                yield Piece(piece.unix_ns, _OTHER_NODE, records=late)

    return altered


def _half_lost(found: list[Piece]) -> Iterator[Piece]:
    lost = random.Random(15)
    for piece in found:
        kept = [
            record
            for record in piece.records
            if not isinstance(record, CollectiveTimes) or lost.random() < 0.5
        ]
        yield replace(piece, records=kept)


def _restarted(found: list[Piece]) -> Iterator[Piece]:
    """Killed after six tenths of its time, and begun again."""
    begin, end = found[0].unix_ns, found[-1].unix_ns
    killed = begin + (end - begin) * 6 // 10
    by_ns = killed - begin + 5_000_000_000
    for piece in found:
        if piece.unix_ns < killed:
            yield piece
    for piece in found:
        again = [_again(record, by_ns) for record in piece.records]
        yield replace(piece, unix_ns=piece.unix_ns + by_ns, records=again)


def _again(record: Record, by_ns: int) -> Record:
    if isinstance(record, RankPlacement):
        started = None if record.started_unix_ns is None else record.started_unix_ns + by_ns
        return replace(record, started_unix_ns=started, pid=None if record.pid is None else record.pid + 7)
    if isinstance(record, CollectiveTimes):
        record = replace(record, communicator=record.communicator[::-1])
    return moved(record, by_ns)


def _no(*scopes: Scope) -> Alteration:
    return each(lambda record: None if isinstance(record, SampleTable) and record.scope in scopes else record)


def _late_agent(found: list[Piece]) -> Iterator[Piece]:
    """Of the last rank nothing is read in the first four tenths of the time."""
    last, begin = last_rank(found), found[0].unix_ns
    comes = begin + (found[-1].unix_ns - begin) * 4 // 10
    gpu = gpu_of(found, last)
    for piece in found:
        if piece.unix_ns >= comes:
            yield piece
            continue
        kept = [
            left
            for record in piece.records
            if (left := record if isinstance(record, RankPlacement) else without(record, last, gpu))
            is not None
        ]
        yield replace(piece, records=kept)


def _rare_gpus(found: list[Piece]) -> Iterator[Piece]:
    """One sample of GPUs in ten seconds."""
    newest_ns: dict[str, int] = {}

    def due(record: Record) -> bool:
        if not isinstance(record, SampleTable) or record.scope is not Scope.GPU:
            return True
        entity, now_ns = record.entities[0], record.times_unix_ns[0]
        if now_ns - newest_ns.get(entity, 0) < _RARE_NS:
            return False
        newest_ns[entity] = now_ns
        return True

    for piece in found:
        yield replace(piece, records=[record for record in piece.records if due(record)])


def _anew(found: list[Piece]) -> Iterator[Piece]:
    """Communicators have other ids every few seconds."""
    begin = found[0].unix_ns
    for piece in found:
        part = f"{(piece.unix_ns - begin) // _ANEW_NS:x}"
        changed = [
            replace(record, communicator=f"{part}{record.communicator[len(part) :]}")
            if isinstance(record, CollectiveTimes)
            else record
            for record in piece.records
        ]
        yield replace(piece, records=changed)


def _no_log(found: list[Piece]) -> Iterator[Piece]:
    for piece in found:
        yield replace(piece, printed=b"")


def _rare_lines(found: list[Piece]) -> Iterator[Piece]:
    """A line of the first step and of each hundredth, as Megatron-LM prints by default."""
    for piece in found:
        printed = _INTERVAL.sub(rb"\g<1>%d" % _RARE_STEPS, piece.printed)
        lines = printed.splitlines(keepends=True)
        yield replace(piece, printed=b"".join(line for line in lines if _is_printed(line)))


def _is_printed(line: bytes) -> bool:
    step = _ITERATION.search(line)
    return step is None or int(step[1]) == 1 or int(step[1]) % _RARE_STEPS == 0


def last_rank(found: Sequence[Piece]) -> int:
    """The highest one."""
    ranks = [
        record.rank
        for piece in found
        for record in piece.records
        if isinstance(record, (RankPlacement, CollectiveTimes))
    ]
    return max(ranks, default=0)


OF_WHOLE: Mapping[str, Alteration] = {
    "as it is": list,
    "last rank unseen": _without_last,
    "clock 0.4 s ahead": _apart(0.4),
    "clock 45 s ahead": _apart(45.0),
    "clock 0.4 s behind": _apart(-0.4),
    "clock 5 min ahead": _apart(300.0),
    "agent late": _late_agent,
    "few GPU samples": _rare_gpus,
    "communicators anew": _anew,
    "half of NCCL lost": _half_lost,
    "no NCCL": each(lambda record: None if isinstance(record, CollectiveTimes) else record),
    "no GPU samples": _no(Scope.GPU),
    "no host samples": _no(Scope.RANK, Scope.NODE),
    "no log": _no_log,
    "a line each 100 steps": _rare_lines,
    RESTARTED: _restarted,
}

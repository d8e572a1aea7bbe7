"""A recording whose steps are repeated, with times, numbers and counters that go on."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

from benchmarks.headlines.alterations import Piece, moved
from perfd.collector_loading import collector_entry_points, load_collector
from perfd.model import (
    CollectiveProgress,
    CollectiveTimes,
    ColumnKind,
    RankColumn,
    Record,
    SampleTable,
    Scope,
)
from perfd.session.replay_session import ReplayOptions, ReplayProgress, replay

_S = 1_000_000_000
"""Nanoseconds."""
_LEAST_NS = 3 * _S
"""A stretch that is shorter has too few samples of GPUs. Chosen."""
_SETTLED = 0.4
"""Of the first healthy steps, those that are not repeated: the job still starts."""
_STEP_NUMBER = re.compile(rb"((?:step|iteration|iter)[ :=]*)(\d+)", re.IGNORECASE)
_TIME = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?")
"""As Megatron-LM prints it before each step."""
_MADE = RankColumn.NCCL_OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Whole steps of a recording, of which one kind of fault is on, or none."""

    fault: str
    ranks: frozenset[int]
    begin_ns: int
    end_ns: int
    first_step: int
    steps: int


def stretches(recording: Path, truth: Path) -> list[Stretch]:
    """The phases of a recording, cut where perfd finds that a step ended, without those of fewer than 3 s."""
    ends = _step_ends(recording)
    times_ns = [at for _, at in ends]
    found: list[Stretch] = []
    for phase in json.loads(truth.read_text())["phases"]:
        begin_ns, end_ns = (round(phase[key] * _S) for key in ("begin_unix_s", "end_unix_s"))
        if not found and phase["phase"]["kind"] == "healthy":
            begin_ns += round((end_ns - begin_ns) * _SETTLED)
        first, last = bisect_left(times_ns, begin_ns), bisect_left(times_ns, end_ns) - 1
        if last <= first or times_ns[last] - times_ns[first] < _LEAST_NS:
            continue
        found.append(
            Stretch(
                fault=phase["phase"]["kind"],
                ranks=frozenset(phase["phase"]["ranks"]),
                begin_ns=times_ns[first],
                end_ns=times_ns[last],
                first_step=ends[first][0],
                steps=ends[last][0] - ends[first][0],
            )
        )
    return found


def _step_ends(recording: Path) -> list[tuple[int, int]]:
    """Step numbers and when they ended, as perfd finds them."""
    known: dict[int, int] = {}

    def look(progress: ReplayProgress) -> None:
        for job in progress.aggregator.jobs():
            for line in progress.aggregator.steps(job, 0, 100_000) or ():
                known.setdefault(line["step"], round(line["time_unix_s"] * _S))

    replay(ReplayOptions(recording=recording, tick_s=5.0, allow_missing=True), on_progress=look)
    return sorted(known.items())


class LongJob:
    """Puts stretches of a recording one after the other."""

    def __init__(self, found: Sequence[Piece], begin: Stretch) -> None:
        """Begins with all that comes before the stretch."""
        self._found = found
        self._cuts = _Cuts(found)
        self._counters = _Counters(_kinds=_column_kinds())
        self._sequences: dict[str, int] = {}
        self._now_ns = begin.begin_ns
        self._step = begin.first_step
        self._began_ns = found[0].unix_ns
        self.pieces: list[Piece] = []
        for piece in found:
            records = [
                kept for record in piece.records if (kept := self._until(record, begin.begin_ns)) is not None
            ]
            if piece.unix_ns < begin.begin_ns or any(isinstance(one, CollectiveTimes) for one in records):
                at_ns = min(piece.unix_ns, begin.begin_ns)
                printed = piece.printed if piece.unix_ns < begin.begin_ns else b""
                self.pieces.append(replace(piece, unix_ns=at_ns, records=records, printed=printed))
        self._sequences = dict(self._cuts.at(begin.begin_ns))

    @property
    def now_s(self) -> float:
        """Since its beginning."""
        return (self._now_ns - self._began_ns) / _S

    @property
    def now_unix_s(self) -> float:
        """By the recording's clock."""
        return self._now_ns / _S

    def add(self, stretch: Stretch) -> None:
        """Its steps, once."""
        by_ns = self._now_ns - stretch.begin_ns
        first, end = self._cuts.at(stretch.begin_ns), self._cuts.at(stretch.end_ns)
        by = {key: self._sequences.get(key, 0) - first.get(key, 0) for key in end}
        self._counters.jump()
        for piece in self._found:
            inside = stretch.begin_ns <= piece.unix_ns < stretch.end_ns
            records: list[Record] = []
            for record in piece.records:
                if isinstance(record, CollectiveTimes):
                    own = _part(record, first, end, by)
                    records += [] if own is None else [moved(own, by_ns)]
                elif inside and isinstance(record, SampleTable):
                    records.append(moved(self._counters.next(record), by_ns))
            printed = _later(piece.printed, self._step - stretch.first_step, by_ns) if inside else b""
            if records or printed:
                at_ns = min(max(piece.unix_ns, stretch.begin_ns), stretch.end_ns) + by_ns
                self.pieces.append(Piece(at_ns, piece.node, records=records, printed=printed))
        for key, last in end.items():
            self._sequences[key] = last + by[key]
        self._now_ns = stretch.end_ns + by_ns
        self._step += stretch.steps

    def pause(self, seconds: float) -> None:
        """No rank makes a step, and no GPU runs a kernel."""
        newest: dict[tuple[str, str, Scope], SampleTable] = {}
        for piece in self.pieces[-200:]:
            for record in piece.records:
                if isinstance(record, SampleTable):
                    newest[piece.node, ",".join(record.entities), record.scope] = record
        # All ranks have made all steps.
        made = max((max(one.columns[_MADE]) for one in newest.values() if _MADE in one.columns), default=0.0)
        for key, table in newest.items():
            if _MADE in table.columns:
                newest[key] = replace(table, columns={**table.columns, _MADE: [made] * len(table.entities)})
                self._counters.set(table, _MADE, made)
        for second in range(int(seconds)):
            at_ns = self._now_ns + (second + 1) * _S - 1
            for (node, _, _), table in newest.items():
                idle = _idle(table) if table.scope is Scope.GPU else table
                self.pieces.append(
                    Piece(at_ns, node, records=[replace(idle, times_unix_ns=[at_ns] * len(table.entities))])
                )
        self._now_ns += round(seconds * _S)

    def end(self) -> None:
        """All that says that the job is over."""
        last = self._found[-1].unix_ns
        by_ns = self._now_ns - last + _S
        for piece in self._found:
            if piece.unix_ns > last - 3 * _S and piece.records:
                others = [
                    one
                    for one in piece.records
                    if not isinstance(one, (CollectiveTimes, CollectiveProgress, SampleTable))
                ]
                self.pieces.append(
                    Piece(piece.unix_ns + by_ns, piece.node, records=[moved(one, by_ns) for one in others])
                )

    def _until(self, record: Record, end_ns: int) -> Record | None:
        match record:
            case CollectiveTimes():
                return _part(record, {}, self._cuts.at(end_ns), {})
            case CollectiveProgress():
                return None
            case SampleTable():
                if record.times_unix_ns[0] >= end_ns:
                    return None
                return self._counters.next(record)
        return record


class _Cuts:
    """Which operation is the first after a moment, by communicator, as its lowest rank has it."""

    def __init__(self, found: Sequence[Piece]) -> None:
        lowest: dict[str, int] = {}
        began: dict[str, dict[int, list[tuple[int, int]]]] = {}
        for piece in found:
            for record in piece.records:
                if isinstance(record, CollectiveTimes):
                    key = _key(record)
                    lowest[key] = min(lowest.get(key, record.rank), record.rank)
                    of_rank = began.setdefault(key, {}).setdefault(record.rank, [])
                    of_rank += zip(_starts_ns(record), record.sequences, strict=True)
        self._began = {key: sorted(began[key][rank]) for key, rank in lowest.items()}
        self._known: dict[int, dict[str, int]] = {}

    def at(self, unix_ns: int) -> dict[str, int]:
        """By communicator and operation; those that are over have one more than their last."""
        if unix_ns not in self._known:
            self._known[unix_ns] = {
                key: _first_after(operations, unix_ns)
                for key, operations in self._began.items()
                if operations
            }
        return self._known[unix_ns]


def _first_after(operations: Sequence[tuple[int, int]], unix_ns: int) -> int:
    at = bisect_left(operations, (unix_ns, -1))
    return operations[at][1] if at < len(operations) else operations[-1][1] + 1


@dataclass(slots=True)
class _Counters:
    """Makes counters go on over the places where stretches meet."""

    _last: dict[tuple[Scope, str, str], tuple[float, float, float]] = field(default_factory=dict)
    """By scope, entity and column: the value in the recording, what was made of it, the last growth."""
    _jumped: set[tuple[Scope, str, str]] = field(default_factory=set)
    _kinds: Mapping[tuple[Scope, str], ColumnKind] = field(default_factory=dict)

    def jump(self) -> None:
        """What comes next is from elsewhere in the recording."""
        self._jumped = set(self._last)

    def set(self, table: SampleTable, name: str, made: float) -> None:
        """Go on from this value."""
        for entity in table.entities:
            before, _, grew = self._last[table.scope, entity, name]
            self._last[table.scope, entity, name] = (before, made, grew)

    def next(self, table: SampleTable) -> SampleTable:
        """The table with counters that go on."""
        columns = {name: list(values) for name, values in table.columns.items()}
        for name, values in columns.items():
            if self._kinds.get((table.scope, name)) is not ColumnKind.COUNTER:
                continue
            for at, entity in enumerate(table.entities):
                values[at] = self._goes_on((table.scope, entity, name), values[at])
        return replace(table, columns=columns)

    def _goes_on(self, key: tuple[Scope, str, str], value: float) -> float:
        before, made, grew = self._last.get(key, (value, value, 0.0))
        if key in self._jumped:
            self._jumped.discard(key)
        elif value >= before:
            grew = value - before
        made += grew if key in self._last else 0.0
        self._last[key] = (value, made, grew)
        return made


def _column_kinds() -> dict[tuple[Scope, str], ColumnKind]:
    return {
        (column.scope, column.name): column.kind
        for name in collector_entry_points()
        for column in load_collector(name).columns
    }


def _key(record: CollectiveTimes) -> str:
    return f"{record.communicator} {record.operation} {record.peer if record.peer is not None else ''}"


def _starts_ns(record: CollectiveTimes) -> list[int]:
    if record.start_increments_us:
        at_ns, starts = record.start_unix_ns, []
        for increment_us in record.start_increments_us:
            at_ns += increment_us * 1_000
            starts.append(at_ns)
        return starts
    count = max(1, len(record.sequences))
    lasts_ns = record.end_unix_ns - record.start_unix_ns
    return [record.start_unix_ns + lasts_ns * at // count for at in range(len(record.sequences))]


def _part(
    record: CollectiveTimes, first: Mapping[str, int], end: Mapping[str, int], by: Mapping[str, int]
) -> CollectiveTimes | None:
    """The operations from one sequence number to before another one, numbered anew."""
    key = _key(record)
    least, most, more = first.get(key, 0), end.get(key, 0), by.get(key, 0)
    kept = [at for at, sequence in enumerate(record.sequences) if least <= sequence < most]
    if not kept:
        return None
    starts = _starts_ns(record)
    part = len(kept) / len(record.sequences)
    increments = [starts[kept[0]] - record.start_unix_ns]
    increments += [starts[at] - starts[before] for before, at in pairwise(kept)]
    durations_s = [record.durations_ns[at] / 1e9 for at in kept]

    def of(values: Sequence[int]) -> Sequence[int]:
        return [values[at] for at in kept] if values else ()

    return replace(
        record,
        count=max(len(kept), round(record.count * part)),
        total_bytes=None if record.total_bytes is None else record.total_bytes * part,
        total_s=record.total_s * part,
        min_s=min(durations_s),
        max_s=max(durations_s),
        sequences=[record.sequences[at] + more for at in kept],
        durations_ns=of(record.durations_ns),
        sizes_bytes=of(record.sizes_bytes),
        gpu_starts_ns=of(record.gpu_starts_ns),
        start_increments_us=[ns // 1_000 for ns in increments] if record.start_increments_us else (),
        queued_us=of(record.queued_us),
    )


def _later(printed: bytes, by: int, by_ns: int) -> bytes:
    """What is printed so many steps, and so much time, later."""

    def time(found: re.Match[bytes]) -> bytes:
        at = found[0].decode()
        separator, digits = at[10], len(at) - 20
        later = datetime.fromisoformat(at) + timedelta(microseconds=by_ns / 1_000)
        words = later.isoformat(sep=separator, timespec="microseconds" if digits > 0 else "seconds")
        return (words[: 20 + digits] if digits > 0 else words).encode()

    printed = _STEP_NUMBER.sub(lambda found: found[1] + str(int(found[2]) + by).encode(), printed)
    return _TIME.sub(time, printed)


def _idle(table: SampleTable) -> SampleTable:
    columns = {
        name: [0.0] * len(values) if name.endswith("_active_ratio") or name == "busy_ratio" else values
        for name, values in table.columns.items()
    }
    return replace(table, columns=columns)

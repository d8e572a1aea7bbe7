"""The newest operations of communicators that are alike, side by side, so that a look costs one copy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.operations.baseline_bandwidth import BaselineBandwidth
from perfd.aggregator.operations.communicator_members import CommunicatorMembers
from perfd.aggregator.operations.growable_arrays import chosen, roomier
from perfd.aggregator.operations.kernel_time_shares import TimeShareWindows
from perfd.analysis.data.job_data import Bools, CollectiveStack, Floats, Ints, Method
from perfd.analysis.data.robust_stats import over_last
from perfd.model import CollectiveTimes, TimingSource

_FIRST_ROOM = 32
"""Operations of a new buffer, which doubles when it is full."""
_FULL = 0.75
"""A row that needs more of its room than this gets more; one that needs less moves to the front of it."""
_HOLE_NS = 3 * 10**9
"""More than a step's pause between windows, and less than the pause between samples."""
_HOLE_OPERATIONS = 16
"""Sequence numbers that are missing at least, before those around them are of different windows."""
_MOST_AT_START = 16
"""Operations after which a communicator is no longer one of a job's start only. Chosen."""
_MOST_SEQUENCE = 1 << 62
"""Larger sequence numbers are garbage, and sums of them would not fit."""
_Value = TypeVar("_Value", np.float64, np.int64)
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class _OperationArrays:
    """What one rank reported, in the order of sequence numbers; sizes may be unknown."""

    sequence: Ints
    durations_s: Floats
    size_bytes: Floats | None
    gpu_starts_ns: Ints | None

    def rows(self, chosen: Bools | Ints) -> _OperationArrays:
        """The same of some operations only."""
        sizes = None if self.size_bytes is None else self.size_bytes[chosen]
        starts = None if self.gpu_starts_ns is None else self.gpu_starts_ns[chosen]
        return _OperationArrays(self.sequence[chosen], self.durations_s[chosen], sizes, starts)


class CollectiveBuffer:
    """Communicators of one size with one kind of operation, a row each.

    Of each those operations are held, in the order of their sequence numbers, that are among the newest
    `span` of these numbers. Arrays have room for more rows and operations than there are, and double it when
    it is full, so that adding costs little; a look copies what is held.
    """

    def __init__(self, operation: str, columns: int, *, starts: bool = False) -> None:
        """With `starts` it is held when operations began, too."""
        self._operation = operation
        self._span = 1
        self._free: list[int] = []
        self._names: list[str] = []
        self._timings: list[TimingSource] = []
        self._sources: list[str] = []
        self._methods: list[Method] = []
        self._members = CommunicatorMembers(columns)
        self._newest: Ints = np.empty((1, columns), dtype=np.int64)
        """The newest operation that each column's rank reported, -1 before any."""
        self._ends: Ints = np.empty((1, 2), dtype=np.int64)
        """Where in a row its operations begin and end."""
        self._sequence: Ints = np.empty((1, min(_FIRST_ROOM, self._most_room())), dtype=np.int64)
        self._size_bytes: Floats = np.empty(self._sequence.shape)
        self._durations_s: Floats = np.empty((*self._sequence.shape, columns))
        self._gpu_starts_ns: Ints = np.empty(
            (*self._sequence.shape, columns if starts else 0), dtype=np.int64
        )
        self._windows = TimeShareWindows(columns)
        self._paces = BaselineBandwidth()

    def hold(self, span: int) -> None:
        """Of how many of the newest sequence numbers the operations are held, from the next ones on."""
        self._span = span

    def add(self, name: str, timing: TimingSource) -> int:
        """Begin a communicator; returns its row."""
        if self._free:
            row = self._free.pop()
            self._names[row], self._timings[row] = name, timing
        else:
            row = len(self._names)
            self._names.append(name)
            self._timings.append(timing)
            self._sources.append("")
            self._methods.append(Method())
            if row == len(self._ends):
                self._make_rows(2 * row)
        self._clear(row)
        return row

    def drop(self, row: int) -> None:
        """Forget a communicator; its row is given to another one."""
        self._clear(row)
        self._free.append(row)

    def in_use(self, newest_unix_ns: Ints, left_after_ns: int) -> Bools:
        """Which communicators no rank has left; see `CommunicatorMembers`."""
        return self._members.in_use(len(self._names), newest_unix_ns, left_after_ns)

    def succession(self) -> tuple[Bools, Bools]:
        """Which communicators are over, as others of their ranks began later, and which of those are new."""
        held = self._ends[: len(self._names)]
        return self._members.succession(held[:, 1] - held[:, 0] >= _MOST_AT_START)

    def put(self, row: int, column: int, times: CollectiveTimes) -> None:
        """Add what one rank of a communicator reported."""
        if self._members.ranks[row, column] not in {-1, times.rank}:
            # Another rank in the same place: the communicator's id was used again by a new one.
            self._clear(row)
        reported = _reported_by(times, self._span)
        if reported is not None and self._follows_a_hole(row, column, times, reported):
            self._ends[row] = 0
            self._windows.clear(row)
        self._sources[row] = times.source
        self._note_method(row, times)
        self._members.put(row, column, times)
        self._windows.put(row, column, times, new_ratio=_new_ratio(times, int(self._newest[row, column])))
        if reported is not None:
            self._newest[row, column] = max(self._newest[row, column], reported.sequence[-1])
            self._put_operations(row, column, reported)

    def stack(self, in_use: Bools, renewed: Bools) -> CollectiveStack | None:
        """A copy of what is held of communicators that are in use, and whose ranks are all known.

        Those flagged `renewed` have hardly begun, in place of others.
        """
        count = len(self._names)
        lengths = self._ends[:count, 1] - self._ends[:count, 0]
        whole = over_last(np.minimum, self._members.ranks[:count]) >= 0
        rows = np.flatnonzero(whole & (lengths > 0) & in_use)
        if not len(rows):
            return None
        operations_per_s, counted_s = self._windows.pace(rows)
        held = partial(_held, rows, self._ends[rows])
        return CollectiveStack(
            operation=self._operation,
            communicators=_picked(self._names, rows),
            ranks=self._members.ranks[rows],
            lengths=lengths[rows],
            sequence=held(self._sequence, -1),
            durations_s=held(self._durations_s, np.nan),
            size_bytes=held(self._size_bytes, np.nan),
            gpu_starts_ns=held(self._gpu_starts_ns, -1),
            kernel_ratio=self._windows.usual_ratio(rows),
            operations_per_s=operations_per_s,
            counted_s=counted_s,
            renewed=renewed[rows],
            best_s_per_byte=self._paces.s_per_byte(rows),
            best_size_bytes=self._paces.largest_bytes(rows),
            timings=_picked(self._timings, rows),
            sources=_picked(self._sources, rows),
            methods=_picked(self._methods, rows),
        )

    def _follows_a_hole(
        self, row: int, column: int, times: CollectiveTimes, reported: _OperationArrays
    ) -> bool:
        """Whether operations are missing for seconds, as between samples, or after an agent was away.

        Neither the rate of operations nor the extent of a step is known across such a hole.
        """
        start, end = self._bounds(row)
        reported_unix_ns = int(self._members.reported_unix_ns[row, column])
        if start == end or not reported_unix_ns or times.start_unix_ns - reported_unix_ns < _HOLE_NS:
            return False
        missing = int(reported.sequence[0] - self._sequence[row, end - 1])
        usual = int(reported.sequence[-1] - reported.sequence[0]) // max(1, len(reported.sequence) - 1)
        return missing > max(_HOLE_OPERATIONS, 4 * usual)

    def _note_method(self, row: int, times: CollectiveTimes) -> None:
        known = self._methods[row]
        method = (times.algorithm, times.protocol, times.channels)
        if method != (known.algorithm, known.protocol, known.channels):
            self._methods[row] = Method(algorithm=method[0], protocol=method[1], channels=method[2])

    def _bounds(self, row: int) -> tuple[int, int]:
        return int(self._ends[row, 0]), int(self._ends[row, 1])

    def _put_operations(self, row: int, column: int, reported: _OperationArrays) -> None:
        start, end = self._bounds(row)
        first = int(reported.sequence[0])
        newest = int(self._sequence[row, end - 1]) if end > start else -1
        places: slice | Ints
        if first >= newest:
            # The newest one that is known, or none, and newer ones.
            self._append(row, reported.sequence[first == newest :])
            end = int(self._ends[row, 1])
            places = slice(end - len(reported.sequence), end)
        else:
            self._append(row, reported.sequence[reported.sequence > newest])
            places, found = self._find(row, reported.sequence)
            places, reported = places[found], reported.rows(found)
        self._durations_s[row, places, column] = reported.durations_s
        if reported.size_bytes is not None:
            self._size_bytes[row, places] = reported.size_bytes
        if reported.gpu_starts_ns is not None and self._gpu_starts_ns.size:
            self._gpu_starts_ns[row, places, column] = reported.gpu_starts_ns

    def _find(self, row: int, sequence: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Where operations are that are not newer than the newest one; those that came late are added."""
        start, end = self._bounds(row)
        held = self._sequence[row, start:end]
        places = held.searchsorted(sequence)
        found = held[places] == sequence
        late = ~found & (sequence > held[-1] - self._span)
        if late.any():
            self._insert(row, sequence[late])
            return self._find(row, sequence)
        return start + places, found

    def _append(self, row: int, sequence: Ints) -> None:
        if not len(sequence):
            return
        self._let_go(row, int(sequence[-1]) - self._span)
        end = self._room(row, len(sequence))
        new = slice(end, end + len(sequence))
        self._sequence[row, new] = sequence
        self._durations_s[row, new] = np.nan
        self._size_bytes[row, new] = np.nan
        self._gpu_starts_ns[row, new] = -1
        self._ends[row, 1] = new.stop

    def _insert(self, row: int, sequence: Ints) -> None:
        self._room(row, len(sequence))
        start, end = self._bounds(row)
        held, after = slice(start, end), slice(start, end + len(sequence))
        merged = np.union1d(self._sequence[row, held], sequence)
        places = merged.searchsorted(self._sequence[row, held])
        self._sequence[row, after] = merged
        for array, absent in (
            (self._size_bytes[row], np.nan), (self._durations_s[row], np.nan), (self._gpu_starts_ns[row], -1),
        ):  # fmt: skip
            known = array[held].copy()
            array[after] = absent
            array[after][places] = known
        self._ends[row, 1] = after.stop

    def _let_go(self, row: int, last: int) -> None:
        """Drop the operations up to a number, but remember how fast they were."""
        start, end = self._bounds(row)
        if start == end or self._sequence[row, start] > last:
            return
        kept = start + int(self._sequence[row, start:end].searchsorted(last, side="right"))
        self._ends[row, 0] = kept
        self._paces.put(row, self._size_bytes[row, start:kept], self._durations_s[row, start:kept])

    def _room(self, row: int, more: int) -> int:
        """Have room for so many more operations in a row; returns where it begins."""
        start, end = self._bounds(row)
        room = self._sequence.shape[1]
        if end + more <= room:
            return end
        needed = end - start + more
        if needed > _FULL * room:
            # Never less than needed: how many operations are held may just have become fewer.
            shape = (len(self._sequence), max(1 + int(needed / _FULL), min(2 * room, self._most_room())))
            self._sequence = roomier(self._sequence, shape)
            self._size_bytes = roomier(self._size_bytes, shape)
            self._durations_s = roomier(self._durations_s, shape)
            self._gpu_starts_ns = roomier(self._gpu_starts_ns, shape)
        arrays = (self._sequence, self._size_bytes, self._durations_s, self._gpu_starts_ns)
        for array in (array[row] for array in arrays):
            array[: end - start] = array[start:end]
        self._ends[row] = 0, end - start
        return end - start

    def _most_room(self) -> int:
        return 1 + int(self._span / _FULL)

    def _make_rows(self, rows: int) -> None:
        self._newest = roomier(self._newest, (rows,))
        self._ends = roomier(self._ends, (rows,))
        self._sequence = roomier(self._sequence, (rows,))
        self._size_bytes = roomier(self._size_bytes, (rows,))
        self._durations_s = roomier(self._durations_s, (rows,))
        self._gpu_starts_ns = roomier(self._gpu_starts_ns, (rows,))
        self._members.make_room(rows)
        self._paces.make_room(rows)
        self._windows.make_room(rows)

    def _clear(self, row: int) -> None:
        self._members.clear(row)
        self._newest[row] = -1
        self._ends[row] = 0
        self._methods[row] = Method()
        self._windows.clear(row)
        self._paces.clear(row)


def _held(rows: Ints, ends: Ints, array: NDArray[_Value], absent: float) -> NDArray[_Value]:
    """What rows hold of an array, from their first operation on; `absent` beyond the last.

    `ends` (rows, 2) is where the operations of each begin and end.
    """
    start, end = ends.T
    if (ends == ends[0]).all():
        # In step with each other, as they mostly are: one block of memory.
        return chosen(array, rows)[:, start[0] : end[0]].copy()
    longest = int((end - start).max())
    held: NDArray[_Value] = np.full((len(rows), longest, *array.shape[2:]), absent, array.dtype)
    # Row by row, each one block: to pick numbers one by one takes several times as long.
    for own, row, first, last in zip(held, rows.tolist(), start.tolist(), end.tolist(), strict=True):
        own[: last - first] = array[row, first:last]
    return held


def _picked(items: list[_Item], rows: Ints) -> list[_Item]:
    return items.copy() if len(rows) == len(items) else [items[row] for row in rows.tolist()]


def _reported_by(times: CollectiveTimes, span: int) -> _OperationArrays | None:
    """The operations of a record, of the newest `span` sequence numbers; None without, or for garbage."""
    count = len(times.sequences)
    optional = (times.sizes_bytes, times.gpu_starts_ns)
    if count != len(times.durations_ns) or any(len(column) not in {0, count} for column in optional):
        return None
    if not count or not 0 <= min(times.sequences) <= max(times.sequences) < _MOST_SEQUENCE:
        return None
    reported = _OperationArrays(
        sequence=np.array(times.sequences, dtype=np.int64),
        durations_s=np.array(times.durations_ns, dtype=np.float64) / 1e9,
        size_bytes=np.array(times.sizes_bytes, dtype=np.float64) if times.sizes_bytes else None,
        gpu_starts_ns=np.array(times.gpu_starts_ns, dtype=np.int64) if times.gpu_starts_ns else None,
    )
    if count == 1:
        return reported
    if not (reported.sequence[1:] > reported.sequence[:-1]).all():
        # Of two with one number the later one counts.
        reported = reported.rows(count - 1 - np.unique(reported.sequence[::-1], return_index=True)[1])
    if reported.sequence[-1] - reported.sequence[0] < span:
        return reported
    return reported.rows(reported.sequence > reported.sequence[-1] - span)


def _new_ratio(times: CollectiveTimes, newest: int) -> float:
    """Share of a record's operations that are newer than the newest one reported before.

    An agent that begins with an empty spool beside a running job reports all that the plugin's segments hold.
    """
    if not times.sequences or times.sequences[0] > newest:
        return 1.0
    return sum(number > newest for number in times.sequences) / len(times.sequences)

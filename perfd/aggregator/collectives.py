"""The newest collectives of a job, rank beside rank, so that they can be matched."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.limits import Counters, Limits
from perfd.analysis.robust import median
from perfd.analysis.tables import CollectiveTable, NcclTime
from perfd.analysis.waiting import MATCHED_OPERATIONS
from perfd.model import CollectiveProgress, CollectiveTimes, TimingSource

_PAIR = {"Send": 0, "Recv": 1}
PAIR_OPERATION = "SendRecv"

_RING_WINDOWS = 32
"""Newest windows of an operation that its share of time is the median of: the first collectives of a job
wait for seconds while ranks start, and a mean would carry that for minutes."""
_LEFT_AFTER_NS = 900 * 10**9
"""Far more than the clocks of nodes disagree by, and than a step takes."""
_WINDOWS = 64
"""Of time in NCCL's kernels, in memory per rank."""
_STRETCHES = 8
_LARGE_BYTES = 1 << 20
"""From here on a message's time is by its bytes, not by its latency."""
_STRETCH = 32
"""Large operations in a row whose median is what the communicator can do."""

_Key = tuple[str, str, int, int, TimingSource]
"""Communicator, operation, for a pair the two ranks in it (sender, receiver), else -1, and whose clock:
durations by different clocks cannot be compared."""


class CollectiveRows:
    """Rings of operations by communicator; a slot is taken over by a newer sequence number."""

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters
        self._rings: dict[_Key, _Ring] = {}

    def put(self, times: CollectiveTimes) -> None:
        """Add what one rank reported; what cannot be matched is left out."""
        place = _place(times)
        if place is None or not times.sequences:
            return
        key, column, columns = place
        ring = self._rings.get(key)
        if ring is None:
            if len(self._rings) >= self._limits.communicators_per_job:
                self._drop_left(times.end_unix_ns)
            if len(self._rings) >= self._limits.communicators_per_job:
                self._counters.rejected["communicators_per_job"] += 1
                return
            ring = self._rings[key] = _Ring.empty(self._slots(columns), columns)
        if column < len(ring.ranks):
            ring.put(column, times)

    def clear(self) -> None:
        """Forget everything: the job started again."""
        self._rings.clear()

    def tables(self) -> list[CollectiveTable]:
        """One table per communicator and operation of which every rank is known, and that is in use."""
        oldest_unix_ns = self._oldest_in_use_unix_ns(0)
        return [
            ring.table(communicator, operation, timing)
            for (communicator, operation, _, _, timing), ring in self._rings.items()
            if ring.newest_unix_ns >= oldest_unix_ns and (ring.ranks >= 0).all()
        ]

    def _slots(self, columns: int) -> int:
        cells = self._limits.operation_cells_per_communicator
        return max(1, min(self._limits.operations_per_communicator, cells // max(1, columns)))

    def _oldest_in_use_unix_ns(self, now_unix_ns: int) -> int:
        """Communicators that were last heard of before this are gone, as after a restart of the job."""
        newest = max((ring.newest_unix_ns for ring in self._rings.values()), default=0)
        return max(newest, now_unix_ns) - _LEFT_AFTER_NS

    def _drop_left(self, now_unix_ns: int) -> None:
        oldest_unix_ns = self._oldest_in_use_unix_ns(now_unix_ns)
        for key in [key for key, ring in self._rings.items() if ring.newest_unix_ns < oldest_unix_ns]:
            del self._rings[key]


class NcclTimes:
    """What each rank's counters of time in NCCL said lately."""

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters
        self._readings: dict[int, deque[_Reading]] = {}

    def put(
        self, rank: int, time_unix_s: float, busy_s: float, lost: float, operations: float = math.nan
    ) -> None:
        """Add one reading of a rank's counters; one that went back starts afresh, as after a restart."""
        readings = self._readings.get(rank)
        if readings is None:
            if len(self._readings) >= self._limits.ranks_per_job:
                self._counters.rejected["ranks_per_job"] += 1
                return
            readings = self._readings[rank] = deque(maxlen=_WINDOWS)
        last = readings[-1] if readings else None
        if last and (busy_s < last.busy_s or operations < last.operations or time_unix_s <= last.time_unix_s):
            readings.clear()
            last = None
        still = last is not None and operations == last.operations
        readings.append(
            _Reading(time_unix_s, busy_s, lost, operations, last.since_s if last and still else time_unix_s)
        )

    def clear(self) -> None:
        """Forget everything: the job started again."""
        self._readings.clear()

    def table(self) -> list[NcclTime]:
        """What is usual between the oldest reading and the newest, of ranks that have two, by rank."""
        return [
            NcclTime(
                rank=rank,
                busy_s=_usual_ratio(readings) * (readings[-1].time_unix_s - readings[0].time_unix_s),
                span_s=readings[-1].time_unix_s - readings[0].time_unix_s,
                lost_operations=int(readings[-1].lost - readings[0].lost),
                operations=_whole(readings[-1].operations),
                still_s=readings[-1].time_unix_s - readings[-1].since_s,
                read_unix_s=readings[-1].time_unix_s,
            )
            for rank, readings in sorted(self._readings.items())
            if len(readings) > 1
        ]


class ProgressRows:
    """How far each rank is on each communicator, by the newest word of each source."""

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self._limits = limits
        self._counters = counters
        self._newest: dict[tuple[int, str, str], CollectiveProgress] = {}

    def put(self, progress: CollectiveProgress) -> None:
        """Take a rank's word in the place of its earlier one."""
        key = (progress.rank, progress.communicator, progress.source)
        if key not in self._newest and len(self._newest) >= self._limits.progress_per_job:
            self._counters.rejected["progress_per_job"] += 1
            return
        self._newest[key] = progress

    def clear(self) -> None:
        """Forget everything: the job started again."""
        self._newest.clear()

    def newest(self) -> tuple[CollectiveProgress, ...]:
        """One entry a rank, communicator and source."""
        return tuple(self._newest.values())


@dataclass(frozen=True, slots=True)
class _Reading:
    time_unix_s: float
    busy_s: float
    lost: float
    operations: float
    since_s: float
    """When the number of operations became what it is."""


def _usual_ratio(readings: Sequence[_Reading]) -> float:
    """The share of time in the usual stretch, the median of eight.

    As for operations, starting up does not count; and a stretch is longer than most steps, whose
    communication may be all at their end.
    """
    bounds = np.linspace(0, len(readings) - 1, 1 + min(_STRETCHES, len(readings) - 1)).round().astype(int)
    ratios: list[float] = [
        (readings[b].busy_s - readings[a].busy_s) / (readings[b].time_unix_s - readings[a].time_unix_s)
        for a, b in pairwise(bounds.tolist())
    ]
    return statistics.median(ratios)


def _whole(number: float) -> int | None:
    return int(number) if math.isfinite(number) else None


@dataclass(slots=True)
class _Ring:
    ranks: NDArray[np.int64]
    """Global rank of each column; -1 until it reports."""
    sequence: NDArray[np.int64]
    durations_s: NDArray[np.float64]
    size_bytes: NDArray[np.float64]
    window_ratio: NDArray[np.float64]
    """Share of time in kernels by column, of the newest windows that had any; NaN where there is none yet."""
    window_operations: NDArray[np.int64]
    """Operations in those windows."""
    window_start_ns: NDArray[np.int64]
    windows: NDArray[np.int64]
    """How many windows each column reported."""
    covered_ns: NDArray[np.int64]
    """The length of those windows; kinds of operations that are rare have none for part of the time."""
    first_unix_ns: NDArray[np.int64]
    last_unix_ns: NDArray[np.int64]
    newest_unix_ns: int = 0
    source: str = ""
    largest_bytes: float = _LARGE_BYTES
    best_s_per_byte: float = math.inf
    """Of operations of at least half the largest size: a byte of a small message takes longer."""
    stretch: list[float] = field(default_factory=list)
    """Seconds a byte of the large operations that newer ones took the place of, since the last median."""

    @classmethod
    def empty(cls, slots: int, columns: int) -> _Ring:
        return cls(
            ranks=np.full(columns, -1, dtype=np.int64),
            sequence=np.full(slots, -1, dtype=np.int64),
            durations_s=np.full((slots, columns), np.nan),
            size_bytes=np.full(slots, np.nan),
            window_ratio=np.full((_RING_WINDOWS, columns), np.nan),
            window_operations=np.zeros((_RING_WINDOWS, columns), dtype=np.int64),
            window_start_ns=np.zeros((_RING_WINDOWS, columns), dtype=np.int64),
            windows=np.zeros(columns, dtype=np.int64),
            covered_ns=np.zeros(columns, dtype=np.int64),
            first_unix_ns=np.zeros(columns, dtype=np.int64),
            last_unix_ns=np.zeros(columns, dtype=np.int64),
        )

    def put(self, column: int, times: CollectiveTimes) -> None:
        if self.ranks[column] not in (-1, times.rank):
            # Another rank in the same place: the communicator's id was used again by a new one.
            self.sequence[:] = -1
            self.ranks[:] = -1
            self.window_ratio[:] = np.nan
            self.window_operations[:] = 0
            self.windows[:] = self.covered_ns[:] = 0
            self.largest_bytes, self.best_s_per_byte = _LARGE_BYTES, math.inf
            self.stretch.clear()
        self.ranks[column] = times.rank
        self.source = times.source
        self.newest_unix_ns = max(self.newest_unix_ns, times.end_unix_ns)
        self._put_window(column, times)
        newest = slice(-len(self.sequence), None)
        sequence = np.asarray(times.sequences[newest], dtype=np.int64)
        slots = sequence % len(self.sequence)
        fresh = sequence > self.sequence[slots]
        self._retire(slots[fresh])
        self.durations_s[slots[fresh]] = np.nan
        self.size_bytes[slots[fresh]] = np.nan
        self.sequence[slots[fresh]] = sequence[fresh]
        current = sequence == self.sequence[slots]
        durations = np.asarray(times.durations_ns[newest], dtype=np.float64) / 1e9
        self.durations_s[slots[current], column] = durations[current]
        if times.sizes_bytes:
            sizes = np.asarray(times.sizes_bytes[newest], dtype=np.float64)
            self.size_bytes[slots[current]] = sizes[current]

    def _put_window(self, column: int, times: CollectiveTimes) -> None:
        length_ns = times.end_unix_ns - times.start_unix_ns
        if length_ns <= 0:
            return
        if self.windows[column] == 0:
            self.first_unix_ns[column] = times.start_unix_ns
        place = self.windows[column] % _RING_WINDOWS, column
        self.window_ratio[place] = times.total_s / (length_ns / 1e9)
        self.window_operations[place] = times.count
        self.window_start_ns[place] = times.start_unix_ns
        self.windows[column] += 1
        self.covered_ns[column] += length_ns
        self.last_unix_ns[column] = max(self.last_unix_ns[column], times.end_unix_ns)

    def _kernel_ratio(self) -> NDArray[np.float64]:
        elapsed_ns = np.maximum(self.last_unix_ns - self.first_unix_ns, 1)
        covered = np.minimum(self.covered_ns / elapsed_ns, 1.0)
        return np.asarray(median(self.window_ratio, axis=0) * covered)

    def _operations_per_s(self) -> float | None:
        """By the column that told most of it, from its oldest window in memory to its newest one."""
        column = int(np.argmax(self.windows))
        count = min(int(self.windows[column]), _RING_WINDOWS)
        if not count:
            return None
        oldest = (int(self.windows[column]) - count) % _RING_WINDOWS
        span_ns = self.last_unix_ns[column] - self.window_start_ns[oldest, column]
        operations = self.window_operations[:count, column].sum()
        return float(operations / (span_ns / 1e9)) if span_ns > 0 else None

    def _retire(self, slots: NDArray[np.int64]) -> None:
        """Remember how fast the operations in `slots` were, of which no newer one will tell."""
        sizes = self.size_bytes[slots]
        largest = float(np.fmax.reduce(sizes, initial=self.largest_bytes))
        if largest > 2 * self.largest_bytes:
            self.best_s_per_byte = math.inf
            self.stretch.clear()
        self.largest_bytes = largest
        large = slots[sizes >= largest / 2]
        transfer_s = self.durations_s[large].min(axis=1)
        speeds = transfer_s / self.size_bytes[large]
        self.stretch += speeds[np.isfinite(speeds)].tolist()
        if len(self.stretch) >= _STRETCH:
            self.best_s_per_byte = min(self.best_s_per_byte, float(np.median(self.stretch)))
            self.stretch.clear()

    def table(self, communicator: str, operation: str, timing: TimingSource) -> CollectiveTable:
        used = np.flatnonzero(self.sequence >= 0)
        order = used[np.argsort(self.sequence[used])]
        return CollectiveTable(
            communicator=communicator,
            operation=operation,
            ranks=[int(rank) for rank in self.ranks],
            sequence=self.sequence[order],
            durations_s=self.durations_s[order],
            size_bytes=self.size_bytes[order],
            kernel_ratio=self._kernel_ratio(),
            operations_per_s=self._operations_per_s(),
            best_s_per_byte=self.best_s_per_byte if math.isfinite(self.best_s_per_byte) else None,
            best_size_bytes=self.largest_bytes,
            timing=timing,
            source=self.source,
        )


def _place(times: CollectiveTimes) -> tuple[_Key, int, int] | None:
    """The ring, the column in it and the number of columns; None when ranks could not be matched by it."""
    if not times.communicator or times.communicator_rank is None:
        return None
    if times.operation in MATCHED_OPERATIONS and times.communicator_size:
        key = (times.communicator, times.operation, -1, -1, times.timing)
        return key, times.communicator_rank, times.communicator_size
    if times.operation in _PAIR and times.peer is not None:
        ends = (times.communicator_rank, times.peer)
        sender, receiver = ends if times.operation == "Send" else ends[::-1]
        key = (times.communicator, PAIR_OPERATION, sender, receiver, times.timing)
        return key, _PAIR[times.operation], 2
    return None

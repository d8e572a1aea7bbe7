"""The recent samples of a node's GPUs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from perfd.aggregator.state.table_layout import Layout, TableLayout
from perfd.analysis.data.job_data import Floats

Floats32 = NDArray[np.float32]

_LEAST_ROOM = 16
"""Rows that are made room for at once. More, a quarter of those there are, once there are many: what is
kept is copied each time."""
_INTERVAL_ROWS = 48
"""Newest rows from whose times an agent's interval is computed."""
_SAME_INSTANT_NS = 50_000_000
"""Apart: GPUs of a node that are read one after another, below the shortest interval of 0.1 s."""


class GpuHistory:
    """Samples of a node's GPUs: instants by GPUs by metrics, float32, bounded in seconds and rows.

    They are in one piece of memory, so that a window of them is read without a copy.
    """

    __slots__ = (
        "_data",
        "_in_order",
        "_keep_ns",
        "_kept",
        "_max_rows",
        "_newest_ns",
        "_places",
        "_rows",
        "_shape",
        "_times_ns",
        "layout",
        "metrics",
    )

    def __init__(self, layout: Layout, kept: Collection[str], *, seconds: float, rows: int) -> None:
        """Only the layout's metrics in `kept` are stored."""
        self.layout = layout
        self.metrics: tuple[str, ...] = ()
        """The metrics of the third axis."""
        self._kept = kept
        self._places: NDArray[np.intp] = np.zeros(0, np.intp)
        """Their positions in the layout."""
        self._shape = 0, 0
        self._keep_ns = round(seconds * 1e9)
        self._max_rows = rows
        self._times_ns: NDArray[np.int64] = np.zeros(0, np.int64)
        self._data: Floats32 = np.zeros((0, 0, 0), np.float32)
        self._rows = 0
        """Those from here on are free."""
        self._newest_ns = 0
        self._in_order = True

    def __len__(self) -> int:
        return self._rows

    def append(self, plan: TableLayout, times_ns: Sequence[int], values: Floats) -> None:
        """Add a table, whose rows may be of many instants.

        Rows of different GPUs at most 50 ms apart are one instant: one sweep over the GPUs.
        """
        if self._shape != self.layout.shape:
            self._widen()
        if not plan.waves:
            return
        # A reading too large for float32 becomes infinite; the batch is not refused for it.
        with np.errstate(over="ignore"):
            if plan.whole and abs(times_ns[-1] - times_ns[0]) <= _SAME_INSTANT_NS:
                all_kept = len(self._places) == values.shape[1]
                self._add(times_ns[0], values if all_kept else values.T.take(self._places, 0).T)
            else:
                self._put(plan, times_ns, values)

    def extend(self, times_ns: Sequence[Sequence[int]], values: Floats) -> bool:
        """Add whole tables, `values` as tables by the layout's metrics by GPUs, if each is the next instant.

        False, and none is added, where one is not.
        """
        newest_ns = self._newest_ns
        for one in times_ns:
            if one[0] < newest_ns or abs(one[-1] - one[0]) > _SAME_INSTANT_NS:
                return False
            newest_ns = one[0]
        count = len(times_ns)
        if count > min(_LEAST_ROOM, self._max_rows) or self._shape != self.layout.shape:
            return False
        if self._rows + count > len(self._times_ns):
            self._make_room()
        start, end = self._rows, self._rows + count
        kept = values if len(self._places) == values.shape[1] else values.take(self._places, 1)
        with np.errstate(over="ignore"):
            self._data[start:end] = kept.transpose(0, 2, 1)
        self._times_ns[start:end] = [one[0] for one in times_ns]
        self._newest_ns, self._rows = newest_ns, end
        return True

    def add(self, times_ns: Sequence[int], kept: Floats32) -> bool:
        """Add a whole table, `kept` as GPUs by the metrics that are stored, if it is the next instant.

        False, and it is not added, where it is not.
        """
        time_ns = times_ns[0]
        if (
            time_ns < self._newest_ns
            or abs(times_ns[-1] - time_ns) > _SAME_INSTANT_NS
            or self._shape != self.layout.shape
        ):
            return False
        if self._rows == len(self._times_ns):
            self._make_room()
        row = self._rows
        self._data[row], self._times_ns[row] = kept, time_ns
        self._newest_ns, self._rows = time_ns, row + 1
        return True

    def since(self, time_unix_s: float) -> tuple[Floats, Floats32]:
        """Instants from `time_unix_s` on, in order, and their (t, gpu, metric) values; copies."""
        times_unix_s, data = self.window(time_unix_s)
        return times_unix_s, data.copy()

    def window(self, time_unix_s: float) -> tuple[Floats, Floats32]:
        """The same; the values are valid until the next call of another method."""
        since_ns = time_unix_s * 1e9
        times, data = self._times_ns[: self._rows], self._data[: self._rows]
        if self._in_order:
            start = int(np.searchsorted(times, since_ns))
            return times[start:] / 1e9, data[start:]
        order = np.flatnonzero(times >= since_ns)
        order = order[np.argsort(times[order], kind="stable")]
        return times[order] / 1e9, data[order]

    def drop_after(self, time_ns: int) -> None:
        """Drop the instants after a time."""
        if self._newest_ns <= time_ns or not self._rows:
            return
        times = self._times_ns[: self._rows]
        kept = np.flatnonzero(times <= time_ns)
        self._rows = len(kept)
        self._data[: self._rows] = self._data[kept]
        self._times_ns[: self._rows] = times[kept]
        self._newest_ns = int(self._times_ns[: self._rows].max(initial=0))

    def newest_unix_s(self) -> float:
        """The newest instant, NaN before the first."""
        return self._newest_ns / 1e9 if self._rows else float("nan")

    def interval_s(self) -> float:
        """The median distance of the newest instants, 0 when there are fewer than two."""
        if self._rows < 2:
            return 0.0
        times = self._times_ns[max(0, self._rows - _INTERVAL_ROWS) : self._rows]
        distances, middle = times[1:] - times[:-1], (len(times) - 1) // 2
        distances.partition(middle)
        return float(distances[middle]) / 1e9

    def _put(self, plan: TableLayout, times_ns: Sequence[int], values: Floats) -> None:
        pairs = sorted(
            (row, gpu)
            for gpus, rows in plan.waves
            for gpu, row in zip(gpus.tolist(), rows.tolist(), strict=True)
        )
        instants = _instants([times_ns[row] for row, _ in pairs], [gpu for _, gpu in pairs])
        # A table may have far more instants than are kept; all of them at once would be gigabytes.
        first = bisect_left(instants, instants[-1] + 1 - self._max_rows)
        rows, gpus = [row for row, _ in pairs[first:]], [gpu for _, gpu in pairs[first:]]
        times = [times_ns[row] for row in rows]
        instants = [instant - instants[first] for instant in instants[first:]]
        data = np.full((instants[-1] + 1, *self._shape), np.nan, np.float32)
        data[np.array(instants)[:, None], np.array(gpus)[:, None], plan.metrics] = values[
            np.ix_(rows, plan.kept)
        ]
        began_ns = dict(zip(reversed(instants), reversed(times), strict=True))
        for instant, row in enumerate(data[:, :, self._places]):
            self._add(began_ns[instant], row)

    def _add(self, time_ns: int, row: Floats | Floats32) -> None:
        if self._rows == len(self._times_ns):
            self._make_room()
        self._data[self._rows] = row
        self._times_ns[self._rows] = time_ns
        if not self._rows or time_ns >= self._newest_ns:
            self._newest_ns = time_ns
        else:
            # A late batch: rare, and put in its place when there is no more room.
            self._in_order = False
        self._rows += 1

    def _make_room(self) -> None:
        """Move what is kept to the beginning of a new piece of memory."""
        times = self._times_ns[: self._rows]
        order = np.arange(len(times)) if self._in_order else np.argsort(times, kind="stable")
        first = int(np.searchsorted(times, self._newest_ns - self._keep_ns, sorter=order))
        most = self._max_rows - min(_LEAST_ROOM, self._max_rows)
        kept = order[max(first, len(order) - most) :]
        capacity = min(self._max_rows, len(kept) + max(_LEAST_ROOM, len(kept) // 4))
        self._times_ns = np.concatenate([times[kept], np.zeros(capacity - len(kept), np.int64)])
        data = np.empty((capacity, *self._data.shape[1:]), np.float32)
        data[: len(kept)] = self._data[kept]
        self._data, self._rows, self._in_order = data, len(kept), True

    def _widen(self) -> None:
        self._shape = self.layout.shape
        known = self.layout.metrics.known
        self._places = np.array([place for place, name in enumerate(known) if name in self._kept], np.intp)
        self.metrics = tuple([known[place] for place in self._places])
        _, gpus, metrics = self._data.shape
        added = ((0, 0), (0, self._shape[0] - gpus), (0, len(self.metrics) - metrics))
        self._data = np.pad(self._data, added, constant_values=np.nan)


def _instants(times_ns: Sequence[int], gpus: Sequence[int]) -> list[int]:
    """For each row the instant that it belongs to, counted from 0."""
    instants: list[int] = []
    seen: set[int] = set()
    instant, started_ns = 0, times_ns[0]
    for time_ns, gpu in zip(times_ns, gpus, strict=True):
        if gpu in seen or abs(time_ns - started_ns) > _SAME_INSTANT_NS:
            instant, started_ns = instant + 1, time_ns
            seen = set()
        seen.add(gpu)
        instants.append(instant)
    return instants

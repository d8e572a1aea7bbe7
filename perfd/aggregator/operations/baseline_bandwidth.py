"""What a byte took communicators in their best stretch of operations that are no longer held."""

from __future__ import annotations

import numpy as np

from perfd.aggregator.operations.growable_arrays import roomier
from perfd.analysis.data.job_data import Floats, Ints

_LARGE_BYTES = 1 << 20
"""From here on a message's time is by its bytes, not by its latency."""
_STRETCH = 32
"""Large operations in a row whose median is what the communicator can do."""


class BaselineBandwidth:
    """A row a communicator; rows are made with `make_room`, and begin with `clear`."""

    def __init__(self) -> None:
        self._largest_bytes: Floats = np.empty(1)
        self._s_per_byte: Floats = np.empty(1)
        """Of operations of at least half the largest size: a byte of a small message takes longer."""
        self._stretches: list[list[float]] = [[]]
        """Seconds a byte of the large operations, since the last median."""

    def make_room(self, rows: int) -> None:
        """Have so many rows of bandwidths."""
        self._largest_bytes = roomier(self._largest_bytes, (rows,))
        self._s_per_byte = roomier(self._s_per_byte, (rows,))
        self._stretches += [[] for _ in range(rows - len(self._stretches))]

    def clear(self, row: int) -> None:
        """Forget what a communicator did."""
        self._largest_bytes[row], self._s_per_byte[row] = _LARGE_BYTES, np.inf
        self._stretches[row].clear()

    def put(self, row: int, sizes_bytes: Floats, durations_s: Floats) -> None:
        """Take in operations, (n,) and (n, g): what the fastest rank of each took is what it is by."""
        largest = float(np.fmax.reduce(sizes_bytes, initial=self._largest_bytes[row]))
        stretch = self._stretches[row]
        if largest > 2 * self._largest_bytes[row]:
            self._s_per_byte[row] = np.inf
            stretch.clear()
        self._largest_bytes[row] = largest
        large = sizes_bytes >= largest / 2
        paces = durations_s[large].min(axis=1) / sizes_bytes[large]
        stretch += paces[np.isfinite(paces)].tolist()
        if len(stretch) >= _STRETCH:
            self._s_per_byte[row] = min(self._s_per_byte[row], float(np.median(stretch)))
            stretch.clear()

    def s_per_byte(self, rows: Ints) -> Floats:
        """(rows,): of the best stretch, NaN before there was one."""
        best = self._s_per_byte[rows]
        return np.where(np.isfinite(best), best, np.nan)

    def largest_bytes(self, rows: Ints) -> Floats:
        """(rows,): the size that counts, and half of it and more."""
        return self._largest_bytes[rows]

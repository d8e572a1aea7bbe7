"""Columns of numbers that grow event by event, and what a trace's times are in nanoseconds."""

from __future__ import annotations

from array import array

import numpy as np

from perfd.trace.model.intervals import Flags, Ns
from perfd.trace.readers.chrome_json import ChromeEvent

_MAX_TIME_US = 4e15
"""The year 2096: later times are invalid."""
_MAX_DURATION_US = 1e14
"""Three years. From the earliest start to the latest end are nanoseconds that 64 bits hold."""


class Times:
    """Starts and durations as the file has them, converted all at once."""

    def __init__(self) -> None:
        self.start_us = array("d")
        self.duration_us = array("d")

    def append(self, event: ChromeEvent) -> None:
        self.start_us.append(event.ts)
        self.duration_us.append(event.dur)

    def ns(self) -> tuple[Ns, Ns, Flags]:
        """Starts, ends, and which of them are times at all."""
        start, duration = np.array(self.start_us), np.array(self.duration_us)
        valid = (np.abs(start) < _MAX_TIME_US) & (duration >= 0) & (duration < _MAX_DURATION_US)
        start, duration = np.where(valid, start, 0), np.where(valid, duration, 0)
        # Whole microseconds apart, as absolute times in nanoseconds do not fit into a double.
        whole = np.floor(start)
        start_ns = whole.astype(np.int64) * 1000 + np.rint((start - whole) * 1000).astype(np.int64)
        return start_ns, start_ns + np.rint(duration * 1000).astype(np.int64), valid


class Columns:
    """Rows of whole numbers, kept as columns."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._flat = array("q")

    def append(self, *values: int) -> None:
        self._flat.extend(values)

    def arrays(self) -> dict[str, Ns]:
        table = np.array(self._flat, dtype=np.int64).reshape(-1, len(self._names))
        return {name: np.ascontiguousarray(table[:, at]) for at, name in enumerate(self._names)}

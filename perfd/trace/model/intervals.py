"""Unions of intervals, and how much of a window they cover, vectorised."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

# As numpy.typing spells them; to load that takes as long as to load the half of perfd.trace.
Ns: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[np.int64]]
Flags: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[np.bool_]]
Codes: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[np.uint8]]
Indices: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[np.int32]]


class Coverage:
    """A union of half-open intervals in nanoseconds. Empty and negative ones are ignored."""

    def __init__(self, starts_ns: Ns, ends_ns: Ns) -> None:
        self.starts_ns, ends = _merge(starts_ns, ends_ns)
        # The ends follow from it; a capture may have many millions of pieces.
        self._before = np.zeros(len(ends) + 1, dtype=np.int64)
        np.cumsum(ends - self.starts_ns, out=self._before[1:])

    @property
    def ends_ns(self) -> Ns:
        """Of each piece of the union, computed."""
        return self.ends_of(0, len(self.starts_ns))

    def ends_of(self, first: int, last: int) -> Ns:
        """The same of some pieces."""
        ends: Ns = self.starts_ns[first:last] + np.diff(self._before[first : last + 1])
        return ends

    def pieces(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """The first piece that may reach into the window, and the first one behind it."""
        first, last = np.searchsorted(self.starts_ns, (start_ns, end_ns)).tolist()
        return max(0, first - 1), last

    @classmethod
    def union(cls, *parts: Coverage) -> Coverage:
        """What any of the parts covers."""
        if not parts:
            empty = np.empty(0, dtype=np.int64)
            return cls(empty, empty)
        return cls(
            np.concatenate([part.starts_ns for part in parts]),
            np.concatenate([part.ends_ns for part in parts]),
        )

    @property
    def total_ns(self) -> int:
        """The length of the union."""
        return int(self._before[-1])

    def covered_ns(self, start_ns: int, end_ns: int) -> int:
        """How much of the window [start, end) is covered."""
        return int(self.covered_many_ns(np.array([start_ns]), np.array([end_ns]))[0])

    def covered_many_ns(self, starts_ns: Ns, ends_ns: Ns) -> Ns:
        """The same for many windows at once."""
        covered: Ns = np.maximum(self._up_to(ends_ns) - self._up_to(starts_ns), 0)
        return covered

    def gaps(self, start_ns: int, end_ns: int) -> tuple[Ns, Ns]:
        """Starts and ends of what the union leaves open in the window."""
        first, last = self.pieces(start_ns, end_ns)
        starts = np.concatenate(([start_ns], np.clip(self.ends_of(first, last), start_ns, end_ns)))
        ends = np.concatenate((np.clip(self.starts_ns[first:last], start_ns, end_ns), [end_ns]))
        open_ = ends > starts
        return starts[open_], ends[open_]

    def _up_to(self, times_ns: Ns) -> Ns:
        """Covered length before each time."""
        index = np.searchsorted(self.starts_ns, times_ns, side="right")
        if not len(self.starts_ns):
            return np.zeros(len(times_ns), dtype=np.int64)
        # Before the first piece: zero, at its start.
        previous = np.maximum(index - 1, 0)
        inside = np.maximum(times_ns - self.starts_ns[previous], 0)
        covered: Ns = np.minimum(self._before[previous] + inside, self._before[previous + 1])
        return covered


def _merge(starts_ns: Ns, ends_ns: Ns) -> tuple[Ns, Ns]:
    valid = ends_ns > starts_ns
    starts, ends = starts_ns[valid], ends_ns[valid]
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, furthest = starts[order], np.maximum.accumulate(ends[order])
    # A new piece begins where nothing before reaches.
    first = np.concatenate(([True], starts[1:] > furthest[:-1]))
    last = np.concatenate((first[1:], [True]))
    return starts[first], furthest[last]

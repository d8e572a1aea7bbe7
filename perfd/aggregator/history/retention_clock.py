"""The time by which rows are old: time in which an aggregator ran."""

from __future__ import annotations

_EARLIEST_UNIX_S = 1_577_836_800.0
"""The first of January 2020: a clock before it was never set."""


class RetentionClock:
    """The time by which rows are old: it goes at most as fast as the aggregator runs.

    A clock that is set ahead, or was wrong at the start, makes nothing old at once. The time in which no
    aggregator runs does not count either.
    """

    def __init__(self, reached_unix_s: float | None) -> None:
        """`reached_unix_s` is how far an earlier process came, or None."""
        self._reached_unix_s = reached_unix_s
        self._at_s: float | None = None

    def now(self, unix_s: float, monotonic_s: float) -> float | None:
        """The time, given what both clocks say; None while it cannot be known."""
        if unix_s < _EARLIEST_UNIX_S:
            return None
        passed_s = 0.0 if self._at_s is None else max(0.0, monotonic_s - self._at_s)
        self._at_s = monotonic_s
        reached = unix_s if self._reached_unix_s is None else self._reached_unix_s + passed_s
        self._reached_unix_s = min(unix_s, reached)
        return self._reached_unix_s

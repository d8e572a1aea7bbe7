"""Clocks: wall time for labels, monotonic time for durations, both injected."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the code outside of `main` may know about time.

    Decisions take a time as an argument instead; only adapters hold a clock.
    """

    def unix_ns(self) -> int:
        """Wall time in nanoseconds since the epoch; it may step."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back."""

    def sleep(self, seconds: float) -> None:
        """Return after `seconds` (at once if that is not positive)."""


class SystemClock:
    """The clock of the machine."""

    def unix_ns(self) -> int:
        return time.time_ns()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


class VirtualClock:
    """A clock that moves only when advanced: for replay at full speed and tests."""

    def __init__(self, start_unix_ns: int = 0) -> None:
        self._start_unix_ns = start_unix_ns
        self._elapsed_ns = 0

    def unix_ns(self) -> int:
        return self._start_unix_ns + self._elapsed_ns

    def monotonic_s(self) -> float:
        return self._elapsed_ns / 1e9

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move time forward; a negative step is ignored."""
        self._elapsed_ns += max(0, round(seconds * 1e9))

    def advance_to_unix_ns(self, unix_ns: int) -> None:
        """Move time forward to `unix_ns`; an earlier time is ignored."""
        self._elapsed_ns = max(self._elapsed_ns, unix_ns - self._start_unix_ns)

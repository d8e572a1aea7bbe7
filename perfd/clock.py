"""Clocks: wall time for labels, monotonic time for durations, both injected; and when what repeats is due."""

from __future__ import annotations

import math
import time
from typing import Protocol

# Far below a tick, far above what adding intervals in floating point loses.
_ROUNDING = 1e-6


SEND_AFTER = 1 / 4
"""Of an interval: so long after its collectors read an agent sends; any sooner it may miss them. Chosen."""
ROUND_AFTER = 3 / 8
"""Of an interval: so long after the collectors read rounds of analysis begin; batches are there. Chosen."""


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


class Schedule:
    """Ticks at `start_s`, `start_s + interval_s`, and so on, on a monotonic clock."""

    def __init__(self, *, interval_s: float, start_s: float) -> None:
        self._interval_s = interval_s
        self._start_s = start_s
        self._next_tick = 0

    @property
    def next_s(self) -> float:
        """When the next tick is due."""
        return self._start_s + self._next_tick * self._interval_s

    def due(self, now_s: float) -> bool:
        """Whether a tick waits to be taken."""
        return self._tick_at(now_s) >= self._next_tick

    def skip(self, now_s: float) -> None:
        """Take the ticks that are due, if any."""
        if self.due(now_s):
            self.take(now_s)

    def take(self, now_s: float) -> int:
        """Take the newest tick that is due; returns the number of older, missed ones."""
        tick = self._tick_at(now_s)
        missed = max(0, tick - self._next_tick)
        self._next_tick = max(self._next_tick, tick) + 1
        return missed

    def _tick_at(self, now_s: float) -> int:
        return math.floor((now_s - self._start_s) / self._interval_s + _ROUNDING)


def common_start_s(interval_s: float, clock: Clock) -> float:
    """The start, now or less than `interval_s` ago, of a schedule with ticks at multiples of it in Unix time.

    Agents of a fleet, whose clocks agree, then read at the same instants, and their batches come together: an
    aggregator wakes up once for many of them, which costs it less than a third of waking up for each.
    """
    return clock.monotonic_s() - clock.unix_ns() % round(interval_s * 1e9) / 1e9


def rounds_of_analysis(interval_s: float) -> Schedule:
    """When rounds are due, each a while after agents have sent what they read."""
    start_s = common_start_s(interval_s, SystemClock()) + ROUND_AFTER * interval_s
    return Schedule(interval_s=interval_s, start_s=start_s)


def scheduled_unix_s(due_s: float, clock: Clock) -> float:
    """The Unix time at which a tick was due on the monotonic clock; now, if it is not due yet.

    What compares times of ticks then sees whole intervals, as in a replay: a thread wakes up a little late.
    """
    late_s = max(0.0, clock.monotonic_s() - due_s)
    return clock.unix_ns() / 1e9 - late_s

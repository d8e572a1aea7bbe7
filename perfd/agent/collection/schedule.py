"""When a collector runs: ticks at fixed times, so that a late run does not shift later ones."""

from __future__ import annotations

import math

# Far below a tick, far above what adding intervals in floating point loses.
_ROUNDING = 1e-6


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

    def take(self, now_s: float) -> int:
        """Take the newest tick that is due; returns the number of older, missed ones."""
        tick = self._tick_at(now_s)
        missed = max(0, tick - self._next_tick)
        self._next_tick = max(self._next_tick, tick) + 1
        return missed

    def _tick_at(self, now_s: float) -> int:
        return math.floor((now_s - self._start_s) / self._interval_s + _ROUNDING)

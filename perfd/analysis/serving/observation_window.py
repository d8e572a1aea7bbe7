"""A server over a stretch of time: its counters from end to end, its gauges as means while it worked."""

from __future__ import annotations

from dataclasses import replace

from perfd.analysis.serving.engine_snapshot import Snapshot
from perfd.analysis.serving.server_rates import ServerRates, measure

_GAUGES = ("running_requests", "queued_requests", "kv_cache_used_ratio", "kv_used_tokens")


class ObservationWindow:
    """What many looks at a server amount to; it keeps the first and the last, however many there are."""

    def __init__(self, first: Snapshot) -> None:
        self._first = first
        self._last: Snapshot | None = None
        self._means = {name: _Mean() for name in _GAUGES}
        self._take_in(first)

    def add(self, look: Snapshot) -> None:
        """Take in the next look."""
        self._last = look
        self._take_in(look)

    def measured(self, span_s: float) -> ServerRates:
        """The looks so far, the first and the last of them `span_s` apart.

        Gauges of `now` are means over the looks at which requests ran: before and after, a benchmark waits.
        """
        last = self._last or self._first
        measured = measure(last, self._first, span_s) if self._last else measure(last)
        if not self._means["running_requests"].count:
            return measured
        now = replace(
            last,
            running_requests=self._means["running_requests"].value,
            queued_requests=self._means["queued_requests"].value,
            kv_cache_used_ratio=self._means["kv_cache_used_ratio"].value,
            kv_used_tokens=self._means["kv_used_tokens"].value,
        )
        return replace(measured, now=now)

    def _take_in(self, look: Snapshot) -> None:
        if look.running_requests:
            for name, mean in self._means.items():
                mean.add(getattr(look, name))


class _Mean:
    """The mean of what is known."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0.0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.count += 1
            self._sum += value

    @property
    def value(self) -> float | None:
        return self._sum / self.count if self.count else None

"""A server over a stretch of time: its counters from end to end, its gauges as means while it worked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfd.analysis.serving.measured import Measured, measure
from perfd.analysis.serving.snapshot import Snapshot


def over(looks: Sequence[Snapshot], span_s: float) -> Measured:
    """What the looks amount to, the first and the last of them `span_s` apart; there is at least one.

    Gauges of `now` are means over the looks at which requests ran: before and after, a benchmark waits.
    """
    first, last = looks[0], looks[-1]
    measured = measure(last, first, span_s) if len(looks) > 1 else measure(last)
    busy = [look for look in looks if look.running_requests]
    if not busy:
        return measured
    now = replace(
        last,
        running_requests=_mean([look.running_requests for look in busy]),
        queued_requests=_mean([look.queued_requests for look in busy]),
        kv_cache_used_ratio=_mean([look.kv_cache_used_ratio for look in busy]),
        kv_used_tokens=_mean([look.kv_used_tokens for look in busy]),
    )
    return replace(measured, now=now)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

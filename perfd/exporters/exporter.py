"""What an exporter is given each round, and what it has to do with it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from perfd.analysis.diagnosis import JobSummary
from perfd.clock import Clock
from perfd.metrics.series import SeriesFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRound:
    """One job at one instant."""

    summary: JobSummary
    """Its newest numbers, medians over `analysis.window_steps`."""
    step: int | None
    """The newest training step."""
    loss: float | None = None
    attempt: int = 1
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertUpdate:
    """One alert of the embedded engine that fires, or that ended."""

    name: str
    labels: Mapping[str, str]
    """With `alertname`; `job` where the alert is of one job."""
    annotations: Mapping[str, str]
    value: float
    fired_at_unix_s: float
    resolved_at_unix_s: float | None = None
    """None while it fires."""

    @property
    def job(self) -> str:
        """The job that it is of; empty when it is of none."""
        return self.labels.get("job", "")

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """What tells it from other alerts."""
        return tuple(sorted(self.labels.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What the aggregator knows after one round. Nothing in it changes any more."""

    time_unix_s: float
    frames: Mapping[str, SeriesFrame] = field(default_factory=dict)
    """All series by group; no name is in two groups."""
    jobs: Sequence[JobRound] = ()
    firing: Sequence[AlertUpdate] = ()
    """All alerts that fire now."""
    changes: Sequence[AlertUpdate] = ()
    """Alerts that began or ended since the round before, oldest first."""
    finals: Sequence[JobSummary] = ()
    """Summaries of whole jobs that ended since the round before, fell silent for so long that the aggregator
    forgot them, or that it leaves; one for each end."""

    def after(self, dropped: Round) -> Round:
        """This round, with what must not be lost of one before it that was dropped."""
        finals = {summary.name: summary for summary in (*dropped.finals, *self.finals)}
        return replace(
            self,
            changes=(*dropped.changes, *self.changes)[-MAX_CHANGES:],
            finals=tuple(finals.values()),
        )


MAX_CHANGES = 10_000
"""Changes of alerts that one round holds at most; older ones are forgotten."""


@dataclass(slots=True)
class ExporterTally:
    """What an exporter did, for its self metrics. Only the exporter's own thread writes it."""

    sent: int = 0
    """Items that the other side took: samples, alerts, rows or lines."""
    lost: int = 0
    """Items given up: refused by the other side, or beyond a bound."""
    retries: int = 0
    """Attempts that failed and that are made again."""
    pending: int = 0
    """Items that wait for the other side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterContext:
    """What an exporter gets beside its configuration."""

    clock: Clock
    tally: ExporterTally
    chance: Callable[[], float] = random.random
    """Draws evenly from 0 to below 1, for waits that shall differ between processes."""


class Exporter(Protocol):
    """Hands rounds on to one other system.

    Both methods are called by one thread that the exporter has for itself: it may block, but for a
    bounded time. What it cannot deliver now it keeps, up to a bound, and tries again in a later
    `export`, which comes about each second. An exception counts as a failed round and is logged once.
    """

    def export(self, round_: Round, /) -> None:
        """Take one round; rounds come in order, but some may be missing."""

    def close(self) -> None:
        """Deliver what can be delivered in a few seconds, and free everything."""


MakeExporter = Callable[[Mapping[str, Any], ExporterContext], Exporter]
"""What an entry point of the group `perfd.exporters` is: from options and context to an exporter.

It is called before the aggregator starts, must not wait for the other system, and raises `ConfigError`
when the options are wrong.
"""

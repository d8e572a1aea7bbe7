"""The input of an exporter each round, and its contract."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from perfd.analysis.diagnosis import JobSummary
from perfd.clock import Clock
from perfd.metrics.series import SeriesFrame
from perfd.model import Alert, JobOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRound:
    """One job at one time."""

    summary: JobSummary
    """Its newest numbers, medians over `analysis.window_steps`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Those of all its series: `perfd_job`, and what is known of its origin (`perfd.model.job_origin`)."""
    title: str = ""
    """What its user calls it, which need not be unique."""
    outcome: JobOutcome | None = None
    """How it ended, if that is known."""
    step: int | None
    """The newest training step."""
    loss: float | None = None
    learning_rate: float | None = None
    attempt: int = 1
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The aggregator's state after one round. Immutable."""

    time_unix_s: float
    frames: Mapping[str, SeriesFrame] = field(default_factory=dict)
    """All series by group; no name is in two groups."""
    jobs: Sequence[JobRound] = ()
    firing: Sequence[Alert] = ()
    """All firing alerts."""
    changes: Sequence[Alert] = ()
    """Alerts that began or ended since the previous round, oldest first."""
    finals: Sequence[JobSummary] = ()
    """Summaries of whole jobs that ended since the previous round, were forgotten after a long silence,
    or still run when the aggregator stops; one per end."""
    last: bool = False
    """The aggregator stops: it has no `jobs`, and those in `finals` may go on."""

    def after(self, dropped: Round) -> Round:
        """This round, with the parts of an earlier, dropped one that must not be lost."""
        finals = {summary.name: summary for summary in (*dropped.finals, *self.finals)}
        return replace(
            self,
            changes=(*dropped.changes, *self.changes)[-MAX_CHANGES:],
            finals=tuple(finals.values()),
        )


MAX_CHANGES = 10_000
"""The most changes of alerts in one round; older ones are dropped."""


@dataclass(slots=True)
class ExporterTally:
    """Counters of an exporter, for its own metrics. Only the exporter's thread writes it."""

    sent: int = 0
    """Items accepted by the receiver: samples, alerts, rows or lines."""
    lost: int = 0
    """Items lost: refused by the receiver, or beyond a limit."""
    retries: int = 0
    """Failed attempts that are retried."""
    pending: int = 0
    """Items waiting for the receiver."""


class ExporterMemory(Protocol):
    """What an exporter remembers over a restart of the aggregator. Both methods return at once."""

    @property
    def closing(self) -> bool:
        """Whether nothing more is stored, because the aggregator stops."""

    def load(self) -> bytes | None:
        """What an earlier process stored last; None if there is nothing."""

    def save(self, state: bytes) -> None:
        """Store this instead of what was stored before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterContext:
    """What an exporter gets besides its configuration."""

    clock: Clock
    tally: ExporterTally
    memory: ExporterMemory | None = None
    """None without `history.path`."""
    chance: Callable[[], float] = random.random
    """Uniform from 0 to below 1, for waits that should differ between processes."""


class Exporter(Protocol):
    """Exports rounds to one other system.

    Both methods are called by the exporter's own thread: it may block, but for a bounded time. What it
    cannot deliver now it keeps, up to a limit, and tries again in a later `export`, about every second.
    An exception counts as a failed round and is logged once.
    """

    def export(self, round_: Round, /) -> None:
        """Export one round; rounds come in order, but some may be missing."""

    def close(self) -> None:
        """Deliver what can be delivered in a few seconds, and release everything."""


MakeExporter = Callable[[Mapping[str, Any], ExporterContext], Exporter]
"""The type of an entry point of the group `perfd.exporters`: from options and context to an exporter.

It is called before the aggregator starts, must not wait for the other system, and raises `ConfigError`
if the options are wrong.
"""

"""Makes the round that exporters get of what the analysis loop derived."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from perfd.aggregator.failures import Failures, Part
from perfd.aggregator.live_facts import LiveFacts
from perfd.aggregator.state import Derived
from perfd.analysis.data.job_data import Floats
from perfd.analysis.diagnosis import JobSummary
from perfd.exporters.exporter import JobRound, Round
from perfd.metrics.series import SeriesFrame
from perfd.model import Alert

WholeSummary = Callable[[str], JobSummary | None]
"""The summary of a whole job, by its name."""


class RoundBuilder:
    """Makes the `Round` of each tick, with the final summaries of jobs that ended. Not thread-safe."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._ended: dict[str, int] = {}
        self._over: frozenset[str] = frozenset()

    def make(
        self,
        now_unix_s: float,
        *,
        frames: Mapping[str, SeriesFrame],
        derived: Mapping[str, Derived],
        facts: Mapping[str, LiveFacts],
        active: Sequence[Alert],
        changes: Sequence[Alert],
        forgotten: Sequence[JobSummary],
        whole: WholeSummary,
    ) -> Round:
        """One round; the whole of a job is summarized once for each attempt that ended.

        `forgotten` jobs have left since the last round; those whose end was not reported end here.
        """
        jobs: list[JobRound] = []
        for name, found in derived.items():
            with self._failures.contained(Part.EXPORT, job=name):
                jobs.append(_job(found, facts[name]))
        self._ended = {name: attempt for name, attempt in self._ended.items() if name in derived}
        ended = [job for job in jobs if job.ended and self._ended.get(job.summary.name) != job.attempt]
        self._ended |= {job.summary.name: job.attempt for job in ended}
        finals = (whole(job.summary.name) for job in ended)
        silent = [summary for summary in forgotten if summary.name not in self._over]
        self._over = frozenset(
            job.summary.name for job in jobs if self._ended.get(job.summary.name) == job.attempt
        )
        return Round(
            time_unix_s=now_unix_s,
            frames=frames,
            jobs=tuple(jobs),
            firing=tuple(alert for alert in active if alert.firing),
            changes=tuple(alert for alert in changes if alert.firing or alert.resolved),
            finals=(*silent, *(summary for summary in finals if summary is not None)),
        )

    def last(
        self, now_unix_s: float, jobs: Sequence[str], whole: WholeSummary, *, active: Sequence[Alert]
    ) -> Round:
        """The round at the aggregator's own end: what is known of the jobs that go on, and what fires on."""
        summaries = [whole(name) for name in jobs if name not in self._over]
        return Round(
            time_unix_s=now_unix_s,
            firing=tuple(alert for alert in active if alert.firing),
            finals=tuple(one for one in summaries if one is not None),
            last=True,
        )


def _job(found: Derived, facts: LiveFacts) -> JobRound:
    steps = found.data.steps
    return JobRound(
        summary=found.summary,
        labels=facts.labels,
        title=facts.origin.title,
        outcome=None if facts.end is None else facts.end.outcome,
        step=int(steps.step[-1]) if len(steps) else None,
        loss=_newest(steps.loss),
        learning_rate=_newest(steps.learning_rate),
        attempt=facts.attempt,
        ended=found.data.ended_unix_s is not None,
    )


def _newest(values: Floats) -> float | None:
    """The newest step's; None where its line has none."""
    return float(values[-1]) if len(values) and math.isfinite(values[-1]) else None

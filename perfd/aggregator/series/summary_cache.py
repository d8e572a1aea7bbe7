"""Derived numbers of each job, computed again only when something has changed."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfd.aggregator.jobs import JobState
from perfd.aggregator.state import Fleet, job_data
from perfd.analysis.data.job_data import JobData
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, summarise
from perfd.analysis.findings import Moment, Verdict, steady_verdict
from perfd.analysis.steps import StepTimeChange, step_time_change
from perfd.model import Alert, StepSource

_WINDOW_SLACK = 4
"""Of the lines in the window some are not steady: so many times the steady ones are looked at."""

_GPUS_PER_SECOND = 2048
"""With more GPUs than this in all, the numbers of a job are made every two seconds, and so on."""

_COUNTED_FOR_S = 1.0

Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Derived:
    """What follows from one state of a job."""

    key: Key
    data: JobData
    summary: JobSummary
    made_s: float
    """Monotonic time of the numbers."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """How much of a job is looked at, and what was derived from it last."""

    settings: AnalysisSettings
    rows: int | None
    known: dict[str, Derived]


class SummaryCache:
    """Keeps the newest derived numbers of each job. `live` is called by one thread, the tick's."""

    def __init__(
        self, fleet: Fleet, lock: threading.RLock, live: AnalysisSettings, whole: AnalysisSettings
    ) -> None:
        self._fleet = fleet
        self._lock = lock
        window = live.window_steps
        self._live = _Scope(live, None if window is None else _WINDOW_SLACK * window, {})
        self._whole = _Scope(whole, None, {})
        self._verdicts: dict[str, Verdict] = {}
        self._changes: dict[str, tuple[tuple[int, int | None], StepTimeChange | None]] = {}
        """By job; the key is how many lines there are, and the newest step."""
        self._interval = (-math.inf, 0.0)

    def live(self, name: str, now_unix_s: float, now_s: float) -> Derived | None:
        """Numbers over the newest steps of a job; None when it is gone.

        They are as old as their cost asks for: a second with few GPUs, four with 8,000.
        """
        known = self._live.known.get(name)
        if known is not None and 0 <= now_s - known.made_s < self._shortest_interval_s(now_s):
            return known
        derived = self._derive(self._live, name, now_unix_s, now_s)
        if derived is None or derived is known:
            return derived
        steady = replace(derived, summary=self._steadied(derived.summary, now_unix_s))
        self._live.known[name] = steady
        return steady

    def whole(self, name: str, now_unix_s: float, now_s: float, alerts: Sequence[Alert]) -> Derived | None:
        """Numbers over the whole job; None when it is gone."""
        return self._derive(self._whole, name, now_unix_s, now_s, alerts)

    def since(self, name: str, now_unix_s: float, now_s: float, since_unix_s: float) -> JobSummary | None:
        """Numbers of a job from a moment on, made anew each time; None when it is gone."""
        with self._lock:
            job = self._fleet.jobs.get(name)
            if job is None:
                return None
            data = job_data(self._fleet, job, now_unix_s=now_unix_s, now_s=now_s, since_unix_s=since_unix_s)
        return summarise(data, self._whole.settings)

    def step_time_change(self, name: str) -> StepTimeChange | None:
        """Whether the newest steps are longer than all before them; None with too few steps."""
        with self._lock:
            job = self._fleet.jobs.get(name)
            if job is None:
                return None
            known, key = self._changes.get(name), (len(job.steps), job.steps.last_step)
            if known is not None and known[0] == key:
                return known[1]
            steps, events = job.steps.table(), tuple(job.events)
        change = step_time_change(steps, events)
        self._changes[name] = key, change
        return change

    def _steadied(self, summary: JobSummary, now_unix_s: float) -> JobSummary:
        """The summary with the headline of the looks before, until another one has lasted."""
        steps = summary.steps
        newest = steps.last if steps.source is StepSource.LOG else None
        moment = Moment(unix_s=now_unix_s, step=newest, steady_steps=steps.steady_steps_count)
        prior = self._verdicts.get(summary.name, Verdict())
        self._verdicts[summary.name], findings = steady_verdict(prior, summary.findings, moment)
        return replace(summary, findings=findings)

    def forget(self, names: Sequence[str]) -> None:
        """Drop what is known of jobs that are gone."""
        for name in names:
            self._live.known.pop(name, None)
            self._whole.known.pop(name, None)
            self._verdicts.pop(name, None)
            self._changes.pop(name, None)

    def _derive(
        self,
        scope: _Scope,
        name: str,
        now_unix_s: float,
        now_s: float,
        alerts: Sequence[Alert] = (),
    ) -> Derived | None:
        with self._lock:
            job = self._fleet.jobs.get(name)
            if job is None:
                return None
            key = (*self._key(job), hash(tuple((a.name, a.state, a.captures) for a in alerts)))
            old = scope.known.get(name)
            if old is not None and old.key == key:
                return old
            data = job_data(
                self._fleet, job, now_unix_s=now_unix_s, now_s=now_s, alerts=alerts, window_steps=scope.rows
            )
        derived = Derived(key, data, summarise(data, scope.settings), now_s)
        scope.known[name] = derived
        return derived

    def _shortest_interval_s(self, now_s: float) -> float:
        # Of all jobs it is the same: counting the GPUs for each of 500 jobs anew would be most of a round.
        counted_s, interval_s = self._interval
        if not 0 <= now_s - counted_s < _COUNTED_FOR_S:
            with self._lock:
                gpus = sum(
                    len(node.readings.gpu_history.layout.entities) for node in self._fleet.nodes.values()
                )
            interval_s = float(gpus // _GPUS_PER_SECOND)
            self._interval = (now_s, interval_s)
        return interval_s

    def _key(self, job: JobState) -> Key:
        nodes = [self._fleet.nodes[name] for name in job.nodes if name in self._fleet.nodes]
        samples = 0 if job.ended else sum(node.readings.gpu_tables for node in nodes)
        return (id(job), job.version, samples, sum(node.version for node in nodes))

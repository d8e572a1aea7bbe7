"""One round a second: derive, make series, evaluate rules, decide on captures, keep history."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from perfd.aggregator.alerts import AlertEvaluation, Announcements
from perfd.aggregator.captures import CaptureService, job_view, server_view
from perfd.aggregator.failures import Part
from perfd.aggregator.history import HistoryRecorder, HistoryStore, rows
from perfd.aggregator.job_summaries import JobSummaries
from perfd.aggregator.live_facts import LiveFacts
from perfd.aggregator.nodes import NodeMemory
from perfd.aggregator.notices import AgentNotices, Notify
from perfd.aggregator.partition import Partition
from perfd.aggregator.round_builder import RoundBuilder
from perfd.aggregator.series import MetricNames, SeriesFrames
from perfd.aggregator.state import AggregatorState, Derived
from perfd.analysis.diagnosis import JobSummary
from perfd.capture.policy.coordinator import CAPTURE_LABEL
from perfd.capture.selection import JobView
from perfd.clock import Clock
from perfd.config import AggregatorConfig
from perfd.exporters.exporter_registry import ExporterRegistry
from perfd.model import Alert, CaptureTool, alert_json
from perfd.rules import RuleSet
from perfd.rules.files import unknown_profiles

log = logging.getLogger(__name__)

_MOST_ALERTS = 1000
"""That a start reads back from history, the newest."""
_FRESH_FOR_S = 30.0
"""As long as a reading of an agent stays on the page: what is older is not about now."""
_FRESH_FOR_ROUNDS = 5
"""A page is at least as many rounds old before it is stale, where rounds are rare."""


class AnalysisLoop:
    """Runs rounds and holds what the newest one gave. Thread-safe; rounds wait for each other."""

    def __init__(
        self,
        config: AggregatorConfig,
        state: AggregatorState,
        clock: Clock,
        history: HistoryStore | None,
        captures: CaptureService,
        *,
        nodes: NodeMemory,
        exporters: ExporterRegistry,
        registry: CollectorRegistry,
        notify: Notify,
        partition: Partition | None = None,
    ) -> None:
        """`notify` sends a message to the agent of a node, at once; others may continue a `partition`."""
        self._config = config
        self._state = state
        self._clock = clock
        self._history = HistoryRecorder(history, retention_days=config.history.retention_days)
        self._captures = captures
        self._nodes = nodes
        self._exporters = exporters
        self._failures = state.failures
        self._rounds = RoundBuilder(state.failures)
        self._summaries = JobSummaries(config.analysis, state, clock)
        self._notices = AgentNotices(state, notify, of_partition=partition is not None)
        self._alerts = AlertEvaluation(config.rules)
        self._announcements = Announcements() if partition is None else Announcements(partition.held)
        for sentence in unknown_profiles(self._alerts.rules.groups, CAPTURE_LABEL, config.capture_profiles):
            log.warning("A rule asks for a capture profile that is not there.", extra={"reason": sentence})
        if history is not None:
            now_unix_s = clock.unix_ns() / 1e9
            fired = history.alerts(limit=_MOST_ALERTS)
            self._alerts.restore(history.engine_state(), fired, now_unix_s, clock.monotonic_s())
        self._names = MetricNames.installed()
        self.series = SeriesFrames(
            state,
            self._names,
            registry,
            self._alerts.store,
            forgotten_after_s=config.job_forgotten_after_s,
        )
        """Reading its newest frames needs no lock: a scrape must not wait for a round."""
        self._lock = threading.RLock()
        """Held by a round from beginning to end. A request takes it only where it is free."""
        self._request_lock = threading.Lock()
        """Requests wait for each other, so that all use what the first one made."""
        self._now_unix_s = clock.unix_ns() / 1e9
        self._finished_s = clock.monotonic_s()

    @property
    def names(self) -> MetricNames:
        """Names and descriptions of all series."""
        return self._names

    @property
    def rules(self) -> RuleSet:
        """The rules that it evaluates."""
        return self._alerts.rules

    @property
    def stale_s(self) -> float | None:
        """How long ago the newest round was finished when that is too long ago, else None."""
        age_s = self._clock.monotonic_s() - self._finished_s
        limit_s = max(_FRESH_FOR_S, _FRESH_FOR_ROUNDS * self._config.round_interval_s)
        return age_s if age_s > limit_s else None

    def run(self, now_unix_s: float) -> None:
        """One round at a time; deterministic for the state and the time.

        What fails of one job stays its own. What fails of all is raised; counters move all the same.
        """
        started_s = time.perf_counter()
        with self._lock:
            self._now_unix_s = now_unix_s
            now_s = self._clock.monotonic_s()
            try:
                self._round(now_unix_s, now_s)
            except Exception:
                with self._state.lock:
                    self._state.counters.failed_ticks += 1
                raise
        with self._state.lock:
            self._state.counters.ticks += 1
            self._state.counters.tick_s += time.perf_counter() - started_s

    def _round(self, now_unix_s: float, now_s: float) -> None:
        self._end_jobs(now_unix_s, now_s)
        forgotten = self._forget(now_s)
        self._take_capture_evidence()
        others = forgotten or self._exporters or self._announcements
        if self._summaries.make(now_unix_s, rest=not others and self._alerts.may_wait(now_unix_s)):
            self._publish(forgotten, now_unix_s, now_s)
        with self._failures.contained(Part.NODES):
            self._notices.intervals(self._summaries.calm, self._alerts.active, now_s)
        self._finished_s = self._clock.monotonic_s()
        with self._failures.contained(Part.CAPTURE):
            self._captures.tick(now_unix_s)
        with self._failures.contained(Part.HISTORY):
            self._store_due(now_s)

    def _end_jobs(self, now_unix_s: float, now_s: float) -> None:
        """End the jobs that no agent can report any more."""
        with self._state.lock:
            durable = self._state.fleet.end_jobs(now_s)
        self._history.add([row for one in durable for row in rows(one, now_unix_s)])

    def _forget(self, now_s: float) -> list[JobSummary]:
        """Drop the jobs that are silent for too long; returns their summaries if an exporter wants them."""
        with self._state.lock:
            fleet = self._state.fleet
            going = [
                name
                for name, job in fleet.jobs.items()
                if now_s - job.received_s > self._config.job_forgotten_after_s
            ]
        last: dict[str, JobSummary | None] = {}
        for name in going:
            with self._failures.contained(Part.HISTORY, job=name):
                self._store_summary(name)
            last[name] = self._whole(name) if self._exporters else None
        with self._state.lock:
            gone = fleet.forget(now_s, self._config.job_forgotten_after_s)
        self._summaries.forget(gone)
        self._failures.forget(gone)
        self._history.forget(gone)
        return [summary for name in gone if (summary := last.get(name)) is not None]

    def _take_capture_evidence(self) -> None:
        """Let the jobs know what traces of them showed."""
        for name in self.jobs():
            with self._failures.contained(Part.TRACES, job=name):
                captured = self._captures.captured(name)
                with self._state.lock:
                    if (job := self._state.fleet.jobs.get(name)) is not None:
                        job.take_captured(captured)

    def _publish(self, forgotten: Sequence[JobSummary], now_unix_s: float, now_s: float) -> None:
        """Make the series of what is known now, evaluate the rules, and hand both on."""
        derived, facts = self._derive(now_s)
        with self._failures.contained(Part.NODES):
            summaries = {name: found.summary for name, found in derived.items()}
            self._nodes.take(summaries, now_unix_s, now_s)
            self._notices.findings(summaries, now_s)
        all_read = bool(self._exporters) or self._alerts.reads_all(now_unix_s)
        self.series.make(now_unix_s, now_s, derived, facts, all_read=all_read)
        changes: Sequence[Alert] = ()
        with self._failures.contained(Part.RULES):
            changes = self._evaluate(derived, now_unix_s, now_s)
        self.series.publish(self._alerts.recorded)
        with self._state.lock:
            self._state.counters.round_unix_s = now_unix_s
        with self._failures.contained(Part.EXPORT):
            self._export(derived, facts, changes, forgotten)

    def _derive(self, now_s: float) -> tuple[dict[str, Derived], dict[str, LiveFacts]]:
        derived: dict[str, Derived] = {}
        facts: dict[str, LiveFacts] = {}
        for name in self.jobs():
            found = self._summaries.newest(name)
            if found is None:
                continue
            with self._failures.contained(Part.FACTS, job=name):
                firing = self._alerts.firing.get(name, ())
                facts[name] = self._summaries.facts(name, found, firing, now_s)
                derived[name] = found
        return derived, facts

    def _evaluate(
        self,
        derived: Mapping[str, Derived],
        now_unix_s: float,
        now_s: float,
    ) -> Sequence[Alert]:
        started_s = time.perf_counter()
        with self._state.lock:
            reported = {name for name, job in self._state.fleet.jobs.items() if job.ended or job.nodes}
        changes = self._alerts.evaluate(
            now_unix_s, now_s, lambda job: _last_step(derived.get(job)), lambda job: job not in reported
        )
        with self._state.lock:
            self._state.counters.rule_evaluation_s += time.perf_counter() - started_s
        stored = self._history.alerts(changes, lambda: self._alerts.state(now_unix_s), now_unix_s)
        self._announcements.add(changes, stored, now_s)
        due = self._announcements.due(now_s)
        self._captures.on_alerts(
            due,
            self._announcements.known(self._alerts.active),
            lambda job: self._view_of_alert(job, derived),
            now_unix_s,
        )
        return due

    def _view_of_alert(self, job: str, derived: Mapping[str, Derived]) -> JobView | None:
        if not job and len(derived) == 1:
            job = next(iter(derived))
        return self._view(job, derived.get(job))

    def _export(
        self,
        derived: Mapping[str, Derived],
        facts: Mapping[str, LiveFacts],
        changes: Sequence[Alert],
        forgotten: Sequence[JobSummary],
    ) -> None:
        if self._exporters:
            self._exporters.offer(
                self._rounds.make(
                    self._now_unix_s,
                    frames=self.series.newest,
                    derived=derived,
                    facts=facts,
                    active=self._announcements.known(self._alerts.active),
                    changes=changes,
                    forgotten=forgotten,
                    whole=self._whole,
                )
            )

    def _store_due(self, now_s: float) -> None:
        for name in self._history.summaries_due(self.jobs(), now_s):
            with self._failures.contained(Part.HISTORY, job=name):
                self._store_summary(name)
        self._history.expire(self._now_unix_s, now_s)

    def _store_summary(self, name: str) -> None:
        with self._state.lock:
            job = self._state.fleet.jobs.get(name)
            attempt = job.attempts.number if job else 1
        self._history.summary(lambda: self._whole(name), attempt)

    def store_all(self) -> None:
        """Write the summary of every job and the state of the rules to history, before the end."""
        with self._lock:
            now_unix_s = self._now_unix_s
            with self._failures.contained(Part.HISTORY):
                self._nodes.keep()
                self._history.last_alerts((), lambda: self._alerts.state(now_unix_s), now_unix_s)
            for name in self.jobs():
                with self._failures.contained(Part.HISTORY, job=name):
                    self._store_summary(name)

    def export_last(self) -> None:
        """Hand the summaries of jobs that go on to the exporters, before the end."""
        if self._exporters:
            with self._lock:
                known = self._announcements.known(self._alerts.active)
                self._exporters.offer(
                    self._rounds.last(self._now_unix_s, self.jobs(), self._whole, active=known)
                )

    def jobs(self) -> list[str]:
        """Names of the jobs in memory."""
        with self._state.lock:
            return list(self._state.fleet.jobs)

    def summary(self, job: str | None = None) -> list[JobSummary]:
        """The summary of one job, or of all, over the whole job; empty when there is none.

        It waits for no round.
        """
        names = self.jobs() if job is None else [job]
        return [found for name in names if (found := self._requested_whole(name))]

    def _requested_whole(self, job: str) -> JobSummary | None:
        with self._request_lock:
            return self._whole(job) or self._summaries.failed(job, Part.SUMMARY)

    def summary_since(self, job: str, since_unix_s: float) -> JobSummary | None:
        """The summary of a job from a moment on, of what is in memory; None when there is none.

        It waits for no round.
        """
        with self._request_lock:
            found = self._summaries.since(job, self._now_unix_s, since_unix_s)
            return found or self._summaries.failed(job, Part.SUMMARY)

    def live(self, job: str) -> JobSummary | None:
        """The newest numbers of a job, over its window, made now unless a round is at work.

        Then they are those that were made last, None if there are none yet.
        """
        with self._request_lock:
            self._refresh([job])
            if self._summaries.lacks_whole(job):
                self._whole(job)
        derived = self._summaries.newest(job)
        return derived.summary if derived else self._summaries.failed(job, Part.ANALYSIS)

    def newest(self, job: str) -> JobSummary | None:
        """What pages show: live numbers; once a job is over, its summary's findings. Waits for no round."""
        return self._summaries.shown(job) or self._summaries.failed(job, Part.ANALYSIS)

    def refresh(self, jobs: Sequence[str]) -> None:
        """Make the live numbers of jobs now, unless a round or another request is at work."""
        if self._request_lock.acquire(blocking=False):
            try:
                self._refresh(jobs)
            finally:
                self._request_lock.release()

    def _refresh(self, jobs: Sequence[str]) -> None:
        if self._lock.acquire(blocking=False):
            try:
                for job in jobs:
                    self._summaries.live(job, self._now_unix_s)
            finally:
                self._lock.release()

    def view(self, job: str) -> JobView | None:
        """What a decision about a capture may know of a job or server; None when there is none.

        It waits for a round only if the job was never analyzed.
        """
        with self._failures.contained(Part.CAPTURE, job=job):
            self.live(job)
            derived = self._summaries.newest(job)
            if derived is None and job in self.jobs():
                with self._lock:
                    derived = self._summaries.live(job, self._now_unix_s)
            return self._view(job, derived)
        return None

    def _view(self, job: str, derived: Derived | None) -> JobView | None:
        if derived is None:
            return server_view(self._state, job)
        tool = CaptureTool(self._config.capture_tool)
        return job_view(self._state, derived.data, derived.summary, tool)

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts that fired since the start, oldest first, as in perfd.alerts/1. It waits for no round."""
        return [alert_json(self._with_captures(alert)) for alert in self._alerts.list()]

    def _whole(self, name: str) -> JobSummary | None:
        alerts = [self._with_captures(alert) for alert in self._alerts.of_job(name)]
        return self._summaries.whole(name, self._now_unix_s, alerts)

    def _with_captures(self, alert: Alert) -> Alert:
        return replace(alert, captures=self._captures.started_by(alert))


def _last_step(derived: Derived | None) -> int | None:
    return int(derived.data.steps.step[-1]) if derived and len(derived.data.steps) else None

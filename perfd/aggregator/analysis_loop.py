"""One round a second: derive, make series, evaluate rules, decide on captures, keep history."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from perfd.aggregator.alerts import AlertEvaluation
from perfd.aggregator.captures import CaptureService, job_view, server_view
from perfd.aggregator.failures import Part
from perfd.aggregator.history import HistoryStore, alert_row, engine_row, rows, summary_row
from perfd.aggregator.round_builder import RoundBuilder
from perfd.aggregator.series import Derived, LiveFacts, MetricNames, SeriesFrames, SummaryCache
from perfd.aggregator.state import AggregatorState, JobState
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary, to_json
from perfd.analysis.diagnosis.failed_analysis import failed_summary
from perfd.analysis.flops.flops_conventions import FlopsConvention
from perfd.capture.policy.coordinator import CAPTURE_LABEL
from perfd.capture.selection import JobView
from perfd.clock import Clock
from perfd.config import AggregatorConfig, AnalysisConfig
from perfd.errors import ConfigError
from perfd.exporters.exporter_registry import ExporterRegistry
from perfd.gpu_peaks import load_peaks
from perfd.metrics.series import SeriesFrame
from perfd.model import Alert, CaptureTool, alert_json
from perfd.rules.files import unknown_profiles

log = logging.getLogger(__name__)

_SUMMARY_EVERY_S = 60.0
_ALERTS_EVERY_S = 15.0
"""How exactly it is known, after a kill, until when rules were evaluated."""
_MOST_ALERTS = 1000
_EXPIRE_EVERY_S = 3600.0
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
        exporters: ExporterRegistry,
        registry: CollectorRegistry,
    ) -> None:
        whole = analysis_settings(config.analysis)
        live = replace(whole, window_steps=config.analysis.window_steps)
        self._config = config
        self._state = state
        self._clock = clock
        self._history = history
        self._captures = captures
        self._exporters = exporters
        self._failures = state.failures
        self._rounds = RoundBuilder(state.failures)
        self._deriver = SummaryCache(state.fleet, state.lock, live, whole)
        self._alerts = AlertEvaluation(config.rules)
        for sentence in unknown_profiles(self._alerts.rules.groups, CAPTURE_LABEL, config.capture_profiles):
            log.warning("A rule asks for a capture profile that is not there.", extra={"reason": sentence})
        if history is not None:
            now_unix_s = clock.unix_ns() / 1e9
            fired = history.alerts(limit=_MOST_ALERTS)
            self._alerts.restore(history.engine_state(), fired, now_unix_s, clock.monotonic_s())
        self._names = MetricNames.installed()
        self._maker = SeriesFrames(
            state, self._names, registry, forgotten_after_s=config.job_forgotten_after_s
        )
        self._lock = threading.RLock()
        self._now_unix_s = clock.unix_ns() / 1e9
        self._frames: Mapping[str, SeriesFrame] = {}
        self._finished_s = clock.monotonic_s()
        self._stored_s: dict[str, float] = {}
        self._expired_s: float | None = None
        self._alerts_stored_unix_s: float | None = None

    @property
    def names(self) -> MetricNames:
        """Names and descriptions of all series."""
        return self._names

    @property
    def frames(self) -> Mapping[str, SeriesFrame]:
        """All series of the newest round by group, those of rules too; no name is in two groups."""
        # Without the lock: a scrape must not wait for a round.
        return self._frames

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
                self._run(now_unix_s, now_s)
            except Exception:
                with self._state.lock:
                    self._state.counters.failed_ticks += 1
                raise
        with self._state.lock:
            self._state.counters.ticks += 1
            self._state.counters.tick_s += time.perf_counter() - started_s

    def _settle(self, now_unix_s: float, now_s: float) -> None:
        """Let the jobs be over that nobody is left to speak of."""
        with self._state.lock:
            durable = self._state.fleet.settle(now_s)
        if self._history is not None and durable:
            self._history.submit([row for one in durable for row in rows(one, now_unix_s)])

    def _run(self, now_unix_s: float, now_s: float) -> None:
        self._settle(now_unix_s, now_s)
        forgotten = self._forget(now_s)
        self._take_captured()
        derived, facts = self._derive(now_s)
        frames = self._maker.make(now_unix_s, now_s, derived, facts)
        changes: Sequence[Alert] = ()
        with self._failures.contained(Part.RULES):
            changes = self._evaluate(frames, derived, now_unix_s, now_s)
        recorded = self._alerts.recorded
        self._frames = {**frames, "rules": recorded} if recorded is not None else frames
        self._finished_s = self._clock.monotonic_s()
        with self._state.lock:
            self._state.counters.round_unix_s = now_unix_s
        with self._failures.contained(Part.EXPORT):
            self._export(derived, facts, changes, forgotten)
        with self._failures.contained(Part.CAPTURE):
            self._captures.tick(now_unix_s)
        with self._failures.contained(Part.HISTORY):
            self._keep(now_s)

    def _take_captured(self) -> None:
        """Let the jobs know what traces of them showed."""
        for name in self.jobs():
            with self._failures.contained(Part.TRACES, job=name):
                captured = self._captures.captured(name)
                with self._state.lock:
                    if (job := self._state.fleet.jobs.get(name)) is not None:
                        job.take_captured(captured)

    def jobs(self) -> list[str]:
        """Names of the jobs in memory."""
        with self._state.lock:
            return list(self._state.fleet.jobs)

    def summary(self, job: str | None = None) -> list[JobSummary]:
        """The summary of one job, or of all, over the whole job; empty when there is none."""
        with self._lock:
            names = self.jobs() if job is None else [job]
            summaries = [self._whole_summary(name) or self._failed(name, Part.SUMMARY) for name in names]
        return [summary for summary in summaries if summary is not None]

    def summary_since(self, job: str, since_unix_s: float) -> JobSummary | None:
        """The summary of a job from a moment on, of what is in memory; None when there is none."""
        found = None
        with self._lock:
            with self._failures.contained(Part.SUMMARY, job=job):
                found = self._deriver.since(job, self._now_unix_s, self._clock.monotonic_s(), since_unix_s)
            return found or self._failed(job, Part.SUMMARY)

    def live(self, job: str) -> JobSummary | None:
        """The newest numbers of a job, over its window."""
        with self._lock:
            derived = self._live(job)
            return derived.summary if derived else self._failed(job, Part.ANALYSIS)

    def view(self, job: str) -> JobView | None:
        """What a decision about a capture may know of a job or server; None when there is none."""
        with self._lock, self._failures.contained(Part.CAPTURE, job=job):
            return self._view(job, self._live(job))
        return None

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts that fired since the start, oldest first, as entries of schema perfd.alerts/1."""
        with self._lock:
            return [alert_json(self._with_captures(alert)) for alert in self._alerts.list()]

    def _forget(self, now_s: float) -> list[JobSummary]:
        """Drop the jobs that are silent for too long; their summaries, where somebody wants them."""
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
            last[name] = self._whole_summary(name) if self._exporters else None
        with self._state.lock:
            gone = fleet.forget(now_s, self._config.job_forgotten_after_s)
        self._deriver.forget(gone)
        self._failures.forget(gone)
        for name in gone:
            self._stored_s.pop(name, None)
        return [summary for name in gone if (summary := last.get(name)) is not None]

    def _derive(self, now_s: float) -> tuple[dict[str, Derived], dict[str, LiveFacts]]:
        derived: dict[str, Derived] = {}
        facts: dict[str, LiveFacts] = {}
        for name in self.jobs():
            found = self._live(name)
            if found is None:
                continue
            with self._failures.contained(Part.FACTS, job=name):
                facts[name] = self._facts(name, found, now_s)
                derived[name] = found
        return derived, facts

    def _live(self, name: str) -> Derived | None:
        with self._failures.contained(Part.ANALYSIS, job=name):
            return self._deriver.live(name, self._now_unix_s, self._clock.monotonic_s())
        return None

    def _failed(self, name: str, part: Part) -> JobSummary | None:
        """A summary that says why there is none; None when nothing failed."""
        reason = self._failures.reason(name, part)
        return None if reason is None else failed_summary(name, reason)

    def _facts(self, name: str, found: Derived, now_s: float) -> LiveFacts:
        change = self._deriver.step_time_change(name)
        with self._state.lock:
            job = self._state.fleet.jobs[name]
            lines, unrecognized = _log_lines(job)
            return LiveFacts(
                attempt=job.attempt,
                exported=job.exported,
                end=job.lifetime.end,
                nodes=len(job.nodes),
                ranks=found.summary.parallel.world_size,
                log_silent_s=job.log_silent_s(now_s),
                log_lines=lines,
                unrecognized_lines=unrecognized,
                step_time_change=change,
                alerts=self._alerts.firing.get(name, ()),
            )

    def _evaluate(
        self,
        frames: Mapping[str, SeriesFrame],
        derived: Mapping[str, Derived],
        now_unix_s: float,
        now_s: float,
    ) -> Sequence[Alert]:
        started_s = time.perf_counter()
        changes = self._alerts.evaluate(frames, now_unix_s, now_s, lambda job: _last_step(derived.get(job)))
        with self._state.lock:
            self._state.counters.rule_evaluation_s += time.perf_counter() - started_s
        self._captures.on_alerts(
            changes,
            self._alerts.active,
            lambda job: self._view_of_alert(job, derived),
            now_unix_s,
        )
        if self._history is not None and (changes or self._alerts_are_old(now_unix_s)):
            self._store_alerts(changes, now_unix_s)
        return changes

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
                    frames=self._frames,
                    derived=derived,
                    facts=facts,
                    active=self._alerts.active,
                    changes=changes,
                    forgotten=forgotten,
                    whole=self._whole_summary,
                )
            )

    def export_last(self) -> None:
        """Hand the summaries of jobs that go on to the exporters, before the end."""
        if self._exporters:
            with self._lock:
                self._exporters.offer(
                    self._rounds.last(
                        self._now_unix_s, self.jobs(), self._whole_summary, active=self._alerts.active
                    )
                )

    def _whole_summary(self, name: str) -> JobSummary | None:
        found = self._whole(name)
        return found.summary if found else None

    def _view_of_alert(self, job: str, derived: Mapping[str, Derived]) -> JobView | None:
        if not job and len(derived) == 1:
            job = next(iter(derived))
        return self._view(job, derived.get(job))

    def _view(self, job: str, derived: Derived | None) -> JobView | None:
        if derived is None:
            return server_view(self._state, job)
        tool = CaptureTool(self._config.capture_tool)
        return job_view(self._state, derived.data, derived.summary, tool)

    def _whole(self, name: str) -> Derived | None:
        with self._failures.contained(Part.SUMMARY, job=name):
            alerts = [self._with_captures(alert) for alert in self._alerts.of_job(name)]
            return self._deriver.whole(name, self._now_unix_s, self._clock.monotonic_s(), alerts)
        return None

    def _with_captures(self, alert: Alert) -> Alert:
        return replace(alert, captures=self._captures.started_by(alert))

    def _keep(self, now_s: float) -> None:
        if self._history is None:
            return
        for name in self.jobs():
            stored_s = self._stored_s.setdefault(name, now_s)
            if now_s - stored_s >= _SUMMARY_EVERY_S:
                self._stored_s[name] = now_s
                with self._failures.contained(Part.HISTORY, job=name):
                    self._store_summary(name)
        if self._expired_s is None or now_s - self._expired_s >= _EXPIRE_EVERY_S:
            self._expired_s = now_s
            self._history.expire(self._config.history.retention_days * 86_400, self._now_unix_s, now_s)

    def store_all(self) -> None:
        """Write the summary of every job and the state of the rules to history, before the end."""
        with self._lock:
            with self._failures.contained(Part.HISTORY):
                self._store_alerts((), self._now_unix_s)
            for name in self.jobs():
                with self._failures.contained(Part.HISTORY, job=name):
                    self._store_summary(name)

    def _alerts_are_old(self, now_unix_s: float) -> bool:
        stored = self._alerts_stored_unix_s
        return stored is None or not 0 <= now_unix_s - stored < _ALERTS_EVERY_S

    def _store_alerts(self, changed: Sequence[Alert], now_unix_s: float) -> None:
        if self._history is None:
            return
        rows = [alert_row(alert, now_unix_s) for alert in changed if alert.fired_at_unix_s is not None]
        self._history.submit([*rows, engine_row(self._alerts.state(now_unix_s))])
        self._alerts_stored_unix_s = now_unix_s

    def _store_summary(self, name: str) -> None:
        derived = self._whole(name) if self._history is not None else None
        if self._history is None or derived is None:
            return
        with self._state.lock:
            job = self._state.fleet.jobs.get(name)
            attempt = job.attempt if job else 1
        self._history.submit([summary_row(name, attempt, to_json([derived.summary])["jobs"][0])])


def analysis_settings(config: AnalysisConfig) -> AnalysisSettings:
    """The analysis of whole jobs as configured; raises `ConfigError` with the key that is wrong."""
    try:
        convention = FlopsConvention(config.flops_convention)
    except ValueError:
        known = ", ".join(FlopsConvention)
        raise ConfigError(
            f"analysis.flops_convention: {config.flops_convention!r} is not one of {known}."
        ) from None
    peaks = load_peaks(Path(config.gpu_peaks_file) if config.gpu_peaks_file else None)
    return AnalysisSettings(
        convention=convention, peaks=peaks, network_bytes_per_s=config.network_bytes_per_s
    )


def _last_step(derived: Derived | None) -> int | None:
    return int(derived.data.steps.step[-1]) if derived and len(derived.data.steps) else None


def _log_lines(job: JobState) -> tuple[int | None, int | None]:
    if not job.logs:
        return None, None
    progress = [log.progress for log in job.logs.values()]
    return sum(one.lines for one in progress), sum(one.unrecognized_lines for one in progress)

"""Summaries of jobs, each made again only when something changed; what fails of one stays its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from perfd.aggregator.failures import Part
from perfd.aggregator.series import Derived, LiveFacts, SummaryCache
from perfd.aggregator.state import AggregatorState
from perfd.analysis.diagnosis import AnalysisSettings, JobSummary
from perfd.analysis.diagnosis.failed_analysis import failed_summary
from perfd.analysis.flops.flops_conventions import FlopsConvention
from perfd.clock import Clock
from perfd.config import AnalysisConfig
from perfd.errors import ConfigError
from perfd.gpu_peaks import load_peaks
from perfd.model import Alert


class JobSummaries:
    """Derives numbers on demand. Not thread-safe: the analysis loop holds its lock."""

    def __init__(self, config: AnalysisConfig, state: AggregatorState, clock: Clock) -> None:
        whole = analysis_settings(config)
        live = replace(whole, window_steps=config.window_steps)
        self._cache = SummaryCache(state.fleet, state.lock, live, whole)
        self._state = state
        self._failures = state.failures
        self._clock = clock

    def live(self, job: str, now_unix_s: float) -> Derived | None:
        """Numbers over the newest steps; None when the job is gone or its analysis failed."""
        with self._failures.contained(Part.ANALYSIS, job=job):
            return self._cache.live(job, now_unix_s, self._clock.monotonic_s())
        return None

    def whole(self, job: str, now_unix_s: float, alerts: Sequence[Alert]) -> JobSummary | None:
        """The summary of the whole job; None when it is gone or its summary failed."""
        with self._failures.contained(Part.SUMMARY, job=job):
            derived = self._cache.whole(job, now_unix_s, self._clock.monotonic_s(), alerts)
            return derived.summary if derived else None
        return None

    def since(self, job: str, now_unix_s: float, since_unix_s: float) -> JobSummary | None:
        """The summary from a moment on, of what is in memory; None when there is none."""
        with self._failures.contained(Part.SUMMARY, job=job):
            return self._cache.since(job, now_unix_s, self._clock.monotonic_s(), since_unix_s)
        return None

    def failed(self, job: str, part: Part) -> JobSummary | None:
        """A summary that says why there is none; None when nothing failed."""
        reason = self._failures.reason(job, part)
        return None if reason is None else failed_summary(job, reason)

    def facts(self, job: str, found: Derived, firing: Sequence[str], now_s: float) -> LiveFacts:
        """What is known of a job besides its live numbers; `firing` are the names of its alerts."""
        change = self._cache.step_time_change(job)
        with self._state.lock:
            state = self._state.fleet.jobs[job]
            return LiveFacts(
                attempt=state.attempts.number,
                exported=state.exported,
                end=state.lifetime.end,
                nodes=len(state.nodes),
                ranks=found.summary.parallel.world_size,
                log_silent_s=state.log_silent_s(now_s),
                log_lines=state.logs.lines,
                unrecognized_lines=state.logs.unrecognized_lines,
                step_time_change=change,
                alerts=firing,
            )

    def forget(self, jobs: Iterable[str]) -> None:
        """Drop what is known of jobs that are gone."""
        self._cache.forget(list(jobs))


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

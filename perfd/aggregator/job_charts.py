"""How a job went, for the page's charts: from memory, else from history or the configured Prometheus."""

from __future__ import annotations

from typing import Any

import msgspec

from perfd.aggregator.analysis_loop import AnalysisLoop
from perfd.aggregator.history import HistoryStore
from perfd.aggregator.prometheus_charts import AskedRange, ChartQueries, TimeRange
from perfd.aggregator.state import AggregatorState
from perfd.aggregator.web_api import gpu_columns, progress_columns, steps_of_lines, together
from perfd.analysis.data.job_data import StepTable
from perfd.analysis.diagnosis import SCHEMA as SUMMARY_SCHEMA
from perfd.analysis.diagnosis import from_json
from perfd.clock import Clock
from perfd.model import JOB_LABEL

_STORED_STEPS = 100_000
"""Read of history at most, to draw them."""


class JobCharts:
    """Data of a job's charts, from any thread: a part of `ApiSource`."""

    def __init__(
        self,
        state: AggregatorState,
        clock: Clock,
        history: HistoryStore | None,
        *,
        rounds: AnalysisLoop,
        queries: ChartQueries | None,
    ) -> None:
        self._state = state
        self._clock = clock
        self._history = history
        self._rounds = rounds
        self._queries = queries

    def series(
        self,
        job: str,
        points: int,
        within: tuple[float, float] | None = None,
        newest_s: float | None = None,
    ) -> dict[str, Any] | None:
        """How a job went, of schema perfd.series/1, from history if it is not in memory; None if unknown.

        A range that begins before the steps in memory has those of history, too.
        """
        # Only of a job that was never analyzed, while a round is at work, there is none yet.
        live = self._rounds.live(job) or next(iter(self._rounds.summary(job)), None)
        with self._state.lock:
            known = self._state.fleet.jobs.get(job)
            if known is not None and live is not None:
                table, events = known.step_table(), tuple(known.events)
                phases = known.phases.table(ranks=0)
                labels = known.labels
        if known is None or live is None:
            return self._stored_series(job, points, within, newest_s)
        if self._begins_before(table, within, newest_s):
            first = max(0, int(table.step[0]) - _STORED_STEPS)
            table = together(self._stored_steps(job, first), table)

        def draw(points: int) -> dict[str, Any]:
            return progress_columns(
                table, events, live, points, phases=phases, within=within, newest_s=newest_s
            )

        asked = AskedRange(points, within, newest_s)
        return draw(points) if self._queries is None else self._queries.progress(draw, table, labels, asked)

    def _begins_before(
        self, table: StepTable, within: tuple[float, float] | None, newest_s: float | None
    ) -> bool:
        """Whether history may have steps of a range that are no longer in memory."""
        if self._history is None or not len(table) or table.step[0] <= 1:
            return False
        by_step = within is not None and within[0] < table.step[0]
        by_time = newest_s is not None and table.time_unix_s[-1] - newest_s < table.time_unix_s[0]
        return bool(by_step or by_time)

    def _stored_steps(self, job: str, first_step: int) -> StepTable:
        lines = self._history.steps(job, first_step=first_step, limit=_STORED_STEPS) if self._history else []
        return steps_of_lines(lines)

    def _stored_series(
        self, job: str, points: int, within: tuple[float, float] | None, newest_s: float | None
    ) -> dict[str, Any] | None:
        stored, table = self._history.summary(job) if self._history else None, self._stored_steps(job, 0)
        if stored is None or not len(table):
            return None
        try:
            (summary,) = from_json({"schema": SUMMARY_SCHEMA, "jobs": [stored]})
        except msgspec.ValidationError:
            return None

        def draw(points: int) -> dict[str, Any]:
            return progress_columns(table, (), summary, points, within=within, newest_s=newest_s)

        asked = AskedRange(points, within, newest_s)
        return (
            draw(points)
            if self._queries is None
            else self._queries.progress(draw, table, {JOB_LABEL: job}, asked)
        )

    def gpu_series(
        self, job: str, points: int, rank: int | None, newest_s: float | None = None
    ) -> dict[str, Any] | None:
        """A job's GPU series, schema perfd.gpu_series/1; None for an unknown job.

        Ranges longer than those in memory come from the configured server; raises `PerfdError` if it does not
        answer.
        """
        with self._state.lock:
            known = self._state.fleet.jobs.get(job)
            labels = known.labels if known else {JOB_LABEL: job}
            end_unix_s = known.ended_unix_s if known else None
        if self._queries is None or newest_s is None or newest_s <= self._state.fleet.limits.gpu_history_s:
            return gpu_columns(self._state, job, points, rank)
        if known is None:
            end_unix_s = self._history.received_unix_s(job) if self._history else None
            if end_unix_s is None:
                return None
        end_unix_s = end_unix_s or self._clock.unix_ns() / 1e9
        return self._queries.gpus(labels, TimeRange(end_unix_s - newest_s, end_unix_s, points), rank)

    def close_charts(self) -> None:
        """Close the connection to the configured server."""
        if self._queries is not None:
            self._queries.close()

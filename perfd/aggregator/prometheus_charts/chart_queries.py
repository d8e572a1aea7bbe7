"""Charts of a job with what a Prometheus-compatible server has of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite
from typing import Any

from perfd.aggregator.prometheus_charts.chart_expressions import (
    gpu_expression,
    gpus_of,
    memory_expression,
    progress_expression,
    progress_of,
    steps_expression,
    with_earlier,
)
from perfd.aggregator.prometheus_charts.prometheus_ranges import PrometheusRanges, TimeRange
from perfd.analysis.data.job_data import StepTable
from perfd.clock import Clock
from perfd.config import HistoryConfig
from perfd.errors import PerfdError

_MOST_SECONDS = 90 * 86_400.0
"""Searched for a job's first step."""


@dataclass(frozen=True, slots=True)
class AskedRange:
    """What a chart of steps asks for."""

    points: int
    within: tuple[float, float] | None = None
    """Two step numbers."""
    newest_s: float | None = None
    """The seconds before the newest step."""


class ChartQueries:
    """The charts of a job as a Prometheus-compatible server has them.

    Raises `ConfigError` if the server's address or a secret file cannot be used.
    """

    def __init__(self, config: HistoryConfig, clock: Clock) -> None:
        self._ranges = PrometheusRanges(config, clock)

    def progress(
        self,
        draw: Callable[[int], dict[str, Any]],
        table: StepTable,
        job: Mapping[str, str],
        asked: AskedRange,
    ) -> dict[str, Any]:
        """The columns of schema perfd.series/1 that `draw` makes of the known steps, and earlier ones before.

        `job` has the labels of the job. `queried_problem` says why no earlier ones could be had; it is absent
        where none were needed.
        """
        span = missing_range(table, asked)
        if span is None:
            return draw(asked.points)
        columns = draw(span.points)
        try:
            found = self._ranges.range(progress_expression(job), self._since_first_step(job, span))
        except PerfdError as error:
            return {**columns, "queried_problem": str(error)}
        return {**with_earlier(progress_of(found), columns, asked.within), "queried_problem": None}

    def gpus(self, job: Mapping[str, str], span: TimeRange, rank: int | None) -> dict[str, Any]:
        """The keys of schema perfd.gpu_series/1; raises `PerfdError` if the server does not answer."""
        span = self._since_first_step(job, span)
        gpus, memory = (
            self._ranges.range(expression(job, rank), span)
            for expression in (gpu_expression, memory_expression)
        )
        return gpus_of(gpus, memory)

    def close(self) -> None:
        """Close the connection."""
        self._ranges.close()

    def _since_first_step(self, job: Mapping[str, str], span: TimeRange) -> TimeRange:
        """The range, if it has no start, without the time before the first step: by day, then by hour."""
        if isfinite(span.start_unix_s):
            return span
        start_s = span.end_unix_s - _MOST_SECONDS
        for window_s in (86_400.0, 3600.0):
            points = ceil((span.end_unix_s - start_s) / window_s) + 1
            days = self._ranges.range(
                steps_expression(job, window_s), TimeRange(start_s, span.end_unix_s, points)
            )
            start_s = max(start_s, min((one.times_unix_s[0] for one in days), default=start_s) - window_s)
        return replace(span, start_unix_s=start_s)


def missing_range(table: StepTable, asked: AskedRange) -> TimeRange | None:
    """What of a range is before the steps that are known; None where nothing is.

    Half of the points are for each part. Its start is -inf where only the job's first step is one.
    """
    if not len(table) or table.step[0] <= 1 or not isfinite(table.time_unix_s[0]):
        return None
    first_s, start_s = float(table.time_unix_s[0]), inf
    if asked.newest_s is not None:
        start_s = float(table.time_unix_s[-1]) - asked.newest_s
    elif asked.within is not None and asked.within[0] < table.step[0]:
        start_s = -inf
    return TimeRange(start_s, first_s, max(1, asked.points // 2)) if start_s < first_s else None

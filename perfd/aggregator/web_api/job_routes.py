"""What the API answers about one job: its summary, ranks, steps and series."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import unquote

from perfd.aggregator.web_api.charts import peer_matrices, rank_columns, without_ranks
from perfd.aggregator.web_api.compare_routes import SummarySource
from perfd.aggregator.web_api.fleet_pages import with_limits
from perfd.aggregator.web_api.query_numbers import QueryError, number, whole_number
from perfd.analysis.diagnosis import SCHEMA as SUMMARY_SCHEMA
from perfd.analysis.diagnosis import JobSummary, to_json
from perfd.analysis.findings import Kind
from perfd.model import api_schemas
from perfd.net import Request, Response, error_response, json_response

_STEPS, _MAX_STEPS = 1_000, 10_000
"""Of one answer, which is held in memory: where a request does not say, and at most. Chosen."""
_HIGHEST_STEP = 1 << 62
"""Databases hold integers of 64 bits."""
_STEP_POINTS, _GPU_POINTS, _MAX_POINTS = 600, 120, 2000
"""Of a chart: more than a screen has pixels in a row of charts. Chosen."""


class JobSource(SummarySource, Protocol):
    """Who knows jobs."""

    def overview(self, job: str | None = None, *, ranks: bool = True) -> list[dict[str, Any]]:
        """One entry per job, or that of one job, of schema perfd.jobs/2, with or without its ranks."""

    def summary_since(self, job: str, since_unix_s: float) -> JobSummary | None:
        """The summary of a job from a moment on; None when it is not in memory."""

    def steps(self, job: str, first_step: int, limit: int) -> list[dict[str, Any]] | None:
        """Progress lines of a job; None when it is not known."""

    def series(
        self,
        job: str,
        points: int,
        within: tuple[float, float] | None = None,
        newest_s: float | None = None,
    ) -> dict[str, Any] | None:
        """Columns of schema perfd.series/1, of the steps `within` two numbers and of the newest seconds.

        None for an unknown job.
        """

    def gpu_series(
        self, job: str, points: int, rank: int | None, newest_s: float | None = None
    ) -> dict[str, Any] | None:
        """The keys of schema perfd.gpu_series/1, of the newest seconds; None for an unknown job."""


def job_response(source: JobSource, request: Request) -> Response:
    """The answer to a request below /api/v1/jobs/; raises `QueryError` or `PerfdError`."""
    name, _, rest = request.rest.partition("/")
    answer = _OF_JOB.get(rest)
    if answer is None:
        return error_response(404, f"There is nothing at {request.path}; /api/v1 lists what a job has.")
    return answer(source, unquote(name), request)


def _summary(source: JobSource, job: str, request: Request) -> Response:
    query = request.query
    if "since" in query:
        return _summary_since(source, job, number(query, "since", math.nan))
    found = _summary_entry(source, job)
    if found is None:
        return _no_job(job)
    shown = without_ranks(found) if query.get("short") == "1" else found
    return json_response({"schema": SUMMARY_SCHEMA, "jobs": [with_limits(shown)]})


def _summary_entry(source: JobSource, job: str) -> Mapping[str, Any] | None:
    """A job of schema perfd.summary/2, from memory or history."""
    found = source.summary(job)
    return to_json(found)["jobs"][0] if found else source.stored_summary(job)


def _entry(source: JobSource, job: str) -> Mapping[str, Any] | None:
    """The newest numbers of a job with its ranks, from memory or history."""
    live = source.overview(job)
    return live[0] if live else source.stored_summary(job)


def _peers(source: JobSource, job: str, _: Request) -> Response:
    live = source.overview(job, ranks=False)
    found = peer_matrices(live[0]) if live else None
    if found is None or found["waits"] or found["links"]:
        # Only the nodes of the ranks shown need the list of all GPUs, which is long with thousands of them.
        entry = _entry(source, job)
        if entry is None:
            return _no_job(job)
        found = peer_matrices(entry)
    return json_response({"schema": "perfd.peers/1", "job": job, **found})


def _ranks(source: JobSource, job: str, request: Request) -> Response:
    entry = _entry(source, job)
    if entry is None:
        return _no_job(job)
    return json_response({"schema": api_schemas.RANKS, "job": job, **rank_columns(entry, request.query)})


def _summary_since(source: JobSource, job: str, since_unix_s: float) -> Response:
    if math.isinf(since_unix_s):
        raise QueryError("`since` must be a number of seconds since 1970.")
    found = source.summary_since(job, since_unix_s)
    if found is None:
        return _no_job(job, " in memory")
    if not found.steps.count and found.bottleneck.kind is not Kind.ANALYSIS_FAILED:
        return error_response(404, f"Job {job!r} has had no step since then.")
    return json_response(to_json([found]))


def _steps(source: JobSource, job: str, request: Request) -> Response:
    first = whole_number(request.query, "from", most=_HIGHEST_STEP) or 0
    limit = whole_number(request.query, "limit", least=1, most=_MAX_STEPS)
    lines = source.steps(job, first, limit or _STEPS)
    if lines is None:
        return _no_job(job)
    return json_response({"schema": "perfd.steps/1", "job": job, "steps": lines})


def _series(source: JobSource, job: str, request: Request) -> Response:
    query = request.query
    points = whole_number(query, "points", least=1, most=_MAX_POINTS) or _STEP_POINTS
    low, high = number(query, "from", 0.0), number(query, "to", math.inf)
    if low > high:
        raise QueryError("`from` and `to` must be step numbers, in this order.")
    within = (low, high) if query.keys() & {"from", "to"} else None
    columns = source.series(job, points, within, _newest_s(query))
    if columns is None:
        return _no_job(job, " whose steps are known")
    return json_response({"schema": api_schemas.SERIES, "job": job, **columns})


def _gpu_series(source: JobSource, job: str, request: Request) -> Response:
    query = request.query
    points = whole_number(query, "points", least=1, most=_MAX_POINTS) or _GPU_POINTS
    rank = whole_number(query, "rank") if query.get("rank") else None
    found = source.gpu_series(job, points, rank, _newest_s(query))
    if found is None:
        return _no_job(job, " whose GPUs are known")
    return json_response({"schema": "perfd.gpu_series/1", "job": job, **found})


def _newest_s(query: Mapping[str, str]) -> float | None:
    newest_s = number(query, "seconds", math.inf)
    if not newest_s > 0:
        raise QueryError("`seconds` must be a positive number.")
    return newest_s if "seconds" in query else None


def _no_job(job: str, where: str = "") -> Response:
    return error_response(
        404, f"There is no job {job!r}{where}; `perfd status` and /api/v1/jobs list what there is."
    )


_OF_JOB: Mapping[str, Callable[[JobSource, str, Request], Response]] = {
    "": _summary,
    "ranks": _ranks,
    "peers": _peers,
    "steps": _steps,
    "series": _series,
    "gpu_series": _gpu_series,
}

"""Two jobs side by side, by the comparison that `perfd compare` makes: as JSON and as a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from perfd.aggregator.captures import TimeoutCall
from perfd.aggregator.web_api.capture_files import CaptureSource, with_kernels
from perfd.aggregator.web_api.html_pages import html_response, message_page
from perfd.analysis.diagnosis import JobSummary, from_json
from perfd.errors import PerfdError
from perfd.net import Handler, Request, Response, error_response, json_response
from perfd.report.comparison import (
    MeasuredRun,
    RunComparison,
    UnrelatedRunsError,
    compare,
    measures_of_summary,
    to_json,
)
from perfd.report.comparison.comparison_report import report_of_comparison
from perfd.report.render.html import to_html

_MAX_REGRESSION_RATIO = 0.03
"""Where a request does not say: as `perfd compare`."""
_FILE_TIMEOUT_S = 5.0
"""For the files of a capture, whose file system may not answer. Chosen."""


class SummarySource(Protocol):
    """Where summaries come from. Every method may be called from any thread."""

    def summary(self, job: str | None = None) -> list[JobSummary]:
        """Summaries of one job or all, in memory."""

    def stored_summary(self, job: str) -> Mapping[str, Any] | None:
        """The summary of a job that only history knows."""


class RunSource(SummarySource, CaptureSource, Protocol):
    """Where the numbers of jobs are, and their captures."""


class _RequestError(PerfdError):
    """A request without an answer, and its status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def summary_of(source: SummarySource, job: str) -> JobSummary | None:
    """The summary of a job in memory or in history; None if there is none.

    Raises `PerfdError` or `msgspec.ValidationError` if history cannot be read.
    """
    if found := source.summary(job):
        return found[0]
    stored = source.stored_summary(job)
    return None if stored is None else from_json({"schema": "perfd.summary/2", "jobs": [stored]})[0]


def compare_routes(
    source: RunSource,
    *,
    documents: Callable[[Mapping[str, Any]], Sequence[dict[str, Any]]] | None = None,
) -> dict[str, Handler]:
    """`/api/v1/compare` and `/reports/compare`, both with `?a=JOB&b=JOB`.

    `documents` reads the analyses of a capture; by default those that are here.
    """
    patience = TimeoutCall(_FILE_TIMEOUT_S)

    def measured(name: str) -> MeasuredRun:
        run = measures_of_summary(_known(source, name), name)
        try:
            return patience.call(lambda: with_kernels(run, source, name, documents))
        except TimeoutError:
            # The file system of its captures does not answer; the other numbers are known.
            return run

    return {
        "/api/v1/compare": lambda request: _document(measured, request),
        "/reports/compare": lambda request: _report(measured, request),
    }


def _document(measured: Callable[[str], MeasuredRun], request: Request) -> Response:
    try:
        found = _comparison(measured, request)
    except _RequestError as error:
        return error_response(error.status, str(error))
    return json_response(to_json(found))


def _report(measured: Callable[[str], MeasuredRun], request: Request) -> Response:
    try:
        found = _comparison(measured, request)
    except _RequestError as error:
        return message_page(error.status, "These runs cannot be compared", str(error))
    return html_response(to_html(report_of_comparison(found, "perfd aggregator")).encode())


def _comparison(measured: Callable[[str], MeasuredRun], request: Request) -> RunComparison:
    names = [request.query.get(key, "") for key in ("a", "b")]
    if not all(names):
        raise _RequestError(400, "Name two jobs: ?a=JOB&b=JOB.")
    try:
        bound = float(request.query.get("max_regression", _MAX_REGRESSION_RATIO))
    except ValueError:
        bound = -1.0
    if not 0 <= bound < 1:
        raise _RequestError(400, "`max_regression` must be a ratio from 0 to 1, such as 0.03.")
    runs = [measured(name) for name in names]
    any_runs = request.query.get("unrelated") == "1"
    try:
        return compare(runs[0], runs[1], bound, any_runs=any_runs)
    except UnrelatedRunsError as error:
        a, b = (quote(name, safe="") for name in names)
        hint = f"To compare them anyway: /api/v1/compare?a={a}&b={b}&unrelated=1"
        raise _RequestError(409, f"{error} {hint}") from error
    except PerfdError as error:
        raise _RequestError(409, str(error)) from error


def _known(source: SummarySource, name: str) -> JobSummary:
    try:
        found = summary_of(source, name)
    except (PerfdError, msgspec.ValidationError) as error:
        raise _RequestError(503, f"The summary of {name!r} cannot be read: {error}") from error
    if found is None:
        raise _RequestError(
            404, f"There is no job {name!r}; `perfd status` and /api/v1/jobs list what there is."
        )
    return found

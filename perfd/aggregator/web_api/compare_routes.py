"""Two jobs side by side, by the comparison that `perfd compare` makes: as JSON and as a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from perfd.aggregator.captures import DOCUMENT_NAME, TimeoutCall
from perfd.aggregator.web_api.capture_files import (
    MAX_FILE_BYTES,
    CaptureSource,
    folders_of,
    is_file,
    read_file,
    url_of,
)
from perfd.aggregator.web_api.html_pages import html_response, message_page
from perfd.analysis.diagnosis import SCHEMA as SUMMARY_SCHEMA
from perfd.analysis.diagnosis import JobSummary, from_json
from perfd.errors import PerfdError
from perfd.net import Handler, Request, Response, error_response, json_response
from perfd.report.comparison import (
    MeasuredRun,
    RunComparison,
    UnrelatedRunsError,
    compare,
    measures_of_summary,
    measures_of_trace,
    to_json,
)
from perfd.report.comparison.comparison_report import report_of_comparison
from perfd.report.render.html import to_html

_MAX_REGRESSION_RATIO = 0.03
"""Where a request does not say: as `perfd compare`."""
_FILE_TIMEOUT_S = 5.0
"""For the files of a capture, whose file system may not answer. Chosen."""


Document = dict[str, Any]
"""Of schema perfd.trace/2."""


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


def with_kernels(
    run: MeasuredRun,
    source: CaptureSource,
    job: str,
    documents: Callable[[Mapping[str, Any]], Sequence[Document]] | None = None,
) -> MeasuredRun:
    """The run with the kernels of the newest analyzed capture of `job`, if one can be read.

    `documents` reads those of a capture; by default those in object storage or on this machine.
    """
    read = documents or partial(_documents, source)
    for capture in reversed(source.captures()):
        if capture["job"] != job:
            continue
        try:
            ranks = [rank for one in read(capture) for rank in one.get("ranks", [])]
            traced = measures_of_trace({"ranks": ranks}, capture["id"])
        except (PerfdError, OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if traced.kernels_s:
            return replace(
                run,
                capture=capture["id"],
                kernels_s=traced.kernels_s,
                kernel_counts=traced.kernel_counts,
            )
    return run


def _documents(source: CaptureSource, capture: Mapping[str, Any]) -> list[Document]:
    """One of each folder: of several nodes each has its ranks."""
    if (url := url_of(capture, DOCUMENT_NAME)) is not None:
        bodies = [source.stored_file(url, MAX_FILE_BYTES)]
    else:
        paths = [folder / DOCUMENT_NAME for folder in folders_of(capture)]
        bodies = [body for path in paths if is_file(path) and (body := read_file(path)) is not None]
    return [msgspec.json.decode(body, type=dict[str, Any]) for body in bodies]


def summary_of(source: SummarySource, job: str) -> JobSummary | None:
    """The summary of a job in memory or in history; None if there is none.

    Raises `PerfdError` or `msgspec.ValidationError` if history cannot be read.
    """
    if found := source.summary(job):
        return found[0]
    stored = source.stored_summary(job)
    return None if stored is None else from_json({"schema": SUMMARY_SCHEMA, "jobs": [stored]})[0]


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

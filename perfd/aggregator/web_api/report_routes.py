"""Reports of a job, made from its summary, and of a capture, as it was analyzed; and that analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote, unquote

import msgspec

from perfd.aggregator.captures import DOCUMENT_NAME, PERFETTO_NAME, REPORT_NAME, TimeoutCall
from perfd.aggregator.web_api.capture_files import MAX_FILE_BYTES, folders_of, is_file, read_file, url_of
from perfd.aggregator.web_api.compare_routes import RunSource, summary_of
from perfd.aggregator.web_api.html_pages import html_document, html_response, message_page
from perfd.errors import PerfdError, StorageError
from perfd.net import Handler, Request, Response, error_response
from perfd.report.render.finding_png import finding_picture
from perfd.report.render.html import to_html
from perfd.report.sources.from_summary import CHART_POINTS, report_of_summary


class ReportSource(RunSource, Protocol):
    """What reports are made of."""

    def series(self, job: str, points: int) -> dict[str, Any] | None:
        """Columns of schema perfd.series/1, at most so many points of them."""


def report_routes(source: ReportSource, *, file_timeout_s: float = 5.0) -> dict[str, Handler]:
    """`/reports/jobs/JOB` and `/reports/captures/ID`, with `/N` if its traces are in several folders.

    `/reports/pictures/JOB.png` is a small picture of what limits a job, for notifications.

    `/api/v1/traces/ID`, with `?folder=N`, has the data of a capture's report, and
    `/api/v1/traces/ID/perfetto` its traces as one file for ui.perfetto.dev.
    """
    patience = TimeoutCall(file_timeout_s)
    return {
        "/reports/jobs/": lambda request: _job(source, unquote(request.rest)),
        "/reports/pictures/": lambda request: _picture(source, unquote(request.rest)),
        "/reports/captures/": lambda request: _capture(source, request, patience),
        "/api/v1/traces/": lambda request: _trace(source, request, patience),
    }


def _job(source: ReportSource, name: str) -> Response:
    try:
        found = summary_of(source, name)
    except (PerfdError, msgspec.ValidationError) as error:
        return message_page(503, "The summary of this job cannot be read", str(error))
    if found is None:
        return message_page(404, "No such job", f"There is no job {name!r}; the page at / lists them.")
    report = report_of_summary(found, "perfd aggregator", source.series(name, CHART_POINTS))
    return html_response(to_html(report).encode())


def _picture(source: ReportSource, file: str) -> Response:
    try:
        found = summary_of(source, file.removesuffix(".png")) if file.endswith(".png") else None
    except (PerfdError, msgspec.ValidationError) as error:
        return error_response(503, str(error))
    picture = finding_picture(found) if found else None
    if picture is None:
        return error_response(404, "There is no such job, or nothing is known of its steps.")
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    return Response(body=picture.png, content_type="image/png", headers=headers)


class _NoFileError(PerfdError):
    """A capture has no such analyzed file, or it cannot be read: the status, and sentences about it."""

    def __init__(self, status: int, *sentences: str, choices: int = 0) -> None:
        """`choices` is the number of folders that have the file, where the request has to name one."""
        super().__init__(" ".join(sentences))
        self.status, self.sentences, self.choices = status, sentences, choices


def _analyzed(
    source: ReportSource, capture: Mapping[str, Any], name: str, number: str, patience: TimeoutCall
) -> bytes:
    """A file of a capture's analysis, of its folder `number` if there are several; raises `_NoFileError`."""
    url = url_of(capture, name)
    try:
        if url is not None:
            return patience.call(lambda: source.stored_file(url, MAX_FILE_BYTES))
        return patience.call(lambda: _of_folder(capture, name, number))
    except StorageError as error:
        raise _NoFileError(503, str(error)) from error
    except TimeoutError as error:
        raise _NoFileError(503, "The file system that it may be on does not answer.") from error


def _of_folder(capture: Mapping[str, Any], name: str, number: str) -> bytes:
    there = [folder for folder in folders_of(capture) if is_file(folder / name)]
    if not there:
        raise _NoFileError(404, "No analyzed trace here yet.", *_how_to_make(capture))
    if not number and len(there) > 1:
        sentence = f"This capture has traces in {len(there)} folders: `folder` must be a number from 1."
        raise _NoFileError(400, sentence, choices=len(there))
    chosen = next((folder for n, folder in enumerate(there, 1) if number in {"", str(n)}), None)
    body = read_file(chosen / name) if chosen else None
    if body is None:
        raise _NoFileError(404, f"No such folder: this capture has traces in {len(there)} here.")
    return body


def _capture(source: ReportSource, request: Request, patience: TimeoutCall) -> Response:
    capture_id, _, number = request.rest.partition("/")
    capture = next((one for one in source.captures() if one["id"] == capture_id), None)
    if capture is None:
        return message_page(404, "No such capture", f"There is no capture {capture_id!r}.")
    try:
        return html_response(_analyzed(source, capture, REPORT_NAME, number, patience))
    except _NoFileError as error:
        if not error.choices:
            title = "No report here yet" if error.status == 404 else "The report cannot be read"
            return message_page(error.status, title, *error.sentences)
        address = quote(capture_id, safe="")
        links = [f'<a href="{address}/{n}">Report {n}</a>' for n in range(1, error.choices + 1)]
        return html_response(html_document(f"Reports of {capture_id}", links))


def _trace(source: ReportSource, request: Request, patience: TimeoutCall) -> Response:
    capture_id, _, form = unquote(request.rest).partition("/")
    if form not in {"", "perfetto"}:
        return error_response(404, "A trace is at /api/v1/traces/ID and /api/v1/traces/ID/perfetto.")
    capture = next((one for one in source.captures() if one["id"] == capture_id), None)
    if capture is None:
        return error_response(404, f"No capture {capture_id!r}; see `perfd capture list`.")
    name = PERFETTO_NAME if form else DOCUMENT_NAME
    try:
        body = _analyzed(source, capture, name, request.query.get("folder", ""), patience)
    except _NoFileError as error:
        return error_response(error.status, str(error))
    return _perfetto(capture, body) if form else Response(body=body)


def _perfetto(capture: Mapping[str, Any], body: bytes) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{capture["id"]}.perfetto-trace.gz"'}
    return Response(body=body, content_type="application/gzip", headers=headers)


def _how_to_make(capture: Mapping[str, Any]) -> Sequence[str]:
    files = [(who["node"], file.get("removed")) for who in capture["ranks"] for file in who["files"]]
    nodes = sorted({node for node, removed in files if node and not removed})
    if not nodes:
        why = next((removed["reason"] for _, removed in files if removed), "")
        return (f"Its files are gone. {why}",) if why else ("This capture left no files.",)
    return (
        f"Its files are on {', '.join(nodes)}. As the agent's user, run there:",
        f"perfd capture show {capture['id']} --analyze",
        "It is shown here when this machine can read that folder: the same machine, or a shared file system.",
    )

"""The HTTP interface: /metrics and the JSON of /api/v1, as docs/api.md describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from perfd import __version__
from perfd.aggregator.web_api.capture_files import CaptureSource
from perfd.aggregator.web_api.compare_routes import compare_routes
from perfd.aggregator.web_api.fleet_pages import fleet_page, with_limits, with_stored
from perfd.aggregator.web_api.job_routes import JobSource, job_response
from perfd.aggregator.web_api.query_numbers import QueryError, answered, whole_number
from perfd.aggregator.web_api.report_routes import report_routes
from perfd.capture.capture_routes import StartBody, capture_routes
from perfd.metrics.exposition import MetricsPage
from perfd.model import api_schemas
from perfd.net import Handler, Request, Response, json_response, text_response
from perfd.web.live_updates import Live
from perfd.web.page_routes import page_routes

_INDEX = """perfd aggregator {version}

/                               the page, for people
/metrics                        everything, for Prometheus
/api/v1/fleet                   jobs, one short row each; ?state=&cause=&owner=&q=&sort=&limit=N&trend=1
/api/v1/jobs                    jobs, with their newest numbers; as /api/v1/fleet, ?job=JOB for one, ?short=1
/api/v1/jobs/JOB                the summary of one job (perfd.summary/2); ?since=UNIX, ?short=1
/api/v1/jobs/JOB/ranks          one metric of its ranks, and the unusual ones; ?metric=NAME&rank=R
/api/v1/jobs/JOB/peers          which rank waits for which, and how fast the links between them are
/api/v1/jobs/JOB/steps          its progress lines; ?from=STEP&limit=N
/api/v1/jobs/JOB/series         step time and MFU over its steps; ?points=N&from=STEP&to=STEP&seconds=S
/api/v1/jobs/JOB/gpu_series     its GPUs over the last 5 minutes; ?points=N&rank=R&seconds=S
/api/v1/compare                 two jobs side by side (perfd.compare/1); ?a=JOB&b=JOB
/api/v1/alerts                  alerts of perfd's own engine; ?job=JOB&state=firing&limit=N
/api/v1/links                   links to other systems that are configured, by place
/api/v1/silences                whether alerts can be silenced; POST does it
/api/v1/servers                 serving engines
/api/v1/agents                  agents and their nodes
/api/v1/nodes                   what nodes were blamed for; ?node=NODE, ?all=1
/api/v1/events                  server-sent events: one whenever there are newer numbers
/api/v1/captures                captures (perfd.capture/1); POST starts one
/api/v1/captures/ID/files/...   redirects to a file in object storage; ?link=1 returns the address
/api/v1/traces/ID               the analysis of a capture (perfd.trace/2); ?folder=N
/api/v1/webhooks/alertmanager   takes Alertmanager's webhooks, which start captures
/api/v1/status                  whether it serves, and whether history can be written
/api/v1/healthz, readyz         whether it lives, and whether it serves
"""


class ApiSource(JobSource, CaptureSource, Protocol):
    """What the interface serves. Every method may be called from any thread."""

    def metrics(self, headers: Mapping[str, str]) -> MetricsPage:
        """The page for Prometheus, as the headers of a request ask for it."""

    def links(self) -> Mapping[str, Mapping[str, str]]:
        """Configured links by place (`PageLinksConfig`) and name, as URLs with placeholders."""

    def jobs(self) -> list[str]:
        """Names of the jobs in memory."""

    def newest(self, jobs: Sequence[str], *, ranks: bool = True) -> list[dict[str, Any]]:
        """The same of many jobs, which waits for no analysis."""

    def fleet(self) -> dict[str, Any]:
        """The keys of schema perfd.fleet/2."""

    def stored_rows(
        self, words: Sequence[str], *, offset: int, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Rows of the jobs that only history has, the newest first, and how many there are in all.

        Their names contain all `words`. Raises `PerfdError` if history cannot be read.
        """
        del words, offset, limit
        return [], 0

    def stored_entries(
        self, words: Sequence[str], *, offset: int, limit: int, ranks: bool
    ) -> tuple[list[dict[str, Any]], int]:
        """The same as entries of schema perfd.jobs/2."""
        del words, offset, limit, ranks
        return [], 0

    def trend(self, job: str) -> list[float]:
        """Step time over the last hour of a job in memory, in at most 30 points."""

    def servers(self) -> list[dict[str, Any]]:
        """Serving engines, of schema perfd.servers/2."""

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts, newest first."""

    def agents(self) -> list[dict[str, Any]]:
        """Agents."""

    def nodes(self, *, blamed_only: bool = True, node: str | None = None) -> list[dict[str, Any]]:
        """Nodes of schema perfd.nodes/1, the most suspect first."""

    def file_link(self, capture_id: str, name: str) -> tuple[str, float]:
        """An address of a capture's stored file, and for how many seconds; raises `StorageError`."""

    def start_capture(self, body: StartBody) -> Mapping[str, Any]:
        """Begin a capture by hand; raises `CaptureError`."""

    def cancel_capture(self, capture_id: str, reason: str) -> Mapping[str, Any]:
        """End a capture by hand; raises `CaptureError`."""

    def stale(self) -> str | None:
        """Why the numbers are old, in a sentence; None if they are current."""

    def unready(self) -> str | None:
        """Why agents are not served or numbers are old, in a sentence; None if all is well."""
        return None

    def history_problem(self) -> str | None:
        """Why history cannot be written, in a sentence; None if it can, or there is none."""
        return None

    def jobs_problem(self) -> str | None:
        """Why new jobs are left out, in a sentence; None while there is room."""
        return None

    def stream_problem(self) -> str | None:
        """Why batches do not come through NATS, in a sentence; None if they do, or by gRPC."""
        return None


def routes(source: ApiSource, live: Live, saved_unix_s: float | None = None) -> dict[str, Handler]:
    """Everything that the aggregator serves, by path; `live` is notified when a round is over.

    `saved_unix_s` is when a run that is over was saved; None while it is live.
    """
    return {
        **page_routes(
            lambda job: job in source.jobs() or source.stored_summary(job) is not None, saved_unix_s
        ),
        "/api/v1": lambda _: text_response(_INDEX.format(version=__version__)),
        "/metrics": lambda request: _metrics(source, request),
        **report_routes(source),
        **compare_routes(source),
        "/api/v1/fleet": answered(lambda request: _fleet(source, request)),
        "/api/v1/jobs": answered(lambda request: _jobs(source, request.query)),
        "/api/v1/jobs/": answered(lambda request: job_response(source, request)),
        "/api/v1/alerts": answered(lambda request: _alerts(source, request.query)),
        "/api/v1/servers": lambda _: json_response(
            {"schema": api_schemas.SERVERS, "servers": source.servers()}
        ),
        "/api/v1/events": live.connect,
        "/api/v1/agents": lambda _: json_response({"schema": api_schemas.AGENTS, "agents": source.agents()}),
        "/api/v1/nodes": lambda request: _nodes(source, request),
        "/api/v1/links": lambda _: json_response({"schema": "perfd.links/1", "links": source.links()}),
        **capture_routes(
            captures=source.captures,
            start=source.start_capture,
            cancel=source.cancel_capture,
            link=source.file_link,
        ),
        "/api/v1/healthz": lambda _: text_response("ok\n"),
        "/api/v1/readyz": lambda _: _ready(source.unready(), source.history_problem()),
        "/api/v1/status": lambda _: json_response(
            {
                "schema": api_schemas.STATUS,
                "unready": source.unready(),
                "history_problem": source.history_problem(),
                "jobs_problem": source.jobs_problem(),
                "stream_problem": source.stream_problem(),
            }
        ),
    }


def _metrics(source: ApiSource, request: Request) -> Response:
    # To Prometheus a page that no longer changes would look like a fleet that is well.
    if (stale := source.stale()) is not None:
        return text_response(f"{stale}\n", 503)
    page = source.metrics(request.headers)
    return Response(body=page.body, content_type=page.content_type)


def _ready(unready: str | None, problem: str | None) -> Response:
    if unready is not None:
        return text_response(f"{unready}\n", 503)
    # Agents are served all the same, and keep what is not stored.
    return text_response("ready\n" if problem is None else f"ready\n{problem}\n")


def _fleet(source: ApiSource, request: Request) -> Response:
    page = with_stored(fleet_page(source.fleet(), request.query), request.query, source.stored_rows)
    if request.query.get("trend") == "1":
        # Of the rows that are shown only: there may be thousands of jobs.
        page["jobs"] = [{**row, "trend_step_time_s": source.trend(row["name"])} for row in page["jobs"]]
    return json_response({"schema": api_schemas.FLEET, **page})


def _jobs(source: ApiSource, query: Mapping[str, str]) -> Response:
    ranks = query.get("short") != "1"
    if (job := query.get("job")) is not None:
        return json_response(_jobs_document(source.overview(job, ranks=ranks)))
    page = fleet_page(source.fleet(), query)
    page["jobs"] = source.newest([row["name"] for row in page["jobs"]], ranks=ranks)
    page = with_stored(page, query, partial(source.stored_entries, ranks=ranks))
    return json_response(_jobs_document(page["jobs"]) | {"page": page["page"]})


def _jobs_document(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"schema": api_schemas.JOBS, "jobs": [with_limits(one) for one in entries]}


def _alerts(source: ApiSource, query: Mapping[str, str]) -> Response:
    job, state = query.get("job"), query.get("state")
    limit = whole_number(query, "limit")
    if state not in {None, "firing", "resolved"}:
        raise QueryError("`state` must be firing or resolved.")
    found = [a for a in source.alerts() if job in {None, a["job"]} and state in {None, a["state"]}]
    return json_response({"schema": api_schemas.ALERTS, "alerts": found[:limit], "count": len(found)})


def _nodes(source: ApiSource, request: Request) -> Response:
    nodes = source.nodes(blamed_only=request.query.get("all") != "1", node=request.query.get("node"))
    return json_response({"schema": api_schemas.NODES, "nodes": nodes})

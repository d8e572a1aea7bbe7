"""HTTP routes of a group: any member answers for all jobs and forwards requests to partitions' holders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from perfd.aggregator.group.group_summaries import GroupSummaries
from perfd.aggregator.group.merging import (
    Document,
    jobs_page,
    merged,
    merged_fleet,
    merged_stored,
    missing_sentence,
    stored_queries,
    without,
)
from perfd.aggregator.group.partition_config import LABEL
from perfd.aggregator.group.peers import FORWARDED, Peers
from perfd.aggregator.group.sharing import GroupView, Holder
from perfd.aggregator.web_api import compare_routes, with_stored
from perfd.errors import PerfdError
from perfd.model import api_schemas
from perfd.net import (
    Handler,
    Request,
    Response,
    error_response,
    json_response,
    route_of,
    text_response,
)
from perfd.web.live_updates import Live
from perfd.web.page_routes import page_routes
from perfd.wire.subjects import partition_of

_MERGED = {
    "/api/v1/alerts": "alerts",
    "/api/v1/servers": "servers",
    "/api/v1/agents": "agents",
    "/api/v1/nodes": "nodes",
}
_OF_CAPTURES = ("/api/v1/captures/", "/api/v1/traces/", "/reports/captures/")
_SAME_EVERYWHERE = ("/api/v1", "/api/v1/links", "/runbooks/")
_THREADS = 16
"""Requests to partitions at one time."""
_BAD_REQUEST, _NOT_FOUND = 400, 404
"""HTTP's statuses."""


class _SilenceOfJob(msgspec.Struct):
    labels: dict[str, str]


class _CaptureOfJob(msgspec.Struct):
    job: str


_SILENCES, _CAPTURES = msgspec.json.Decoder(_SilenceOfJob), msgspec.json.Decoder(_CaptureOfJob)
"""The part of a body that names the job; its holder checks the rest. Made at import, as in `web_api`."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class GroupPages:
    """Answers requests, from any thread."""

    def __init__(
        self,
        view: Callable[[], GroupView],
        local: Callable[[int], Mapping[str, Handler] | None],
        peers: Peers,
        partitions: int,
        live: Live,
    ) -> None:
        """`local` returns the handlers of a partition that this aggregator holds; None for others."""
        self._view = view
        self._local = local
        self._peers = peers
        self._partitions = partitions
        self._live = live
        self._threads = ThreadPoolExecutor(_THREADS, "perfd-group")

    def routes(self) -> dict[str, Handler]:
        """Handlers by path. With `?partition=N`, only that partition answers."""
        summaries = GroupSummaries(self._of_job, self._merged, self._first_that_has_it)
        every: dict[str, Handler] = {
            **page_routes(lambda _job: True),
            **compare_routes(summaries, documents=summaries.documents),
            **dict.fromkeys(_OF_CAPTURES, self._first_that_has_it),
            **dict.fromkeys(_SAME_EVERYWHERE, self._any),
            "/api/v1/silences": self._silences,
            **{path: partial(self._merged, name) for path, name in _MERGED.items()},
            "/api/v1/captures": self._captures,
            "/api/v1/fleet": self._fleet,
            "/api/v1/jobs": self._jobs,
            "/api/v1/jobs/": self._job,
            "/reports/jobs/": self._job,
            "/reports/pictures/": self._picture,
            "/metrics": lambda _: error_response(
                404, "Each partition has its own metrics: /metrics?partition=0 and so on."
            ),
            "/api/v1/events": self._live.connect,
            "/api/v1/http_sd": lambda _: json_response(self._targets()),
            "/api/v1/group": lambda _: json_response({"schema": api_schemas.GROUP, **self._group()}),
            "/api/v1/status": lambda _: json_response(
                {"schema": api_schemas.STATUS, "unready": self.unready(), **self._problems()}
            ),
            "/api/v1/healthz": lambda _: text_response("ok\n"),
            "/api/v1/readyz": lambda _: (
                text_response("ready\n") if not (why := self.unready()) else text_response(why, 503)
            ),
        }
        return {path: partial(self._answer, handler) for path, handler in every.items()}

    def unready(self) -> str | None:
        """Why this aggregator cannot answer for any job, in a sentence; None if it can."""
        return None if self._view().connected else "The group's leases in NATS cannot be read."

    def close(self) -> None:
        """Cancel pending requests to partitions."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._peers.close()

    def ask(self, partition: int, request: Request) -> Response:
        """The answer of a partition's holder; raises `PerfdError` if there is none."""
        if (local := self._local(partition)) is not None:
            handler, rest = route_of(local, request.path)
            return (
                error_response(_NOT_FOUND, f"There is nothing at {request.path}.")
                if handler is None
                else handler(replace(request, rest=rest))
            )
        holder = self._view().holders.get(partition)
        if holder is None or FORWARDED in request.headers:
            raise PerfdError(f"No aggregator holds partition {partition} now. Try again in a few seconds.")
        query = {**request.query, "partition": str(partition)}
        try:
            return self._peers.ask(holder.address, request, query, partial(self._holds, partition, holder))
        except PerfdError:
            # A capture or silence may have been taken by a holder that did not answer any more.
            if request.method != "GET" or self._holds(partition, holder):
                raise
        return self.ask(partition, request)

    def _holds(self, partition: int, holder: Holder) -> bool:
        return self._view().holders.get(partition) == holder

    def _answer(self, handler: Handler, request: Request) -> Response:
        named = request.query.get("partition")
        try:
            if named is None:
                return handler(request)
            if not named.isdecimal() or not int(named[:9]) < self._partitions:
                return error_response(400, f"`partition` must be from 0 to {self._partitions - 1}.")
            return self.ask(int(named), request)
        except PerfdError as error:
            return error_response(503, str(error))

    def _job(self, request: Request) -> Response:
        return self._of_job(unquote(request.rest.partition("/")[0]), request)

    def _picture(self, request: Request) -> Response:
        return self._of_job(unquote(request.rest.removesuffix(".png")), request)

    def _of_job(self, job: str, request: Request) -> Response:
        """Ask the name's own partition, then the others: a second job of that name may be there."""
        own = partition_of(job, self._partitions)
        answer = self.ask(own, request)
        if answer.status == _NOT_FOUND and self._partitions > 1:
            others = [number for number in range(self._partitions) if number != own]
            found = (one for _, one in self._all(request, others) if one and one.status != _NOT_FOUND)
            answer = next(found, answer)
        return answer

    def _first_that_has_it(self, request: Request) -> Response:
        answers = [one for _, one in self._all(request, range(self._partitions)) if one is not None]
        if not answers:
            raise PerfdError("No aggregator of this group answers.")
        return next((one for one in answers if one.status != _NOT_FOUND), answers[0])

    def _any(self, request: Request) -> Response:
        for number in range(self._partitions):
            if (answer := self._or_none(number, request)) is not None:
                return answer
        raise PerfdError("No aggregator of this group answers.")

    def _silences(self, request: Request) -> Response:
        if request.method == "GET":
            return self._any(request)
        try:
            job = _SILENCES.decode(request.body).labels.get("job")
        except _UNREADABLE:
            return error_response(400, "The body must be JSON with `labels`.")
        return self._of_job(job, request) if job else self._any(request)

    def _captures(self, request: Request) -> Response:
        if request.method == "GET":
            return self._merged("captures", request)
        try:
            job = _CAPTURES.decode(request.body).job
        except _UNREADABLE:
            return error_response(400, "The body must be JSON with a `job`.")
        return self._of_job(job, request)

    def _merged(self, name: str, request: Request) -> Response:
        answers = self._all(request, range(self._partitions))
        if wrong := next((one for _, one in answers if one is not None and one.status == _BAD_REQUEST), None):
            return wrong
        found = merged(name, *_documents(answers))
        if name == "alerts" and found[name] and "limit" in request.query:
            # Partitions have already validated the limit.
            found[name] = found[name][: int(request.query["limit"])]
        return json_response(found)

    def _fleet(self, request: Request) -> Response:
        query = {"trend": "1"} if request.query.get("trend") == "1" else {}
        fleets, missing = _by_partition(self._all(replace(request, query=query), range(self._partitions)))
        try:
            page = merged_fleet(list(fleets.values()), request.query, missing)
        except PerfdError as error:
            return error_response(400, str(error))
        return json_response(self._with_stored(page, request, fleets))

    def _jobs(self, request: Request) -> Response:
        """A page of all partitions' jobs: their short rows say which, the holders know the entries."""
        if "job" in request.query:
            return self._merged("jobs", request)
        every = range(self._partitions)
        short = replace(request, path="/api/v1/fleet", query={})
        fleets, missing = _by_partition(self._all(short, every))
        try:
            wanted = jobs_page(fleets, request.query)
        except PerfdError as error:
            return error_response(_BAD_REQUEST, str(error))
        numbers = list(wanted.queries)
        asked = [replace(request, query=wanted.queries[number]) for number in numbers]
        pages, silent = _by_partition(
            list(zip(numbers, self._threads.map(self._or_none, numbers, asked), strict=True))
        )
        entries = {(n, entry["name"]): entry for n, page in pages.items() for entry in page["jobs"]}
        # If a job has moved since its row was read, its holder finds it by name.
        for number, name in [one for one in wanted.jobs if one[0] in pages and one not in entries]:
            by_name = {"job": name, "short": request.query.get("short", "")}
            answer = self._or_none(number, replace(request, query=by_name))
            for page in _documents([(number, answer)])[0]:
                entries |= {(number, entry["name"]): entry for entry in page["jobs"]}
        page = {
            "schema": api_schemas.JOBS,
            "jobs": [entries[one] for one in wanted.jobs if one in entries],
            "page": wanted.page,
            **without([*missing, *silent]),
        }
        return json_response(self._with_stored(page, request, fleets))

    def _with_stored(
        self, page: Document, request: Request, fleets: Mapping[int, Document]
    ) -> dict[str, Any]:
        """The page, continued with jobs that only the partitions' histories have."""
        lost: list[int] = []

        def stored(_: Sequence[str], *, offset: int, limit: int) -> tuple[list[Document], int]:
            queries = stored_queries(fleets, request.query, offset + limit)
            asked = [replace(request, query=query) for query in queries.values()]
            answers = list(zip(queries, self._threads.map(self._or_none, queries, asked), strict=True))
            pages, silent = _by_partition(answers)
            lost.extend(silent)
            known = {row["name"] for fleet in fleets.values() for row in fleet["jobs"]}
            jobs, count = merged_stored(pages, queries, known)
            return jobs[offset : offset + limit], count

        found = with_stored(page, request.query, stored)
        return found | without([*found.get("missing_partitions", ()), *lost])

    def _all(self, request: Request, partitions: Sequence[int]) -> list[tuple[int, Response | None]]:
        return list(
            zip(partitions, self._threads.map(lambda n: self._or_none(n, request), partitions), strict=True)
        )

    def _or_none(self, partition: int, request: Request) -> Response | None:
        try:
            return self.ask(partition, request)
        except PerfdError:
            return None

    def _problems(self) -> dict[str, str | None]:
        missing = missing_sentence([n for n in range(self._partitions) if n not in self._view().holders])
        request = Request(method="GET", path="/api/v1/status", rest="", query={})
        documents, _ = _documents(self._all(request, range(self._partitions)))

        def of_all(key: str, *own: str) -> str | None:
            return " ".join(dict.fromkeys([*own, *(one[key] for one in documents if one.get(key))])) or None

        return {
            "history_problem": of_all("history_problem", *([missing] if missing else [])),
            "jobs_problem": of_all("jobs_problem"),
            "stream_problem": of_all("stream_problem"),
        }

    def _group(self) -> dict[str, Any]:
        view = self._view()
        return {
            "connected": view.connected,
            "partitions": [
                {
                    "partition": number,
                    "member": holder.member if (holder := view.holders.get(number)) else None,
                    "address": holder.address if holder else None,
                    "epoch": holder.epoch if holder else None,
                }
                for number in range(self._partitions)
            ],
            "members": [
                {"member": name, "address": address} for name, address in sorted(view.members.items())
            ],
        }

    def _targets(self) -> list[dict[str, Any]]:
        """Scrape targets for Prometheus' http_sd: one per partition that has a holder."""
        return [
            {
                "targets": [url.netloc],
                "labels": {
                    "__scheme__": url.scheme,
                    "__metrics_path__": f"{url.path.rstrip('/')}/metrics",
                    "__param_partition": str(number),
                    LABEL: str(number),
                },
            }
            for number, holder in sorted(self._view().holders.items())
            if (url := urlsplit(holder.address))
        ]


def _documents(answers: Sequence[tuple[int, Response | None]]) -> tuple[list[Document], list[int]]:
    """The documents that partitions answered with, and the partitions that did not answer."""
    documents, missing = _by_partition(answers)
    return list(documents.values()), missing


def _by_partition(
    answers: Sequence[tuple[int, Response | None]],
) -> tuple[dict[int, Document], list[int]]:
    """The same, the documents by partition."""
    documents = {
        n: msgspec.json.decode(one.body) for n, one in answers if one is not None and one.status == 200
    }
    return documents, [number for number, _ in answers if number not in documents]

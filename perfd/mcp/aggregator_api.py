"""What tools ask of an aggregator, and the paths of its API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from perfd.errors import PerfdError
from perfd.mcp.quantities import NAME_CHARS, Json, plain


class AggregatorApi(Protocol):
    """An aggregator's HTTP API. Every method may be called from any thread and raises `PerfdError`."""

    def get(self, path: str) -> dict[str, Any]:
        """The document at a path."""

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request that changes something."""


def job_path(job: str, below: str = "", **query: object) -> str:
    """The path of a job's document."""
    return f"/api/v1/jobs/{quote(job, safe='')}{below}{_query(query)}"


def list_path(name: str, **query: object) -> str:
    """The path of a list; what is None is not in its query."""
    return f"/api/v1/{name}{_query(query)}"


def source_of(path: str, document: Json) -> dict[str, str]:
    """Where an answer is from: `{"request", "schema"}`."""
    return {"request": f"GET {path}", "schema": plain(document.get("schema"), NAME_CHARS)}


def summary_of(api: AggregatorApi, job: str) -> tuple[Json, dict[str, str]]:
    """A job's entry of perfd.summary/2, and where it is from."""
    path = job_path(job)
    document = api.get(path)
    jobs = document.get("jobs")
    if not (isinstance(jobs, list) and jobs and isinstance(jobs[0], dict)):
        raise PerfdError("The aggregator's summary of this job is of another version: it names no job.")
    return jobs[0], source_of(path, document)


def _query(query: Mapping[str, object]) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""

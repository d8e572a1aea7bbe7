"""Summaries and captures of all the group's jobs as comparisons read them: from whichever member has each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Never
from urllib.parse import quote

import msgspec

from perfd.aggregator.captures import DOCUMENT_NAME
from perfd.aggregator.web_api.capture_files import folders_of, url_of
from perfd.analysis.diagnosis import JobSummary
from perfd.errors import StorageError
from perfd.net import Handler, Request, Response


class GroupSummaries:
    """Summaries and captures of all the group's jobs, for comparisons."""

    def __init__(
        self,
        of_job: Callable[[str, Request], Response],
        merged: Callable[[str, Request], Response],
        first: Handler,
    ) -> None:
        """`of_job` asks the aggregator that has a job, `merged` and `first` ask all."""
        self._of_job = of_job
        self._merged = merged
        self._first = first

    def summary(self, job: str | None = None) -> list[JobSummary]:
        """Always empty: comparisons in a group use the JSON documents."""
        del job
        return []

    def stored_summary(self, job: str) -> Mapping[str, Any] | None:
        """A job's JSON document, None if unknown; raises `PerfdError` if its partition has no holder."""
        rest = quote(job, safe="")
        answer = self._of_job(job, _reading(f"/api/v1/jobs/{rest}", rest))
        if answer.status != 200:
            return None
        found: Mapping[str, Any] = msgspec.json.decode(answer.body)["jobs"][0]
        return found

    def captures(self) -> list[dict[str, Any]]:
        """Captures of all partitions, oldest first."""
        answer = self._merged("captures", _reading("/api/v1/captures"))
        found: list[dict[str, Any]] = msgspec.json.decode(answer.body)["captures"]
        return found

    def documents(self, capture: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The analyses of a capture, of which the aggregator that has it can read its files."""
        rest = quote(capture["id"], safe="")
        count = 1 if url_of(capture, DOCUMENT_NAME) else len(folders_of(capture))
        asked = [_reading(f"/api/v1/traces/{rest}", rest, folder=str(n + 1)) for n in range(count)]
        answers = [answer for one in asked if (answer := self._first(one)).status == 200]
        return [msgspec.json.decode(answer.body, type=dict[str, Any]) for answer in answers]

    def stored_file(self, url: str, max_bytes: int) -> Never:
        """Raises `StorageError`."""
        del max_bytes
        raise StorageError(f"{url} is read by the aggregator that has its capture.")


def _reading(path: str, rest: str = "", **query: str) -> Request:
    return Request(method="GET", path=path, rest=rest, query=query)

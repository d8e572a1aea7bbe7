"""Finds the jobs that only history has, page by page, the newest first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from perfd.aggregator.history.database import Query
from perfd.model import Event, EventKind

_MOST_LEFT_OUT = 30_000
"""SQLite takes 32,766 values in a query."""
_EVENTS = msgspec.json.Decoder(Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job with a stored summary, by the newest attempt that has one."""

    job: str
    attempt: int
    started_unix_s: float | None
    received_unix_s: float
    """When its last record was received."""
    summary: Any
    """A job of schema perfd.summary/2."""
    end: Event | None
    """The newest that says how the attempt ended; None if nothing did."""


class EndedJobs:
    """The jobs whose names contain all `words`, in any case, without those named in `known`."""

    def __init__(self, query: Query, words: Collection[str], known: Collection[str]) -> None:
        self._query = query
        left_out = sorted(known)[:_MOST_LEFT_OUT]
        conditions = ["summary IS NOT NULL", *["lower(job) LIKE ? ESCAPE '!'"] * len(words)]
        if left_out:
            conditions.append(f"job NOT IN ({_marks(left_out)})")
        self._values = [*map(_containing, words), *left_out]
        # The summaries, which may be megabytes, are read for the page only.
        self._attempts = (
            "SELECT job, max(attempt) AS attempt FROM jobs "  # noqa: S608  (constants)
            f"WHERE {' AND '.join(conditions)} GROUP BY job"
        )

    def count(self) -> int:
        """How many there are."""
        query = f"SELECT count(*) FROM ({self._attempts}) AS attempts"  # noqa: S608  (constants)
        ((count,),) = self._query(query, self._values)
        return msgspec.convert(count, int)

    def page(self, offset: int, limit: int) -> list[tuple[Any, ...]]:
        """Rows for `ended_job`, the newest first."""
        columns = "jobs.job, jobs.attempt, started_unix_s, received_unix_s"
        of_newest = "JOIN jobs ON jobs.job = {0}.job AND jobs.attempt = {0}.attempt"
        order = "ORDER BY jobs.received_unix_s DESC, jobs.job"
        query = (
            f"SELECT {columns}, summary FROM (SELECT jobs.job, jobs.attempt "  # noqa: S608  (constants)
            f"FROM ({self._attempts}) AS attempts {of_newest.format('attempts')} {order} LIMIT ? OFFSET ?"
            f") AS page {of_newest.format('page')} {order}"
        )
        found = list(self._query(query, [*self._values, limit, offset]))
        ends = self._ends([row[0] for row in found])
        return [(*row, ends.get((row[0], row[1]))) for row in found]

    def _ends(self, names: Sequence[str]) -> dict[tuple[str, int], str]:
        if not names:
            return {}
        query = (
            "SELECT job, attempt, body FROM events "  # noqa: S608  (constants)
            f"WHERE kind = ? AND job IN ({_marks(names)}) ORDER BY time_unix_s"
        )
        found = self._query(query, [EventKind.JOB_ENDED.value, *names])
        return {(job, attempt): body for job, attempt, body in found}


def ended_job(row: tuple[Any, ...]) -> EndedJob:
    """The job in a row; raises what msgspec does if the row is damaged."""
    job, attempt, started, received, summary, end = row
    return EndedJob(
        job=msgspec.convert(job, str),
        attempt=msgspec.convert(attempt, int),
        started_unix_s=msgspec.convert(started, float | None),
        received_unix_s=msgspec.convert(received, float),
        summary=msgspec.json.decode(summary),
        end=None if end is None else _EVENTS.decode(end),
    )


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _containing(word: str) -> str:
    for character in "!%_":
        word = word.replace(character, f"!{character}")
    return f"%{word.lower()}%"

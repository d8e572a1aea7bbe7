"""A page of the fleet's jobs: filtered, ordered and counted, so that a browser gets few of thousands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from perfd.aggregator.web_api.query_numbers import QueryError, whole_number
from perfd.analysis.findings import limits_job

_SILENT_AFTER_S = 30.0
"""An agent reports once a second: three lost batches and a reconnection take less."""
MOST_ROWS = 1000
"""Of a page of the table of all jobs. Chosen."""
_MOST_VALUES = 50
"""Of each filter, the most frequent ones."""
_STATES = ("running", "silent", "ended")
_DIGITS = re.compile(r"(\d+)")

Row = Mapping[str, Any]
_FILTERS: Mapping[str, Callable[[Row], Any]] = {
    "state": lambda row: row["state"],
    "cause": lambda row: row["bottleneck"]["name"],
    "framework": lambda row: row["framework"],
    "owner": lambda row: row.get("owner"),
    "cluster": lambda row: row.get("cluster"),
}
_ORDERS: Mapping[str, Callable[[Row], Any]] = {
    **_FILTERS,
    "name": lambda row: _natural(row["name"]),
    "gain": lambda row: row["bottleneck"].get("gain_ratio"),
    "wasted": lambda row: row.get("wasted_gpu_h"),
    **{
        name: itemgetter(key)
        for name, key in (
            ("step", "step"),
            ("step_time", "step_time_s"),
            ("tokens", "tokens_per_s"),
            ("mfu", "mfu_ratio"),
            ("communication", "communication_ratio"),
            ("alerts", "firing_alerts"),
        )
    },
}


def state_of(row: Row) -> str:
    """`running`, `silent` (its agents have not reported for 30 s) or `ended`."""
    if row["ended"]:
        return "ended"
    return "silent" if row["silent_s"] > _SILENT_AFTER_S else "running"


def fleet_page(fleet: Mapping[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    """The keys of schema perfd.fleet/2 for a request: its jobs, and how many there are in all.

    Raises `QueryError` with a sentence when the query is wrong.
    """
    every = [with_limits({**row, "state": state_of(row)}) for row in fleet["jobs"]]
    words = query.get("q", "").lower().split()
    wanted = {name: query[name] for name in _FILTERS if query.get(name)}
    found = [row for row in every if _matches(row, wanted, words)]
    ordered = _ordered(found, query.get("sort", ""), query.get("down") == "1")
    offset = whole_number(query, "offset") or 0
    limit = whole_number(query, "limit", least=1, most=MOST_ROWS)
    shown = ordered[offset:] if limit is None else ordered[offset : offset + limit]
    return {
        **fleet,
        "jobs": shown,
        "page": {"offset": offset, "limit": limit, "matched": len(found), "total": len(every)},
        "counts": {
            **{name: sum(row["state"] == name for row in every) for name in _STATES},
            "held_up": sum(row["state"] != "ended" and row["bottleneck"]["limits_job"] for row in every),
            "firing_alerts": sum(row["firing_alerts"] for row in every),
        },
        "filters": {name: _values(every, of) for name, of in _FILTERS.items()},
    }


def with_stored(
    page: Mapping[str, Any],
    query: Mapping[str, str],
    stored: Callable[..., tuple[Sequence[Mapping[str, Any]], int]],
) -> dict[str, Any]:
    """The page, continued with jobs that only history has where a query asks for all ended ones.

    `stored` takes words, `offset` and `limit`, and returns rows or entries and how many there are in all.
    """
    others = _FILTERS.keys() - {"state"}
    if query.get("state") != "ended" or any(query.get(name) for name in others):
        return dict(page)
    at = page["page"]
    found, count = stored(
        query.get("q", "").lower().split(),
        offset=max(0, at["offset"] - at["matched"]),
        limit=max(0, (at["limit"] or MOST_ROWS) - len(page["jobs"])),
    )
    both = {name: at[name] + count for name in ("matched", "total")}
    return {**page, "jobs": [*page["jobs"], *map(with_limits, found)], "page": {**at, **both}}


def with_limits(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job's entry; each finding has whether it limits the job by something other than its own work."""

    def marked(finding: Mapping[str, Any]) -> dict[str, Any]:
        return {**finding, "limits_job": limits_job(finding["kind"])}

    if "bottleneck" not in job:
        return dict(job)
    others = {"other_findings": list(map(marked, job["other_findings"]))} if "other_findings" in job else {}
    return {**job, "bottleneck": marked(job["bottleneck"]), **others}


def _matches(row: Row, wanted: Mapping[str, str], words: Sequence[str]) -> bool:
    if any(str(_FILTERS[name](row)) != value for name, value in wanted.items()):
        return False
    parts = (row["name"], row["framework"], row["state"], row.get("outcome"), row["bottleneck"]["name"])
    text = " ".join(str(part) for part in (*parts, row.get("owner"), row.get("cluster")) if part).lower()
    return all(word in text for word in words)


def _ordered(rows: Sequence[Row], sort: str, down: bool) -> list[Row]:
    """By a column, unknown values last in either direction; by default what runs and costs most is first."""
    usual = sorted(rows, key=_usual)
    if not sort:
        return usual
    if sort not in _ORDERS:
        raise QueryError(f"`sort` must be one of {', '.join(_ORDERS)}.")
    value = _ORDERS[sort]
    known = [row for row in usual if value(row) is not None]
    return sorted(known, key=value, reverse=down) + [row for row in usual if value(row) is None]


def _usual(row: Row) -> tuple[Any, ...]:
    gain = row["bottleneck"].get("gain_ratio") or 0.0
    return _STATES.index(row["state"]), not row["bottleneck"]["limits_job"], -gain, _natural(row["name"])


def _natural(name: str) -> list[tuple[int, int, str]]:
    """For order as people count: `job-9` before `job-10`."""
    parts = _DIGITS.split(name)
    return [(0, int(part[:18]), part) if part.isdecimal() else (1, 0, part.lower()) for part in parts if part]


def _values(rows: Sequence[Row], of: Callable[[Row], Any]) -> list[dict[str, Any]]:
    counts = Counter(str(value) for row in rows if (value := of(row)))
    return [{"value": value, "count": count} for value, count in counts.most_common(_MOST_VALUES)]

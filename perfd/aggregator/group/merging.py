"""Merges the answers of all partitions into one document: pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfd.aggregator.web_api import fleet_page
from perfd.aggregator.web_api.fleet_pages import MOST_ROWS
from perfd.model import JOB_LABELS, OWNER_LABELS, api_schemas

Document = Mapping[str, Any]
_KEYS = {"agents": "agent_id", "nodes": "node", "servers": "name"}
"""Keys that identify an entry. Several partitions list a node that runs jobs of each."""
_JOB_LABELS = frozenset({*JOB_LABELS, *OWNER_LABELS, "rank", "pod", "container", "shared_by"})
"""Labels that say whose a node's alert is, not what it is about."""
_ORDERS: Mapping[str, tuple[Callable[[Document], Any], bool]] = {
    "alerts": (lambda one: one.get("fired_at_unix_s") or 0.0, True),
    "captures": (lambda one: one.get("requested_unix_s") or 0.0, False),
}


def merged(name: str, documents: Sequence[Document], missing: Sequence[int]) -> dict[str, Any]:
    """The merged documents; `name` is the key of their lists, `missing` the partitions without an answer."""
    rows = [row for document in documents for row in document[name]]
    if key := _KEYS.get(name):
        # Keep the entry with the newest message, which is last.
        rows.sort(key=lambda row: row.get("silent_s") or 0.0, reverse=True)
        rows = list({row.get(key): row for row in rows}.values())
        rows.sort(key=lambda row: str(row.get("node") or row.get(key)))
    elif name in _ORDERS:
        rows = alerts_once(documents) if name == "alerts" else rows
        order, newest_first = _ORDERS[name]
        rows.sort(key=order, reverse=newest_first)
    repeated = sum(len(document[name]) for document in documents) - len(rows)
    counts = {"count": sum(one["count"] for one in documents) - repeated} if name == "alerts" else {}
    first = documents[0] if documents else {}
    return {**first, name: rows, **counts, **without(missing)}


def alerts_once(documents: Sequence[Document]) -> list[Document]:
    """The alerts of all partitions, oldest first, without those about a node that another one also found.

    Each partition with a job on a node reads all its GPUs. Only the partition of a GPU's job knows the job:
    its alert stays, otherwise the one that fired first.
    """
    found = [(number, alert) for number, one in enumerate(documents) for alert in one["alerts"]]
    found.sort(key=lambda one: (not one[1].get("job"), _began(one[1])))
    kept: list[Document] = []
    about: dict[frozenset[tuple[str, str]], list[tuple[int, Document]]] = {}
    for number, alert in found:
        labels = alert.get("labels", {})
        if "node" in labels:
            of_node = frozenset((key, text) for key, text in labels.items() if key not in _JOB_LABELS)
            others = about.setdefault(of_node, [])
            if not alert.get("job") and any(n != number and _overlap(alert, other) for n, other in others):
                continue
            others.append((number, alert))
        kept.append(alert)
    return sorted(kept, key=_began)


def _overlap(one: Document, other: Document) -> bool:
    return _began(one) <= _ended(other) and _began(other) <= _ended(one)


def _began(alert: Document) -> float:
    return alert.get("fired_at_unix_s") or alert.get("active_at_unix_s") or 0.0


def _ended(alert: Document) -> float:
    return alert.get("resolved_at_unix_s") or math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPage:
    """Which jobs of which partitions a page has."""

    jobs: Sequence[tuple[int, str]]
    """Partitions and names, in the page's order."""
    queries: Mapping[int, Mapping[str, str]]
    """What to ask each of their partitions for. Its jobs of the page follow each other in its own order."""
    page: Mapping[str, Any]


def jobs_page(fleets: Mapping[int, Document], query: Mapping[str, str]) -> JobsPage:
    """The page of all partitions' jobs that a query asks for; raises `PerfdError` if the query is wrong."""
    rows = [row | {"partition": number} for number, fleet in fleets.items() for row in fleet["jobs"]]
    page = fleet_page({"jobs": rows}, query)
    first = page["page"]["offset"]
    rest = {name: text for name, text in query.items() if name not in {"offset", "limit"}}
    before = Counter(row["partition"] for row in fleet_page({"jobs": rows}, rest)["jobs"][:first])
    here = Counter(row["partition"] for row in page["jobs"])
    return JobsPage(
        jobs=[(row["partition"], row["name"]) for row in page["jobs"]],
        queries={
            number: rest
            | {"offset": str(before[number])}
            | ({} if page["page"]["limit"] is None else {"limit": str(count)})
            for number, count in here.items()
        },
        page=page["page"],
    )


def merged_fleet(
    documents: Sequence[Document], query: Mapping[str, str], missing: Sequence[int]
) -> dict[str, Any]:
    """The page of all jobs that a query asks for; raises `PerfdError` if the query is wrong."""

    def sums(part: str, keys: Sequence[str]) -> dict[str, int]:
        return {key: sum(document[part][key] for document in documents) for key in keys}

    fleet = {
        "jobs": [row for document in documents for row in document["jobs"]],
        "alerts": alerts_once(documents),
        "agents": sums("agents", ("count", "connected")),
        "servers": sums("servers", ("count", "up")),
        "stored": any(document.get("stored") for document in documents),
    }
    return {"schema": api_schemas.FLEET, **fleet_page(fleet, query), **without(missing)}


def stored_queries(
    fleets: Mapping[int, Document], query: Mapping[str, str], count: int
) -> dict[int, dict[str, str]]:
    """What to ask each partition for: the newest `count` jobs that only its history has, at most 1,000."""
    kept = {name: text for name, text in query.items() if name in {"state", "q", "trend", "short"}}
    limit = str(max(1, min(count, MOST_ROWS)))
    return {
        number: kept | {"offset": str(fleet_page(fleet, kept)["page"]["matched"]), "limit": limit}
        for number, fleet in fleets.items()
    }


def merged_stored(
    pages: Mapping[int, Document], queries: Mapping[int, Mapping[str, str]], known: Collection[str]
) -> tuple[list[Document], int]:
    """The jobs of these pages that no partition has in memory, the newest first, and how many there are.

    One that moved to another partition is in the histories of both; the newest one stays.
    """
    every = [job for page in pages.values() for job in page["jobs"]]
    every.sort(key=lambda job: job["silent_s"], reverse=True)
    jobs = {job["name"]: job for job in every if job["name"] not in known}
    count = sum(page["page"]["matched"] - int(queries[number]["offset"]) for number, page in pages.items())
    return list(jobs.values())[::-1], count - (len(every) - len(jobs))


def without(missing: Sequence[int]) -> dict[str, Any]:
    """The `missing_partitions` of a list; empty if all partitions answered."""
    return {"missing_partitions": sorted(missing)} if missing else {}


def missing_sentence(missing: Sequence[int]) -> str | None:
    """The same as a sentence; None if all partitions answered."""
    if not missing:
        return None
    names = ", ".join(map(str, sorted(missing)))
    return f"No aggregator holds partitions {names} now: their jobs are missing from lists."
